"""Ruined models are noticed and left; a run goes on with other settings, or from a given model, if told
to."""

import errno
import os
import tomllib
from dataclasses import replace
from math import exp

import pytest
import torch
from flwr.app import MetricRecord

from asyncmanifold import METHODS, InputError, Parcel, Records, Run, RunError, simulate
from asyncmanifold.commands.cli import main
from asyncmanifold.session.session import Session
from test_flower import assert_same_model, evaluate, grid_of, replayed, start
from tiny import CLOCK, TRAINING, make_run, make_task, of_kind, simulated, trace_of, without_wall_times

SGD = METHODS["asyncsgd"]


def ruin(monkeypatch, *numbers):
    """Let the jobs of these numbers bring offsets that ruin the model."""
    accept = Session.accept

    def hostile(self, job, parcel, weight, **arrival):
        if job.number in numbers:
            parcel = Parcel({**parcel.tensors, "offsets": parcel.tensors["offsets"] * -1e6})
        return accept(self, job, parcel, weight, **arrival)

    monkeypatch.setattr(Session, "accept", hostile)


@pytest.mark.parametrize("roll_back", [False, True])
def test_a_ruined_model_is_noticed_and_left_if_told(monkeypatch, roll_back):
    ruin(monkeypatch, 17)
    run = Run(updates=40, evaluate_every=2, keep_models=2, roll_back=roll_back)
    task = make_task((30, 30, 30))
    result = simulate(task, SGD, training=TRAINING, run=run)
    exploded = of_kind(result.trace, "exploded")
    assert exploded
    assert exploded[0]["reason"].startswith("accuracy was ")
    backs = of_kind(result.trace, "back")
    assert bool(backs) == roll_back
    updates = of_kind(result.trace, "update")
    assert [record["update"] for record in updates] == list(range(1, 41))
    versions = sorted([r["version"] for r in updates] + [r["version"] for r in backs])
    assert versions == list(range(1, 41 + len(backs)))
    if roll_back:
        assert backs[0]["to"] < exploded[0]["update"]
        assert any("was taken back" in record["reason"] for record in of_kind(result.trace, "rejected"))
        assert result.summary["best"] > 0.7
        assert all(torch.isfinite(p).all() for p in result.model.parameters())


def test_going_back_survives_a_resume_and_is_replayed(tmp_path, monkeypatch, caplog):
    options = {"evaluate_every": 4, "updates": 28, "out": tmp_path / "run", "roll_back": True}
    options |= {"evaluate_fn": likelihood, "bounds": ()}
    with monkeypatch.context() as patched:
        ruin(patched, 9)
        start(grid_of(), "asyncsgd", **{**options, "updates": 20})
    backs = of_kind(trace_of(tmp_path / "run"), "back")
    assert backs
    assert "the model is ruined: likelihood was " in caplog.text
    assert f"went back to the model of update {backs[0]['to']}, as version" in caplog.text
    kept = sorted(path.name for path in (tmp_path / "run" / "kept").iterdir())
    assert len(kept) == 3
    result = start(grid_of(), "asyncsgd", **options, resume=True, change=["run.updates"])
    records = trace_of(tmp_path / "run")
    assert [record["update"] for record in of_kind(records, "update")] == list(range(1, 29))
    assert of_kind(records, "back") == backs
    with monkeypatch.context() as patched:
        ruin(patched, 9)
        assert_same_model(result, replayed(tmp_path / "run", "asyncsgd", bounds=()).model)


def likelihood(update, arrays):
    return MetricRecord({"likelihood": exp(-min(700.0, evaluate(update, arrays)["loss"]))})


def test_a_run_goes_back_when_it_is_resumed(tmp_path):
    out, run = tmp_path / "run", make_run(12, evaluate_every=3, keep_models=2)
    simulated(make_task(), SGD, training=TRAINING, run=run, out=out)
    more = replace(run, updates=20)
    records = Records(out=out, resume=True, change=["run.updates"], back_to=9)
    simulate(make_task(), SGD, training=TRAINING, run=more, records=records)
    (back,) = of_kind(trace_of(out), "back")
    assert (back["to"], back["update"], back["version"]) == (9, 12, 13)
    assert [record["update"] for record in of_kind(trace_of(out), "update")] == list(range(1, 21))
    again = Records(out=out, resume=True, change=["run.updates"], back_to=5)
    with pytest.raises(InputError, match=r"no model is kept of update 5 \(kept: "):
        simulate(make_task(), SGD, training=TRAINING, run=replace(run, updates=21), records=again)


