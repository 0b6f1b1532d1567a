"""Contours of a function on a grid: the levels to draw, and the area above each."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import floor, inf, isfinite, log10, nan

import numpy as np

from asyncmanifold.report.drawing_library import contourpy

Place = tuple[float, float]
Grid = Sequence[Sequence[float | None]]
"""Values, one row per y; None if there is no value."""


def area_above(xs: Sequence[float], ys: Sequence[float], values: Grid, level: float) -> list[list[Place]]:
    """Return the rings around the area where a function on a grid is at least ``level``.

    Outer rings turn one way and holes the other, so that all of them filled as one path leave the holes open.
    Between the grid's lines the function is interpolated. Of a cell without a value at one corner, the
    triangle of the others is kept; with two or more it is left out. A level of −∞ is all that has a value.
    """
    library = contourpy()
    known = [[nan if value is None else value for value in row] for row in values]
    generator = library.contour_generator(
        xs, ys, np.ma.masked_invalid(known), fill_type="OuterOffset", corner_mask=True
    )
    points, offsets = generator.filled(level, inf)
    return [
        [(float(x), float(y)) for x, y in area[start:end]]
        for area, places in zip(points, offsets, strict=True)
        for start, end in pairwise(places)
    ]


def levels(values: Grid, count: int) -> list[float]:
    """Return at most ``count`` ascending levels whose height above the lowest value grows by a factor.

    They are close together in a valley and far apart on its walls; the highest and the lowest 5 % of the
    values are ignored.
    """
    known = sorted(v for row in values for v in row if v is not None and isfinite(v))
    if not known:
        return []
    heights = [value - known[0] for value in known]
    high, low = heights[round(0.95 * (len(heights) - 1))], heights[round(0.05 * (len(heights) - 1))]
    if high <= 1e-9 * max(1.0, abs(known[0])):
        return []
    low = max(low, high / 200.0)
    steps = [low * (high / low) ** (k / max(1, count - 1)) for k in range(count)]
    # Round to two digits of the step.
    return sorted({round(known[0] + step, 1 - floor(log10(step))) for step in steps})
