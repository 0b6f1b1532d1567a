"""What ends a run on Flower before all its updates are there: a budget of time, or a target."""

import json

import pytest

from asyncmanifold import InputError
from asyncmanifold.session import absorbing_state, session
from test_flower import assert_same_model, grid_of, replayed, start
from tiny import of_kind, trace_of


def summary_of(out):
    return json.loads((out / "summary.json").read_text())


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test moves on."""
    now = [1000.0]
    for module in (absorbing_state, session):
        monkeypatch.setattr(module, "perf_counter", lambda: now[0])
    return now


def ticking(clock, **others):
    """A grid on which every pull takes a second."""
    grid = grid_of(**others)

    def tick(pull):
        clock[0] += 1.0

    grid.on_pull = tick
    return grid


def test_a_wall_budget_ends_a_run_with_what_was_accepted(tmp_path, clock):
    out = tmp_path / "run"
    result = start(ticking(clock), "fedasync", updates=100, wall_budget=7.5, out=out)
    summary, records = summary_of(out), trace_of(out)
    times = [record["time"] for record in of_kind(records, "update")]
    assert summary["ended"] == "wall budget"
    assert 0 < summary["updates"] == len(times) < 100
    assert 6.0 < max(times) < 7.5
    assert of_kind(records, "evaluation")[-1]["update"] == summary["updates"]  # although none was due
    assert_same_model(result, replayed(out, "fedasync").model)
    assert len([score for score in summary["per_client"] if score is not None]) == 3

    again = start(grid_of(), "fedasync", updates=100, wall_budget=7.5, out=out, resume=True)
    assert trace_of(out) == records
    assert again.train_metrics_clientapp == result.train_metrics_clientapp


def test_a_run_goes_on_when_its_budget_is_raised(tmp_path, clock):
    out = tmp_path / "run"
    start(ticking(clock), "fedasync", updates=20, wall_budget=4.5, out=out)
    before = of_kind(trace_of(out), "update")
    with pytest.raises(InputError, match=r"run\.wall_budget is 4\.5 there, 99\.0 here"):
        start(grid_of(), "fedasync", updates=20, wall_budget=99.0, out=out, resume=True)
    more = {"wall_budget": 99.0, "resume": True, "change": ["run.wall_budget"]}
    result = start(ticking(clock), "fedasync", updates=20, out=out, **more)
    updates = of_kind(trace_of(out), "update")
    assert summary_of(out)["ended"] == "updates"
    assert [record["update"] for record in updates] == list(range(1, 21))
    assert updates[: len(before)] == before
    assert_same_model(result, replayed(out, "fedasync").model)


def test_no_time_at_all_leaves_the_initial_model():
    result = start(grid_of(), "fedasync", wall_budget=1e-9)
    assert list(result.train_metrics_clientapp) == []
    assert list(result.evaluate_metrics_serverapp) == [0]


def test_a_target_ends_a_run_if_it_is_asked_to(tmp_path):
    start(grid_of(), "fedasync", out=tmp_path / "whole")
    scores = [record["accuracy"] for record in of_kind(trace_of(tmp_path / "whole"), "evaluation")]
    target = sorted(scores)[-2]
    reached = 5 * next(place for place, score in enumerate(scores) if score >= target)
    start(grid_of(), "fedasync", out=tmp_path / "run", target=target, target_stops=True)
    summary = summary_of(tmp_path / "run")
    assert (summary["ended"], summary["updates"], summary["rounds_to_target"]) == ("target", reached, reached)
    with pytest.raises(InputError, match="needs a target"):
        start(grid_of(), target_stops=True)


def test_a_server_killed_at_its_target_does_not_go_on(tmp_path):
    """The evaluation is in the trace, but no summary was written."""
    out = tmp_path / "run"
    start(grid_of(), "fedasync", out=out, target=0.0, target_stops=True, updates=20)
    records = trace_of(out)
    (out / "summary.json").unlink()
    start(grid_of(), "fedasync", out=out, target=0.0, target_stops=True, updates=20, resume=True)
    assert summary_of(out)["ended"] == "target"
    assert of_kind(trace_of(out), "evaluation") == of_kind(records, "evaluation")
    assert of_kind(trace_of(out), "update") == of_kind(records, "update")
