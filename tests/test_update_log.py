"""Acceptance is one durable event: whatever a kill, a power cut or a full disk leaves, no update is lost or
doubled."""

import errno
import os

import pytest
import torch

from asyncmanifold.errors import RunError
from asyncmanifold.files import decode_tree, encode_tree, load_tree
from asyncmanifold.session import journal as journal_module
from asyncmanifold.session.update_log import UpdateLog
from grid import LocalGrid
from test_flower import Killed, assert_same_model, grid_of, replayed, start
from tiny import of_kind, trace_of


def killed_run(out, method="asyncbezier", pull=9):
    """A run whose process ends in the given pull; return its updates and its grid."""
    grid = grid_of()

    def kill(count):
        if count == pull:
            raise Killed

    grid.on_pull = kill
    with pytest.raises(Killed):
        start(grid, method, out=out)
    return of_kind(trace_of(out), "update")


def check_resumed(out, before, method="asyncbezier"):
    result = start(grid_of(), method, out=out, resume=True)
    updates = of_kind(trace_of(out), "update")
    assert [record["update"] for record in updates] == list(range(1, 21))
    assert updates[: len(before)] == before
    assert len({record["job"] for record in updates}) == 20
    evaluations = [record["update"] for record in of_kind(trace_of(out), "evaluation")]
    assert evaluations == [0, 5, 10, 15, 20]
    assert_same_model(result, replayed(out, method).model)


def test_a_tree_of_tensors_comes_back_from_its_bytes():
    shared = torch.arange(6.0).reshape(2, 3)
    tree = {"a": [shared, {"b": shared, 3: None}], "c": torch.zeros(0, dtype=torch.int64), "d": "x\n"}
    again = decode_tree(b"".join(encode_tree(tree)))
    assert again["a"][1]["b"] is again["a"][0]
    assert torch.equal(again["a"][0], shared)
    assert again["c"].dtype == torch.int64
    assert (again["a"][1][3], again["d"]) == (None, "x\n")


@pytest.mark.parametrize("lost", [0, 1, 7, 100_000])
def test_a_log_yields_complete_entries_only(tmp_path, lost):
    log = UpdateLog(tmp_path / "log")
    for number in range(3):
        log.append({"number": number, "tensor": torch.full((5,), float(number))})
    log.commit()
    log.close()
    kept = max(0, (tmp_path / "log").stat().st_size - lost)
    os.truncate(tmp_path / "log", kept)
    log = UpdateLog(tmp_path / "log")
    numbers = [entry["number"] for entry in log.entries()]
    assert numbers == {0: [0, 1, 2], 1: [0, 1], 7: [0, 1], 100_000: []}[lost]
    log.append({"number": 9})
    log.commit()
    assert [entry["number"] for entry in log.entries()] == [*numbers, 9]
    log.close()


def test_a_changed_byte_ends_the_log(tmp_path):
    log = UpdateLog(tmp_path / "log")
    for number in range(3):
        log.append({"number": number})
    log.commit()
    content = bytearray((tmp_path / "log").read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "log").write_bytes(content)
    assert [entry["number"] for entry in log.entries()] == [0]
    log.close()


@pytest.mark.parametrize(
    "method",
    ["asyncbezier", "fedbuff", "fedavg", "asyncfeded", "rescaled", "fedcompass", "ca2fl", "aced", "fadas"],
)
def test_the_log_gives_the_state_again_bit_for_bit(method, tmp_path):
    """The next checkpoint after a kill equals the one that an unbroken run writes at that update."""
    before = killed_run(tmp_path / "run", method)
    assert len(before) > 3
    assert load_tree(tmp_path / "run" / "checkpoint.safetensors")["state"]["updates"] == 0
    grid = grid_of()
    grid.on_pull = lambda pull: (_ for _ in ()).throw(Killed)
    with pytest.raises(Killed):
        start(grid, method, out=tmp_path / "run", resume=True)
    found = load_tree(tmp_path / "run" / "checkpoint.safetensors")["state"]
    assert found["updates"] == len(before)
    assert found["version"] == before[-1]["version"]
    check_resumed(tmp_path / "run", before, method)


