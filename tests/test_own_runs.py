"""A run from Python: its models and tables, who may watch and end it, and that its data stays the same."""

import json
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from asyncmanifold import InputError, Records, Run, StopRun, Task, load_model, progress, simulate
from asyncmanifold.commands.cli import main
from asyncmanifold.landscape.draw import draw_landscape
from asyncmanifold.report.write import write_report
from asyncmanifold.session.advice import advise
from tiny import TRAINING, make_model, make_task, of_kind, without_wall_times


def run(records=None, task=None, method="asyncsgd", **settings):
    lengths = Run(**({"updates": 12, "evaluate_every": 3} | settings))
    return simulate(task or make_task(), method, training=TRAINING, run=lengths, records=records)


# The result


def test_a_result_is_short_and_has_both_models(tmp_path):
    result = run(Records(out=tmp_path / "one"), updates=30)
    assert len(repr(result)) < 150
    assert repr(result).startswith("Result(asyncsgd on task, seed 0: accuracy 0.")
    scores = {record["update"]: record["accuracy"] for record in of_kind(result.trace, "evaluation")}
    task = make_task()
    inputs, targets = task.test.batch(torch.arange(len(task.test)))
    for model, score in ((result.best_model, max(scores.values())), (result.model, scores[30])):
        assert not model.training
        assert (model(inputs).argmax(dim=1) == targets).float().mean().item() == pytest.approx(score)
    frame = result.to_pandas()
    assert frame["accuracy"].tolist() == list(scores.values())
    assert len(result.to_pandas("update")) == 30
    for best, model in ((False, result.model), (True, result.best_model)):
        loaded = load_model(make_model(), tmp_path / "one", best=best)
        assert all(torch.equal(loaded.state_dict()[name], part) for name, part in model.state_dict().items())
    again = run(Records(out=tmp_path / "one", resume=True), updates=30)
    assert torch.equal(again.best_model[0].weight, result.best_model[0].weight)
    with pytest.raises(InputError, match="holds another model than Linear"):
        load_model(nn.Linear(2, 2), tmp_path / "one")
    with pytest.raises(InputError, match="safetensors: no such file"):
        load_model(nn.Linear(2, 2), tmp_path, best=True)


def test_a_result_draws_itself():
    drawing = run().plot()
    assert drawing._repr_svg_().startswith("<svg")
    assert drawing.chart.to_dict()["datasets"]


# Ends


def test_an_observer_sees_records_and_the_model_and_ends_the_run(tmp_path):
    seen = []

    def watch(record, model):
        if record["kind"] == "evaluation":
            seen.append(model())

    def stop(record):
        if record["kind"] == "update" and record["update"] == 7:
            raise StopRun("seven are enough")

    result = run(Records(out=tmp_path, observer=[watch, stop]))
    assert (result.summary["updates"], result.summary["ended"]) == (7, "seven are enough")
    assert of_kind(result.trace, "evaluation")[-1]["update"] == 7  # the model that is returned was evaluated
    assert torch.equal(seen[-1][0].weight, result.model[0].weight)
    assert not torch.equal(seen[0][0].weight, seen[-1][0].weight)
    assert json.loads((tmp_path / "summary.json").read_text())["ended"] == "seven are enough"
    whole = without_wall_times(run().trace)
    assert whole[:9] == without_wall_times(result.trace)[:9]  # until then nothing was different
    with pytest.raises(InputError, match=r"observer=3\) must be a function of a record"):
        run(Records(observer=3))


def test_a_target_ends_a_run_if_it_is_asked_to():
    scores = [record["accuracy"] for record in of_kind(run(updates=30).trace, "evaluation")]
    target = max(scores)
    summary = run(updates=30, target=target, target_stops=True).summary
    assert summary["updates"] == summary["rounds_to_target"] == 3 * scores.index(target)
    assert summary["ended"] == "target"
    with pytest.raises(InputError, match="needs a target"):
        Run(target_stops=True)


def test_budgets_of_virtual_and_wall_time_end_a_run(monkeypatch):
    times = [record["time"] for record in of_kind(run().trace, "update")]
    between = (times[4] + times[5]) / 2
    result = run(time_budget=between)
    assert (result.summary["updates"], result.summary["ended"]) == (5, "time budget")
    assert of_kind(result.trace, "evaluation")[-1]["update"] == 5
    replayed = simulate(
        make_task(), "asyncsgd", training=TRAINING, run=Run(time_budget=between), replay=run().trace
    )
    assert replayed.summary["updates"] == 5
    assert run(wall_budget=1e-9).summary["ended"] == "wall budget"
    assert run(wall_budget=1e9).summary["ended"] == "updates"


