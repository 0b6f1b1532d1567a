"""Examples and documents are run, not trusted."""

import re
import runpy
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
from flwr.app import Context, RecordDict

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
    assert server.read_policy(Context(1, 0, {}, RecordDict(), given)) == Policy(queue_depth=2)
    given |= {"concurrency": 5, "deadline": 9.0, "patience": 1, "rest-seconds": 2.0, "wait-seconds": 3.0}
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
