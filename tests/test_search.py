"""Searches over several keys at once, and successive halving."""

import json
import re
from dataclasses import replace

import pytest
import torch
from torch import nn

from asyncmanifold import InputError, Run, RunError, Search, Task, compare, tune
from asyncmanifold.commands.cli import main
from asyncmanifold.configuration.config import load_config
from asyncmanifold.experiments import many_runs
from asyncmanifold.experiments.grid_search import best_point, keys_at_edge
from asyncmanifold.experiments.halving import rungs
from tiny import TRAINING, make_task

RUN = Run(updates=9, evaluate_every=9)
GRID = {"global_lr": [0.5, 2.0, 4.0], "local_lr": [1e-3, 0.05]}
MANY = {"global_lr": [0.1, 0.5, 1, 2, 4], "local_lr": [1e-3, 0.02]}


def point(value, mean, **more):
    return {"value": value, "mean": mean, "sd": None, **more}


def cell(first, second, mean):
    return point(f"{first}, {second}", mean, values={"one": first, "two": second})


def test_all_combinations_are_tried_and_each_is_an_ordinary_run(tmp_path):
    """The slow way is one comparison for each combination."""
    found = tune(make_task(), "fedasync", key=GRID, training=TRAINING, run=RUN, seeds=[0, 1], out=tmp_path)
    tried = [point["values"] for point in found.curves["fedasync"]]
    assert tried == [
        {"global_lr": first, "local_lr": second}
        for first in ("0.5", "2", "4")
        for second in ("0.001", "0.05")
    ]
    for values, scored in zip(tried, found.curves["fedasync"], strict=True):
        own = compare(make_task(), "fedasync", settings=values, training=TRAINING, run=RUN, seeds=[0, 1])
        scores = [run.summary["validation"] for run in own.runs.values()]
        assert scored["mean"] == pytest.approx(sum(scores) / 2)
        name = f"global_lr={values['global_lr']},local_lr={values['local_lr']}"
        assert (tmp_path / "fedasync" / name / "seed-1" / "summary.json").exists()
    best = max(found.curves["fedasync"], key=lambda point: point["mean"])
    assert found.settings == {"fedasync": best["values"]}
    assert found.best == {"fedasync": best["value"]} == {"fedasync": ", ".join(best["values"].values())}
    rows = found.to_pandas()
    assert list(rows.columns[:4]) == ["method", "global_lr", "local_lr", "seed"]
    assert rows["local_lr"].tolist() == ["0.001", "0.001", "0.05", "0.05"] * 3


def test_the_table_of_a_grid_has_a_row_for_each_value_of_the_second_key():
    scores = [cell("1", "a", 0.5), cell("1", "b", 0.25), cell("2", "a", None), cell("2", "b", 0.75)]
    found = Search("one, two", {"mine": scores}, runs={})
    lines = str(found).splitlines()
    assert lines[0] == "validation score % by one (across) and two"
    rows = [line.split() for line in lines[1:] if line.strip() and "─" not in line]
    assert rows == [["method", "two", "1", "2"], ["mine", "a", "50.0", "–"], ["mine", "b", "25.0", "75.0"]]
    assert found._repr_html_().count("<tr") == 3
    assert "<td>b</td><td>25.0</td><td><b>75.0</b></td>" in found._repr_html_()


def test_values_are_words_and_no_markup():
    found = Search("one, two", {"mine": [cell("1", "[bold]<b>", 0.5)]}, runs={})
    assert "[bold]<b>" in str(found)
    assert "<td>[bold]&lt;b&gt;</td>" in found._repr_html_()


def test_an_edge_belongs_to_a_key():
    grid = [cell(str(one), str(two), -abs(one - 2) - two) for one in (1, 2, 3) for two in (1, 2, 3)]
    assert keys_at_edge(grid, ["one", "two"]) == ["two"]
    assert keys_at_edge(grid, ["one", "two"], lower_is_better=True) == ["one", "two"]
    few = [cell(str(one), two, one) for one in (1, 2, 3) for two in ("a", "b", "c")]
    assert keys_at_edge(few, ["one", "two"]) == ["one"]  # words have no edge
    said = str(Search("one, two", {"mine": grid, "few": few}, runs={}))
    assert said.endswith("so a better one may lie beyond: mine (two), few (one)")


