"""Small pure functions that write SVG: scales, axes, marks and legends."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape as html_escape
from math import ceil, floor, log10

from asyncmanifold.report.palette import LIGHT, colour_class, dash, figure_style, marker

WIDTH = 460
"""The width of every figure: narrow, so that its text stays readable when a phone scales it down."""
LEFT, RIGHT = 46.0, WIDTH - 14.0
"""The left and right edges of most plots."""


@dataclass(frozen=True)
class Figure:
    """A drawing with its title and caption; ``body`` is SVG."""

    name: str
    title: str
    caption: str
    body: str
    height: float


@dataclass(frozen=True)
class AxisScale:
    """A linear map from [low, high] to the pixels from ``start`` to ``end``."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the pixel of a value."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self, spacing: float) -> list[float]:
        """Return round values for ticks, about ``spacing`` pixels apart."""
        return ticks(self.low, self.high, max(2, round(abs(self.end - self.start) / spacing)))


@dataclass(frozen=True)
class Plot:
    """A pair of scales."""

    x: AxisScale
    y: AxisScale

    def place(self, x: float, y: float) -> str:
        """Return a point's pixels, in the form of SVG path data."""
        return f"{number(self.x(x))} {number(self.y(y))}"


def scale(values: Iterable[float], start: float, end: float, *, zero: bool = False) -> AxisScale:
    """Return a scale that contains all values, and 0 if ``zero``."""
    known = [*values, 0.0] if zero else list(values)
    low, high = min(known, default=0.0), max(known, default=1.0)
    if high - low < 1e-12 * max(1.0, abs(high)):
        high = low + max(1.0, abs(low))
    return AxisScale(low, high, start, end)


def ticks(low: float, high: float, count: int) -> list[float]:
    """Return about ``count`` round values in [low, high].

    >>> ticks(0.0, 1.0, 5)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    rough = (high - low) / count
    power = 10.0 ** floor(log10(rough))
    step = next(m * power for m in (1.0, 2.0, 5.0, 10.0) if m * power >= 0.99 * rough)
    places = max(0, -floor(log10(step) + 1e-9))
    first, last = ceil(low / step - 1e-9), floor(high / step + 1e-9)
    return [round(i * step, places) + 0.0 for i in range(first, last + 1)]


def number(value: float) -> str:
    """Format a pixel with at most two decimals.

    >>> number(3.0), number(-0.001), number(1.239)
    ('3', '0', '1.24')
    """
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def tick_label(value: float) -> str:
    """Format a tick's number, with a true minus sign."""
    return f"{value:g}".replace("-", "−")


def escape(text: str) -> str:
    """Return a string that is safe in HTML, XML and their attributes, whatever it contained."""
    sound = text.encode("utf-8", "replace").decode()
    return html_escape(re.sub(r"[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", sound))