# Progress


def test_progress_is_shown_to_people_only(capsys, monkeypatch):
    run()
    assert capsys.readouterr().err == ""
    simulate(make_task(), "asyncsgd", run=Run(updates=3), progress=True)
    assert "asyncsgd: 3/3 updates" in capsys.readouterr().err
    shown = []
    handle = SimpleNamespace(update=shown.append)
    page = SimpleNamespace(display=lambda what, display_id: handle, HTML=str)
    shell = SimpleNamespace(kernel="ipykernel")
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", page)
    assert progress.is_watched()
    run()
    assert '<progress value="12" max="12">' in shown[-1]
    shell.__dict__.clear()  # IPython in a terminal has no kernel
    assert not progress.is_watched()


# The same data


def test_a_run_is_not_resumed_with_other_data_or_another_model(tmp_path):
    plain = make_task()
    run(Records(out=tmp_path))
    inputs, targets = plain.clients[0].inputs.clone(), plain.clients[0].targets
    inputs[0] += 1.0
    changes = {
        "data": {"clients": [(inputs, targets), *plain.clients[1:]]},
        "model": {"model": nn.Linear(6, 3)},
    }
    for what, change in changes.items():
        parts = {"model": plain.model, "clients": plain.clients} | change
        other = Task(loss=plain.loss, test=plain.test, validation=plain.validation, **parts)
        # the count of parameters is part of the configuration, which is compared first
        with pytest.raises(InputError, match=f"other {what}|parameters"):
            run(Records(out=tmp_path, resume=True), task=other)
    assert run(Records(out=tmp_path, resume=True)).summary["updates"] == 12


class Noisy:
    """Examples that are augmented at random: reading them again gives others."""

    def __len__(self):
        return 12

    def __getitem__(self, number):
        return torch.randn(6), number % 3


def test_data_that_is_augmented_at_random_can_be_resumed(tmp_path):
    task = Task(nn.Linear(6, 3), nn.functional.cross_entropy, [Noisy()] * 3, test=Noisy())
    run(Records(out=tmp_path), task=task)
    (tmp_path / "summary.json").unlink()
    assert run(Records(out=tmp_path, resume=True), task=task).summary["updates"] == 12


# Report and landscape


def built(seed):
    """A function that a run's directory can name."""
    return make_task()


def test_a_run_of_a_function_can_be_drawn_again(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    simulate(built, "asyncbezier", training=TRAINING, run=Run(updates=6), records=Records(out=one))
    draw_landscape(one, grid=2, quiet=True)
    simulate(make_task(), "asyncbezier", training=TRAINING, run=Run(updates=6), records=Records(out=other))
    with pytest.raises(
        InputError, match="made in Python from a Task object, which cannot be built again"
    ) as no:
        draw_landscape(other, grid=2, quiet=True)
    assert "landscape --task my.py:build" in str(no.value)
    assert main(["landscape", str(other), "--grid", "2", "--task", f"{__file__}:built", "--quiet"]) == 0
    with pytest.raises(InputError, match="the run's task has other data"):
        draw_landscape(other, grid=2, quiet=True, task_place=f"{__file__}:built_otherwise")
    assert write_report(tmp_path).exists()


def built_otherwise(seed):
    return make_task(sizes=(12, 20, 28, 36, 45))


# Advice


def test_short_steps_of_a_model_that_still_learns_are_advised_on():
    rising = [0.1 * place for place in range(12)]
    assert "steps of 2 % of the way" in advise(rising, 0.02, "accuracy", lower_is_better=False)
    assert advise(rising, 0.3, "accuracy", lower_is_better=False) is None
    assert advise(rising[::-1], 0.02, "loss", lower_is_better=True) is not None
    assert advise(rising, 0.02, "loss", lower_is_better=True) is None
    flat = [0.0, 0.5, *[0.6] * 10]
    assert advise(flat, 0.02, "accuracy", lower_is_better=False) is None
    assert advise(rising[:7], 0.02, "accuracy", lower_is_better=False) is None
