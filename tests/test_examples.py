"""Examples and documents are run, not trusted."""

import doctest
import re
import runpy
from importlib import import_module
from pathlib import Path

import pytest

from asyncmanifold import Bezier, DelayCompensation, Method
from asyncmanifold.config import load_config

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


@pytest.mark.parametrize("name", ["geometry.bezier", "metrics"])
def test_docstrings_hold(name):
    results = doctest.testmod(import_module(f"asyncmanifold.{name}"))
    assert results.attempted > 0
    assert results.failed == 0
