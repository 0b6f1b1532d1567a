"""A node's own privacy budget on Flower: what leaves it, what it refuses, and how a run goes on."""

import json
import shutil
from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Context, Message, RecordDict
from safetensors.torch import load_file
from scipy import stats

from asyncmanifold import METHODS, InputError, LocalPrivacy, Outgoing, PrivateBuffer
from asyncmanifold.client.training import Trainer
from asyncmanifold.flower import AsyncServer, Policy, evaluate_reply, train_reply
from asyncmanifold.flower.arrays import read_arrays
from asyncmanifold.flower.codec import read_job
from asyncmanifold.privacy.node_budget import BudgetRefusal, NodeBudget, read_ledger
from grid import LocalGrid
from tiny import TRAINING, make_model, make_task, of_kind, trace_of

PART = LocalPrivacy(0.5, 8.0)
METHOD = replace(METHODS["asyncbezier"], outgoing=(PART,), weighting="none", global_lr=0.1)
POLICY = Policy(poll_seconds=1e-3, meet_seconds=1e-3, wait_seconds=2.0)


def node(task, partition, replies=None, **config):
    """Return a node with a privacy budget in its config; its replies are added to a list."""
    context = Context(1, partition, {"partition-id": partition, **config}, RecordDict(), {})

    def handle(message: Message) -> Message:
        if message.metadata.message_type != "train":
            return evaluate_reply(message, context, make_model(), task.loss, task.validation[partition])
        reply = train_reply(message, context, make_model(), task.loss, task.clients[partition])
        if replies is not None:
            replies.append((message, reply))
        return reply

    return handle


def start(grid, method=METHOD, updates=30, out=None, policy=POLICY, **settings):
    server = AsyncServer(make_model(), method, training=TRAINING, policy=policy, bounds=())
    initial = ArrayRecord(make_model().state_dict())
    return server.start(grid, initial, updates, out=out, **settings)


def budget(path, **settings):
    return NodeBudget(**({"epsilon": 1e6, "ledger": str(path / "ledger.json")} | settings))


# ---- what leaves the node


def test_what_a_reply_carries_is_the_clipped_upload_and_noise(tmp_path):
    """Every reply's bytes are compared with the same job trained without noise."""
    task, replies = make_task(), []
    start(LocalGrid({7: node(task, 2, replies)}), updates=25, out=tmp_path / "run")
    left = []
    for message, reply in replies:
        content = reply.content
        assert set(content) == {"asyncmanifold", "metrics", "asyncmanifold.node"}
        assert set(content.metric_records["metrics"]) == {"portable-arithmetic", "partition-id"}
        tensors = read_arrays(content.array_records["asyncmanifold"])
        assert set(tensors) == {"offsets"}
        request = read_job(message)
        trainer = Trainer(make_model(), task.loss, request.embedding, request.training, request.seed)
        plain = trainer.train(request.job, task.clients[2]).offsets.double()
        left.append(tensors["offsets"].double() - plain * min(1.0, 0.5 / plain.norm().item()))
    noise = torch.cat(left).numpy().ravel() / 4.0
    assert noise.size == 25 * 2 * 99
    assert stats.kstest(noise, "norm").pvalue > 1e-6
    assert np.std(noise) == pytest.approx(1.0, rel=0.1)
    records = trace_of(tmp_path / "run")
    assert {record["loss"] for record in of_kind(records, "update")} == {None}
    assert {record["examples"] for record in of_kind(records, "update")} == {None}


# ---- the node's refusals


@pytest.mark.parametrize("worth", [1.0, -1.0])
def test_spent_nodes_rest_for_good_and_the_others_go_on(tmp_path, monkeypatch, worth):
    """Node 7 allows two uploads, node 8 three, node 9 twenty, and each refuses once: none is sent a job while
    its refusal waits to be read, nor a second one at a time. Times in training are withheld, so nothing says
    that a second one is worth it, however long a round trip takes.
    """
    monkeypatch.setattr("asyncmanifold.flower.measured_times.WORTH_SECONDS", worth)
    monkeypatch.setattr("asyncmanifold.flower.deployment.PUBLISH_SECONDS", worth)
    task, out = make_task(), tmp_path / "run"
    limits = {7: 2, 8: 3, 9: 20}
    nodes = {
        number: node(
            task,
            place,
            **{
                "privacy-epsilon": 1e6,
                "privacy-most-uploads": limits[number],
                "privacy-ledger": str(tmp_path / f"{number}.json"),
            },
        )
        for place, number in enumerate(limits)
    }
    start(LocalGrid(nodes), updates=400, out=out)
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["updates"], summary["ended"], summary["failed"]) == (25, "privacy budget spent", 3)
    assert summary["privacy"]["releases"] == [2, 3, 20]
    assert summary["per_client"] is None  # nobody is asked for scores on private data
    records = trace_of(out)
    assert {record["node"]: record["reason"] for record in of_kind(records, "failed")} == {
        number: f"this node has made all of its {limit} uploads" for number, limit in limits.items()
    }
    assert len(of_kind(records, "retired")) == 3
    assert not of_kind(records, "resting")
    for number, limit in limits.items():
        assert read_ledger(tmp_path / f"{number}.json") == {8.0: limit}


