"""The way of the data is one direction, and everything imported is declared."""

import ast
import inspect
import re
import subprocess
import sys
import tomllib
from collections import Counter
from importlib import import_module
from pathlib import Path

import pytest

import asyncmanifold

PACKAGE = Path(asyncmanifold.__file__).parent
ROOT = PACKAGE.parent.parent

ENGINES_AND_PLOTS = {"altair", "contourpy", "flwr", "ray", "rich", "vl_convert"}
ANYWHERE = {"arithmetic", "checks", "devices", "errors"}
BASICS = {"files", "metrics", "progress", "scores", "seeding", "threads", "vectors"}
STUDIES = {
    *("client", "configuration", "execution", "geometry", "landscape", "report"),
    *("server", "session", "simulation", "tasks", "theory"),
    *BASICS,
}
MAY_IMPORT = {
    **{name: set() for name in ("arithmetic", "devices", "errors", "metrics", "seeding", "threads")},
    "files": set(),
    "privacy": {"files", "privacy"},
    "scores": {"metrics"},
    "results": {"files", "report.score_plot", "session"},
    "json_log": set(),
    "progress": {"json_log", "session.trace"},
    "sinks": {"session.trace", "watch.live_figures"},
    "vectors": {"geometry"},
    "geometry": {"geometry"},
    "server": {"geometry", "privacy", "seeding", "server", "vectors"},
    "tasks": {"metrics", "scores", "seeding", "tasks", "vectors"},
    "client": {"client", "geometry", "privacy", "seeding", "server", "tasks", "vectors"},
    "session": {"client.settings", "files", "metrics", "privacy", "seeding", "server", "session", "vectors"},
    "execution": {"client", "execution", "geometry", "server", "tasks", "vectors"},
    "configuration": {
        *("client.local_optimizers", "client.settings", "configuration", "geometry", "privacy", "server"),
        *("session", "simulation.attacks", "simulation.schedules", "tasks.task"),
    },
    "simulation": {
        *(
            "client.settings",
            "client.trusted_training",
            "configuration.own_tasks",
            "configuration.python_tasks",
        ),
        *("configuration.tables", "execution", "progress", "results", "seeding"),
        *("server", "session", "simulation", "tasks", "threads", "vectors"),
    },
    "experiments": {*STUDIES, "experiments", "results", "sinks"} - {"landscape", "theory"},
    "flower": {
        *("client", "configuration", "flower", "geometry", "json_log", "metrics", "privacy"),
        *("server", "session", "tasks.data", "tasks.own_data", "tasks.task", "threads", "vectors"),
    },
    "sources": {"files", "sources", "tasks"},
    "watch": {"session.live_jobs", "session.trace", "watch"},
    "report": {"files", "landscape.numbers", "report", "server", "session", "theory.findings"},
    "landscape": STUDIES,
    "theory": STUDIES,
}
"""What each room may use of the package, whole rooms or single files; ``commands`` may use all of them."""


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
        used = {
            name.removeprefix("asyncmanifold.") for name in imports(file) if name.startswith("asyncmanifold.")
        }
        unlawful = {name for name in used if not {name, name.split(".")[0]} & (MAY_IMPORT[part] | ANYWHERE)}
        assert not unlawful, file


def test_every_room_has_a_law():
    rooms = {
        path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert rooms - {"__init__", "__main__", "checks", "commands"} == set(MAY_IMPORT)


def test_no_file_and_no_class_has_a_name_that_another_has():
    """Names of types count like classes; constants in capitals belong to their file."""
    files, classes = Counter(), Counter()
    for file in PACKAGE.rglob("*.py"):
        if file.stem != "__init__":
            files[file.stem] += 1
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef):
                classes[node.name] += 1
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                name = node.targets[0].id
                classes[name] += name[0].isupper() and not name.isupper()
    assert {name for name, count in (files + classes).items() if count > 1} == set()


def test_no_file_is_long():
    assert {file.name for file in PACKAGE.rglob("*.py") if len(file.read_text().splitlines()) > 350} == set()


def test_everything_public_is_explained():
    """Overriding methods inherit their docstring, so it is looked up as ``help`` does."""
    for file in PACKAGE.rglob("*.py"):
        name = ".".join(("asyncmanifold", *file.relative_to(PACKAGE).with_suffix("").parts))
        if file.stem in ("__main__", "ray_workers"):
            continue
        module = import_module(name.removesuffix(".__init__"))
        for cls in vars(module).values():
            if not isinstance(cls, type) or cls.__module__ != module.__name__ or cls.__name__.startswith("_"):
                continue
            assert cls.__doc__, cls
            for attribute, value in vars(cls).items():
                if callable(value) and not attribute.startswith("_") and not isinstance(value, type):
                    assert inspect.getdoc(getattr(cls, attribute)), f"{cls}.{attribute}"


