"""Own tasks from Python, TOML files and the command line: one way of running them, and the same files."""

import json
import re
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
import torch
from torch import nn

from asyncmanifold import InputError, Method, Run, Score, Task, compare, tune
from asyncmanifold.commands.cli import main
from asyncmanifold.configuration.config import config_tree, load_config, with_setting
from asyncmanifold.configuration.own_tasks import own_task_class
from asyncmanifold.configuration.tables import build_part
from asyncmanifold.execution.importable import check_importable
from tiny import make_task, trace_of

SHORT = Run(updates=6, evaluate_every=3)
PROGRAM = """
import torch
from torch import nn
from asyncmanifold import Task

WORDS = "not a function"


class Net(nn.Linear):
    pass


def build(seed, clients: int = 3, scale: float = 1.0, kind: str = "plain", optional: int = None):
    random = torch.Generator().manual_seed(seed)
    inputs = [scale * torch.randn(12, 4, generator=random) for _ in range(clients + 1)]
    data = [(each, (each.sum(dim=1) > 0).long()) for each in inputs]
    torch.manual_seed(seed)
    return Task(Net(4, 2), nn.functional.cross_entropy, data[:-1], data[-1], validation=data[:-1])


def anything(seed, **settings):
    return build(seed, **settings)


def wrong(seed):
    return "a string"


def seedless():
    return None
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    """A file of a person's own, whose name no other test has used."""
    name = f"mine_{tmp_path.name}".replace("-", "_").replace("[", "_").replace("]", "_")
    (tmp_path / f"{name}.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return f"{name}.py"


def run_command(*words):
    return main([str(word) for word in words])


# Places


def test_a_file_and_a_module_name_the_same_task(program, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    for place in (f"{program}:build", f"{Path(program).stem}:build"):
        config = load_config(place, "fedasync", seed=5, settings={"clients": "4", "scale": "2"})
        task = config.build_task()
        assert len(task.clients) == 4
        assert config.task.scale == 2.0
        assert config.scenario == Path(program).stem
    assert config_tree(load_config(f"{program}:build"))["task"] == {
        "name": f"{tmp_path / program}:build",
        "clients": 3,
        "scale": 1.0,
        "kind": "plain",
    }


def test_a_toml_file_names_a_task_beside_it(program, tmp_path, monkeypatch):
    (tmp_path / "mine.toml").write_text(f'[task]\nname = "{program}:build"\nclients = 5\n')
    (tmp_path / "short.toml").write_text(f'task = "{program}:anything"\n')
    monkeypatch.chdir("/")
    config = load_config(str(tmp_path / "mine.toml"), "fedasync")
    assert len(config.build_task().clients) == 5
    changed = with_setting(config, "clients", "2")
    assert (changed.task.clients, changed.method) == (2, config.method)
    assert len(load_config(str(tmp_path / "short.toml")).build_task().clients) == 3


@pytest.mark.parametrize(
    ("place", "problem"),
    [
        ("nowhere.py:build", "nowhere.py:build'?: no such file"),
        ("no.such.module:build", "task 'no.such.module:build': no module named 'no'"),
        ("{program}:missing", "has no function 'missing'"),
        ("{program}:WORDS", "'WORDS' is not a function but a str"),
        ("{program}:wrong", "wrong must return a Task, not str"),
        ("{program}:seedless", "seedless must take the seed first"),
        ("broken.py:build", "cannot be imported: ZeroDivisionError: division by zero"),
        ("json.py:build", "there is another module 'json' .*: rename the file"),
    ],
)
def test_a_place_that_has_no_task_is_one_line(place, problem, program, tmp_path, capsys):
    (tmp_path / "broken.py").write_text("1 / 0\n")
    (tmp_path / "json.py").write_text(PROGRAM)
    code = run_command("run", place.format(program=program), "--out", tmp_path / "out", "--quiet")
    (line,) = capsys.readouterr().err.splitlines()
    assert code == 2
    assert line.startswith("asyncmanifold: ")
    assert re.search(problem, line), line


def test_wrong_settings_of_an_own_task_are_one_line(program):
    with pytest.raises(InputError, match="clients = 'x': must be a whole number"):
        load_config(f"{program}:build", settings={"clients": "x"})
    with pytest.raises(InputError, match="unknown key, did you mean 'scale'"):
        load_config(f"{program}:build", settings={"scales": "1"})


def test_no_message_makes_a_node_import_anything(program):
    for key in ("embedding", "outgoing", "correction"):
        with pytest.raises(InputError, match="has no part"):
            build_part(key, f"{program}:build", "job")
    assert Path(program).stem not in sys.modules


# Commands


def test_every_command_takes_an_own_task(program, tmp_path, capsys):
    """run, its resume and replay, landscape, compare, tune and report."""
    place, quiet = f"{program}:build", ["--quiet"]
    short = ["--set", "updates=6", "--set", "batch_size=4"]
    one = tmp_path / "one"
    assert run_command("run", place, "--method", "asyncbezier", *short, "--out", one, *quiet) == 0
    again = ["--replay", one / "trace.jsonl", "--out", tmp_path / "again", *quiet]
    assert run_command("run", place, "--method", "asyncbezier", *short, *again) == 0
    assert (tmp_path / "again/model.safetensors").read_bytes() == (one / "model.safetensors").read_bytes()
    assert run_command("landscape", one, "--grid", 3, "--update", 6, *quiet) == 0
    several = ["--seeds", 0, "--workers", 2, *short, *quiet]
    assert run_command("compare", place, "--methods", "fedasync,fedavg", "--out", "many", *several) == 0
    assert (
        run_command("tune", place, "--method", "fedasync", "--values", "1,2", "--out", "tuned", *several) == 0
    )
    assert run_command("compare", "tuned/tuned.toml", "--methods", "fedasync", "--out", "more", *several) == 0
    assert run_command("report", "many") == 0
    assert (tmp_path / "many/report.html").exists()
    assert capsys.readouterr().err == ""


def test_worker_processes_import_the_task_of_a_file(program, tmp_path):
    here, there = (["--workers", count, "--out", tmp_path / str(count), "--quiet"] for count in (1, 2))
    for words in (here, there):
        assert (
            run_command("run", f"{program}:build", "--method", "fedasync", "--set", "updates=5", *words) == 0
        )
    assert trace_of(tmp_path / "1") == trace_of(tmp_path / "2")


# Python


def test_compare_writes_what_the_command_writes(program, tmp_path):
    short = ["--set", "updates=6", "--set", "evaluate_every=3"]
    words = [
        "--methods",
        "fedasync,fedavg",
        "--seeds",
        "0,1",
        "--workers",
        1,
        "--out",
        "a",
        "--quiet",
        *short,
    ]
    assert run_command("compare", f"{program}:build", *words) == 0
    function = own_task_class(f"{program}:build")
    by_place = compare(f"{program}:build", ["fedasync", "fedavg"], run=SHORT, out="b")
    by_function = compare(lambda seed: function().build(seed), ["fedasync", "fedavg"], run=SHORT)
    assert by_place.table == by_function.table == json.loads(Path("a/compare.json").read_text())["methods"]
    for name in ("compare.json", "table.md", "fedavg/seed-1/model.safetensors", "fedavg/seed-1/config.toml"):
        assert Path("a", name).read_bytes() == Path("b", name).read_bytes()
    with pytest.raises(InputError, match="b: holds a run of fedasync, seed-0 already"):
        compare(f"{program}:build", "fedasync", run=SHORT, out="b")
    assert (
        compare(f"{program}:build", "fedasync", run=SHORT, out="b", resume=True).table["fedasync"]["runs"]
        == 2
    )


def test_a_comparison_is_a_table_everywhere():
    mine = {"mine": Method(correction="position", global_lr=2.0), "fedavg": "fedavg"}
    found = compare(make_task(), mine, seeds=[0, 1], run=SHORT)
    lines = str(found).splitlines()
    assert lines[0] == "task: accuracy after 6 updates"
    assert [line.split()[0] for line in lines if line.startswith((" mine", " fedavg"))] == ["mine", "fedavg"]
    assert "mean±sd over 2 seeds" in lines[-2]
    assert found._repr_html_().count("<tr") == 3
    rows = found.to_pandas()
    assert rows[["method", "seed"]].values.tolist() == [
        ["mine", 0],
        ["mine", 1],
        ["fedavg", 0],
        ["fedavg", 1],
    ]
    assert rows["final"].mean() == pytest.approx(rows["accuracy"].mean())
    with pytest.raises(InputError, match="two methods are named 'custom': give a dictionary"):
        compare(make_task(), [Method(global_lr=2.0), Method(global_lr=3.0)], run=SHORT)
    with pytest.raises(InputError, match="must be a Task or a function of the seed, not int"):
        compare(3, "fedavg")


def test_a_metric_named_like_a_number_of_the_summary_hides_nothing():
    score = Score(lambda outputs, targets: 7.0, higher_is_better=True)
    task = replace(make_task(), metrics={"accuracy": make_task().scores["accuracy"], "final": score})
    rows = compare(task, "fedasync", seeds=[0], run=SHORT).to_pandas()
    assert rows["final"].tolist() == rows["accuracy"].tolist()
    assert rows["final (metric)"].tolist() == [7.0]


def test_tune_finds_the_value_with_the_best_validation_score(tmp_path):
    found = tune(make_task(), "fedasync", values=[0.01, 1, 4], run=SHORT, out=tmp_path)
    curve = {point["value"]: point["mean"] for point in found.curves["fedasync"]}
    assert found.best["fedasync"] == max(curve, key=curve.get)
    assert json.loads((tmp_path / "tune.json").read_text())["methods"] == found.curves
    assert (tmp_path / "fedasync/global_lr=0.01/seed-0/summary.json").exists()
    assert "validation score % by global_lr" in str(found)
    assert found.to_pandas()["global_lr"].tolist() == ["0.01", "1", "4"]
    assert "<b>" in found._repr_html_()


def test_tune_prefers_less_where_less_is_better():
    data = (torch.linspace(0, 1, 16).view(-1, 1), torch.linspace(1, 4, 16).view(-1, 1))
    torch.manual_seed(0)
    task = Task(nn.Linear(1, 1), nn.functional.mse_loss, [data] * 3, data, [data] * 3)
    found = tune(task, "asyncsgd", values=[0.01, 3], run=SHORT)
    small, large = (point["mean"] for point in found.curves["asyncsgd"])
    assert large < small
    assert found.best == {"asyncsgd": "3"}
    with pytest.raises(InputError, match=r"tune needs Task\(validation=…\)"):
        tune(Task(nn.Linear(1, 1), nn.functional.mse_loss, [data], data), "asyncsgd", run=SHORT)


def test_own_parts_survive_settings_and_searches(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "examples"))
    half_way = import_module("own_correction").HalfWay
    found = tune(make_task(), {"half": Method(correction=half_way(0.5))}, values=[1, 2], run=SHORT)
    assert len(found.curves["half"]) == 2


def test_a_class_from_a_notebook_is_named(monkeypatch):
    """Workers import the main module again from its file, and a notebook has none."""
    main_module = sys.modules["__main__"]
    for name in ("__file__", "__spec__"):
        monkeypatch.delattr(main_module, name, raising=False)
    cell = type("Cell", (nn.Linear,), {"__module__": "__main__"})
    monkeypatch.setattr(main_module, "Cell", cell, raising=False)
    data = (torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64))
    with pytest.raises(InputError, match="Cell is defined in a notebook or an interactive session"):
        compare(Task(cell(2, 2), nn.functional.cross_entropy, [data], data), "fedavg", run=SHORT, workers=2)
    check_importable(make_task())
