"""The whole study: runs of growing length on every problem, their slopes, and the bound beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

from asyncmanifold.errors import InputError
from asyncmanifold.files import write_atomically, write_json
from asyncmanifold.progress import Display, display
from asyncmanifold.report.drawing import standalone_svg
from asyncmanifold.report.png import write_pngs
from asyncmanifold.server.methods import METHODS, Method
from asyncmanifold.session.summary import mean_and_deviation
from asyncmanifold.theory.constants import (
    LAMBDA_MIN,
    Constants,
    Measured,
    Setting,
    corrected_bound,
    corrected_constants,
    local_rate,
    printed_bound,
    printed_constants,
)
from asyncmanifold.theory.figure import Series, convergence_figure
from asyncmanifold.theory.measure import Measures, measure, pooled
from asyncmanifold.theory.problems import CLIENTS, PROBLEMS, Known, Problem
from asyncmanifold.theory.slope import Slope, log_slope
from asyncmanifold.threads import torch_threads

COVERED = ("asyncsgd", "fedortho", "fedgs", "asyncbezier")
"""Methods that the corrected theorem speaks of: no buffer, no penalty, and no correction that lengthens."""
POINT_STEPS, CURVE_STEPS = 2, 1
GLOBAL_LR = 0.5


@dataclass(frozen=True)
class Length:
    """The runs of one length."""

    updates: int
    """T."""
    local_lr: float
    """η_l."""
    squares: list[float]
    """The average squared gradient norm, seed by seed."""
    mean: float
    deviation: float | None
    measured: Measured
    staleness: float
    """Versions, on average."""
    decrease: float
    """L(Θ^0) − L(Θ^T), on average."""
    constants: Constants | None
    """With this length's η_l; None, like the bounds, where Q or S came out as 0 or below."""
    bound: float | None
    printed_bound: float | None


@dataclass(frozen=True)
class Finding:
    """What the study found on one problem."""

    problem: str
    title: str
    method: str
    seeds: list[int]
    known: Known
    setting: Setting
    measured: Measured
    """The smallest Q and the largest S of all lengths, which the bounds use."""
    lambda_min: float
    printed: Constants | None
    slope: float
    slope_low: float
    slope_high: float
    lengths: list[Length]

    def brief(self) -> dict[str, Any]:
        """Return the slope for scripts."""
        names = ("problem", "slope", "slope_low", "slope_high")
        return {name: getattr(self, name) for name in names}


def study_convergence(
    method: str,
    lengths: Sequence[int],
    seeds: Sequence[int],
    out: Path,
    *,
    quiet: bool = False,
) -> list[Finding]:
    """Run ``method`` on every problem, write theory.json and the figure to ``out``, and return the findings.

    A ``InputError`` says in one line what is wrong, before any run.
    """
    lengths = sorted(set(lengths))
    if method not in COVERED:
        raise InputError(f"--method {method}: the theorem is tested for {', '.join(COVERED)}")
    if len(lengths) < 2:
        raise InputError("--lengths: a slope needs two different lengths or more")
    if lengths[0] < CLIENTS:
        raise InputError(f"--lengths {lengths[0]}: must be at least {CLIENTS}, the number of clients")
    if len(seeds) < 2:
        raise InputError("--seeds: an interval needs two seeds or more")
    try:
        problems = [make() for make in PROBLEMS.values()]
    except ValueError as error:
        raise InputError(str(error)) from error
    try:
        (out / "figures").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{out}: {error.strerror}") from error
    total = len(problems) * len(seeds) * sum(lengths)
    with torch_threads(), display(f"theory, {method}", total, quiet=quiet) as shown:
        watch = _Watch(shown)
        findings = [_examine(problem, method, lengths, list(seeds), watch) for problem in problems]
    write_json(out / "theory.json", [asdict(finding) for finding in findings])
    figure = convergence_figure([_series(finding) for finding in findings])
    write_atomically(out / "figures" / f"{figure.name}.svg", standalone_svg(figure).encode())
    write_pngs(out / "figures", [figure])
    return findings


