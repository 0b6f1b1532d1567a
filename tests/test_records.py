"""Run directories: what is in them, and that no two runs mix."""

import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from asyncmanifold.errors import InputError, RunError
from asyncmanifold.files import load_tensors, save_tensors, write_atomically, write_json
from asyncmanifold.report.comparison import tabulate, write_table
from asyncmanifold.session.directory import RunDirectory
from asyncmanifold.session.trace import FileTrace, read_trace
from tiny import TRAINING, make_model, make_run, make_task, simulated

SUMMARY_KEYS = {
    *("scenario", "method", "seed", "updates", "metric", "final", "best", "rounds_to_target", "target"),
    *("gini", "theil", "per_client", "staleness_mean", "wall_seconds", "train_seconds"),
}
UPDATE_KEYS = {
    *("kind", "version", "time", "client", "base_version", "staleness", "weight", "drift_norm"),
    *("update_norm", "end_norm", "cosines", "projected", "penalty", "fraction", "t", "step_norm"),
}


@pytest.fixture
def finished(tmp_path):
    out = tmp_path / "run"
    return out, simulated(make_task(), training=TRAINING, run=make_run(12, target=0.1), out=out)


def test_a_run_leaves_its_files(finished):
    out, result = finished
    names = {file.name for file in out.iterdir()}
    assert names == {
        "config.toml",
        "trace.jsonl",
        "best.safetensors",
        "checkpoint.safetensors",
        "model.safetensors",
        "summary.json",
    }
    summary = json.loads((out / "summary.json").read_text())
    assert summary.keys() >= SUMMARY_KEYS
    assert summary == result.summary
    records = list(read_trace(out / "trace.jsonl"))
    assert records == result.trace
    assert all(record.keys() >= UPDATE_KEYS for record in records if record["kind"] == "update")


def test_the_model_file_loads_into_a_plain_module(finished):
    out, result = finished
    module = make_model()
    module.load_state_dict(load_file(out / "model.safetensors"))
    inputs = torch.ones(2, 6)
    assert torch.equal(module.eval()(inputs), result.model(inputs))


def test_a_finished_run_is_not_run_again(finished):
    out, result = finished
    before = {file: file.read_bytes() for file in out.iterdir()}
    again = simulated(make_task(), training=TRAINING, run=make_run(12, target=0.1), out=out, resume=True)
    assert again.summary == result.summary
    assert again.trace == result.trace
    assert torch.equal(again.model(torch.ones(2, 6)), result.model(torch.ones(2, 6)))
    assert before == {file: file.read_bytes() for file in out.iterdir()}


def test_a_directory_with_a_run_is_refused(finished):
    out, _ = finished
    with pytest.raises(InputError, match="holds a run already"):
        simulated(make_task(), training=TRAINING, run=make_run(12), out=out)


def test_a_resume_with_another_configuration_is_refused(finished):
    out, _ = finished
    with pytest.raises(InputError, match=r"run.updates is 12 there, 13 here"):
        simulated(make_task(), training=TRAINING, run=make_run(13, target=0.1), out=out, resume=True)


def test_a_damaged_checkpoint_is_said(finished):
    out, _ = finished
    (out / "summary.json").unlink()  # as if it had been interrupted
    (out / "checkpoint.safetensors").write_bytes(b"not a checkpoint at all")
    with pytest.raises(InputError, match="damaged, remove it to start over"):
        simulated(make_task(), training=TRAINING, run=make_run(12, target=0.1), out=out, resume=True)


def test_a_directory_with_other_files_is_refused(tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(InputError, match="not empty and not a run"):
        RunDirectory(tmp_path, {}, resume=True)


def test_a_path_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="File exists"):
        RunDirectory(tmp_path / "file", {}, resume=False)


def test_two_processes_cannot_write_to_one_run(tmp_path):
    held = RunDirectory(tmp_path, {}, resume=False)
    program = (
        "import sys; from pathlib import Path\n"
        "from asyncmanifold.session.directory import RunDirectory\n"
        "RunDirectory(Path(sys.argv[1]), {}, resume=True)"
    )
    other = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True)
    held.close()
    assert "in use by another process" in other.stderr
    RunDirectory(tmp_path, {}, resume=True).close()


def test_a_trace_continues_behind_what_is_kept(tmp_path):
    path = tmp_path / "trace.jsonl"
    trace = FileTrace(path)
    trace.write({"kind": "update", "update": 1})
    kept = trace.position()
    trace.write({"kind": "update", "update": 2})
    trace.close()
    trace = FileTrace(path, kept)
    trace.write({"kind": "update", "update": 3})
    trace.close()
    assert [record["update"] for record in read_trace(path)] == [1, 3]


def test_a_line_cut_off_by_a_kill_is_left_out(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text('{"update": 1}\n{"upda')
    assert list(read_trace(path)) == [{"update": 1}]


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(RunError, match="file: No space left"):
        write_atomically(path, b"new")
    with pytest.raises(RunError, match="file: No space left"):
        save_tensors(path, {"x": torch.zeros(3)}, {})
    assert path.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_equal_tensors_give_equal_bytes_even_when_they_share_memory(tmp_path):
    vector = torch.arange(4.0)
    metadata = {"b": 1, "a": [2.5, None]}
    save_tensors(tmp_path / "one", {"x": vector, "y": vector, "none": torch.zeros(0)}, metadata)
    save_tensors(tmp_path / "two", {"x": vector.clone(), "y": vector, "none": torch.zeros(0)}, metadata)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    tensors, read = load_tensors(tmp_path / "one")
    assert read == metadata
    assert torch.equal(tensors["y"], vector)


def test_json_never_holds_what_is_not_json(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "file", {"score": float("nan")})


def test_a_bar_in_a_methods_name_does_not_split_its_cell(finished, tmp_path):
    _, result = finished
    write_table(tmp_path, "tiny", "accuracy", tabulate([{**result.summary, "method": "a|b"}]))
    head, _, row = (tmp_path / "table.md").read_text().splitlines()
    assert row.startswith("| a\\|b | ")
    assert row.replace("\\|", "").count("|") == head.count("|")
