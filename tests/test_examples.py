"""Examples and documents are run, not trusted."""

import copy
import re
import runpy
import tomllib
from importlib import import_module
from pathlib import Path

import nbformat
import pytest
from flwr.app import Context, RecordDict
from nbclient import NotebookClient

from asyncmanifold import Bezier, DelayCompensation, Method
from asyncmanifold.configuration.config import load_config
from asyncmanifold.flower import Policy

ROOT = Path(__file__).parent.parent


def test_own_model(capsys):
    runpy.run_path(str(ROOT / "examples" / "own_model.py"), run_name="__main__")
    accuracy = re.search(r"accuracy (0\.\d+)", capsys.readouterr().out)
    assert float(accuracy[1]) > 0.9


def test_own_correction(capsys):
    runpy.run_path(str(ROOT / "examples" / "own_correction.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("HalfWay(share=0.5): accuracy 0.")
    assert all(float(line[-5:]) > 0.8 for line in lines)


@pytest.mark.parametrize("place", ["examples/flower-app", "tests/flower/app"])
def test_the_flower_apps_settings_make_a_policy(place, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "flower-app"))
    given = tomllib.loads((ROOT / place / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    server = import_module("asyncmanifold_app.server_app")
    assert server.read_policy(Context(1, 0, {}, RecordDict(), given)) == Policy()
    given |= {
        "queue-depth": 2,
        "concurrency": 5,
        "deadline": 9.0,
        "patience": 1,
        "rest-seconds": 2.0,
        "wait-seconds": 3.0,
    }
    policy = server.read_policy(Context(1, 0, {}, RecordDict(), given))
    assert policy == Policy(
        queue_depth=2, concurrency=5, deadline=9.0, patience=1, rest_seconds=2.0, wait_seconds=3.0
    )


def test_the_program_in_the_readme_runs(capsys):
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(program.splitlines()) < 20
    exec(compile(program, "README.md", "exec"), {})
    assert re.fullmatch(r"0\.\d+ \d+\.\d+\n", capsys.readouterr().out)


def test_the_scenario_in_the_readme_loads(tmp_path):
    (scenario,) = re.findall(r"```toml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (tmp_path / "mine.toml").write_text(scenario)
    config = load_config(str(tmp_path / "mine.toml"), "cubic")
    assert config.method == Method(embedding=Bezier(3), correction=DelayCompensation())


@pytest.mark.parametrize("name", ["momentum", "cache", "clip", "curve"])
def test_own_parts(name, capsys, monkeypatch):
    path = ROOT / "examples" / f"own_{name}.py"
    assert len(path.read_text().splitlines()) <= 40
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    runpy.run_path(str(path), run_name="__main__")
    assert all(float(line[-5:]) > 0.7 for line in capsys.readouterr().out.splitlines())


def test_own_study_in_forty_lines(capsys, monkeypatch, tmp_path):
    """An own module, non-IID data, metric and schedule: four methods over two seeds, a table and a plot."""
    path = ROOT / "examples" / "own_study.py"
    assert len(path.read_text().splitlines()) <= 40
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(path), run_name="__main__")
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    scores = {
        row[0]: float(row[1].partition("±")[0]) for row in rows if row and "±" in row[-1] + "".join(row[1:2])
    }
    assert {"position", "tangent", "orthodc", "fedavg"} <= set(scores)
    assert all(scores[name] > 70.0 for name in ("position", "tangent", "orthodc", "fedavg"))
    assert (tmp_path / "own_study.svg").read_text().startswith("<svg")


@pytest.mark.filterwarnings("ignore")
def test_the_notebook_runs_and_shows_what_it_was_stored_with(tmp_path):
    """Executed by a kernel of its own; the stored outputs are a table, a figure, and no error."""
    stored = nbformat.read(ROOT / "examples" / "own_study.ipynb", as_version=4)
    made = copy.deepcopy(stored)
    NotebookClient(made, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    for notebook in (stored, made):
        outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
        assert {output.output_type for output in outputs} <= {"display_data", "execute_result", "stream"}
        assert not any(output.get("name") == "stderr" for output in outputs)
        kinds = [set(output.get("data", {})) for output in outputs]
        assert any("image/svg+xml" in kind for kind in kinds)
        shown = "".join(
            output.data["text/html"] for output in outputs if "text/html" in output.get("data", {})
        )
        assert shown.count("<table") == 2  # the comparison and the DataFrame
        assert "800/800" in shown  # the progress bar is complete


@pytest.mark.parametrize("scenario", ["mine.py:build", "digits"])
def test_a_flower_node_imports_only_its_own_task(scenario, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "flower-app"))
    setup = import_module("asyncmanifold_app.setup")
    place = ROOT / "examples" / "own_study.py"
    run_config = {"scenario": scenario, "method": "", "seed": 0, "settings": "", "data": "", "clients": 9}
    run_config |= {"num-updates": 0, "evaluate-every": 0}
    node = {"partition-id": 0, "num-partitions": 9}
    if scenario != "digits":
        with pytest.raises(ValueError, match="start this node with its own task"):
            setup.read_config(Context(1, 0, node, RecordDict(), run_config))
    own = Context(1, 0, node | {"task": f"{place}:build"}, RecordDict(), run_config)
    config = setup.read_config(own)
    assert len(setup.build_task(config).clients) == 9
    assert setup.build_task(setup.read_config(own)) is setup.build_task(config)
