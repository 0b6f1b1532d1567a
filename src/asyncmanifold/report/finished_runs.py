"""Read runs from their directories: only what the report shows, checked while it is read."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from asyncmanifold.errors import InputError
from asyncmanifold.report.charts import NOT_SCORES
from asyncmanifold.report.comparison import COLUMNS
from asyncmanifold.report.figure import shorten
from asyncmanifold.server.methods import METHODS
from asyncmanifold.session.summary import Summary, summarise
from asyncmanifold.session.trace import Record, read_trace

SIGNS = ("trace.jsonl", "summary.json")
"""The files that identify a run's directory; config.toml does not, since other programs have one too."""


@dataclass(frozen=True)
class Evaluation:
    """The model's score at one time; None if it is not finite."""

    update: float
    time: float
    score: float | None


@dataclass(frozen=True)
class JobSpan:
    """One job of a client, from dispatch to arrival, and its outcome."""

    kind: str
    client: int
    start: float
    end: float


@dataclass(frozen=True)
class StepNumbers:
    """The numbers of an accepted update's step."""

    update: float
    time: float
    staleness: float
    cosines: list[float]
    projected: list[bool]
    fraction: float
    t: float
    upload: float | None = None
    """Bytes that its client sent; None in a trace that does not say."""
    client: int = 0
    step_norm: float = 0.0


@dataclass(frozen=True)
class RunData:
    """One run, finished or not."""

    place: str
    """Its directory, relative to the report's."""
    scenario: str
    method: str
    """The method's name in the report; runs of the same name differ only in their seed."""
    seed: int
    summary: Summary
    config: dict[str, Any]
    is_finished: bool = True
    evaluations: list[Evaluation] = field(default_factory=list)
    jobs: list[JobSpan] = field(default_factory=list)
    steps: list[StepNumbers] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The method and the seed, which identify this run."""
        return f"{self.method}, seed {self.seed}"

    @property
    def client_scores(self) -> list[tuple[int, float]]:
        """Return (client, score) for every client that has one."""
        return [(i, s) for i, s in enumerate(self.summary["per_client"] or []) if s is not None]

    @property
    def uploaded(self) -> list[float] | None:
        """Return the megabytes sent up to each number of updates; None if an update does not say."""
        sizes = [step.upload for step in self.steps if step.upload is not None]
        known = len(sizes) == len(self.steps)
        return [sent / 1e6 for sent in accumulate(sizes, initial=0.0)] if known else None


@dataclass(frozen=True)
class FoundRuns:
    """The runs found below a directory."""

    runs: list[RunData]
    problems: list[tuple[str, str]]
    """The runs that are left out, each with the reason."""

    @property
    def methods(self) -> list[str]:
        """Return the methods in the order of the runs."""
        return list(dict.fromkeys(run.method for run in self.runs))

    def of_method(self, method: str) -> list[RunData]:
        """Return a method's runs."""
        return [run for run in self.runs if run.method == method]


def find_runs(directory: Path) -> FoundRuns:
    """Read every run in ``directory`` or below it; the summary of an unfinished one is computed so far."""
    places = {file.parent for name in SIGNS for file in directory.rglob(name)}
    runs: list[RunData] = []
    problems: list[tuple[str, str]] = []
    for place in sorted(places):
        shown = printable(place.relative_to(directory) if place != directory else directory.resolve().name)
        try:
            runs.append(read_run(place, shown))
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            problems.append((shown, printable(f"broken: {error}")))
    return FoundRuns(_order_runs(_with_distinct_methods(runs)), problems)


def read_run(path: Path, place: str) -> RunData:
    """Read one run; a broken file is an ``InputError`` that names it."""
    with _naming("config.toml"):
        config = tomllib.loads((path / "config.toml").read_text(encoding="utf-8"))
    is_finished = (path / "summary.json").exists()
    if is_finished:
        with _naming("summary.json"):
            summary = _check_summary(json.loads((path / "summary.json").read_text(encoding="utf-8")))
    else:
        with _naming("trace.jsonl"):
            summary = _check_summary(_summary_so_far(path / "trace.jsonl", config))
    name = printable(summary.get("method", config.get("method_name", place)))
    with _naming("summary.json" if is_finished else "config.toml"):
        run = RunData(
            place=place,
            scenario=printable(summary.get("scenario", config.get("scenario", ""))),
            method=name if is_finished else f"{name} (unfinished)",
            seed=int(_number(summary.get("seed", 0))),
            summary=summary,
            config=config,
            is_finished=is_finished,
        )
    with _naming("trace.jsonl"):
        for record in read_trace(path / "trace.jsonl"):
            _add_record(run, record)
        if not run.evaluations:
            raise InputError("has no evaluation")
    return run