def test_many_refusals_do_not_stop_a_run(tmp_path):
    """110 nodes without a budget left, and one with: the run goes on with the one."""
    task = make_task()
    spent = {"privacy-epsilon": 1e-9, "privacy-ledger": str(tmp_path / "spent.json")}
    nodes = {number: node(task, 0, **spent) for number in range(10, 120)}
    start(LocalGrid({**nodes, 5: node(task, 1)}), updates=6, out=tmp_path / "run")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["updates"], summary["ended"]) == (6, "updates")
    assert summary["failed"] >= 110
    assert len(summary["privacy"]["retired"]) == 110
    assert summary["privacy"]["releases"][1:] == [0] * 110


@pytest.mark.parametrize("publish_seconds", [-1.0, inf])
def test_the_servers_own_cap_needs_no_refusal(tmp_path, monkeypatch, publish_seconds):
    """Nor is a reply lost that has arrived together with another, whichever of the two makes nodes retire."""
    monkeypatch.setattr("asyncmanifold.flower.deployment.PUBLISH_SECONDS", publish_seconds)
    capped = replace(METHOD, outgoing=(replace(PART, max_releases=3),))
    task = make_task()
    start(LocalGrid({7: node(task, 0), 8: node(task, 1)}), capped, updates=100, out=tmp_path / "run")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["updates"], summary["failed"], summary["ended"]) == (6, 0, "privacy budget spent")
    assert summary["privacy"]["epsilon"] == PART.epsilon(3)


def test_a_resumed_server_goes_on_counting(tmp_path):
    task, out = make_task(), tmp_path / "run"
    grid = LocalGrid({7: node(task, 0), 8: node(task, 1)})

    def stop(pull):
        if pull == 4:
            raise KeyboardInterrupt

    grid.on_pull = stop
    with pytest.raises(KeyboardInterrupt):
        start(grid, replace(METHOD, outgoing=(replace(PART, max_releases=5),)), updates=100, out=out)
    done = len(of_kind(trace_of(out), "update"))
    assert done > 0
    grid = LocalGrid({7: node(task, 0), 8: node(task, 1)})
    start(grid, replace(METHOD, outgoing=(replace(PART, max_releases=5),)), updates=100, out=out, resume=True)
    summary = json.loads((out / "summary.json").read_text())
    assert summary["privacy"]["releases"] == [5, 5]
    assert 10 - 2 <= summary["updates"] <= 10  # the jobs that were out are lost, and counted


def test_a_server_that_does_not_protect_is_refused(tmp_path):
    ledger = budget(tmp_path, least_noise=4.0, most_clip=1.0)
    ledger.check_job((PART, Outgoing()))
    for parts, reason in (
        ((), "uploads nothing without local-privacy"),
        ((Outgoing(), PART), "uploads nothing without local-privacy"),
        ((LocalPrivacy(0.5, 3.9),), r"noise_multiplier 3\.9 is below this node's 4"),
        ((LocalPrivacy(2.0, 8.0),), r"clip_norm 2 is above this node's 1"),
    ):
        with pytest.raises(BudgetRefusal, match=reason):
            ledger.check_job(parts)
    assert not (tmp_path / "ledger.json").exists()


def test_a_budget_of_epsilon_holds_over_servers_with_different_noise(tmp_path):
    """Three uploads with σ = 8 and one with 4 are all that ε allows; the relation is the node's."""
    spent = PART.epsilon(3 + 4)  # an upload with half the noise is as costly as four
    own = budget(tmp_path, epsilon=spent + 1e-6)
    for _ in range(3):
        own.spend((replace(PART, relation="add-or-remove-one"),))
    own.spend((LocalPrivacy(0.5, 4.0),))
    assert read_ledger(tmp_path / "ledger.json") == {4.0: 1, 8.0: 3}
    with pytest.raises(BudgetRefusal, match=r"privacy budget is spent: 4 uploads, and one more would make ε"):
        own.spend((PART,))
    assert read_ledger(tmp_path / "ledger.json") == {4.0: 1, 8.0: 3}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        '{"format": "another", "uploads": []}',
        '{"format": "asyncmanifold privacy ledger 1", "uploads": [{"noise": 8.0, "uploads": -3}]}',
        '{"format": "asyncmanifold privacy ledger 1", "uploads": [{"noise": 8.0, "uploads": true}]}',
        '{"format": "asyncmanifold privacy ledger 1", "uploads": [{"noise": "8", "uploads": 1}]}',
        '{"format": "asyncmanifold privacy ledger 1", "uploads": [{"noise": 1e400, "uploads": 1}]}',
        '{"format": "asyncmanifold privacy ledger 1", "uploads": [{"noise": 8.0, "uploads": 1}], "more": 1}',
    ],
)
def test_a_damaged_ledger_stops_all_uploads(tmp_path, content):
    (tmp_path / "ledger.json").write_text(content)
    for use in (budget(tmp_path).check_job, budget(tmp_path).spend):
        with pytest.raises(InputError, match=r"ledger\.json: a damaged privacy ledger, so nothing"):
            use((PART,))
    assert (tmp_path / "ledger.json").read_text() == content


