"""The page about finished runs: the table, the figures over all runs, and the figures of each run."""

from __future__ import annotations

from collections.abc import Sequence

from asyncmanifold.report.comparison_figures import projected_share
from asyncmanifold.report.finished_runs import FoundRuns, RunData
from asyncmanifold.report.page import figure_block, html_page
from asyncmanifold.report.result_table import Table, html_scores, html_table
from asyncmanifold.report.run_figures import run_figures
from asyncmanifold.report.svg import Figure, escape

MOST_RUNS = 60
"""The most runs whose own figures are in the page; figures/ has those of all runs."""


def report_page(found: FoundRuns, table: Table, figures: Sequence[Figure]) -> str:
    """Return the whole HTML file as a string."""
    scenarios = sorted({run.scenario for run in found.runs} - {""})
    main = f"""{_problems(found)}<section>
<h2>Results</h2>
<div class="scroll">{html_table(table)}</div>
<p class="caption">{escape(_table_caption(found)).replace("T_e", "T<sub>e</sub>")}</p>
{_scores(table)}</section>
<section>
<h2>Over all runs</h2>
<p class="hint" hidden>Point at a line to read its values; click a method in a legend to hide or show it.</p>
<div class="figures">
{"".join(figure_block(figure) for figure in figures)}</div>
</section>
<section id="runs">
<h2>Single runs</h2>
{_note_on_limit(found)}{_run_blocks(found.runs[:MOST_RUNS])}</section>
"""
    return html_page(" · ".join(dict.fromkeys([*scenarios, "asyncmanifold"])), _overview(found), main)


def _scores(table: Table) -> str:
    scores = html_scores(table)
    if not scores:
        return ""
    return (
        f'<h3>All scores</h3>\n<div class="scroll">{scores}</div>\n'
        '<p class="caption">Of the final model on the test data: mean ± standard deviation over seeds.</p>\n'
    )


def _run_blocks(runs: Sequence[RunData]) -> str:
    """Return every run's figures, all folded except one, so that the page is readable without scripts."""
    shown = max(runs, key=_interest)
    return "".join(_run_block(run, is_open=run is shown) for run in runs)


def _interest(run: RunData) -> tuple[int, bool]:
    """Return a run's rank as the one to show: curves before points, then runs that projected."""
    return len(run.steps[0].cosines) if run.steps else 0, bool(projected_share(run))


def _run_block(run: RunData, *, is_open: bool) -> str:
    figures = "".join(figure_block(figure) for figure in run_figures(run))
    return (
        f'<details class="run"{" open" if is_open else ""}><summary>{escape(run.name)}</summary>\n'
        f'<div class="figures">\n{figures}</div></details>\n'
    )


def _overview(found: FoundRuns) -> str:
    methods, runs = len(found.methods), len(found.runs)
    seeds = sorted({run.seed for run in found.runs})
    shown = ", ".join(map(str, seeds[:10])) + (" …" if len(seeds) > 10 else "")
    return (
        f"{runs} finished run{'s' * (runs != 1)} of {methods} method{'s' * (methods != 1)},"
        f" seed{'s' * (len(seeds) != 1)} {shown}."
    )


def _table_caption(found: FoundRuns) -> str:
    targets = sorted({run.summary["target"] for run in found.runs} - {None})
    reached = (
        f"Target updates is T_e: the accepted updates until the test score first reached "
        f"{', '.join(f'{target:g} (e = {1 - target:.3g})' for target in targets)}; target time is the virtual"
        " time of the same moment."
        if targets
        else "No target was set."
    )
    return (
        f"Mean ± standard deviation over seeds; the best mean is bold. {reached} (k/n): only k of n seeds"
        " have the number, and it is never called best. Gini and Theil are computed over the clients' scores"
        " with the best model."
    )


def _problems(found: FoundRuns) -> str:
    if not found.problems:
        return ""
    lines = "".join(f"<li><b>{escape(place)}</b>: {escape(why)}</li>" for place, why in found.problems)
    return f'<section class="problems"><h2>Left out</h2>\n<ul>{lines}</ul></section>\n'


def _note_on_limit(found: FoundRuns) -> str:
    if len(found.runs) <= MOST_RUNS:
        return ""
    return f"<p>The first {MOST_RUNS} of {len(found.runs)} runs; all are in figures/.</p>\n"
