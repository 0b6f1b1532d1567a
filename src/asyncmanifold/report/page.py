"""A self-contained HTML page."""

from __future__ import annotations

from asyncmanifold.report.assets import SCRIPT, STYLE
from asyncmanifold.report.palette import DARK, LIGHT, figure_style
from asyncmanifold.report.svg import Figure, escape, inline_svg

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
"""The content security policy: the page may load nothing."""


def html_page(title: str, overview: str, main: str, style: str = "") -> str:
    """Return a whole page; ``main`` is HTML, ``title`` and ``overview`` are escaped."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<style>
{STYLE}{figure_style(LIGHT)}@media screen and (prefers-color-scheme: dark) {{
{figure_style(DARK)}}}
{style}</style>
</head>
<body>
<header><h1>{escape(title)}</h1>
<p>{escape(overview)}</p></header>
<main>
{main}</main>
<script>
{SCRIPT}</script>
</body>
</html>
"""


def figure_block(figure: Figure) -> str:
    """Return a figure with its title and caption."""
    return (
        f'<figure data-figure="{figure.name}"><h3>{escape(figure.title)}</h3>\n{inline_svg(figure)}\n'
        f"<figcaption>{escape(figure.caption)}</figcaption></figure>\n"
    )