def test_the_report_draws_from_plain_data():
    """Numbers live beside their study: drawing them needs neither the study nor the engine."""
    data = {"asyncmanifold.landscape.numbers", "asyncmanifold.theory.findings"}
    used = {name for file in files_of("report") for name in imports(file)}
    assert {name for name in used if name.split(".")[1:2] in (["landscape"], ["theory"])} == data
    for file in ("landscape/__init__", "landscape/numbers", "theory/__init__", "theory/findings"):
        assert imports(PACKAGE / f"{file}.py") <= {"__future__", "dataclasses", "typing"}


@pytest.mark.parametrize(
    "part", ["server", "client", "geometry", "tasks", "vectors", "simulation", "session", "execution"]
)
def test_no_engine_and_no_plotting_inside(part):
    for file in files_of(part):
        assert {name.split(".")[0] for name in imports(file)}.isdisjoint(ENGINES_AND_PLOTS), file


def test_a_flower_client_does_not_import_every_task():
    program = "import sys, asyncmanifold.flower; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    tasks = {name for name in loaded.stdout.split() if name.startswith("asyncmanifold.tasks.")}
    assert tasks <= {f"asyncmanifold.tasks.{name}" for name in ("data", "own_data", "task")}


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
    extras = {
        "altair",
        "contourpy",
        "datasets",
        "dp_accounting",
        "flwr",
        "flwr_datasets",
        "geoopt",
        "ray",
        "torchmetrics",
        "vl_convert",
    }
    assert extras.isdisjoint(loaded.stdout.split())


def test_no_pickle_is_ever_loaded():
    for file in PACKAGE.rglob("*.py"):
        assert not re.search(r"torch\.load|pickle\.load|joblib|np\.load", file.read_text()), file
        refuses_every_name = file.name == "plain_pickle.py"  # tests/test_device_traces.py tries it
        assert refuses_every_name or "Unpickler" not in file.read_text(), file


def test_the_public_names():
    assert asyncmanifold.__all__ == [
        *("ALittleIsEnough", "AdaptiveEpochs", "Admission", "AflGuard", "ArrivalGroups"),
        *("AsyncManifoldError", "Attack", "AveragedModel", "Averaging", "Barrier", "Bezier", "Buffer"),
        *("CalibratedBuffer", "CentredClipping", "ClassesLatency", "Comparison", "Constant"),
        *("ConstantLatency", "Correction", "CurveCodec", "CyclicRate", "DecayingRate", "DelayAdaptive"),
        *("DelayCompensation", "DelayLimit", "DeviceTraces", "Disc", "Discarded", "Distance", "Embedding"),
        *("EpochRule", "EveryClient", "ExamplePrivacy", "ExponentialAveraging", "FalseExamples"),
        *("FixedRate", "Float16", "Float32", "Flooding", "FloodingThrottle", "Gate", "GaussianNoise"),
        *("Hinge", "InnerProduct", "InputError", "Int8", "Job", "LabelFlip", "LocalPrivacy"),
        *("LocalTraining", "LogNormalLatency", "METHODS", "Method", "NormBound", "NotANumber", "OrthoDC"),
        *("Outgoing", "PARTS", "Parcel", "Patch", "PeerBound", "PeerDirection", "Penalty", "Placement"),
        *("Point", "Polynomial", "PortBuffer", "Position", "PrivateBuffer", "RateSchedule"),
        *("RecentClients", "RecordedLatency", "Records", "Rejected", "Result", "RoundTable", "Routed", "Run"),
        *("RunError", "Scaling", "Schedule", "Score", "Search", "Selection", "ServerAMSGrad"),
        *(
            "ServerAdam",
            "ServerMomentum",
            "ServerOptimizer",
            "ServerState",
            "ServerYogi",
            "Shares",
            "SignFlip",
        ),
        *("Situation", "SlidingWindow", "SpeedRescaled", "Staleness", "StalenessBound", "StepBuffer"),
        *("StopRun", "SyntheticDevices", "TailAveraging", "Tangent", "Task", "Tunnel", "Uniform", "Update"),
        *("ZenoPlusPlus", "__version__", "absorb", "compare", "load_model", "simulate", "tune"),
        "use_portable_arithmetic",
    ]
    for name in asyncmanifold.__all__:
        assert getattr(asyncmanifold, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = asyncmanifold.nothing