def test_where_a_budget_comes_from(tmp_path):
    assert NodeBudget.find({"partition-id": 3}, {"HOME": "/x"}) is None
    found = NodeBudget.find({"privacy-epsilon": 8, "name": "ward 3/a"}, {})
    assert found == NodeBudget(epsilon=8.0, ledger=str(Path.home() / ".asyncmanifold/privacy-ward-3-a.json"))
    environment = {"ASYNCMANIFOLD_PRIVACY_EPSILON": "8", "ASYNCMANIFOLD_PRIVACY_MOST_UPLOADS": "20"}
    found = NodeBudget.find({"privacy-ledger": "a.json", "privacy-epsilon": 2.0}, environment)
    assert found == NodeBudget(epsilon=2.0, most_uploads=20, ledger="a.json")
    for config, problem in (
        ({"privacy-epsilonn": 8}, "unknown privacy setting 'epsilonn'"),
        ({"privacy-delta": 1e-6}, "needs privacy-epsilon"),
        ({"privacy-epsilon": "much"}, "privacy-epsilon = 'much', must be a number"),
        ({"privacy-epsilon": 1, "privacy-most-uploads": 2.5}, "must be a whole number"),
        ({"privacy-epsilon": -1}, "must be above 0"),
    ):
        with pytest.raises(InputError, match=problem):
            NodeBudget.find(config, {})


def test_a_node_with_a_budget_tells_no_scores():
    context = Context(1, 1, {"privacy-epsilon": 1.0}, RecordDict(), {})
    with pytest.raises(InputError, match="has a privacy budget, which scores on its data are not part of"):
        evaluate_reply(None, context, make_model(), None, None)


def test_peer_bounds_cannot_stand_before_a_private_buffer():
    method = replace(METHODS["fedbuff"], buffer=PrivateBuffer(), weighting="none")
    with pytest.raises(InputError, match=r"on Flower: bounds=\(\)"):
        AsyncServer(make_model(), method)


def test_a_private_buffer_ends_when_too_few_nodes_are_left_to_fill_it(tmp_path):
    part = PrivateBuffer(buffer_size=2, clip_norm=0.5, max_releases=2)
    method, task = replace(METHODS["fedbuff"], buffer=part, weighting="none"), make_task()
    start(LocalGrid({n: node(task, n) for n in range(3)}), method, updates=300, out=tmp_path / "run")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["ended"] == "privacy budget spent"
    sums = max(record["version"] for record in of_kind(trace_of(tmp_path / "run"), "update"))
    assert sum(summary["privacy"]["releases"]) == 2 * sums
    assert max(summary["privacy"]["releases"]) == 2


def test_a_resumed_server_makes_the_same_noise_again(tmp_path, monkeypatch):
    """Its log is absorbed with the secret of the first checkpoint: no sum is released twice."""
    monkeypatch.setattr("asyncmanifold.flower.deployment.PUBLISH_SECONDS", inf)
    policy = replace(POLICY, queue_depth=1)  # so that arrivals do not depend on how fast this machine is
    part = PrivateBuffer(buffer_size=2, clip_norm=0.5)
    method, task = replace(METHODS["fedbuff"], buffer=part, weighting="none"), make_task()

    def grid():
        return LocalGrid({n: node(task, n) for n in range(3)})

    stopped = grid()

    def stop(pull):
        if pull == 5:
            raise KeyboardInterrupt

    stopped.on_pull = stop
    with pytest.raises(KeyboardInterrupt):
        start(stopped, method, updates=30, out=tmp_path / "one", policy=policy)
    before = trace_of(tmp_path / "one")
    assert max(record["version"] for record in of_kind(before, "update")) > 1
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    for name in ("one", "two"):
        start(grid(), method, updates=30, out=tmp_path / name, resume=True, policy=policy)
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    for name, tensor in one.items():
        assert torch.equal(tensor, two[name]), name


def test_nodes_with_a_budget_do_not_take_part_in_a_run_without_protection(tmp_path):
    task = make_task()
    config = {"privacy-epsilon": 5.0, "privacy-ledger": str(tmp_path / "ledger.json")}
    start(LocalGrid({7: node(task, 0, **config)}), METHODS["asyncsgd"], out=tmp_path / "run")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["updates"], summary["failed"], summary["ended"]) == (0, 1, "privacy budget spent")
    assert not (tmp_path / "ledger.json").exists()
