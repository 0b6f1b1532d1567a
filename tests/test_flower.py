"""The server on a grid in this process: parity with the simulator, failures, resuming."""

import json
from dataclasses import replace

import pytest
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict

from asyncmanifold import METHODS, Method
from asyncmanifold.errors import RunError
from asyncmanifold.flower import AsyncServer, Policy
from asyncmanifold.flower.codec import ARRAYS, METRICS, array_record
from asyncmanifold.flower.nodes import Nodes
from asyncmanifold.report import write_report
from asyncmanifold.session.trace import read_trace
from asyncmanifold.simulation.replay import NEEDED
from asyncmanifold.vectors import FlatModel
from grid import LocalGrid, honest
from tiny import TRAINING, make_task, of_kind, simulated, trace_of

QUICK = Policy(poll_seconds=1e-4, meet_seconds=1e-4, wait_seconds=0.05, rest_seconds=0.01)
TASK = make_task()


def evaluate(update, arrays):
    model = FlatModel(TASK.build_model(0))
    model.module.load_state_dict(arrays.to_torch_state_dict())
    return MetricRecord(TASK.evaluate(model, TASK.test))


def start(grid, method="asyncbezier", updates=20, policy=QUICK, **more):
    model = TASK.build_model(0)
    server = AsyncServer(model, method, training=TRAINING, policy=policy)
    options = {"evaluate_fn": evaluate, "evaluate_every": 5} | more
    return server.start(grid, array_record(model.state_dict()), updates, **options)


def grid_of(parts=(0, 1, 2), pulls=(1, 3, 5), **others):
    nodes = {100 + part: honest(TASK, part) for part in parts}
    return LocalGrid(nodes | others.get("nodes", {}), dict(zip(nodes, pulls, strict=False)))


def replayed(directory, method, workers=1):
    updates = list(read_trace(directory / "trace.jsonl"))
    return simulated(TASK, method, training=TRAINING, replay=updates, workers=workers)