def shorten(text: str, length: int) -> str:
    """Return at most ``length`` characters; the middle is cut, because long names often begin alike.

    >>> shorten("digits: asyncbezier", 11)
    'digit…ezier'
    """
    if len(text) <= length:
        return text
    return text[: length // 2] + "…" + text[len(text) - (length - 1) // 2 :]


def text(x: float, y: float, content: str, *, anchor: str = "start", kind: str = "") -> str:
    """Return a line of text; ``content`` is escaped."""
    name = f' class="{kind}"' if kind else ""
    return f'<text x="{number(x)}" y="{number(y)}" text-anchor="{anchor}"{name}>{escape(content)}</text>'


def path(d: str, kind: str, extra: str = "") -> str:
    """Return a path with a CSS class."""
    return f'<path class="{kind}" d="{d}"{extra}/>'


def axes(plot: Plot, x_name: str, y_name: str) -> str:
    """Return grid, ticks and axis names; the vertical axis' name is above it, readable at any size."""
    left, right, bottom, top = plot.x.start, plot.x.end, plot.y.start, plot.y.end
    parts = [x_axis(plot.x, bottom, top, x_name)]
    for value in plot.y.ticks(40.0):
        y = plot.y(value)
        parts.append(path(f"M{number(left)} {number(y)}H{number(right)}", "grid"))
        parts.append(text(left - 6, y + 4, tick_label(value), anchor="end", kind="small"))
    parts.append(path(f"M{number(left)} {number(bottom)}H{number(right)}", "axis"))
    parts.append(text(6, top - 13, y_name, kind="small"))
    return "".join(parts)


def x_axis(x: AxisScale, bottom: float, top: float, name: str) -> str:
    """Return the horizontal axis with its grid."""
    parts = []
    for value in x.ticks(55.0):
        parts.append(path(f"M{number(x(value))} {number(bottom)}V{number(top)}", "grid"))
        label = tick_label(value)
        middle = min(x(value), WIDTH - 4.2 * len(label))  # so that the last label stays inside
        parts.append(text(middle, bottom + 16, label, anchor="middle", kind="small"))
    parts.append(text((x.start + x.end) / 2, bottom + 33, name, anchor="middle", kind="small"))
    return "".join(parts)


def polyline(places: Sequence[str]) -> str:
    """Return the path data of a line through points."""
    return "M" + "L".join(places)


def dots(places: Sequence[str]) -> str:
    """Return the path data of round dots, drawn by the stroke's caps."""
    return "".join(f"M{place}h0" for place in places)


def series_line(d: str, index: int) -> str:
    """Return a path as the line of a series, in its colour and dash."""
    pattern = f' stroke-dasharray="{dash(index)}"' if dash(index) else ""
    return path(d, f"line s {colour_class(index)}", pattern)


def series_markers(places: Iterable[str], index: int) -> str:
    """Return the markers of a series at points."""
    return path("".join(marker(index, *place.split()) for place in places), f"f {colour_class(index)}")


def lines_group(plot: Plot, parts: Iterable[str]) -> str:
    """Return parts as a group that carries the plot's scales, so that the page's script can show values."""
    scales = ",".join(repr(v) for s in (plot.x, plot.y) for v in (s.low, s.high, s.start, s.end))
    return f'<g class="lines" data-scales="{scales}">' + "".join(parts) + "</g>"


def legend(names: Sequence[str], top: float) -> tuple[str, float]:
    """Return the legend of the series and its height; the page's script makes its entries clickable."""
    columns = 3 if max(map(len, names), default=0) <= 14 else 2
    width = (WIDTH - 12) / columns
    parts = []
    for index, name in enumerate(names):
        x, y = 8 + index % columns * width, top + 12 + index // columns * 21
        parts.append(
            f'<g class="key" data-series="{index}"><title>{escape(name)}</title>'
            f'<rect x="{number(x - 2)}" y="{number(y - 10)}" width="{number(width)}" height="20"'
            ' fill="none" pointer-events="all"/>'
            + series_line(f"M{number(x)} {number(y)}h26", index)
            + series_markers([f"{number(x + 13)} {number(y)}"], index)
            + text(x + 32, y + 4, shorten(name, 14 if columns == 3 else 24))
            + "</g>"
        )
    return "".join(parts), 21.0 * ceil(len(names) / columns) + 6


def inline_svg(figure: Figure) -> str:
    """Return the figure for a page that has the style sheet."""
    return (
        f'<svg class="fig" role="img" aria-label="{escape(figure.title)}"'
        f' viewBox="0 0 {WIDTH} {number(figure.height)}">{figure.body}</svg>'
    )


def standalone_svg(figure: Figure) -> str:
    """Return the figure as a file of its own, on a light background."""
    height = number(figure.height)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="fig" width="{WIDTH}" height="{height}"'
        f' viewBox="0 0 {WIDTH} {height}">\n<title>{escape(figure.title)}</title>\n'
        f"<desc>{escape(figure.caption)}</desc>\n<style>\n{figure_style(LIGHT)}</style>\n"
        f'<rect class="bg" width="100%" height="100%"/>\n{figure.body}\n</svg>\n'
    )
