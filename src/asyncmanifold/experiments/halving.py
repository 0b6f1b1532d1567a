"""Successive halving: many candidates in short runs, fewer and fewer of them in longer ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from asyncmanifold.errors import InputError
from asyncmanifold.experiments.grid_search import Candidate, Curves, prefers_less, rank
from asyncmanifold.experiments.many_runs import FinishedRun, Key, ManyRuns

KEPT = 3
"""One in so many candidates is kept, rounded up, and its runs are so many times as long."""


def rungs(candidates: int) -> list[tuple[int, int]]:
    """Return how many candidates run, and by what factor their runs are shorter, rung by rung.

    At most three are left for the full length, so that the choice is made among full runs.

    >>> from asyncmanifold.experiments.halving import rungs
    >>> rungs(10)
    [(10, 9), (4, 3), (2, 1)]
    """
    counts = [candidates]
    while counts[-1] > KEPT:
        counts.append(-(-counts[-1] // KEPT))
    return [(count, KEPT ** (len(counts) - 1 - rung)) for rung, count in enumerate(counts)]


def score_candidates(
    candidates: Mapping[str, Sequence[Candidate]], seeds: Sequence[int], many: ManyRuns, *, halving: bool
) -> tuple[Curves, dict[Key, FinishedRun], list[str]]:
    """Run every method's candidates, all in full or by halving; return their scores, the runs and failures.

    The runs of a rung start anew: each is an ordinary run of its length, and those of the last rung are the
    same as without halving. A candidate keeps the score of its longest runs.
    """
    most = max(len(tried) for tried in candidates.values())
    plan = rungs(most) if halving else [(most, 1)]
    for _, shorter in plan:
        for candidate in _all(candidates):
            many.refuse_existing(candidate.configs(seeds, shorter))
            _check_length(candidate, shorter)
    left = candidates
    points: dict[Candidate, dict[str, Any]] = {}
    runs: dict[Key, FinishedRun] = {}
    failures: list[str] = []
    for count, shorter in plan:
        if points:
            left = _best(left, points, count, lower_is_better=prefers_less(runs.values()))
        configs = {candidate: candidate.configs(seeds, shorter) for candidate in _all(left)}
        found, failed = many.run({key: config for own in configs.values() for key, config in own.items()})
        runs |= found
        failures += failed
        scored = {
            candidate: [found[key] for key in own if key in found] for candidate, own in configs.items()
        }
        left = {method: [one for one in tried if scored[one]] for method, tried in left.items()}
        for candidate in _all(left):
            length = {"updates": candidate.updates(shorter)} if halving else {}
            points[candidate] = candidate.point(scored[candidate]) | length
    curves = {method: [points[one] for one in tried if one in points] for method, tried in candidates.items()}
    return {method: curve for method, curve in curves.items() if curve}, runs, failures


def _all(candidates: Mapping[str, Sequence[Candidate]]) -> list[Candidate]:
    return [candidate for tried in candidates.values() for candidate in tried]


def _best(
    candidates: Mapping[str, Sequence[Candidate]],
    points: Mapping[Candidate, Mapping[str, Any]],
    count: int,
    *,
    lower_is_better: bool,
) -> dict[str, list[Candidate]]:
    """Return the best candidates of each method, the first tried where scores are equal."""

    def place(candidate: Candidate) -> tuple[bool, float]:
        return rank(points[candidate], lower_is_better=lower_is_better)

    return {method: sorted(tried, key=place)[:count] for method, tried in candidates.items()}


def _check_length(candidate: Candidate, shorter: int) -> None:
    if candidate.config.run.updates < shorter:
        raise InputError(
            f"halving so many values needs runs of at least {shorter} updates, not "
            f"{candidate.config.run.updates}"
        )
