"""Each sink with its real library, read back; and with modules of the same signatures where it fails."""

import json
import logging
import platform
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from asyncmanifold import InputError, Records, Run, compare, simulate
from asyncmanifold.commands.cli import main
from asyncmanifold.json_log import VARIABLE, json_handlers
from asyncmanifold.progress import JsonLines, RunWatcher, display
from asyncmanifold.sinks import SINKS, OpenTelemetrySink, check_sink, numbers_of, open_sinks
from sink_readers import collector, mlflow_curve, tensorboard_curve, wandb_curve, wandb_records
from tiny import TRAINING, make_task, of_kind

RUN = Run(updates=6, evaluate_every=3)


def observed(*observers):
    """The trace of a short run that these observed."""
    return simulate(
        make_task(), "fedasync", training=TRAINING, run=RUN, records=Records(observer=observers)
    ).trace


def expected(trace, name):
    kind, _, key = name.partition("/")
    return [(record["update"], record[key]) for record in of_kind(trace, kind)]


CURVES = ("update/loss", "update/staleness", "evaluation/accuracy")


@pytest.mark.parametrize("name", CURVES)
def test_tensorboard_reads_what_was_written(tmp_path, name):
    trace = observed(*open_sinks([f"tensorboard={tmp_path}"], "one"))
    assert tensorboard_curve(tmp_path / "one", name) == [
        (step, pytest.approx(value)) for step, value in expected(trace, name)
    ]


