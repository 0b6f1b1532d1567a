"""What one node says, or leaves unsaid, does not ruin a run: lengths, claims, and silence at the end.

And the commands that the documents begin with look as good as they are.
"""

import re
import sys
import tomllib
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from time import monotonic

import pytest
import torch
from flwr.app import Context, RecordDict

from asyncmanifold.errors import RunError
from asyncmanifold.session.trace import read_trace
from grid import LocalGrid
from test_flower import QUICK, grid_of, start, with_metric, with_offsets
from tiny import of_kind, trace_of

ROOT = Path(__file__).parent.parent


def test_a_reply_of_any_length_is_shortened_by_default(tmp_path):
    """10¹⁸ times as long as it should be; without the default bounds the model is lost for everybody."""
    grid = grid_of(nodes={200: with_offsets(lambda offsets: offsets * 1e18)})
    start(grid, "asyncsgd", updates=30, out=tmp_path / "run")
    records = trace_of(tmp_path / "run")
    long = [record for record in of_kind(records, "update") if record["node"] == 200]
    assert min(record["update_norm"] for record in long) > 1e15
    assert max(record["step_norm"] for record in long) < 10.0
    losses = [record["loss"] for record in of_kind(records, "evaluation")]
    assert losses[-1] < losses[0]
    with pytest.raises(RunError, match=r"no update was accepted in 100 arrivals, the last: loss is .*e\+"):
        start(grid, "asyncsgd", updates=30, bounds=(), policy=replace(QUICK, patience=1000))


def test_a_boundless_claim_counts_as_five_times_the_median(tmp_path, caplog):
    """12, 20, 28 and 10¹²: the last counts as 100 of 160, and is named."""
    grid = grid_of(nodes={200: with_metric("num-examples", 10**12)})
    with caplog.at_level("INFO", logger="flwr"):
        result = start(grid, "fedasync", updates=40, out=tmp_path / "run")
    records = trace_of(tmp_path / "run")
    last = {record["client"]: record["weight"] for record in of_kind(records, "update")}
    assert last == pytest.approx({0: 12 / 160, 1: 20 / 160, 2: 28 / 160, 3: 100 / 160})
    (capped,) = of_kind(records, "capped")
    assert (capped["node"], capped["examples"]) == (200, 10**12)
    assert "client 3 claims 1000000000000 examples, which count as 5 times the median claim" in caplog.text
    arrays = result.arrays.to_torch_state_dict()
    assert all(torch.isfinite(tensor.double()).all() for tensor in arrays.values())  # BatchNorm's too


def test_a_node_that_is_still_training_is_not_waited_for_at_the_end(tmp_path, caplog):
    policy = replace(QUICK, evaluate_seconds=2.0)
    started = monotonic()
    with caplog.at_level("INFO", logger="flwr"):
        start(grid_of(pulls=(1, 1, 10**9)), "fedasync", updates=6, policy=policy, out=tmp_path / "run")
    assert "of them still train jobs that are no longer needed)" in caplog.text
    assert "2 of 3 nodes have answered" in caplog.text
    assert monotonic() - started < 60.0


def test_the_work_of_an_update_does_not_grow_with_the_nodes(monkeypatch):
    """By calls of functions, which no other program disturbs; ``make bench`` measures the time."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    bench = import_module("flower_loop")
    monkeypatch.setattr(
        bench, "POLICY", replace(bench.POLICY, meet_seconds=1e-6)
    )  # in every round of the loop
    pull = bench.BenchGrid.pull_messages

    def calls(nodes):
        counted = 0

        def count(frame, event, argument):
            nonlocal counted
            counted += event == "call"

        def begin(self, message_ids):
            if len(self.pulls) == bench.WARM_UP:
                sys.setprofile(count)
            return pull(self, message_ids)

        monkeypatch.setattr(bench.BenchGrid, "pull_messages", begin)
        try:
            bench.loop(nodes, 50, updates=80)
        finally:
            sys.setprofile(None)
        return counted

    assert calls(800) < 1.2 * calls(100)


# --- what the documents begin with ----------------------------------------------------------------------


def documented_command():
    """The settings of the first run in docs/deployment.md."""
    text = (ROOT / "docs" / "deployment.md").read_text()
    (command,) = re.findall(r"asyncmanifold flower supervise examples.*?--run-config \\\n  '(.*?)'", text)
    return tomllib.loads("\n".join(re.findall(r'[a-z-]+=(?:"[^"]*"|\S+)', command)))


def demonstration():
    """The settings of ``make flower-demo``."""
    settings = import_module("flower_demo").SETTINGS
    return {"clients": 4, "num-updates": 24, "evaluate-every": 4, "queue-depth": 1, "settings": settings}


@pytest.mark.parametrize(
    ("given", "accuracy"), [(documented_command, 0.8), (demonstration, 0.8)], ids=["docs", "demo"]
)
def test_the_first_runs_of_the_documents_end_well(given, accuracy, tmp_path, monkeypatch, caplog):
    """With the app's own server and client, on nodes of different speed."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "flower-app"))
    project = tomllib.loads((ROOT / "examples" / "flower-app" / "pyproject.toml").read_text())
    config = {**project["tool"]["flwr"]["app"]["config"], **given(), "out": str(tmp_path / "run")}
    server, client = (import_module(f"asyncmanifold_app.{side}_app") for side in ("server", "client"))

    def node(part):
        context = Context(1, part, {"partition-id": part}, RecordDict(), config)
        return lambda message: getattr(client, message.metadata.message_type)(message, context)

    grid = LocalGrid(
        {100 + part: node(part) for part in range(config["clients"])},
        {100 + part: 1 + part for part in range(config["clients"])},
    )
    server.main(grid, Context(1, 0, {}, RecordDict(), config))
    records = list(read_trace(tmp_path / "run" / "trace.jsonl"))
    assert len(of_kind(records, "update")) == config["num-updates"]
    assert not of_kind(records, "exploded")
    assert "the loss grows" not in caplog.text
    scores = of_kind(records, "evaluation")
    assert scores[-1]["accuracy"] > accuracy
    assert scores[-1]["loss"] < 0.5 * scores[0]["loss"]
