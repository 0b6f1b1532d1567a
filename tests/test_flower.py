"""The server on a grid in this process: parity with the simulator, failures, resuming."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from google.protobuf.message import DecodeError

from asyncmanifold import METHODS, Method, __version__
from asyncmanifold.errors import RunError
from asyncmanifold.flower import AsyncServer, Policy
from asyncmanifold.flower.arrays import array_record
from asyncmanifold.flower.codec import ARRAYS, METRICS, SENDER
from asyncmanifold.flower.loss_watch import LossWatch
from asyncmanifold.flower.nodes import Nodes
from asyncmanifold.report import write_report
from asyncmanifold.server.peers import PEER_GATES
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


def start(grid, method="asyncbezier", updates=20, policy=QUICK, bounds=PEER_GATES, **more):
    model = TASK.build_model(0)
    server = AsyncServer(model, method, training=TRAINING, policy=policy, bounds=bounds)
    options = {"evaluate_fn": evaluate, "evaluate_every": 5} | more
    return server.start(grid, array_record(model.state_dict()), updates, **options)


def grid_of(parts=(0, 1, 2), pulls=(1, 3, 5), **others):
    nodes = {100 + part: honest(TASK, part) for part in parts}
    return LocalGrid(nodes | others.get("nodes", {}), dict(zip(nodes, pulls, strict=False)))


def replayed(directory, method, workers=1, bounds=PEER_GATES):
    updates = list(read_trace(directory / "trace.jsonl"))
    method = AsyncServer(TASK.build_model(0), method, bounds=bounds).method
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
        training = [m.metadata for m, _ in grid.waiting.values() if m.metadata.message_type == "train"]
        busiest = max(busiest, len({metadata.dst_node_id for metadata in training}))

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


def changing(change):
    """Return a node that trains and then says something else about its reply."""

    def handle(message):
        reply = honest(TASK, 3)(message)
        reply.metadata.__dict__.update(change(reply.metadata))
        return reply

    return handle


def raising(message):
    raise RuntimeError("out of memory")


BAD_NODES = {
    "raises": (raising, "failed", "the client app raised an exception: RuntimeError: out of memory"),
    "not a number": (with_offsets(lambda o: o * float("nan")), "rejected", "non-finite"),
    "wrong shape": (with_offsets(lambda o: o[:, :-1].copy()), "rejected", "offsets have shape"),
    "wrong type": (with_offsets(lambda o: o.astype("float64")), "rejected", "float64"),
    "no numbers": (with_offsets(lambda o: o.astype("U4")), "rejected", "malformed reply"),
    "no arrays": (
        answering(lambda m: RecordDict()),
        "rejected",
        "the node does not say its version, the server",
    ),
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
    "examples beyond counting": (with_metric("num-examples", 1e50), "rejected", "num-examples is 10000"),
    "half an example": (with_metric("num-examples", 2.5), "rejected", "num-examples is 2.5"),
    "loss infinite": (with_metric("loss", float("inf")), "rejected", "loss is inf"),
    "loss beyond belief": (with_metric("loss", 1e300), "rejected", "loss is 1e+300, must be a number below"),
    "seconds below 0": (with_metric("train-seconds", -1.0), "rejected", "seconds are -1.0"),
    "partition below 0": (with_metric("partition-id", -1), "rejected", "partition-id is -1"),
    "partition no number": (with_metric("partition-id", [3, 4]), "rejected", "partition-id is [3, 4]"),
    "another message": (
        changing(lambda metadata: {"_reply_to_message_id": "m0"}),
        "rejected",
        "answers another message",
    ),
    "an unknown message": (
        changing(lambda metadata: {"_reply_to_message_id": "nobody's"}),
        "rejected",
        "answers another message",
    ),
    "a further record": (
        tampered(lambda c: c.__setitem__("mine", MetricRecord({"one": 1}))),
        "rejected",
        "further records: mine",
    ),
    "a further array": (
        tampered(lambda c: c.array_records[ARRAYS].__setitem__("mine", Array(np.zeros(3)))),
        "rejected",
        "further arrays: mine",
    ),
    "far too large": (
        tampered(lambda c: c.array_records[ARRAYS].__setitem__("mine", Array(np.zeros(100_000)))),
        "rejected",
        "bytes or more, the most for this model is",
    ),
    "another version": (
        tampered(lambda c: c.config_records[SENDER].__setitem__("version", "0.1.0")),
        "rejected",
        f"the node has asyncmanifold 0.1.0, the server has asyncmanifold {__version__}",
    ),
    "another task": (
        tampered(lambda c: c.config_records[SENDER].__setitem__("task", "abc")),
        "rejected",
        "the node has a model and task with fingerprint abc, the server has",
    ),
    "another embedding": (
        tampered(lambda c: c.config_records[SENDER].__setitem__("embedding", "a circle")),
        "rejected",
        "the node has embedding a circle, the server has embedding",
    ),
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


class FragileGrid(LocalGrid):
    """Like Flower's: one reply that cannot be decoded spoils the pull of all that are asked for with it."""

    def pull_messages(self, message_ids):
        for message_id in message_ids:
            if self.waiting[message_id][0].metadata.dst_node_id == 200:
                if len(message_ids) == 1:
                    del self.waiting[message_id]
                raise DecodeError("Error parsing message")
        return super().pull_messages(message_ids)