def test_checkpoints_in_between_change_nothing(tmp_path, monkeypatch):
    """A short log is cut often, and jobs from before a checkpoint bring their base models into the next
    log."""
    monkeypatch.setattr(journal_module, "SHORT_LOG", 9000)
    monkeypatch.setattr(journal_module, "LOG_FACTOR", 0)
    before = killed_run(tmp_path / "run", pull=11)
    assert 0 < load_tree(tmp_path / "run" / "checkpoint.safetensors")["state"]["updates"] < len(before)
    check_resumed(tmp_path / "run", before)


@pytest.mark.parametrize("left", [0.0, 0.4, 0.9])
def test_a_trace_that_lost_its_end_is_completed_from_the_log(tmp_path, left):
    before = killed_run(tmp_path / "run")
    trace = tmp_path / "run" / "trace.jsonl"
    start_of_log = load_tree(tmp_path / "run" / "checkpoint.safetensors")["trace_position"]
    length = trace.stat().st_size
    os.truncate(trace, start_of_log + int((length - start_of_log) * left))
    check_resumed(tmp_path / "run", before)


def test_an_update_whose_entry_is_torn_was_never_accepted(tmp_path):
    """Its number is given away again only because nobody has seen it: neither trace nor nodes."""
    before = killed_run(tmp_path / "run")
    log, trace = tmp_path / "run" / "accepted.log", tmp_path / "run" / "trace.jsonl"
    os.truncate(log, log.stat().st_size - 3)
    lines = trace.read_text().splitlines(keepends=True)
    last = max(place for place, line in enumerate(lines) if '"kind": "update"' in line)
    trace.write_text("".join(lines[:last]))
    check_resumed(tmp_path / "run", before[:-1])


def test_a_full_disk_refuses_the_update_and_the_run_can_be_resumed(tmp_path, monkeypatch, caplog):
    out, write = tmp_path / "run", os.pwrite
    written = 0

    def full(file, content, place):
        nonlocal written
        written += 1
        if written > 40:
            write(file, bytes(content)[: len(content) // 2], place)  # as much as there is room for
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, content, place)

    monkeypatch.setattr(os, "pwrite", full)
    refused = r"accepted\.log: No space left on device; the update is not accepted"
    with caplog.at_level("INFO", logger="flwr"), pytest.raises(RunError, match=refused):
        start(grid_of(), out=out)
    monkeypatch.setattr(os, "pwrite", write)
    before = of_kind(trace_of(out), "update")
    assert before
    said = [line.getMessage().split("/")[0] for line in caplog.records if "staleness" in line.getMessage()]
    assert said == [f"update {record['update']}" for record in before]  # none that was not accepted
    check_resumed(out, before)


def test_a_resume_on_a_full_disk_is_refused_before_any_job(tmp_path, monkeypatch):
    before = killed_run(tmp_path / "run")
    sync = os.fsync

    def full(file):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    grid = LocalGrid(grid_of().nodes)
    with pytest.raises(RunError, match="No space left on device"):
        start(grid, out=tmp_path / "run", resume=True)
    assert grid.sent == []
    monkeypatch.setattr(os, "fsync", sync)
    check_resumed(tmp_path / "run", before)


def test_nothing_leaves_the_server_before_it_is_on_disk(tmp_path, monkeypatch):
    """At every push, the log holds all updates that the pushed jobs know of."""
    grid, seen = grid_of(), []
    push, sync, synced = grid.push_messages, os.fdatasync, [0]

    def count(file):
        sync(file)
        log = UpdateLog(tmp_path / "run" / "accepted.log")
        synced[0] = max([0, *(entry["record"]["version"] for entry in log.entries())])
        log.close()

    def check(messages):
        seen.extend((int(m.metadata.group_id), synced[0]) for m in messages if m.metadata.group_id)
        return push(messages)

    monkeypatch.setattr(os, "fdatasync", count)
    grid.push_messages = check
    start(grid, out=tmp_path / "run")
    assert max(version for version, _ in seen) > 10
    assert all(version <= durable for version, durable in seen)