def test_rungs_keep_a_third_until_three_are_left():
    assert [rungs(count) for count in (1, 3)] == [[(1, 1)], [(3, 1)]]
    assert rungs(4) == [(4, 3), (2, 1)]
    assert rungs(8) == [(8, 3), (3, 1)]
    assert rungs(9) == [(9, 3), (3, 1)]
    assert rungs(27) == [(27, 9), (9, 3), (3, 1)]


def slow_halving():
    """Keep the best by plain comparisons: 10 candidates for 1 update, 4 for 3, 2 for 9."""
    left = [(one, two) for one in MANY["global_lr"] for two in MANY["local_lr"]]
    scores, lengths = {}, {}
    for updates, most in ((1, 10), (3, 4), (9, 2)):
        left = sorted(left, key=lambda pair: -scores.get(pair, 0.0))[:most]
        for pair in left:
            settings = dict(zip(MANY, pair, strict=True))
            run = replace(RUN, updates=updates)
            own = compare(make_task(), "asyncsgd", settings=settings, training=TRAINING, run=run, seeds=[0])
            (finished,) = own.runs.values()
            scores[pair], lengths[pair] = finished.summary["validation"], updates
    return scores, lengths


def test_halving_gives_longer_runs_to_the_best(tmp_path):
    scores, lengths = slow_halving()
    options = {"key": MANY, "training": TRAINING, "run": RUN, "halving": True}
    found = tune(make_task(), "asyncsgd", out=tmp_path, **options)
    points = {tuple(float(v) for v in p["values"].values()): p for p in found.curves["asyncsgd"]}
    assert {pair: p["updates"] for pair, p in points.items()} == lengths
    assert {pair: p["mean"] for pair, p in points.items()} == scores
    assert sorted(lengths.values()) == [*[1] * 6, *[3] * 2, *[9] * 2]
    finalists = [pair for pair, length in lengths.items() if length == 9]
    best = max(finalists, key=scores.get)
    assert tuple(float(value) for value in found.settings["asyncsgd"].values()) == best
    assert "halving: 10 for 1 updates, 4 for 3 updates, 2 for 9 updates" in str(found)
    assert re.search(r"\d \(1\)", str(found))
    name = "global_lr={:g},local_lr={:g}".format(*best)
    assert (tmp_path / "asyncsgd" / name / "3-updates" / "seed-0" / "summary.json").exists()
    assert len(found.to_pandas()) == len(found.runs) == 16

    with pytest.raises(InputError, match=r"holds a run of asyncsgd, global_lr=0\.1,local_lr=0\.001, 1-up"):
        tune(make_task(), "asyncsgd", out=tmp_path, **options)
    plain = tune(make_task(), "asyncsgd", key={"global_lr": [0.3]}, training=TRAINING, run=RUN, out=tmp_path)
    assert "updates" not in plain.curves["asyncsgd"][0]


def test_an_interrupted_halving_continues_where_it_was(tmp_path, monkeypatch):
    options = {"key": MANY, "training": TRAINING, "run": RUN, "halving": True, "out": tmp_path}
    run_config, made = many_runs.run_config, []

    def interrupted(config, records, *rest):
        if len(made) == 12:
            raise KeyboardInterrupt
        made.append(config)
        return run_config(config, records, *rest)

    monkeypatch.setattr(many_runs, "run_config", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tune(make_task(), "asyncsgd", **options)
    monkeypatch.setattr(many_runs, "run_config", run_config)
    before = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("summary.json")}
    assert len(before) == 12
    found = tune(make_task(), "asyncsgd", **options, resume=True)
    assert {file: file.stat().st_mtime_ns for file in before} == before
    assert len(list(tmp_path.rglob("summary.json"))) == 16
    whole = tune(make_task(), "asyncsgd", **{**options, "out": None})
    assert found.curves == whole.curves


