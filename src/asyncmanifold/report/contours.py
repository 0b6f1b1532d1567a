"""Contours of a function on a grid by marching squares: the area above a level, and its edge."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import floor, isfinite, log10
from typing import NamedTuple

Place = tuple[float, float]
Grid = Sequence[Sequence[float | None]]
"""Values, one row per y; None if there is no value."""


class Contour(NamedTuple):
    """Where a function is at least a level."""

    areas: list[list[Place]]
    """Polygons that do not overlap."""
    edges: list[tuple[Place, Place]]
    """The iso-line, in pieces that meet end to end."""


def contour(xs: Sequence[float], ys: Sequence[float], values: Grid, level: float) -> Contour:
    """Return where a function on a grid is at least ``level``, interpolated linearly along the grid's lines.

    Cells without a value at a corner are left out. The two high corners of a saddle are joined. Neighbouring
    whole cells of a row are one polygon.
    """
    found = Contour([], [])
    for row in range(len(ys) - 1):
        follows = False
        for corners, heights in _cells(xs, ys, values, row):
            if min(heights) < level:
                follows = False
                if max(heights) >= level:
                    _cut_cell(corners, heights, level, found)
            elif follows and found.areas[-1][1] == corners[0]:
                found.areas[-1][1:3] = corners[1:3]
            else:
                found.areas.append(corners)
                follows = True
    return found


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


def _cells(
    xs: Sequence[float], ys: Sequence[float], values: Grid, row: int
) -> Iterator[tuple[list[Place], list[float]]]:
    """Yield the four corners of each cell of a row, counter-clockwise, and the values there."""
    below, above = values[row], values[row + 1]
    for i in range(len(xs) - 1):
        heights = [v for v in (below[i], below[i + 1], above[i + 1], above[i]) if v is not None]
        if len(heights) == 4:
            left, right, low, high = xs[i], xs[i + 1], ys[row], ys[row + 1]
            yield [(left, low), (right, low), (right, high), (left, high)], heights


def _cut_cell(corners: list[Place], heights: list[float], level: float, found: Contour) -> None:
    """Add the part of a cell that is at least ``level``, and its inner edges."""
    area: list[Place] = []
    leaving: Place | None = None
    first: Place | None = None
    for k in range(4):
        here, there = heights[k], heights[(k + 1) % 4]
        if here >= level:
            area.append(corners[k])
        if (here >= level) == (there >= level):
            continue
        crossing = _interpolate(corners[k], corners[(k + 1) % 4], (level - here) / (there - here))
        area.append(crossing)
        if here >= level:
            leaving = crossing
        elif leaving is None:
            first = crossing
        else:
            found.edges.append((leaving, crossing))
            leaving = None
    if leaving is not None and first is not None:
        found.edges.append((leaving, first))
    found.areas.append(area)


def _interpolate(start: Place, end: Place, share: float) -> Place:
    return start[0] + share * (end[0] - start[0]), start[1] + share * (end[1] - start[1])