def test_a_pull_that_raises_refuses_only_what_it_was_about(tmp_path):
    nodes = {100 + part: honest(TASK, part) for part in range(3)}
    start(FragileGrid(nodes | {200: raising}), "fedasync", out=tmp_path / "run")
    refused = of_kind(trace_of(tmp_path / "run"), "rejected")
    assert {record["node"] for record in refused} == {200}
    assert {record["reason"] for record in refused} == {"malformed reply: Error parsing message"}


def test_a_node_with_one_example_and_batch_normalisation_fails_alone(tmp_path):
    task = make_task((1, 20, 28))
    grid = LocalGrid({100 + part: honest(task, part) for part in range(3)})
    start(grid, "fedasync", out=tmp_path / "run")
    failed = of_kind(trace_of(tmp_path / "run"), "failed")
    assert {record["node"] for record in failed} == {100}
    assert "a batch of one example, which BatchNorm cannot be trained on" in failed[0]["reason"]
    assert {record["node"] for record in of_kind(trace_of(tmp_path / "run"), "update")} == {101, 102}


def test_names_stand_beside_ids(tmp_path, caplog):
    grid = LocalGrid({100: honest(TASK, 0, name="its own"), 101: honest(TASK, 1, name="says\nthis")})
    grid.names = {101: "as registered"}
    with caplog.at_level("INFO", logger="flwr"):
        start(grid, "fedasync", updates=6, out=tmp_path / "run")
    records = trace_of(tmp_path / "run")
    assert {(r["node"], r["name"]) for r in of_kind(records, "update")} == {
        *((100, "its own"), (101, "as registered"))
    }
    met = of_kind(records, "met")
    assert sorted((r["node"], r["version"]) for r in met) == [(100, __version__), (101, __version__)]
    assert len({record["task"] for record in met}) == 1
    assert "client 0 (its own), staleness" in caplog.text
    assert "starting fedasync: 6 updates" in caplog.text
    assert "finished: 6 updates, best accuracy" in caplog.text
    with caplog.at_level("INFO", logger="flwr"):
        start(grid, "fedasync", updates=6, out=tmp_path / "run", resume=True)
    assert "nothing to do, the run has finished" in caplog.text


def test_a_node_refuses_a_server_with_another_model_or_task():
    grid = LocalGrid({100: honest(TASK, 0, of_task="mine")})
    with pytest.raises(RunError, match="this node has a model and task with fingerprint"):
        start(grid, policy=replace(QUICK, patience=1000))


def test_a_growing_loss_is_noticed():
    watch, losses = LossWatch(), [2.0, 1.5] * 8 + [5.0] * 6 + [60.0] * 6
    told = [line for loss in losses if (line := watch.notice(loss, nodes=3))]
    assert len(told) == 2
    assert "the loss grows: 5 in the last 8 updates, it was 1.75: stop the run and lower global_lr" in told[0]


def test_a_node_that_fails_repeatedly_rests_and_is_tried_again(tmp_path):
    calls = 0

    def recovering(message):
        nonlocal calls
        calls += 1
        return raising(message) if calls <= 5 else honest(TASK, 3)(message)

    start(grid_of(nodes={200: recovering}), "fedasync", updates=150, bounds=(), out=tmp_path / "run")
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
    (node,), _ = nodes.update_present({7: "seven"})
    assert nodes.record_failure(node, now=0.0) == 60.0
    assert nodes.next(1.0, first) is None
    assert nodes.update_present({}) == ([], [node])
    assert nodes.update_present({7: ""}) == ([node], [])
    assert nodes.next(1.0, first) is node
    assert node.facts == {"client": 0, "node": 7, "name": "seven"}