def test_mlflow_reads_what_was_written(tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    trace = observed(*open_sinks([f"mlflow={tmp_path.as_uri()}"], "one"))
    for name in CURVES:
        assert mlflow_curve(tmp_path.as_uri(), "one", name) == expected(trace, name)


def test_wandb_writes_the_curves_and_nothing_about_the_machine(tmp_path, monkeypatch, capfd):
    """Offline, as the file that ``wandb sync`` would send."""
    pytest.importorskip("wandb")
    for key, value in (("MODE", "offline"), ("DIR", str(tmp_path)), ("SILENT", "true")):
        monkeypatch.setenv(f"WANDB_{key}", value)
    trace = observed(*open_sinks(["wandb=place"], "one"), lambda record: print("a line on the terminal"))
    for name in CURVES:
        assert wandb_curve(tmp_path, "one", name) == expected(trace, name)
    records = wandb_records(tmp_path)
    kinds = {record.WhichOneof("record_type") for record in records}
    assert kinds == {"header", "run", "telemetry", "summary", "history", "exit"}
    written = b"".join(record.SerializeToString() for record in records)
    for private in (platform.node(), str(Path.cwd()), "a line on the terminal"):
        assert private.encode() not in written


def test_opentelemetry_sends_the_last_figures_to_a_collector():
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http.metric_exporter")
    with collector() as server:
        trace = observed(*open_sinks([f"opentelemetry={server.address}/"], "one"))
    assert server.values["asyncmanifold.done", "one", None] == 6
    assert server.values["asyncmanifold.score", "one", None] == of_kind(trace, "evaluation")[-1]["accuracy"]
    sent = sum(record["upload_bytes"] for record in of_kind(trace, "update"))
    assert server.values["asyncmanifold.upload_bytes", "one", None] == sent
    assert server.values["asyncmanifold.events", "one", "rejected"] == 0


def test_comparisons_have_a_curve_per_run(tmp_path):
    pytest.importorskip("tensorboard")
    place = f"tensorboard={tmp_path / 'board'}"
    compare(make_task(), ["fedasync"], seeds=[0, 1], training=TRAINING, run=RUN, sinks=[place])
    assert len(list((tmp_path / "board" / "fedasync").glob("seed-*/events*"))) == 2
    with pytest.raises(InputError, match="must be NAME=PLACE with one of tensorboard"):
        compare(make_task(), ["fedasync"], run=RUN, sinks=["paper=x"])


def test_opentelemetry_exports_the_live_figures():
    export = pytest.importorskip("opentelemetry.sdk.metrics.export")
    reader = export.InMemoryMetricReader()
    sink = OpenTelemetrySink("", "one", reader)
    trace = observed(sink, lambda record: record["kind"] == "update" and found.append(reading(reader)))
    last = found[-1]
    assert last["asyncmanifold.done", "one", None] == 6
    assert last["asyncmanifold.events", "one", "failed"] == 0
    assert last["asyncmanifold.score", "one", None] == of_kind(trace, "evaluation")[-2]["accuracy"]
    assert sink.figures.score == of_kind(trace, "evaluation")[-1]["accuracy"]


found: list = []


def reading(reader):
    data = reader.get_metrics_data()
    return {
        (metric.name, point.attributes["run"], point.attributes.get("kind")): point.value
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    }


def pretended_mlflow():
    """The parts of mlflow 3's client that the sink calls, with their signatures."""
    module = ModuleType("mlflow")
    module.logged, module.ended = [], []

    class MlflowClient:
        def __init__(self, tracking_uri=None, registry_uri=None):
            self.uri = tracking_uri

        def get_experiment_by_name(self, name):
            return None

        def create_experiment(self, name, artifact_location=None, tags=None):
            return "7"

        def create_run(self, experiment_id, start_time=None, tags=None, run_name=None):
            assert (experiment_id, run_name) == ("7", "one")
            return SimpleNamespace(info=SimpleNamespace(run_id="r1"))

        def log_metric(self, run_id, key, value, timestamp=None, step=None, synchronous=None):
            module.logged.append((key, step, value))

        def set_terminated(self, run_id, status=None, end_time=None):
            module.ended.append(run_id)

    module.MlflowClient = MlflowClient
    return module


def pretended_wandb():
    """The parts of wandb 0.31 that the sink calls, with their signatures."""
    module = ModuleType("wandb")
    module.logged, module.ended = [], []

    class WandbRun:
        def log(self, data, step=None, commit=None):
            module.logged.extend((key, step, value) for key, value in data.items())

        def finish(self, exit_code=None):
            module.ended.append("r1")

    def init(
        entity=None, project=None, dir=None, id=None, name=None, *, mode=None, reinit=None, settings=None
    ):
        assert (project, name, reinit) == ("place", "one", "create_new")
        return WandbRun()

    module.init, module.Settings = init, SimpleNamespace
    return module


@pytest.mark.parametrize("library", [pretended_mlflow, pretended_wandb])
def test_runs_are_logged_and_ended(library, monkeypatch):
    module = library()
    monkeypatch.setitem(sys.modules, module.__name__, module)
    trace = observed(*open_sinks([f"{module.__name__}=place"], "one"))
    for name in ("update/loss", "evaluation/accuracy"):
        assert [(step, value) for key, step, value in module.logged if key == name] == expected(trace, name)
    assert module.ended == ["r1"]


def test_a_sink_that_fails_is_off_and_the_run_goes_on(caplog, monkeypatch):
    module = pretended_wandb()
    monkeypatch.setitem(sys.modules, "wandb", module)
    (sink,) = open_sinks(["wandb=place"], "one")
    sink._run = SimpleNamespace(log=None, finish=None)
    with caplog.at_level(logging.WARNING):
        assert len(of_kind(observed(sink), "update")) == 6
    assert [record.getMessage() for record in caplog.records] == [
        "WandbSink is off from now on: 'NoneType' object is not callable",
        "WandbSink has not been closed: 'NoneType' object is not callable",
    ]


@pytest.mark.parametrize("name", SINKS)
def test_a_missing_extra_is_one_line(name, monkeypatch, capsys):
    library = {"opentelemetry": "opentelemetry.sdk.metrics"}.get(name, name)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(
        InputError, match=rf"{library} is not installed: pip install 'asyncmanifold\[{name}\]'"
    ):
        open_sinks([f"{name}=place"], "one")


@pytest.mark.parametrize("words", ["paper=x", "tensorboard", "tensorboard=", "=x"])
def test_a_wrong_sink_is_one_line(words):
    with pytest.raises(
        InputError, match="must be NAME=PLACE with one of tensorboard, mlflow, wandb, opentelemetry"
    ):
        check_sink(words)


def test_only_finite_numbers_are_passed_on():
    assert numbers_of({"kind": "joined", "client": 1}) == {}
    record = {
        "kind": "update",
        "update": 1,
        "loss": float("nan"),
        "staleness": 2,
        "epsilon": None,
        "fraction": True,
    }
    assert numbers_of(record) == {"update/staleness": 2.0}


def test_progress_as_json(monkeypatch, capsys):
    monkeypatch.setenv(VARIABLE, "json")
    shown = display("one", 9, quiet=False)
    assert isinstance(shown, JsonLines)
    shown.INTERVAL = -1.0
    watcher = RunWatcher(shown)
    watcher({"kind": "update", "update": 3, "staleness": 1})
    watcher({"kind": "warning", "reason": "disk nearly full"})
    progress, warning = map(json.loads, capsys.readouterr().err.splitlines())
    assert (progress["level"], progress["run"], progress["updates"]) == ("info", "one", 3)
    assert (warning["level"], warning["message"]) == ("warning", "disk nearly full")


def test_flowers_log_as_json(monkeypatch, capsys):
    from flwr.supercore.logger import ConsoleHandler

    logger = logging.Logger("flwr")
    logger.addHandler(ConsoleHandler(stream=sys.stderr))
    for form, is_json in (("json", True), ("text", False)):
        monkeypatch.setenv(VARIABLE, form)
        with json_handlers(logger):
            try:
                raise ValueError("odd")
            except ValueError:
                logger.exception("update %s", 5)
        line = capsys.readouterr().err
        assert line.startswith("{") == is_json
        if is_json:
            said = json.loads(line)
            assert (said["level"], said["message"], said["logger"]) == ("error", "update 5", "flwr")
            assert "ValueError: odd" in said["traceback"]


def test_the_options_of_the_command(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv(VARIABLE, "text")
    with pytest.raises(SystemExit):
        main(["run", "digits", "--sink", "tensorboard", "--out", str(tmp_path / "run")])
    assert "'tensorboard' must be NAME=PLACE" in capsys.readouterr().err
    assert main(["run", "digits", "--sink", "paper=x", "--out", str(tmp_path / "run")]) == 2
    assert "sink 'paper=x' must be NAME=PLACE" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    options = ["--set", "updates=2", "--log-format", "json", "--sink", f"tensorboard={tmp_path / 'board'}"]
    assert main(["run", "digits", *options, "--out", str(tmp_path / "run")]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert lines[-1]["updates"] == 2
    assert list((tmp_path / "board" / "run").glob("events*"))
