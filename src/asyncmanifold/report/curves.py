"""Numbers for the figures: the mean curve over seeds, and lists short enough to draw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import TypeVar

import numpy as np

Item = TypeVar("Item")
Points = list[tuple[float, float]]


@dataclass(frozen=True)
class Band:
    """A curve's mean over seeds, and its standard deviation if there are several."""

    xs: list[float]
    means: list[float]
    deviations: list[float] | None


def band(curves: Sequence[Points], limit: int = 300) -> Band:
    """Return the mean and the standard deviation of several curves, interpolated linearly between points.

    The common grid has the points of all curves, from the latest start to the earliest end.
    """
    curves = [curve for curve in curves if curve]
    if not curves:
        return Band([], [], None)
    first, last = max(curve[0][0] for curve in curves), min(curve[-1][0] for curve in curves)
    grid = sorted({x for curve in curves for x, _ in curve if first <= x <= last})
    grid = thin_out(grid, limit)
    rows = [np.interp(grid, [x for x, _ in curve], [y for _, y in curve]).tolist() for curve in curves]
    columns = list(zip(*rows, strict=True))
    deviations = [stdev(column) for column in columns] if len(rows) > 1 else None
    return Band(grid, [mean(column) for column in columns], deviations)


def thin_out(items: Sequence[Item], limit: int) -> list[Item]:
    """Return at most ``limit`` items, evenly spread, including the first and the last."""
    if len(items) <= limit:
        return list(items)
    return [items[round(i * (len(items) - 1) / (limit - 1))] for i in range(limit)]


def histogram(values: Sequence[float], low: float, width: float, count: int) -> list[float]:
    """Return the share of the values in each of ``count`` bins; the last one includes its upper edge.

    >>> histogram([0, 1, 1, 4], 0, 2, 3)
    [0.75, 0.0, 0.25]
    """
    bins = np.floor((np.asarray(values) - low) / width + 1e-9).clip(0, count - 1).astype(int)
    return [float(share) for share in np.bincount(bins, minlength=count) / max(1, len(values))]