def first(waiting):
    return 0


def test_the_books_of_nodes_are_those_of_a_plain_count():
    """Random events against counting everything anew, as it was done before there were many nodes."""
    random = np.random.default_rng(3)
    for depth, concurrency in ((1, None), (2, None), (2, 3), (1, 2)):
        nodes, now, present = Nodes(2, 5.0, depth, concurrency, claim_limit=99.0), 0.0, set()
        for _ in range(400):
            now += random.exponential()
            event, node_id = random.integers(5), int(random.integers(6))
            known = nodes.known.get(node_id)
            if event == 0:
                present ^= {node_id}
                nodes.update_present(dict.fromkeys(present, ""))
            elif event == 1 and known is not None and known.in_flight:
                nodes.take_back(known)
            elif event == 2 and known is not None:
                nodes.record_success(known, int(random.integers(1, 9)), None)
            elif event == 3 and known is not None:
                nodes.record_failure(known, now)
            free = [n for n in nodes.present.values() if n.in_flight < depth and n.rests_until <= now]
            if concurrency and sum(n.in_flight > 0 for n in nodes.known.values()) >= concurrency:
                free = [n for n in free if n.in_flight]
            fewest = min((n.in_flight for n in free), default=0)
            expected = {n.client for n in free if n.in_flight == fewest}
            offered = []
            chosen = nodes.next(now, lambda waiting, offered=offered: offered.extend(waiting) or 0)
            assert set(offered) == expected
            assert (chosen is not None) == bool(expected)
            for node in nodes.known.values():
                others = [n.examples for n in nodes.present.values() if n is not node]
                told = [7, *(one for one in others if one is not None)]
                assert nodes.weight(node, 7)[0] == 7 / (sum(told) / len(told) * (1 + len(others)))


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
    assert len(of_kind(trace_of(tmp_path / "run"), "failed")) == 100


def test_a_job_past_its_deadline_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr("asyncmanifold.flower.job_deadlines.GRACE_SECONDS", 0.1)
    grid = grid_of(pulls=(1, 1, 10**9))
    policy = replace(QUICK, deadline=0.3, evaluate_clients=False)  # the silent node would not answer
    start(grid, "fedasync", updates=150, policy=policy, out=tmp_path / "run")
    failed = of_kind(trace_of(tmp_path / "run"), "failed")
    assert failed
    assert {record["reason"] for record in failed} == {"no reply within the deadline"}
    assert {record["client"] for record in failed} == {2}


class Killed(BaseException):
    """What ends a process, as far as a test can tell."""


@pytest.mark.parametrize(
    "method", ["fedasync", "fedbuff", "asyncbezier", "dcasgd", "asyncfeded", "ringleader"]
)
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
        ({"deadline": -1.0}, r"Policy\(deadline=-1.0\) must be above 0"),
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


def test_a_portable_run_accepts_only_nodes_that_compute_portably(tmp_path, monkeypatch):
    """Server and nodes share this process, so what they say about it is pretended."""
    monkeypatch.setattr("asyncmanifold.arithmetic._chosen", True)
    model = TASK.build_model(0)
    policy = replace(QUICK, patience=1000)  # rests would only take time
    server = AsyncServer(model, "fedasync", training=TRAINING, policy=policy, arithmetic="portable")
    arrays = array_record(model.state_dict())
    server.start(grid_of(), arrays, 6, out=tmp_path / "all")
    assert not of_kind(read_trace(tmp_path / "all/trace.jsonl"), "rejected")

    monkeypatch.setattr("asyncmanifold.flower.codec.is_portable", lambda: False)
    with pytest.raises(RunError, match="the node does not compute portably"):
        server.start(grid_of(), arrays, 6, out=tmp_path / "none")


def test_a_round_is_over_when_all_of_its_replies_are_absorbed(tmp_path):
    """All replies of a round come in one pull, and every update is evaluated, for which jobs are sent."""
    start(grid_of(pulls=(1, 1, 1)), "fedavg", updates=9, evaluate_every=1, out=tmp_path / "run")
    updates = of_kind(trace_of(tmp_path / "run"), "update")
    assert [record["base_version"] for record in updates] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert {record["staleness"] for record in updates} == {0}
