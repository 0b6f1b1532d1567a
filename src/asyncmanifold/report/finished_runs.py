"""Read finished runs from their directories: only what the report shows, checked while it is read."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from asyncmanifold.errors import InputError
from asyncmanifold.report.comparison import COLUMNS
from asyncmanifold.report.svg import shorten
from asyncmanifold.server.methods import METHODS
from asyncmanifold.session.summary import Summary
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


@dataclass(frozen=True)
class RunData:
    """One finished run."""

    place: str
    """Its directory, relative to the report's."""
    scenario: str
    method: str
    """The method's name in the report; runs of the same name differ only in their seed."""
    seed: int
    summary: Summary
    config: dict[str, Any]
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
    """Read every run in ``directory`` or below it."""
    places = {file.parent for name in SIGNS for file in directory.rglob(name)}
    runs: list[RunData] = []
    problems: list[tuple[str, str]] = []
    for place in sorted(places):
        shown = printable(place.relative_to(directory) if place != directory else directory.resolve().name)
        if not (place / "summary.json").exists():
            problems.append((shown, "not finished"))
            continue
        try:
            runs.append(read_run(place, shown))
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            problems.append((shown, printable(_reason(error))))
    return FoundRuns(_order_runs(_with_distinct_methods(runs)), problems)


def read_run(path: Path, place: str) -> RunData:
    """Read one finished run; a broken file raises whatever reading and checking raise."""
    config = tomllib.loads((path / "config.toml").read_text(encoding="utf-8"))
    summary = _check_summary(json.loads((path / "summary.json").read_text(encoding="utf-8")))
    run = RunData(
        place=place,
        scenario=printable(summary.get("scenario", config.get("scenario", ""))),
        method=printable(summary.get("method", config.get("method_name", place))),
        seed=int(_number(summary.get("seed", 0))),
        summary=summary,
        config=config,
    )
    for record in read_trace(path / "trace.jsonl"):
        _add_record(run, record)
    if not run.evaluations:
        raise InputError("trace.jsonl has no evaluation")
    return run


def printable(value: object) -> str:
    """Return a value as a string of one line, with a mark for each unprintable character."""
    return "".join(c if c.isprintable() else "\ufffd" for c in " ".join(str(value).split()))


def _add_record(run: RunData, record: Record) -> None:
    kind = record["kind"]
    if kind == "evaluation":
        score = _number_or_none(record[run.summary["metric"]])
        run.evaluations.append(Evaluation(_number(record["update"]), _number(record["time"]), score))
    if kind in ("update", "rejected", "failed", "dropped"):
        start, end = _number(record["dispatched"]), _number(record["time"])
        run.jobs.append(JobSpan(kind, int(_number(record["client"])), start, end))
    if kind == "update":
        numbers = {name: _number(record[name]) for name in ("update", "time", "staleness", "fraction", "t")}
        cosines = [_number(value) for value in record["cosines"]]
        run.steps.append(
            StepNumbers(**numbers, cosines=cosines, projected=list(map(bool, record["projected"])))
        )


def _check_summary(summary: Summary) -> Summary:
    """Return the summary; raise if the table and the figures could not use it."""
    for column in COLUMNS:
        _number_or_none(summary[column.key])
    _number_or_none(summary["target"])
    for score in (*(summary["per_client"] or []), *summary.get("scores", {}).values()):
        _number_or_none(score)
    if not isinstance(summary["metric"], str):
        raise InputError("summary.json: metric must be a name")
    return summary


def _number(value: Any) -> float:
    """Return a number that can be drawn; the limit of 1e100 keeps sums and differences finite."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1e100:
        raise InputError(f"{shorten(repr(value), 40)} is not a finite number")
    return float(value)


def _number_or_none(value: Any) -> float | None:
    return None if value is None else _number(value)


def _reason(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"broken: {error} is missing"
    if isinstance(error, FileNotFoundError):
        return f"broken: {Path(str(error.filename)).name} is missing"
    return f"broken: {error}"


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
    settings = {**run.config, "run": {**run.config.get("run", {}), "seed": None, "checkpoint_seconds": None}}
    return json.dumps(settings, sort_keys=True, default=str)


def _order_runs(runs: Sequence[RunData]) -> list[RunData]:
    """Return the runs in the methods' usual order, then by name and seed."""
    order = list(METHODS)

    def key(run: RunData) -> tuple[int, str, int, str]:
        name = str(run.summary.get("method"))
        return (order.index(name) if name in order else len(order), run.method, run.seed, run.place)

    return sorted(runs, key=key)