@contextmanager
def _naming(file: str) -> Iterator[None]:
    """Raise whatever reading a file raises as an ``InputError`` that names the file."""
    try:
        yield
    except FileNotFoundError as error:
        raise InputError(f"{file} is missing") from error
    except KeyError as error:
        raise InputError(f"{file}: {error} is missing") from error
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{file}: {error}") from error


def _summary_so_far(trace: Path, config: dict[str, Any]) -> Summary:
    """Return the summary of a run that is going on or was killed, without what is measured at its end."""
    records = list(read_trace(trace))
    first = next((record for record in records if record["kind"] == "evaluation"), None)
    if first is None:
        raise InputError("has no evaluation yet")
    settings = config.get("run", {})
    summary = summarise(
        records,
        metrics=[name for name in first if name not in NOT_SCORES][:1],
        target=settings.get("target"),
        final_evaluations=settings.get("final_evaluations", 1),
        per_client=None,
        validation=None,
    )
    return {"method": config.get("method_name"), "seed": settings.get("seed", 0), **summary}


def printable(value: object) -> str:
    """Return a value as a string of one line, with a mark for each unprintable character."""
    return "".join(c if c.isprintable() else "\ufffd" for c in " ".join(str(value).split()))


def _add_record(run: RunData, record: Record) -> None:
    kind = record["kind"]
    if kind == "evaluation":
        score = _number_or_none(record[run.summary["metric"]])
        run.evaluations.append(Evaluation(_number(record["update"]), _number(record["time"]), score))
    if kind in ("update", "rejected", "failed", "dropped", "discarded", "cancelled"):
        start, end = _number(record["dispatched"]), _number(record["time"])
        run.jobs.append(JobSpan(kind, int(_number(record["client"])), start, end))
    if kind == "update":
        numbers = {name: _number(record[name]) for name in ("update", "time", "staleness", "fraction", "t")}
        cosines = [_number(value) for value in record["cosines"]]
        run.steps.append(
            StepNumbers(
                **numbers,
                cosines=cosines,
                projected=list(map(bool, record["projected"])),
                upload=_number_or_none(record.get("upload_bytes")),
                client=int(_number(record["client"])),
                step_norm=_number(record.get("step_norm", 0.0)),
            )
        )


def _check_summary(summary: Summary) -> Summary:
    """Return the summary; raise if the table and the figures could not use it."""
    summary.setdefault("last", summary["final"])  # of runs before version 0.3, whose final score was the last
    for column in COLUMNS:
        _number_or_none(summary[column.key])
    _number_or_none(summary["target"])
    for score in (*(summary["per_client"] or []), *summary.get("scores", {}).values()):
        _number_or_none(score)
    if not isinstance(summary["metric"], str):
        raise InputError("metric must be a name")
    return summary


def _number(value: Any) -> float:
    """Return a number that can be drawn; the limit of 1e100 keeps sums and differences finite."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1e100:
        raise InputError(f"{shorten(repr(value), 40)} is not a finite number")
    return float(value)


def _number_or_none(value: Any) -> float | None:
    return None if value is None else _number(value)


def _with_distinct_methods(runs: Sequence[RunData]) -> list[RunData]:
    """Give runs of one method that differ in more than the seed different names."""
    several = len({run.scenario for run in runs}) > 1
    named = [replace(run, method=f"{run.scenario}: {run.method}") if several else run for run in runs]
    variants: dict[str, dict[str, str]] = {}
    for run in named:
        variants.setdefault(run.method, {}).setdefault(_settings(run), run.place)
    apart: list[RunData] = []
    for run in named:
        others = variants[run.method]
        place = others[_settings(run)]
        apart.append(run if len(others) == 1 else replace(run, method=f"{run.method} ({place})"))
    return apart


def _settings(run: RunData) -> str:
    """Return the configuration without the seed, as a string that can be compared."""
    settings = {
        **run.config,
        "fingerprint": None,
        "run": {**run.config.get("run", {}), "seed": None, "checkpoint_seconds": None},
    }
    return json.dumps(settings, sort_keys=True, default=str)


def _order_runs(runs: Sequence[RunData]) -> list[RunData]:
    """Return the runs in the methods' usual order, then by name and seed."""
    order = list(METHODS)

    def key(run: RunData) -> tuple[bool, int, str, int, str]:
        name = str(run.summary.get("method"))
        place = order.index(name) if name in order else len(order)
        return (not run.is_finished, place, run.method, run.seed, run.place)

    return sorted(runs, key=key)