def test_only_the_longest_runs_are_compared():
    curve = [point("1", 0.9, updates=3), point("2", 0.4, updates=9), point("3", 0.5, updates=9)]
    assert best_point(curve)["value"] == "3"
    assert best_point(curve, lower_is_better=True)["value"] == "2"
    assert best_point([point("1", None, updates=9)]) is None


def test_a_value_whose_long_run_fails_is_not_chosen(monkeypatch):
    options = {"values": [0.5, 1, 2, 4], "training": TRAINING, "run": RUN, "halving": True}
    before = tune(make_task(), "asyncsgd", **options)
    best = before.best["asyncsgd"]
    run_config = many_runs.run_config

    def failing(config, records, *rest):
        if config.run.updates == 9 and config.method.global_lr == float(best):
            raise RunError("no client is left")
        return run_config(config, records, *rest)

    monkeypatch.setattr(many_runs, "run_config", failing)
    found = tune(make_task(), "asyncsgd", **options)
    assert found.failures == [f"asyncsgd, global_lr={best}, seed-0: no client is left"]
    lengths = {p["value"]: p["updates"] for p in found.curves["asyncsgd"]}
    assert lengths == {p["value"]: p["updates"] for p in before.curves["asyncsgd"]} | {best: 3}
    assert lengths[found.best["asyncsgd"]] == 9


def test_halving_prefers_less_where_less_is_better():
    data = (torch.linspace(0, 1, 16).view(-1, 1), torch.linspace(1, 4, 16).view(-1, 1))
    torch.manual_seed(0)
    task = Task(nn.Linear(1, 1), nn.functional.mse_loss, [data] * 3, data, [data] * 3)
    found = tune(task, "asyncsgd", values=[0.01, 0.1, 1, 3], run=RUN, halving=True)
    lengths = {p["value"]: p["updates"] for p in found.curves["asyncsgd"]}
    assert lengths == {"0.01": 3, "0.1": 3, "1": 9, "3": 9}
    assert found.best == {"asyncsgd": "3"}


def test_every_key_of_a_search_is_in_tuned_toml(tmp_path, capsys):
    quick = ["--set", "updates=6", "--set", "evaluate_every=6", "--set", "batch_size=64", "--workers", "1"]
    keys = ["--key", "global_lr=0.5,2", "--key", "local_lr=1e-3,0.02", "--key", "threshold=-1", "--halving"]
    command = ["tune", "digits", "--methods", "asyncbezier", *keys, *quick, "--out", str(tmp_path)]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "halving: 4 for 2 updates, 2 for 6 updates" in said
    assert "the best of every 3 values are kept and run 3 times as long" in said
    (curve,) = json.loads((tmp_path / "tune.json").read_text())["methods"].values()
    best = max((p for p in curve if p["updates"] == 6), key=lambda p: p["mean"])["values"]
    tuned = load_config(str(tmp_path / "tuned.toml"), "asyncbezier")
    assert tuned.method.global_lr == float(best["global_lr"])
    assert tuned.training.local_lr == float(best["local_lr"])
    assert tuned.method.correction.threshold == -1.0
    assert tuned.run.updates == 300
    assert main([*command, "--resume", "--quiet"]) == 0


def test_factors_are_for_several_keys_too():
    task, keys = make_task(), ["global_lr", "local_lr"]
    found = tune(task, "asyncsgd", key=keys, factors=[1, 2], training=TRAINING, run=replace(RUN, updates=2))
    tried = [tuple(p["values"].values()) for p in found.curves["asyncsgd"]]
    assert tried == [("1", "0.02"), ("1", "0.04"), ("2", "0.02"), ("2", "0.04")]
    with pytest.raises(InputError, match="no values are given for global_lr"):
        tune(task, "asyncsgd", key={"global_lr": []}, run=RUN)
    with pytest.raises(InputError, match="factors are instead of values"):
        tune(task, "asyncsgd", key={"global_lr": [1]}, factors=[2], run=RUN)
