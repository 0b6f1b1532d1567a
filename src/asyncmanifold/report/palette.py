"""Colours, dashes and markers that every reader can tell apart, and the style sheet of the figures.

The colours are Okabe and Ito's, which people with any kind of colour vision can tell apart. Up to twenty
methods also differ by marker and dash alone.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Theme:
    """The colours on one background."""

    background: str
    text: str
    quiet: str
    grid: str
    series: tuple[str, ...]


LIGHT = Theme(
    background="#ffffff",
    text="#1b1f23",
    quiet="#5b636b",
    grid="#dfe3e7",
    series=("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"),
)
DARK = Theme(
    background="#15181c",
    text="#e8eaed",
    quiet="#a3abb3",
    grid="#333a41",
    series=("#3f9bdc", "#f0772b", "#1fbf92", "#dc93bb", "#f0b429", "#9bd5f7", "#ffffff"),
)
DASHES = ("", "7 3", "2 3", "9 3 2 3")
MARKERS = (
    "M{x} {y}m-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0z",
    "M{x} {y}m-3 -3h6v6h-6z",
    "M{x} {y}m0 -4l3.8 7h-7.6z",
    "M{x} {y}m0 -4.4l4.4 4.4l-4.4 4.4l-4.4 -4.4z",
    "M{x} {y}m-3.8 -3h7.6l-3.8 7z",
)
SMALL_TRIANGLE = "M{place}m0 -2.8l2.6 4.6h-5.2z"
GOOD, BAD = 0, 1
"""The colours of the usual case and of the exception."""


def dash(index: int) -> str:
    """Return a series' dash pattern; empty for a solid line."""
    return DASHES[index // len(MARKERS) % len(DASHES)]


def marker(index: int, x: str, y: str) -> str:
    """Return the path of a series' marker at a position."""
    return MARKERS[index % len(MARKERS)].format(x=x, y=y)


def colour_class(index: int) -> str:
    """Return the CSS class of a series' colour."""
    return f"c{index % len(LIGHT.series)}"


def figure_style(theme: Theme) -> str:
    """Return the CSS rules of the figures, simple enough for any SVG reader."""
    rules = [
        f".bg{{fill:{theme.background}}}",
        f".fig text{{fill:{theme.text};font:12.5px system-ui,-apple-system,'Segoe UI',Roboto,sans-serif}}",
        f".fig text.small{{fill:{theme.quiet};font-size:11.5px}}",
        ".fig text.title{font-size:13.5px;font-weight:600}",
        f".grid{{stroke:{theme.grid};stroke-width:1;fill:none}}",
        f".axis{{stroke:{theme.quiet};stroke-width:1;fill:none}}",
        f".target{{stroke:{theme.quiet};stroke-width:1.2;stroke-dasharray:4 3;fill:none}}",
        f".fig text.over{{fill:{theme.quiet};font-size:11.5px;paint-order:stroke;stroke:{theme.background};"
        "stroke-width:3px}",
        f".halo{{stroke:{theme.background};stroke-width:3.4;fill:none;stroke-opacity:.75}}",
        f".whisker{{stroke:{theme.text};stroke-width:1.2;fill:none}}",
        ".line{fill:none;stroke-width:1.8;stroke-linejoin:round}",
        ".band{stroke:none;fill-opacity:.1}",
        ".dots{fill:none;stroke-linecap:round;stroke-opacity:.65}",
        ".jobs{fill:none}",
        ".hollow{fill:none;stroke-width:1.1}",
    ]
    for place, colour in enumerate(theme.series):
        rules.append(f".f.c{place}{{fill:{colour}}}")
        rules.append(f".s.c{place}{{stroke:{colour}}}")
    return "\n".join(rules) + "\n"
