"""Colours, dashes and markers that every reader can tell apart, on light and on dark pages.

The first four colours are Okabe and Ito's; the others were found by a search that keeps every pair of the
sixteen as far apart as theirs are, for full colour vision and for the three kinds of colour blindness
(tests/test_report_files.py measures it). Up to thirty-two methods also differ by marker and dash alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

FONT = "Liberation Sans, Arial, Helvetica, sans-serif"
"""The font of figure files: vl-convert brings the first, which has the widths of the second."""


@dataclass(frozen=True)
class FigureTheme:
    """The colours on one background."""

    background: str
    text: str
    quiet: str
    grid: str
    series: tuple[str, ...]


LIGHT = FigureTheme(
    background="#ffffff",
    text="#1b1f23",
    quiet="#5b636b",
    grid="#e4e7eb",
    series=(
        *("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#4b000f", "#0f0096", "#00b4ff", "#a51eff"),
        *("#692d69", "#875a4b", "#96b42d", "#3c4b00", "#c30f96", "#3c005a", "#5a0fc3", "#8778e1"),
    ),
)
DARK = FigureTheme(
    background="#15181c",
    text="#e8eaed",
    quiet="#a3abb3",
    grid="#2c3238",
    series=(
        *("#3f9bdc", "#f0772b", "#78e11e", "#f00f5a", "#f0c396", "#5af0ff", "#c3ffc3", "#871eff"),
        *("#c30096", "#78690f", "#f0ff1e", "#96a587", "#ff96c3", "#b478a5", "#b4b4ff", "#2d69b4"),
    ),
)
SHAPES = (
    *("circle", "square", "triangle-up", "diamond"),
    *("triangle-down", "cross", "triangle-right", "triangle-left"),
)
DASHES: tuple[list[int], ...] = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3])


def colours(count: int, theme: FigureTheme = LIGHT) -> list[str]:
    """Return the colours of ``count`` series."""
    return [theme.series[place % len(theme.series)] for place in range(count)]


def shapes(count: int) -> list[str]:
    """Return the markers of ``count`` series, by their names in Vega."""
    return [SHAPES[place % len(SHAPES)] for place in range(count)]


def dashes(count: int) -> list[list[int]]:
    """Return the dash patterns of ``count`` series: lengths of strokes and gaps."""
    return [DASHES[place // len(SHAPES) % len(DASHES)] for place in range(count)]


def vega_config(theme: FigureTheme, font: str = FONT) -> dict[str, Any]:
    """Return the Vega-Lite configuration of every figure on one background."""
    words = {"labelColor": theme.quiet, "titleColor": theme.text, "labelFontSize": 11, "titleFontSize": 12}
    return {
        "background": theme.background,
        "font": font,
        "axis": {
            **words,
            "titleFontWeight": "normal",
            "gridColor": theme.grid,
            "domainColor": theme.quiet,
            "tickColor": theme.quiet,
            "labelOverlap": True,
            "labelFlush": False,
        },
        "legend": {
            **words,
            "labelColor": theme.text,
            "labelLimit": 220,
            "orient": "bottom",
            "columns": 4,
            "symbolStrokeWidth": 1.8,
            "symbolOpacity": 1,
            "title": None,
        },
        "header": {"labelColor": theme.text, "labelFontSize": 12, "labelFontWeight": "bold", "title": None},
        "range": {"category": list(theme.series)},
        "rule": {"color": theme.quiet},
        "style": {
            "whisker": {"color": theme.text, "stroke": theme.text},
            "cell": {"stroke": None},
            "apart": {"stroke": theme.background, "strokeWidth": 0.8},
        },
        "text": {"color": theme.text, "fontSize": 11},
        "line": {"strokeWidth": 1.8},
    }
