"""The way of the data is one direction, and everything imported is declared."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import asyncmanifold

PACKAGE = Path(asyncmanifold.__file__).parent
ROOT = PACKAGE.parent.parent

ENGINES_AND_PLOTS = {"flwr", "ray", "matplotlib", "plotly", "rich"}
MAY_IMPORT = {
    "errors": set(),
    "files": set(),
    "geometry": {"errors", "geometry"},
    "vectors": {"errors", "geometry"},
    "seeding": set(),
    "metrics": set(),
    "trace": set(),
    "server": {"errors", "geometry", "server", "vectors"},
    "tasks": {"errors", "tasks", "metrics", "seeding", "vectors"},
    "client": {"client", "errors", "geometry", "seeding", "server", "tasks", "vectors"},
    "sources": {"errors", "files", "sources", "tasks"},
    "summary": {"metrics", "trace"},
    "compare": {"files", "summary", "trace"},
    "report": {"compare", "errors", "files", "landscape", "report", "server", "summary", "theory", "trace"},
}
"""What the parts below the engine may use of the package; nothing here knows an engine."""


def imports(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            found.add(node.module)
    return found


def files_of(part: str) -> list[Path]:
    single = PACKAGE / f"{part}.py"
    return [single] if single.exists() else sorted((PACKAGE / part).rglob("*.py"))


@pytest.mark.parametrize("part", MAY_IMPORT)
def test_parts_use_only_what_is_below_them(part):
    for file in files_of(part):
        used = {name.split(".")[1] for name in imports(file) if name.startswith("asyncmanifold.")}
        assert used <= MAY_IMPORT[part], file


def test_the_report_draws_from_plain_data():
    """Numbers live beside their study: drawing them needs neither the study nor the engine."""
    data = {"asyncmanifold.landscape.numbers", "asyncmanifold.theory.findings"}
    used = {name for file in files_of("report") for name in imports(file)}
    assert {name for name in used if name.split(".")[1:2] in (["landscape"], ["theory"])} == data
    for file in ("landscape/__init__", "landscape/numbers", "theory/__init__", "theory/findings"):
        assert imports(PACKAGE / f"{file}.py") <= {"__future__", "dataclasses", "typing"}


@pytest.mark.parametrize("part", ["server", "client", "geometry", "tasks", "vectors", "simulation"])
def test_no_engine_and_no_plotting_inside(part):
    for file in files_of(part):
        assert {name.split(".")[0] for name in imports(file)}.isdisjoint(ENGINES_AND_PLOTS), file


def test_nothing_calls_the_command_line():
    for file in PACKAGE.rglob("*.py"):
        if file.name not in ("__main__.py", "cli.py"):
            assert "asyncmanifold.commands.cli" not in imports(file), file


def test_every_import_is_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [
        entry for name, extra in project["optional-dependencies"].items() if name != "dev" for entry in extra
    ]
    declared = {re.split(r"[<>=\[]", entry)[0] for entry in [*project["dependencies"], *extras]}
    modules = {"scikit-learn": "sklearn"}
    allowed = {modules.get(name, name.replace("-", "_")) for name in declared} | {"asyncmanifold"}
    for file in PACKAGE.rglob("*.py"):
        used = {name.split(".")[0] for name in imports(file)} - set(sys.stdlib_module_names)
        assert used <= allowed, file


def test_extras_are_imported_only_where_they_are_needed():
    program = "import sys, asyncmanifold.commands.actions; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    extras = {"datasets", "flwr", "flwr_datasets", "geoopt", "ray", "torchmetrics"}
    assert extras.isdisjoint(loaded.stdout.split())


def test_no_pickle_is_ever_loaded():
    for file in PACKAGE.rglob("*.py"):
        assert not re.search(r"torch\.load|pickle\.load|joblib|np\.load", file.read_text()), file


def test_the_public_names():
    assert asyncmanifold.__all__ == [
        *("AdaptiveEpochs", "Averaging", "Barrier", "Bezier", "Buffer", "ClassesLatency", "Constant"),
        *("ConstantLatency", "Correction", "DelayCompensation", "Distance", "Hinge", "Job"),
        *("LocalTraining", "LogNormalLatency", "METHODS", "Method", "OrthoDC", "Point", "Polynomial"),
        *("Position", "RecordedLatency", "Rejected", "Result", "Run", "Schedule", "ServerState"),
        *("Shares", "Tangent", "Task", "Tunnel", "Update", "__version__", "absorb", "simulate"),
    ]
    for name in asyncmanifold.__all__:
        assert getattr(asyncmanifold, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = asyncmanifold.nothing
