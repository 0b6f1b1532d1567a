"""One line of advice for a run that learned slowly because its steps were short."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

SHORT_STEP = 0.1
"""A mean step of less than this fraction of the way to a client's model is short."""
LEAST = 8
"""Fewer evaluations say nothing about a trend."""
STILL_RISING = 0.05
"""The last quarter's gain over the quarter before, as a share of the whole gain, that counts as rising."""


def advise(scores: Sequence[float], fraction: float, metric: str, *, lower_is_better: bool) -> str | None:
    """Return what to change if steps were short and the score was still getting better, else None.

    ``scores`` are those of all evaluations; ``fraction`` is the mean step, as a share of the way to the
    client's model: the client's share of all examples times ``global_lr``, so about 1 / clients by default.
    """
    if fraction >= SHORT_STEP or len(scores) < LEAST:
        return None
    sign = -1.0 if lower_is_better else 1.0
    quarter = len(scores) // 4
    late, before = mean(scores[-quarter:]), mean(scores[-2 * quarter : -quarter])
    whole = sign * (late - scores[0])
    if whole <= 0.0 or sign * (late - before) < STILL_RISING * whole:
        return None
    return (
        f"{metric} was still getting better, with steps of {100 * fraction:.2g} % of the way to a client's "
        "model (its share of all examples × global_lr): a larger global_lr or more updates may help, and "
        "tune finds a value"
    )