def assert_same_model(result, model):
    for name, tensor in result.arrays.to_torch_state_dict().items():
        torch.testing.assert_close(tensor, model.state_dict()[name], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("method", METHODS)
def test_a_replay_of_the_arrivals_gives_the_same_model(method, depth, tmp_path):
    result = start(grid_of(), method, out=tmp_path / "run", policy=replace(QUICK, queue_depth=depth))
    again = replayed(tmp_path / "run", method)
    assert_same_model(result, again.model)
    for one, other in zip(
        of_kind(trace_of(tmp_path / "run"), "update"), of_kind(again.trace, "update"), strict=True
    ):
        assert one["step_norm"] == pytest.approx(other["step_norm"], rel=1e-6)


def test_a_replay_is_the_same_with_several_workers(tmp_path):
    result = start(grid_of(), out=tmp_path / "run")
    assert_same_model(result, replayed(tmp_path / "run", "asyncbezier", workers=2).model)


def test_a_simulators_own_trace_can_be_replayed():
    first = simulated(TASK, "fedbuff", training=TRAINING)
    again = simulated(TASK, "fedbuff", training=TRAINING, replay=first.trace)
    for name, tensor in first.model.state_dict().items():
        assert torch.equal(tensor, again.model.state_dict()[name])


def test_the_result_looks_like_that_of_flowers_strategies(tmp_path):
    result = start(grid_of(), updates=10, out=tmp_path / "run")
    assert list(result.train_metrics_clientapp) == list(range(1, 11))
    assert set(result.train_metrics_clientapp[3]) == {"loss", "train-seconds", "staleness", "client"}
    assert list(result.evaluate_metrics_serverapp) == [0, 5, 10]
    assert "accuracy" in result.evaluate_metrics_serverapp[10]
    assert list(result.evaluate_metrics_clientapp) == [10]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["updates"] == 10
    assert len(summary["per_client"]) == 3
    assert summary["gini"] is not None
    assert write_report(tmp_path / "run").exists()
    again = start(grid_of(), updates=10, out=tmp_path / "run", resume=True)
    assert again.train_metrics_clientapp == result.train_metrics_clientapp
    assert again.arrays.to_torch_state_dict().keys() == result.arrays.to_torch_state_dict().keys()


def test_fast_nodes_contribute_more_and_nobody_waits(tmp_path):
    start(grid_of(pulls=(1, 4, 8)), "fedasync", updates=40, out=tmp_path / "run")
    clients = [record["client"] for record in of_kind(trace_of(tmp_path / "run"), "update")]
    counts = [clients.count(client) for client in range(3)]
    assert counts[0] > 2 * counts[1] > 2 * counts[2] > 0


def test_replies_of_one_pull_are_absorbed_in_the_order_of_their_jobs(tmp_path):
    start(grid_of(pulls=(2, 2, 2)), "fedasync", updates=12, out=tmp_path / "run")
    jobs = [record["job"] for record in of_kind(trace_of(tmp_path / "run"), "update")]
    assert jobs == sorted(jobs)


def test_a_model_is_encoded_once_for_all_jobs_that_start_from_it():
    grid = grid_of()
    start(grid, "fedasync", updates=3)
    first = [message.content.array_records[ARRAYS] for message in grid.sent[:3]]
    assert first[0] is first[1] is first[2]


def test_no_more_nodes_than_allowed_have_jobs():
    grid = grid_of(pulls=(3, 3, 3))
    busiest = 0

    def watch(pull):
        nonlocal busiest
        busiest = max(busiest, len({m.metadata.dst_node_id for m, _ in grid.waiting.values()}))

    grid.on_pull = watch
    start(grid, "fedasync", updates=9, policy=replace(QUICK, concurrency=2))
    assert busiest == 2


def answering(content):
    return lambda message: Message(content(message), reply_to=message)


def tampered(change):
    """Return a node that trains and then changes its reply."""

    def handle(message):
        reply = honest(TASK, 3)(message)
        if message.metadata.message_type == "train":
            change(reply.content)
        return reply

    return handle


def with_offsets(make):
    def change(content):
        record = content.array_records[ARRAYS]
        record["offsets"] = Array(make(record["offsets"].numpy()))

    return tampered(change)


def with_metric(name, value):
    def change(content):
        content.metric_records[METRICS][name] = value

    return tampered(change)


def cut_off(content):
    content.array_records[ARRAYS]["offsets"] = Array("float32", (2, 9), "numpy.ndarray", b"\x93NUM")


def raising(message):
    raise RuntimeError("out of memory")


BAD_NODES = {
    "raises": (raising, "failed", "the client app raised an exception: RuntimeError: out of memory"),
    "not a number": (with_offsets(lambda o: o * float("nan")), "rejected", "non-finite"),
    "wrong shape": (with_offsets(lambda o: o[:, :-1].copy()), "rejected", "offsets have shape"),
    "wrong type": (with_offsets(lambda o: o.astype("float64")), "rejected", "float64"),
    "no numbers": (with_offsets(lambda o: o.astype("U4")), "rejected", "malformed reply"),
    "no arrays": (answering(lambda m: RecordDict()), "rejected", "malformed reply"),
    "cut off": (
        tampered(
            lambda c: c.array_records[ARRAYS].__setitem__(
                "offsets", Array("float32", (2, 9), "numpy.ndarray", b"\x93NUM")
            )
        ),
        "rejected",
        "malformed reply",
    ),
    "examples below 1": (with_metric("num-examples", 0), "rejected", "num-examples is 0"),
    "examples infinite": (with_metric("num-examples", float("inf")), "rejected", "num-examples is inf"),
    "no loss": (tampered(lambda c: c.metric_records[METRICS].pop("loss")), "rejected", "loss is None"),
}


@pytest.mark.parametrize("name", BAD_NODES)
def test_bad_nodes_never_touch_the_model(name, tmp_path):
    handler, kind, reason = BAD_NODES[name]
    grid = grid_of(nodes={200: handler})
    result = start(grid, out=tmp_path / "run")
    refused = of_kind(trace_of(tmp_path / "run"), kind)
    assert refused
    assert all(reason in record["reason"] and "\n" not in record["reason"] for record in refused)
    assert {record["node"] for record in refused} == {200}
    assert len(of_kind(trace_of(tmp_path / "run"), "update")) == 20
    assert_same_model(result, replayed(tmp_path / "run", "asyncbezier").model)


def test_a_node_that_fails_repeatedly_rests_and_is_tried_again(tmp_path):
    calls = 0

    def recovering(message):
        nonlocal calls
        calls += 1
        return raising(message) if calls <= 5 else honest(TASK, 3)(message)

    start(grid_of(nodes={200: recovering}), "fedasync", updates=150, out=tmp_path / "run")
    records = [record for record in trace_of(tmp_path / "run") if record.get("client") == 3]
    kinds = [record["kind"] for record in records if record["kind"] in ("failed", "resting", "update")]
    assert kinds[:8] == [*["failed"] * 3, "resting", "failed", "resting", "failed", "resting"]
    assert kinds[8] == "update"
    assert [record["seconds"] for record in records if record["kind"] == "resting"] == [0.01, 0.02, 0.04]


def test_nodes_come_and_go(tmp_path):
    grid = grid_of(parts=(0, 1))

    def change(pull):
        if pull == 10:
            grid.nodes[300] = honest(TASK, 2)
        if pull == 20:
            del grid.nodes[100]
        if pull == 30:
            grid.nodes[400] = honest(TASK, 0)

    grid.on_pull = change
    result = start(grid, "fedasync", updates=60, out=tmp_path / "run")
    records = trace_of(tmp_path / "run")
    assert [(r["kind"], r["node"]) for r in records if r["kind"] in ("joined", "left")] == [
        *(("joined", 100), ("joined", 101), ("joined", 300), ("left", 100), ("joined", 400)),
    ]
    gone = of_kind(records, "failed")
    assert [record["reason"] for record in gone] == ["the node is gone: Node unavailable"] * len(gone)
    partitions = {record["client"]: record["partition"] for record in of_kind(records, "update")}
    assert partitions == {0: 0, 1: 1, 2: 2, 3: 0}
    assert_same_model(result, replayed(tmp_path / "run", "fedasync").model)


def test_a_node_that_returns_starts_with_a_clean_slate():
    nodes = Nodes(patience=1, rest_seconds=60.0)
    (node,), _ = nodes.update_present([7])
    assert nodes.record_failure(node, now=0.0) == 60.0
    assert nodes.free(now=1.0, depth=1) == []
    assert nodes.update_present([]) == ([], [node])
    assert nodes.update_present([7]) == ([node], [])
    assert nodes.free(now=1.0, depth=1) == [node]


def test_a_node_without_a_partition_cannot_be_replayed():
    with pytest.raises(ValueError, match="client 0 was started without partition-id"):
        simulated(TASK, "fedgs", replay=[dict.fromkeys(NEEDED, 0) | {"kind": "update", "partition": None}])


def test_weights_are_shares_of_those_present(tmp_path):
    """Sizes are 12, 20 and 28: until a node has told its own, it is taken for average."""
    start(grid_of(pulls=(1, 2, 4)), "fedasync", updates=12, out=tmp_path / "run")
    updates = of_kind(trace_of(tmp_path / "run"), "update")
    assert updates[0]["weight"] == pytest.approx(12 / 36)
    last = {record["client"]: record["weight"] for record in updates}
    assert last == pytest.approx({0: 12 / 60, 1: 20 / 60, 2: 28 / 60})


def test_a_run_waits_for_nodes_and_then_says_so(tmp_path):
    grid = LocalGrid({})
    with pytest.raises(RunError, match=r"no node for 0.05 s"):
        start(grid, out=tmp_path / "run")
    grid = LocalGrid({100: honest(TASK, 0)})
    start(grid, updates=3, out=tmp_path / "other")


def test_a_run_of_failures_alone_stops(tmp_path):
    policy = replace(QUICK, patience=1000)
    with pytest.raises(RunError, match="no update was accepted in 100 arrivals"):
        start(LocalGrid({1: raising}), policy=policy, out=tmp_path / "run")


def test_a_job_past_its_deadline_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr("asyncmanifold.flower.deployment.GRACE_SECONDS", 0.1)
    grid = grid_of(pulls=(1, 1, 10**9))
    start(grid, "fedasync", updates=150, policy=replace(QUICK, deadline=0.3), out=tmp_path / "run")
    failed = of_kind(trace_of(tmp_path / "run"), "failed")
    assert failed
    assert {record["reason"] for record in failed} == {"no reply within the deadline"}
    assert {record["client"] for record in failed} == {2}


class Killed(BaseException):
    """What ends a process, as far as a test can tell."""


@pytest.mark.parametrize("method", ["fedasync", "fedbuff", "asyncbezier", "dcasgd", "asyncfeded"])
@pytest.mark.parametrize("pull", [1, 6, 12])
def test_a_killed_server_continues_after_the_last_accepted_update(method, pull, tmp_path):
    grid = grid_of()

    def kill(count):
        if count == pull:
            raise Killed

    grid.on_pull = kill
    with pytest.raises(Killed):
        start(grid, method, out=tmp_path / "run")
    before = of_kind(trace_of(tmp_path / "run"), "update")
    result = start(grid_of(), method, out=tmp_path / "run", resume=True)
    updates = of_kind(trace_of(tmp_path / "run"), "update")
    assert [record["update"] for record in updates] == list(range(1, 21))
    assert updates[: len(before)] == before
    assert len({record["job"] for record in updates}) == 20
    assert_same_model(result, replayed(tmp_path / "run", method).model)


def test_what_was_written_after_the_last_checkpoint_is_not_counted(tmp_path):
    """Killed between the line of an update and its checkpoint: it was not accepted, and comes again."""
    grid = grid_of()
    grid.on_pull = lambda pull: (_ for _ in ()).throw(Killed) if pull == 8 else None
    with pytest.raises(Killed):
        start(grid, out=tmp_path / "run")
    done = len(of_kind(trace_of(tmp_path / "run"), "update"))
    with (tmp_path / "run" / "trace.jsonl").open("a") as trace:
        trace.write(json.dumps({"kind": "update", "update": done + 1}) + "\n")
    start(grid_of(), out=tmp_path / "run", resume=True)
    updates = of_kind(trace_of(tmp_path / "run"), "update")
    assert [record["update"] for record in updates] == list(range(1, 21))


def test_wrong_settings_are_one_line():
    model = TASK.build_model(0)
    with pytest.raises(ValueError, match="unknown method 'fedmagic'"):
        AsyncServer(model, "fedmagic")
    with pytest.raises(ValueError, match=r"Run\(updates=0\) must be at least 1"):
        AsyncServer(model).start(LocalGrid({}), array_record(model.state_dict()), 0)
    for settings, problem in (
        ({"queue_depth": 3}, r"Policy\(queue_depth=3\) must be between 1 and 2"),
        ({"concurrency": 0}, r"Policy\(concurrency=0\) must be at least 1"),
        ({"deadline": -1.0}, r"Policy\(deadline=-1.0\) must be above 0 and finite"),
    ):
        with pytest.raises(ValueError, match=problem):
            Policy(**settings)


def test_a_message_of_somebody_else_is_refused():
    LocalGrid({})
    message = Message(RecordDict({"arrays": ArrayRecord()}), dst_node_id=1, message_type="train")
    with pytest.raises(ValueError, match="not sent by an asyncmanifold server"):
        honest(TASK, 0)(message)


def test_any_composition_runs():
    method = Method(embedding=METHODS["asyncbezier"].embedding, max_staleness=3)
    assert len(start(grid_of(), method, updates=8).train_metrics_clientapp) == 8
