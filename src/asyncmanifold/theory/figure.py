"""The figure of a study: measured gradient norms and bounds against the number of updates, log–log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

from asyncmanifold.report.drawing import (
    WIDTH,
    Figure,
    Plot,
    Scale,
    dots,
    number,
    path,
    polyline,
    text,
    tick_label,
)
from asyncmanifold.report.palette import colour_class, marker

LEFT, RIGHT, TOP, BOTTOM = 52.0, WIDTH - 14.0, 28.0, 300.0
MARGIN = 0.12
"""Room beside the first and the last length, in decades; twice as much above and below."""
ASIDE = 9.0
"""How far to the right of their mean single seeds stand, in pixels."""
HALF = -0.5
"""The slope that the theorem promises."""


@dataclass(frozen=True)
class Series:
    """One problem's numbers, length by length."""

    name: str
    lengths: list[int]
    squares: list[list[float]]
    """Seed by seed."""
    means: list[float]
    bounds: list[float | None]
    slope: tuple[float, float, float]
    """With its interval."""


def convergence_figure(series: Sequence[Series]) -> Figure:
    """Return the figure of all problems."""
    plot = _plot(series)
    parts = [_axes(plot, series[0].lengths), _reference(plot, series)]
    parts.extend(_drawn(plot, index, one) for index, one in enumerate(series))
    parts.append(_bound_label(plot, series))
    parts.extend(_key(index, one, BOTTOM + 54.0 + 21.0 * index) for index, one in enumerate(series))
    caption = (
        "The average squared gradient norm of the server's models in asynchronous runs of T updates with"
        " η_l = 1/max(2C₁, √T): marks are means over seeds, the dots beside them single seeds. Dashed lines"
        " are the corrected bound, the grey line falls like 1/√T. Slopes are given with their 95 % interval."
    )
    height = BOTTOM + 54.0 + 21.0 * len(series)
    return Figure(
        "convergence", "Gradient norm against the number of updates", caption, "".join(parts), height
    )


def _plot(series: Sequence[Series]) -> Plot:
    """Return scales of decades that hold everything."""
    lengths = [log10(length) for one in series for length in one.lengths]
    values = [value for one in series for row in one.squares for value in row]
    values += [bound for one in series for bound in one.bounds if bound is not None]
    values.append(_reference_start(series))
    return Plot(
        Scale(min(lengths) - MARGIN, max(lengths) + MARGIN, LEFT, RIGHT),
        Scale(log10(min(values)) - 2.0 * MARGIN, log10(max(values)) + 2.0 * MARGIN, BOTTOM, TOP),
    )


def _place(plot: Plot, length: float, value: float) -> str:
    return plot.place(log10(length), log10(value))


def _axes(plot: Plot, lengths: Sequence[int]) -> str:
    """Return a grid with a line for every length and every decade."""
    parts = []
    for length in lengths:
        x = plot.x(log10(length))
        parts.append(path(f"M{number(x)} {number(BOTTOM)}V{number(TOP)}", "grid"))
        parts.append(text(x, BOTTOM + 16, str(length), anchor="middle", kind="small"))
    for decade in range(ceil(plot.y.low), floor(plot.y.high) + 1):
        y = plot.y(decade)
        parts.append(path(f"M{number(LEFT)} {number(y)}H{number(RIGHT)}", "grid"))
        parts.append(text(LEFT - 6, y + 4, tick_label(10.0**decade), anchor="end", kind="small"))
    parts.append(path(f"M{number(LEFT)} {number(BOTTOM)}H{number(RIGHT)}", "axis"))
    parts.append(text((LEFT + RIGHT) / 2, BOTTOM + 33, "updates T", anchor="middle", kind="small"))
    parts.append(text(6, TOP - 13, "average of ‖grad L‖²", kind="small"))
    return "".join(parts)


def _reference(plot: Plot, series: Sequence[Series]) -> str:
    """Return a line of slope −½ above the measured values."""
    lengths = series[0].lengths
    first, last, start = float(lengths[0]), float(lengths[-1]), _reference_start(series)
    end = start * (last / first) ** HALF
    line = path(polyline([_place(plot, first, start), _place(plot, last, end)]), "axis")
    middle = (first * last) ** 0.5
    label_y = plot.y(log10(start * (middle / first) ** HALF)) - 7
    return line + text(plot.x(log10(middle)) + 4, label_y, "slope −½", kind="over")


def _reference_start(series: Sequence[Series]) -> float:
    return 3.0 * max(one.means[0] for one in series)


def _bound_label(plot: Plot, series: Sequence[Series]) -> str:
    """Return the word above the topmost bound, where there is one."""
    first = [(one.lengths[0], bound) for one in series if (bound := one.bounds[0]) is not None]
    if not first:
        return ""
    length, bound = max(first, key=lambda pair: pair[1])
    return text(plot.x(log10(length)) + 10, plot.y(log10(bound)) - 4, "bound", kind="over")


def _drawn(plot: Plot, index: int, one: Series) -> str:
    """Return one problem's seeds, means and bound."""
    colour = colour_class(index)
    seeds = [
        f"{number(plot.x(log10(length)) + ASIDE)} {number(plot.y(log10(value)))}"
        for length, row in zip(one.lengths, one.squares, strict=True)
        for value in row
    ]
    means = [_place(plot, length, value) for length, value in zip(one.lengths, one.means, strict=True)]
    bounds = [
        _place(plot, length, bound)
        for length, bound in zip(one.lengths, one.bounds, strict=True)
        if bound is not None
    ]
    parts = []
    if bounds:
        parts.append(path(polyline(bounds), f"line s {colour}", ' stroke-dasharray="6 4"'))
    parts.append(path(polyline(means), f"line s {colour}"))
    parts.append(path("".join(marker(index, *place.split()) for place in means), f"f {colour}"))
    parts.append(path(dots(seeds), f"dots s {colour}", ' stroke-width="3.5"'))
    return "".join(parts)


def _key(index: int, one: Series, y: float) -> str:
    """Return one problem's line in the key, with its slope."""
    colour = colour_class(index)
    slope, low, high = (f"{value:.3f}".replace("-", "−") for value in one.slope)
    return (
        path(f"M8 {number(y)}h26", f"line s {colour}")
        + path(marker(index, "21", number(y)), f"f {colour}")
        + text(40, y + 4, f"{one.name}: slope {slope} ({low} to {high})")
    )