class _Watch:
    """Counts updates over all runs."""

    def __init__(self, shown: Display) -> None:
        self._shown, self._done, self.note = shown, 0, ""

    def __call__(self) -> None:
        self._done += 1
        self._shown.show(self._done, self.note)


def chosen_setting(method: Method) -> Setting:
    """Return how clients and server work in every run of a method."""
    return Setting(
        clients=CLIENTS,
        point_steps=POINT_STEPS,
        curve_steps=CURVE_STEPS if method.embedding.is_curve else 0,
        degree=method.embedding.points,
        global_lr=GLOBAL_LR,
    )


def _examine(problem: Problem, name: str, lengths: list[int], seeds: list[int], watch: _Watch) -> Finding:
    """Make every run on one problem and weigh what came out."""
    method = replace(METHODS[name], weighting="none", global_lr=GLOBAL_LR)
    setting = chosen_setting(method)
    rates = {length: local_rate(problem.known, setting, length) for length in lengths}
    runs: dict[int, list[Measures]] = {length: [] for length in lengths}
    for length in lengths:
        watch.note = f"{problem.name}, T = {length}, "
        for seed in seeds:
            made = measure(
                problem, method, setting, length=length, local_lr=rates[length], seed=seed, on_update=watch
            )
            runs[length].append(made)
    return weigh(problem, name, setting, seeds, rates, runs)


def weigh(
    problem: Problem,
    method: str,
    setting: Setting,
    seeds: list[int],
    rates: dict[int, float],
    runs: dict[int, list[Measures]],
) -> Finding:
    """Return slope, constants and bounds of finished runs, given by length."""
    by_length = {length: pooled(made) for length, made in runs.items()}
    worst = Measured(
        quality=min(found.quality for found in by_length.values()),
        staleness=max(found.staleness for found in by_length.values()),
    )
    rows = [[made[place].square for made in runs.values()] for place in range(len(seeds))]
    slope: Slope = log_slope(list(runs), rows)
    return Finding(
        problem=problem.name,
        title=problem.title,
        method=method,
        seeds=seeds,
        known=problem.known,
        setting=setting,
        measured=worst,
        lambda_min=LAMBDA_MIN,
        printed=printed_constants(problem.known, setting, worst) if worst.is_sound else None,
        slope=slope.value,
        slope_low=slope.low,
        slope_high=slope.high,
        lengths=[
            _length(problem.known, setting, worst, by_length[length], length, rates[length], made)
            for length, made in runs.items()
        ],
    )


def _length(
    known: Known,
    setting: Setting,
    worst: Measured,
    measured: Measured,
    length: int,
    rate: float,
    runs: list[Measures],
) -> Length:
    squares = [run.square for run in runs]
    middle, deviation = mean_and_deviation(squares)
    decrease = mean(run.start_loss - run.end_loss for run in runs)
    return Length(
        updates=length,
        local_lr=rate,
        squares=squares,
        mean=middle,
        deviation=deviation,
        measured=measured,
        staleness=mean(run.staleness for run in runs),
        decrease=decrease,
        constants=corrected_constants(known, setting, worst, rate) if worst.is_sound else None,
        bound=corrected_bound(known, setting, worst, length=length, local_lr=rate, decrease=decrease),
        printed_bound=printed_bound(known, setting, worst, length=length, local_lr=rate, decrease=decrease),
    )


def _series(finding: Finding) -> Series:
    return Series(
        name=finding.title,
        lengths=[entry.updates for entry in finding.lengths],
        squares=[entry.squares for entry in finding.lengths],
        means=[entry.mean for entry in finding.lengths],
        bounds=[entry.bound for entry in finding.lengths],
        slope=(finding.slope, finding.slope_low, finding.slope_high),
    )
