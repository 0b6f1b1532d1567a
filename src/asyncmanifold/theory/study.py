"""The whole study: runs of growing length on every problem, their slopes, and the bound."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from statistics import mean

from asyncmanifold.errors import InputError
from asyncmanifold.progress import display
from asyncmanifold.report.figure_files import make_figures_folder
from asyncmanifold.report.theory_page import write_theory
from asyncmanifold.server.methods import METHODS, Method
from asyncmanifold.server.penalties import AdaptiveEpochs
from asyncmanifold.session.summary import mean_and_deviation
from asyncmanifold.theory.constants import LAMBDA_MIN, Theorem, local_rate
from asyncmanifold.theory.findings import Finding, LengthResult, MeasuredConstants, Setting
from asyncmanifold.theory.gradient_norms import RunNumbers, measure_run, measured_constants
from asyncmanifold.theory.problems import CLIENTS, PROBLEMS, Problem
from asyncmanifold.theory.slope import log_slope
from asyncmanifold.threads import torch_threads

COVERED = (
    *("asyncbezier", "asyncbezier-ed", "asyncsgd", "fedortho", "fedgs"),
    *("fedasync", "dcasgd", "asyncfeded", "fedbuff", "fedavg"),
)
"""Methods that the corrected theorem covers: those whose clients learn a point or a Bézier curve."""
POINT_STEPS, CURVE_STEPS = 2, 1
MOST_STEPS = 4
"""Where steps adapt, clients begin with this many and never make more: K is the most of them."""
GLOBAL_LR = 0.5


def study_convergence(
    method: str, lengths: Sequence[int], seeds: Sequence[int], out: Path, *, quiet: bool = False
) -> list[Finding]:
    """Run ``method`` on every problem, write the page and its files to ``out``, and return the findings.

    Wrong input is an ``InputError`` of one line, before any run.
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
    problems = [make() for make in PROBLEMS.values()]
    make_figures_folder(out)  # before the work, so that an unwritable folder is refused at once
    total = len(problems) * len(seeds) * sum(lengths)
    with torch_threads(), display(f"theory, {method}", total, quiet=quiet) as shown:
        done = count(1)
        findings = [
            _study_problem(problem, method, lengths, list(seeds), lambda note: shown.show(next(done), note))
            for problem in problems
        ]
    write_theory(findings, out)
    return findings


def chosen_setting(method: Method) -> Setting:
    """Return the settings of clients and server in every run of a method."""
    return Setting(
        clients=CLIENTS,
        point_steps=POINT_STEPS if method.adaptive_epochs is None else MOST_STEPS,
        curve_steps=CURVE_STEPS if method.embedding.is_curve else 0,
        degree=method.embedding.points,
        global_lr=GLOBAL_LR,
        decay=getattr(method.penalty, "decay", 0.0),
    )


def chosen_method(name: str) -> Method:
    """Return a published method as it is studied: clients count alike, and adaptive steps are bounded."""
    method = replace(METHODS[name], weighting="none", global_lr=GLOBAL_LR)
    if not isinstance(method.adaptive_epochs, AdaptiveEpochs):
        return method
    return replace(method, adaptive_epochs=replace(method.adaptive_epochs, max_epochs=MOST_STEPS))


def _study_problem(
    problem: Problem, name: str, lengths: list[int], seeds: list[int], on_update: Callable[[str], None]
) -> Finding:
    """Run all lengths and seeds on one problem, and return its slope, constants and bounds."""
    method = chosen_method(name)
    known, setting = problem.known, chosen_setting(method)
    runs: dict[int, list[RunNumbers]] = {}
    for length in lengths:
        rate, tell = local_rate(known, setting, length), partial(on_update, f"{problem.name}, T = {length}, ")
        runs[length] = [
            measure_run(problem, method, setting, length=length, local_lr=rate, seed=seed, on_update=tell)
            for seed in seeds
        ]
    measured = [measured_constants(made) for made in runs.values()]
    worst = MeasuredConstants(
        quality=min(found.quality for found in measured),
        staleness=max(found.staleness for found in measured),
        stretch=max(found.stretch for found in measured),
    )
    theorem = Theorem(known, setting, worst)
    squares = [[run.square for run in made] for made in runs.values()]
    slope, low, high = log_slope(lengths, list(zip(*squares, strict=True)))
    return Finding(
        problem=problem.name,
        title=problem.title,
        method=name,
        seeds=seeds,
        known=known,
        setting=setting,
        measured=worst,
        lambda_min=LAMBDA_MIN,
        printed=theorem.printed_constants(),
        slope=slope,
        slope_low=low,
        slope_high=high,
        lengths=[_length_result(theorem, length, made) for length, made in runs.items()],
    )


def _length_result(theorem: Theorem, length: int, runs: list[RunNumbers]) -> LengthResult:
    squares = [run.square for run in runs]
    middle, deviation = mean_and_deviation(squares)
    decrease = mean(run.start_loss - run.end_loss for run in runs)
    rate = local_rate(theorem.known, theorem.setting, length)
    return LengthResult(
        updates=length,
        local_lr=rate,
        squares=squares,
        mean=middle,
        deviation=deviation,
        measured=measured_constants(runs),
        staleness=mean(run.staleness for run in runs),
        decrease=decrease,
        constants=theorem.corrected_constants(rate),
        bound=theorem.corrected_bound(length=length, local_lr=rate, decrease=decrease),
        printed_bound=theorem.printed_bound(length=length, local_lr=rate, decrease=decrease),
    )
