"""The page: one HTML file with nothing outside it."""

from __future__ import annotations

from collections.abc import Sequence

from asyncmanifold.report.assets import SCRIPT, STYLE
from asyncmanifold.report.drawing import Figure, escape, inline_svg
from asyncmanifold.report.figures import projected_share
from asyncmanifold.report.palette import DARK, LIGHT, figure_style
from asyncmanifold.report.run_figures import run_figures
from asyncmanifold.report.runs import Findings, RunData
from asyncmanifold.report.tables import Table, html_scores, html_table

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
"""What a browser may do with the page: show it, and load nothing."""
MOST_RUNS = 60
"""Runs with figures of their own in the page; all have theirs in figures/."""


def page(findings: Findings, table: Table, figures: Sequence[Figure]) -> str:
    """Return the whole HTML text."""
    title = escape(" · ".join(dict.fromkeys([*_scenarios(findings), "asyncmanifold"])))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
{STYLE}{figure_style(LIGHT)}@media screen and (prefers-color-scheme: dark) {{
{figure_style(DARK)}}}
</style>
</head>
<body>
<header><h1>{title}</h1>
<p>{escape(_overview(findings))}</p></header>
<main>
{_problems(findings)}<section>
<h2>Results</h2>
<div class="scroll">{html_table(table)}</div>
<p class="caption">{escape(_table_caption(findings)).replace("T_e", "T<sub>e</sub>")}</p>
{_scores(table)}</section>
<section>
<h2>Over all runs</h2>
<p class="hint" hidden>Point at a line to read its values; press a method in a key to hide or show it.</p>
<div class="figures">
{"".join(figure_block(figure) for figure in figures)}</div>
</section>
<section id="runs">
<h2>Single runs</h2>
{_cut(findings)}{_run_blocks(findings.runs[:MOST_RUNS])}</section>
</main>
<script>
{SCRIPT}</script>
</body>
</html>
"""


def _scores(table: Table) -> str:
    scores = html_scores(table)
    if not scores:
        return ""
    return (
        f'<h3>All scores</h3>\n<div class="scroll">{scores}</div>\n'
        '<p class="caption">Of the final model on the test data: mean ± standard deviation over seeds.</p>\n'
    )


def figure_block(figure: Figure) -> str:
    """Return a figure with its words."""
    return (
        f'<figure data-figure="{figure.name}"><h3>{escape(figure.title)}</h3>\n{inline_svg(figure)}\n'
        f"<figcaption>{escape(figure.caption)}</figcaption></figure>\n"
    )


def _run_blocks(runs: Sequence[RunData]) -> str:
    """Return every run's figures, folded but for one, so that the page reads without a script too."""
    shown = max(runs, key=_interest)
    return "".join(_run_block(run, is_open=run is shown) for run in runs)


def _interest(run: RunData) -> tuple[int, bool]:
    """Return how much there is to see: curves before points, then runs that projected."""
    return len(run.steps[0].cosines) if run.steps else 0, bool(projected_share(run))


def _run_block(run: RunData, *, is_open: bool) -> str:
    figures = "".join(figure_block(figure) for figure in run_figures(run))
    return (
        f'<details class="run"{" open" if is_open else ""}><summary>{escape(run.name)}</summary>\n'
        f'<div class="figures">\n{figures}</div></details>\n'
    )


def _scenarios(findings: Findings) -> list[str]:
    return sorted({run.scenario for run in findings.runs} - {""})


def _overview(findings: Findings) -> str:
    methods, runs = len(findings.methods), len(findings.runs)
    seeds = sorted({run.seed for run in findings.runs})
    shown = ", ".join(map(str, seeds[:10])) + (" …" if len(seeds) > 10 else "")
    return (
        f"{runs} finished run{'s' * (runs != 1)} of {methods} method{'s' * (methods != 1)},"
        f" seed{'s' * (len(seeds) != 1)} {shown}."
    )


def _table_caption(findings: Findings) -> str:
    targets = sorted({run.summary["target"] for run in findings.runs} - {None})
    reached = (
        f"Target updates is T_e: the accepted updates until the test score first reached "
        f"{', '.join(f'{target:g} (e = {1 - target:.3g})' for target in targets)}; target time is the virtual"
        " time of the same moment."
        if targets
        else "No target was set."
    )
    return (
        f"Mean ± standard deviation over seeds; the best mean is bold. {reached} (k/n): only k of n seeds"
        " have the number, and it is never called best. Gini and Theil are taken over the clients' scores"
        " with the best model."
    )


def _problems(findings: Findings) -> str:
    if not findings.problems:
        return ""
    lines = "".join(f"<li><b>{escape(place)}</b>: {escape(why)}</li>" for place, why in findings.problems)
    return f'<section class="problems"><h2>Left out</h2>\n<ul>{lines}</ul></section>\n'


def _cut(findings: Findings) -> str:
    if len(findings.runs) <= MOST_RUNS:
        return ""
    return f"<p>The first {MOST_RUNS} of {len(findings.runs)} runs; all are in figures/.</p>\n"