def test_settings_change_only_if_they_are_named(tmp_path):
    out, task = tmp_path / "run", make_task()
    simulated(task, SGD, training=TRAINING, run=make_run(10), out=out)
    slower, longer = replace(SGD, global_lr=0.5, norm_bound=9.0), make_run(16)

    def resume(*change):
        records = Records(out=out, resume=True, change=change)
        return simulate(task, slower, training=TRAINING, run=longer, records=records)

    with pytest.raises(InputError, match=r"another configuration: method.global_lr is 1.0 there, 0.5 here"):
        resume("run.updates", "method.norm_bound")
    with pytest.raises(InputError, match=r"run.seed cannot be changed in a run \(allowed: method.global_lr"):
        resume("run.seed")
    resume("run.updates", "method.norm_bound", "method.global_lr")
    changed = of_kind(trace_of(out), "changed")
    assert [(r["key"], r["from"], r["to"], r["update"]) for r in changed] == [
        ("method.global_lr", 1.0, 0.5, 10),
        ("method.norm_bound", None, 9.0, 10),
        ("run.updates", 10, 16, 10),
    ]
    config = tomllib.loads((out / "config.toml").read_text())
    assert (config["method"]["global_lr"], config["run"]["updates"]) == (0.5, 16)
    assert len(of_kind(trace_of(out), "update")) == 16
    assert len(of_kind(resume().trace, "changed")) == 3  # the run's own settings by now
    with pytest.raises(InputError, match=r"method.global_lr changed after update 10: only runs of one"):
        simulated(task, slower, training=TRAINING, run=longer, replay=trace_of(out))


def test_the_command_line_changes_settings_and_starts_from_a_model(tmp_path, capsys):
    first, again = tmp_path / "first", tmp_path / "again"
    small = ["--method", "asyncsgd", "--quiet", "--set", "clients=3", "--set", "evaluate_every=2"]
    assert main(["run", "digits", *small, "--out", str(first), "--set", "updates=2"]) == 0
    assert (
        main(["run", "digits", *small, "--out", str(first), "--set", "updates=2", "--change", "updates=4"])
        == 2
    )
    assert "add --resume" in capsys.readouterr().err
    changed = ["--set", "updates=2", "--resume", "--change", "updates=4", "--change", "global_lr=0.5"]
    assert main(["run", "digits", *small, "--out", str(first), *changed]) == 0
    assert [record["key"] for record in of_kind(trace_of(first), "changed")] == [
        "method.global_lr",
        "run.updates",
    ]
    model = str(first / "model.safetensors")
    assert main(["run", "digits", *small, "--out", str(again), "--set", "updates=2", "--from", model]) == 0
    last, start_of_next = (
        of_kind(trace_of(first), "evaluation")[-1],
        of_kind(trace_of(again), "evaluation")[0],
    )
    assert start_of_next["accuracy"] == last["accuracy"]
    assert main(["run", "digits", *small, "--out", str(tmp_path / "x"), "--from", "nowhere"]) == 2
    assert "nowhere: no such file" in capsys.readouterr().err


def test_a_simulation_on_a_full_disk_is_refused_before_training(tmp_path, monkeypatch):
    out, run = tmp_path / "run", make_run(12, checkpoint_seconds=0.0)
    simulated(make_task(), SGD, training=TRAINING, run=run, out=out)
    (out / "summary.json").unlink()
    trained = []
    monkeypatch.setattr(Session, "accept", lambda *_, **__: trained.append(1))

    def full(file):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match="No space left on device"):
        simulated(make_task(), SGD, training=TRAINING, run=run, out=out, resume=True)
    assert trained == []


@pytest.mark.parametrize("concurrency", [None, 1])
@pytest.mark.parametrize("method", ["asyncsgd", "fedavg", "fedbuff"])
def test_a_longer_run_is_the_same_as_one_made_at_once(tmp_path, method, concurrency):
    """With one job at a time, the run that ended had none in flight."""
    schedule = replace(CLOCK, concurrency=concurrency)

    def make(updates, records):
        run = Run(updates=updates, evaluate_every=4)
        task = make_task()
        return simulate(task, method, training=TRAINING, schedule=schedule, run=run, records=records)

    make(8, Records(out=tmp_path))
    longer = make(16, Records(out=tmp_path, resume=True, change=["run.updates"]))
    whole = make(16, Records())
    records = [record for record in without_wall_times(longer.trace) if record["kind"] != "changed"]
    assert records == without_wall_times(whole.trace)


def test_a_run_that_its_budget_ended_goes_on_with_another(tmp_path):
    whole = simulate(make_task(), SGD, training=TRAINING, run=Run(updates=10, evaluate_every=5))
    times = [record["time"] for record in of_kind(whole.trace, "update")]
    for budget in ((times[3] + times[4]) / 2, None):
        run = Run(updates=10, evaluate_every=5, time_budget=budget)
        records = Records(out=tmp_path, resume=True, change=["run.time_budget"])
        result = simulate(make_task(), SGD, training=TRAINING, run=run, records=records)
        assert result.summary["ended"] == ("time budget" if budget else "updates")
    updates = [of_kind(without_wall_times(made), "update") for made in (result.trace, whole.trace)]
    assert updates[0] == updates[1]
