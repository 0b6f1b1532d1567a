"""Bytes: in every trace alike, in summaries and reports, and as time on the clock."""

from dataclasses import dataclass, replace

import pytest
from torch import nn

from asyncmanifold import METHODS, InputError, Int8, Outgoing, Schedule, Task, simulate
from asyncmanifold.commands.cli import main
from asyncmanifold.flower import AsyncServer, Policy
from asyncmanifold.flower.arrays import array_record
from asyncmanifold.report.comparison_figures import comparison_figures
from asyncmanifold.report.finished_runs import find_runs
from asyncmanifold.session.trace import read_trace
from asyncmanifold.simulation.schedules import ConstantLatency
from asyncmanifold.vectors import FlatModel
from grid import LocalGrid, honest
from tiny import CLOCK, TRAINING, make_run, make_task, of_kind, simulated

P = 6 * 8 + 8 + 8 + 8 + 8 * 3 + 3  # two linear layers, and BatchNorm's weights
STATISTICS = 4 * (8 + 8) + 8
"""Means and variances in 4 bytes, the counter in 8."""
CURVE = METHODS["asyncbezier"]
UPLOADS = {
    "float32": 2 * 4 * P,
    "fp16": 2 * (2 * P + 4),
    "int8": 2 * (P + 4),  # one block each
    "curve": 2 * P + 4 + P + 4 + 4,
}


def sizes(trace):
    return {(record["upload_bytes"], record["download_bytes"]) for record in of_kind(list(trace), "update")}


@pytest.mark.parametrize("codec", UPLOADS)
def test_simulator_replay_and_flower_agree_on_the_bytes(codec, tmp_path):
    method, task = replace(CURVE, outgoing=codec), make_task(sizes=(12, 20))
    expected = {(UPLOADS[codec] + STATISTICS, 4 * P + STATISTICS)}
    assert FlatModel(task.build_model(0)).size == P
    run = simulated(task, method, training=TRAINING, schedule=CLOCK, run=make_run(6))
    assert sizes(run.trace) == expected
    assert run.summary["upload_bytes"] == 6 * (UPLOADS[codec] + STATISTICS)
    assert run.summary["download_bytes"] == 6 * (4 * P + STATISTICS)
    model = task.build_model(0)
    server = AsyncServer(model, method, training=TRAINING, policy=Policy(poll_seconds=0.001))
    grid = LocalGrid({1: honest(task, 0), 2: honest(task, 1)})
    server.start(grid, array_record(model.state_dict()), 4, out=tmp_path / "run")
    trace = list(read_trace(tmp_path / "run" / "trace.jsonl"))
    assert sizes(trace) == expected
    assert sizes(simulate(task, method, training=TRAINING, replay=trace).trace) == expected


def test_the_report_draws_scores_against_bytes(tmp_path):
    for name in ("float32", "int8"):
        method = replace(CURVE, outgoing=name)
        records = tmp_path / "runs" / name
        simulated(make_task(), method, training=TRAINING, schedule=CLOCK, run=make_run(20), out=records)
    figures = {figure.name: figure for figure in comparison_figures(find_runs(tmp_path / "runs"))}
    rows = figures["score-upload"].data["scores"]
    last = sorted(row["upload"] for row in rows if row["update"] == 20)
    expected = [20 * (UPLOADS[name] + STATISTICS) / 1e6 for name in ("int8", "float32")]
    assert last == pytest.approx(expected, rel=1e-3)
    drawn = max(row["x"] for row in figures["score-upload"].data["means-upload"])
    assert drawn == pytest.approx(expected[1], rel=1e-3)
    alone = comparison_figures(find_runs(tmp_path / "runs" / "int8"))
    assert "score-upload" not in {figure.name for figure in alone}  # it would be that of updates


def test_a_run_says_its_bytes(tmp_path, capsys):
    settings = ["--set", "updates=2", "--set", "outgoing=int8", "--method", "fedasync"]
    assert main(["run", "digits", "--out", str(tmp_path / "run"), *settings]) == 0
    assert "MB up and" in capsys.readouterr().out


# --- on the clock -----------------------------------------------------------------------------------------


def two_clients(examples=10):
    made = make_task(sizes=(examples, examples))
    return Task(nn.Linear(6, 3), made.loss, made.clients, made.test)


@pytest.mark.parametrize(
    ("codec", "upload"), [("float32", 84.0), ("fp16", 46.0), ("int8", 25.0), ("curve", 46.0)]
)
def test_durations_by_hand(codec, upload):
    """21 parameters are 84 bytes down, at 42 a unit 2 units; the job takes 1; the upload has 10 a unit."""
    schedule = Schedule("clock", bandwidth_down=42.0, bandwidth_up=10.0)
    method = replace(METHODS["fedasync"], outgoing=codec)
    trace = simulate(two_clients(), method, training=TRAINING, schedule=schedule, run=make_run(4)).trace
    for record in of_kind(trace, "update"):
        assert record["upload_bytes"] == upload
        assert record["time"] - record["dispatched"] == pytest.approx(2.0 + 1.0 + upload / 10.0)


def test_one_direction_alone_can_be_limited():
    schedule = Schedule("clock", bandwidth_up=42.0)
    trace = simulate(two_clients(), "fedasync", training=TRAINING, schedule=schedule, run=make_run(4)).trace
    assert of_kind(trace, "update")[0]["time"] == pytest.approx(1.0 + 2.0)


def test_in_the_queue_bytes_count_as_training_does():
    """A job of length 1 with a transfer of 3 waits like one of length 4."""
    schedule = Schedule("queue", latency=ConstantLatency())
    assert schedule.duration(1.0, 2.0, 0, 5, 1, transfer=3.0) == schedule.duration(4.0, 2.0, 0, 5, 1)


@dataclass(frozen=True)
class Silent(Outgoing):
    """Does not say what it sends."""


def test_bandwidth_needs_parts_that_say_what_they_send():
    method = replace(METHODS["fedasync"], outgoing=(Silent(), Int8()))
    with pytest.raises(InputError, match="not known how much Silent, Int8 send"):
        simulate(two_clients(), method, schedule=Schedule("clock", bandwidth_up=1.0), run=make_run(2))
    simulate(two_clients(), replace(method, outgoing=Silent()), training=TRAINING, run=make_run(2))


@pytest.mark.parametrize("name", ["bandwidth_up", "bandwidth_down"])
def test_impossible_bandwidths_are_refused(name):
    with pytest.raises(InputError, match=rf"Schedule\({name}=0\) must be above 0"):
        Schedule("clock", **{name: 0})
