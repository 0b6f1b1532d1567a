"""Where else a run's figures go: TensorBoard, MLflow, Weights & Biases, OpenTelemetry.

A sink is an observer (``Records(observer=…)``), so it works for simulations and on Flower alike. It never
ends a run: one that fails says so once and is off from then on.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from importlib import import_module
from math import isfinite
from pathlib import Path
from typing import Any, ClassVar

from asyncmanifold.errors import InputError, one_line
from asyncmanifold.session.trace import PLACES, Record
from asyncmanifold.watch.live_figures import LiveFigures

UPDATE_FIGURES = (
    *("loss", "staleness", "fraction", "update_norm", "train_seconds"),
    *("upload_bytes", "download_bytes", "epsilon"),
)
"""What is shown of an accepted update, as far as its record has it."""
log = logging.getLogger("asyncmanifold.sinks")


class Sink(ABC):
    """Passes the numbers of every accepted update and every evaluation on."""

    def __init__(self) -> None:
        self._is_off = False

    def __call__(self, record: Record) -> None:
        """Pass one record on."""
        if self._is_off:
            return
        try:
            self.take(record)
        except Exception as problem:  # of a library, a network, a full disk: the run is worth more
            self._is_off = True
            log.warning("%s is off from now on: %s", type(self).__name__, one_line(problem))

    def take(self, record: Record) -> None:
        """Pass one record on; may raise."""
        if numbers := numbers_of(record):
            self.write(numbers, int(record["update"]))

    @abstractmethod
    def write(self, numbers: Mapping[str, float], step: int) -> None:
        """Write numbers, named like ``evaluation/accuracy``, at a number of accepted updates."""

    @abstractmethod
    def finish(self) -> None:
        """Write what is left; may raise."""

    def close(self) -> None:
        """Write what is left; called when the run ends, however it does."""
        try:
            self.finish()
        except Exception as problem:
            log.warning("%s has not been closed: %s", type(self).__name__, one_line(problem))


def numbers_of(record: Record) -> dict[str, float]:
    """Return the numbers of an update or an evaluation that are worth a curve.

    >>> numbers_of({"kind": "evaluation", "update": 5, "time": 2.0, "accuracy": 0.5, "wall_seconds": 1.0})
    {'evaluation/accuracy': 0.5}
    """
    kind = record["kind"]
    if kind == "update":
        names: Iterable[str] = UPDATE_FIGURES
    elif kind == "evaluation":
        names = [name for name in record if name not in PLACES]
    else:
        return {}
    return {f"{kind}/{name}": float(record[name]) for name in names if _is_number(record.get(name))}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)


class TensorBoardSink(Sink):
    """Writes event files that ``tensorboard --logdir PLACE`` shows."""

    def __init__(self, place: str, title: str) -> None:
        super().__init__()
        needed("tensorboard", "tensorboard")
        library = needed("torch.utils.tensorboard", "tensorboard")
        self._writer = library.SummaryWriter(str(Path(place) / title))

    def write(self, numbers: Mapping[str, float], step: int) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)

    def finish(self) -> None:
        self._writer.close()


class MlflowSink(Sink):
    """Logs to an MLflow server or a folder: ``PLACE`` is the tracking URI."""

    def __init__(self, place: str, title: str) -> None:
        super().__init__()
        mlflow = needed("mlflow", "mlflow")
        self._client = mlflow.MlflowClient(tracking_uri=place)
        known = self._client.get_experiment_by_name("asyncmanifold")
        experiment = known.experiment_id if known else self._client.create_experiment("asyncmanifold")
        self._run = self._client.create_run(experiment, run_name=title).info.run_id

    def write(self, numbers: Mapping[str, float], step: int) -> None:
        for name, value in numbers.items():
            self._client.log_metric(self._run, name, value, step=step)

    def finish(self) -> None:
        self._client.set_terminated(self._run)


class WandbSink(Sink):
    """Logs to Weights & Biases: ``PLACE`` is the project. ``WANDB_MODE=offline`` keeps everything here.

    What the library would send besides is switched off: the terminal's lines, code, packages, the machine.
    """

    NOTHING_ELSE: ClassVar = {
        "console": "off",
        "disable_code": True,
        "disable_git": True,
        "host": "",
        "x_disable_machine_info": True,
        "x_disable_meta": True,
        "x_disable_stats": True,
        "x_save_requirements": False,
    }

    def __init__(self, place: str, title: str) -> None:
        super().__init__()
        wandb = needed("wandb", "wandb")
        settings = wandb.Settings(**self.NOTHING_ELSE)
        self._run = wandb.init(project=place, name=title, reinit="create_new", settings=settings)

    def write(self, numbers: Mapping[str, float], step: int) -> None:
        self._run.log(dict(numbers), step=step)

    def finish(self) -> None:
        self._run.finish()


class OpenTelemetrySink(Sink):
    """Exports the live view's figures over OTLP: ``PLACE`` is the collector, such as http://127.0.0.1:4318."""

    UNITS: ClassVar = {"rate": "1/s", "seconds_left": "s"}
    GAUGES = ("done", "total", "score", "staleness", "rate", "seconds_left", "epsilon")
    COUNTERS = ("failed", "rejected", "dropped", "resting")

    def __init__(self, place: str, title: str, reader: Any = None) -> None:
        super().__init__()
        sdk = needed("opentelemetry.sdk.metrics", "opentelemetry")
        if reader is None:
            export = needed("opentelemetry.sdk.metrics.export", "opentelemetry")
            otlp = needed("opentelemetry.exporter.otlp.proto.http.metric_exporter", "opentelemetry")
            exporter = otlp.OTLPMetricExporter(endpoint=place.rstrip("/") + "/v1/metrics")
            reader = export.PeriodicExportingMetricReader(exporter, export_interval_millis=10_000)
        self.figures = LiveFigures()
        self._provider = sdk.MeterProvider(metric_readers=[reader])
        meter = self._provider.get_meter("asyncmanifold")
        observation = needed("opentelemetry.metrics", "opentelemetry").Observation

        def reading(name: str, kind: str | None = None) -> Any:
            def read(_: Any) -> Iterable[Any]:
                value = self.figures.counts[kind] if kind else getattr(self.figures, name)
                where = {"run": title} | ({"kind": kind} if kind else {})
                return [] if value is None else [observation(value, where)]

            return read

        for name in self.GAUGES:
            unit = self.UNITS.get(name, "1")
            meter.create_observable_gauge(f"asyncmanifold.{name}", [reading(name)], unit=unit)
        for name in ("upload_bytes", "download_bytes"):
            meter.create_observable_counter(f"asyncmanifold.{name}", [reading(name)], unit="By")
        events = [reading("counts", kind) for kind in self.COUNTERS]
        meter.create_observable_counter("asyncmanifold.events", events)

    def take(self, record: Record) -> None:
        self.figures.add(record)

    def write(self, numbers: Mapping[str, float], step: int) -> None:
        """Do nothing: the reader asks for the figures when it is time."""

    def finish(self) -> None:
        self._provider.shutdown()


SINKS: dict[str, type[Any]] = {
    "tensorboard": TensorBoardSink,
    "mlflow": MlflowSink,
    "wandb": WandbSink,
    "opentelemetry": OpenTelemetrySink,
}


def open_sinks(wanted: Iterable[str], title: str) -> list[Sink]:
    """Return the sinks of ``NAME=PLACE`` strings, in which a run has this title."""
    sinks: list[Sink] = []
    for words in map(check_sink, wanted):
        name, _, place = words.partition("=")
        try:
            sinks.append(SINKS[name](place, title))
        except InputError:
            raise
        except Exception as problem:  # each library has errors of its own
            raise InputError(f"--sink {words}: {one_line(problem)}") from problem
    return sinks


def check_sink(words: str) -> str:
    """Return ``NAME=PLACE`` if there is such a sink."""
    name, separator, place = words.partition("=")
    if name not in SINKS or not separator or not place:
        raise InputError(f"sink {words!r} must be NAME=PLACE with one of {', '.join(SINKS)}")
    return words


def needed(module: str, extra: str) -> Any:
    """Import a module of an extra, or say in one line how to install it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise InputError(f"{module} is not installed: pip install 'asyncmanifold[{extra}]'") from error
