"""A self-contained HTML page: its figures are drawn by Vega inside of it, and it may load nothing."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from importlib.resources import files
from typing import Any

from asyncmanifold.report.figure import Figure, as_script, as_table, escape
from asyncmanifold.report.figure_files import page_library
from asyncmanifold.report.figure_theme import DARK, DASHES, LIGHT, SHAPES, FigureTheme, vega_config

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src {}"
"""The content security policy: the page loads nothing, and runs these very scripts and no other."""
MARKERS = {
    "circle": "M15 8m-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
    "square": "M11.5 4.5h7v7h-7z",
    "triangle-up": "M15 3.5l4.5 8h-9z",
    "diamond": "M15 3l4 5l-4 5l-4-5z",
    "triangle-down": "M15 12.5l4.5-8h-9z",
    "cross": "M13.4 3.5h3.2v2.9h2.9v3.2h-2.9v2.9h-3.2v-2.9h-2.9v-3.2h2.9z",
    "triangle-right": "M19.5 8l-8 4.5v-9z",
    "triangle-left": "M10.5 8l8 4.5v-9z",
}
"""Vega's markers as small paths for the legend, which is part of the page."""


def html_page(
    title: str, overview: str, main: str, figures: Sequence[Figure], more: Mapping[str, Any] | None = None
) -> str:
    """Return a whole page; ``main`` is HTML, ``title`` and ``overview`` are escaped.

    ``figures`` are drawn where ``main`` holds their blocks; ``more`` is data for the page's script.
    """
    data = {name: as_table(rows) for figure in figures for name, rows in figure.data.items()}
    content = {
        "figures": {figure.name: figure.specification for figure in figures},
        "titles": {figure.name: figure.title for figure in figures},
        "data": data,
        "fileConfig": vega_config(LIGHT),
        "pageConfig": vega_config(_page_theme(), "system-ui, -apple-system, Segoe UI, Roboto, sans-serif"),
        **(more or {}),
    }
    scripts = [page_library(), _asset("page.js")]
    hashes = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY.format(hashes)}">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<style>
{_asset("page.css")}:root {{ {_variables(LIGHT)} }}
@media screen and (prefers-color-scheme: dark) {{ :root {{ {_variables(DARK)} }} }}
</style>
</head>
<body>
<header><h1>{escape(title)}</h1>
<p>{escape(overview)}</p></header>
<noscript><p class="problems">Figures need JavaScript; the folder figures/ has them as files.</p></noscript>
<main>
{main}</main>
<script type="application/json" id="content">{as_script(content)}</script>
<script>{scripts[0]}</script>
<script>{scripts[1]}</script>
</body>
</html>
"""


def figure_block(figure: Figure) -> str:
    """Return the place of a figure, with its title and caption; the page's script draws it."""
    layout = figure.specification.get("usermeta", {}).get("layout", "")
    kind = f' class="{layout}"' if layout else ""
    return (
        f'<figure data-figure="{escape(figure.name)}"{kind}><h3>{escape(figure.title)}</h3>\n'
        f'<div class="plot"></div>\n<figcaption>{escape(figure.caption)}</figcaption></figure>\n'
    )


def legend_block(names: Iterable[str]) -> str:
    """Return the legend of all figures: a switch for each series."""
    keys = "".join(_key(place, name) for place, name in enumerate(names))
    return f'<div class="legend" role="group" aria-label="Series in all figures">{keys}</div>\n'


def _key(place: int, name: str) -> str:
    dash = " ".join(map(str, DASHES[place // len(SHAPES) % len(DASHES)]))
    marker = MARKERS[SHAPES[place % len(SHAPES)]]
    colour = f"var(--series-{place % len(LIGHT.series)})"
    return (
        f'<button type="button" class="key" data-name="{escape(name)}" aria-pressed="true">'
        f'<svg width="30" height="16" aria-hidden="true"><path d="M0 8h30" style="stroke:{colour}"'
        f' stroke-width="1.8" stroke-dasharray="{dash}"/><path d="{marker}" style="fill:{colour}"/></svg>'
        f"{escape(name)}</button>"
    )


def _page_theme() -> FigureTheme:
    """Return a theme whose colours are the page's variables, so that one drawing suits screen and paper."""
    series = tuple(f"var(--series-{place})" for place in range(len(LIGHT.series)))
    return FigureTheme("transparent", "var(--text)", "var(--quiet)", "var(--grid)", series)


def _variables(theme: FigureTheme) -> str:
    named = {"bg": theme.background, "text": theme.text, "quiet": theme.quiet, "grid": theme.grid}
    named |= {f"series-{place}": colour for place, colour in enumerate(theme.series)}
    return " ".join(f"--{name}: {colour};" for name, colour in named.items())


def _asset(name: str) -> str:
    return files("asyncmanifold.report").joinpath(name).read_text(encoding="utf-8")


def _digest(script: str) -> str:
    return b64encode(sha256(script.encode()).digest()).decode()
