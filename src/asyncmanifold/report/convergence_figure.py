"""The figure of a convergence study: gradient norms and bounds against the number of updates, log–log."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, log10

from asyncmanifold.report import svg
from asyncmanifold.report.palette import colour_class
from asyncmanifold.report.svg import WIDTH, AxisScale, Figure, Plot, number
from asyncmanifold.theory.findings import Finding

LEFT, RIGHT, TOP, BOTTOM = 52.0, WIDTH - 14.0, 28.0, 300.0
MARGIN = 0.12
"""The margin beside the first and the last length, in decades; twice as much above and below."""
ASIDE = 9.0
"""How far to the right of their mean single seeds are drawn, in pixels."""
HALF = -0.5
"""The slope that the theorem promises."""


def convergence_figure(findings: Sequence[Finding]) -> Figure:
    """Return the figure of all problems."""
    plot = _plot(findings)
    parts = [_axes(plot, [entry.updates for entry in findings[0].lengths]), _reference(plot, findings)]
    parts.extend(_problem_marks(plot, index, finding) for index, finding in enumerate(findings))
    parts.append(_bound_label(plot, findings))
    parts.extend(_key(index, finding, BOTTOM + 54.0 + 21.0 * index) for index, finding in enumerate(findings))
    caption = (
        "The average squared gradient norm of the server's models in asynchronous runs of T updates with"
        " η_l = 1/max(2C₁, √T): marks are means over seeds, the dots beside them single seeds. Dashed lines"
        " are the corrected bound, the grey line falls like 1/√T. Slopes are given with their 95 % interval."
    )
    height = BOTTOM + 54.0 + 21.0 * len(findings)
    return Figure(
        "convergence", "Gradient norm against the number of updates", caption, "".join(parts), height
    )


def _plot(findings: Sequence[Finding]) -> Plot:
    """Return logarithmic scales that contain all values."""
    entries = [entry for finding in findings for entry in finding.lengths]
    lengths = [log10(entry.updates) for entry in entries]
    values = [value for entry in entries for value in entry.squares]
    values += [entry.bound for entry in entries if entry.bound is not None]
    values.append(_reference_start(findings))
    return Plot(
        AxisScale(min(lengths) - MARGIN, max(lengths) + MARGIN, LEFT, RIGHT),
        AxisScale(log10(min(values)) - 2.0 * MARGIN, log10(max(values)) + 2.0 * MARGIN, BOTTOM, TOP),
    )


def _place(plot: Plot, length: float, value: float) -> str:
    return plot.place(log10(length), log10(value))


def _axes(plot: Plot, lengths: Sequence[int]) -> str:
    """Return a grid with a line for each length and each decade."""
    parts = []
    for length in lengths:
        x = plot.x(log10(length))
        parts.append(svg.path(f"M{number(x)} {number(BOTTOM)}V{number(TOP)}", "grid"))
        parts.append(svg.text(x, BOTTOM + 16, str(length), anchor="middle", kind="small"))
    for decade in range(ceil(plot.y.low), floor(plot.y.high) + 1):
        y = plot.y(decade)
        parts.append(svg.path(f"M{number(LEFT)} {number(y)}H{number(RIGHT)}", "grid"))
        parts.append(svg.text(LEFT - 6, y + 4, svg.tick_label(10.0**decade), anchor="end", kind="small"))
    parts.append(svg.path(f"M{number(LEFT)} {number(BOTTOM)}H{number(RIGHT)}", "axis"))
    parts.append(svg.text((LEFT + RIGHT) / 2, BOTTOM + 33, "updates T", anchor="middle", kind="small"))
    parts.append(svg.text(6, TOP - 13, "average of ‖grad L‖²", kind="small"))
    return "".join(parts)


def _reference(plot: Plot, findings: Sequence[Finding]) -> str:
    """Return a line of slope −½ above the measured values."""
    first, last = (float(findings[0].lengths[place].updates) for place in (0, -1))
    start = _reference_start(findings)
    end = start * (last / first) ** HALF
    line = svg.path(svg.polyline([_place(plot, first, start), _place(plot, last, end)]), "axis")
    middle = (first * last) ** 0.5
    label_y = plot.y(log10(start * (middle / first) ** HALF)) - 7
    return line + svg.text(plot.x(log10(middle)) + 4, label_y, "slope −½", kind="over")


def _reference_start(findings: Sequence[Finding]) -> float:
    return 3.0 * max(finding.lengths[0].mean for finding in findings)


def _bound_label(plot: Plot, findings: Sequence[Finding]) -> str:
    """Return the label above the topmost bound, if there is one."""
    first = [finding.lengths[0] for finding in findings]
    bounds = [(entry.bound, entry.updates) for entry in first if entry.bound is not None]
    if not bounds:
        return ""
    bound, length = max(bounds)
    return svg.text(plot.x(log10(length)) + 10, plot.y(log10(bound)) - 4, "bound", kind="over")


def _problem_marks(plot: Plot, index: int, finding: Finding) -> str:
    """Return one problem's seeds, means and bound."""
    colour = colour_class(index)
    seeds = [
        f"{number(plot.x(log10(entry.updates)) + ASIDE)} {number(plot.y(log10(value)))}"
        for entry in finding.lengths
        for value in entry.squares
    ]
    means = [_place(plot, entry.updates, entry.mean) for entry in finding.lengths]
    bounds = [_place(plot, e.updates, e.bound) for e in finding.lengths if e.bound is not None]
    parts = []
    if bounds:
        parts.append(svg.path(svg.polyline(bounds), f"line s {colour}", ' stroke-dasharray="6 4"'))
    parts.append(svg.series_line(svg.polyline(means), index))
    parts.append(svg.series_markers(means, index))
    parts.append(svg.path(svg.dots(seeds), f"dots s {colour}", ' stroke-width="3.5"'))
    return "".join(parts)


def _key(index: int, finding: Finding, y: float) -> str:
    """Return one problem's line in the legend, with its slope."""
    slopes = (finding.slope, finding.slope_low, finding.slope_high)
    slope, low, high = (f"{value:.3f}".replace("-", "−") for value in slopes)
    return (
        svg.series_line(f"M8 {number(y)}h26", index)
        + svg.series_markers([f"21 {number(y)}"], index)
        + svg.text(40, y + 4, f"{finding.title}: slope {slope} ({low} to {high})")
    )
