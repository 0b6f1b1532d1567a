"""Examples and documents are run, not trusted."""

import doctest
import re
import runpy
from importlib import import_module
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("name", ["geometry.bezier", "metrics"])
def test_docstrings_hold(name):
    results = doctest.testmod(import_module(f"asyncmanifold.{name}"))
    assert results.attempted > 0
    assert results.failed == 0
