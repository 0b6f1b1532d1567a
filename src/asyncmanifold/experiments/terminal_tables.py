"""The results of comparisons and searches as text tables."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from io import StringIO
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from asyncmanifold.experiments.line_search import by_size, is_at_edge
from asyncmanifold.report.comparison import cell, columns_of
from asyncmanifold.report.result_table import html_rows

if TYPE_CHECKING:
    from asyncmanifold.experiments.compare import Comparison
    from asyncmanifold.experiments.tune import Search

WIDE = 400
"""The width in which no table is wrapped."""


def as_text(table: Table, notes: Sequence[str]) -> str:
    """Return a table and the lines below it as plain text."""
    written = StringIO()
    title, table.title = table.title, None  # which would be wrapped to the table's width
    Console(file=written, width=WIDE, color_system=None, force_jupyter=False).print(table)
    lines = [line.rstrip() for line in written.getvalue().splitlines()]
    return "\n".join([str(title), *lines, *notes])


def comparison_table(found: Comparison) -> Table:
    """Return the table of a comparison, within 80 columns; the very last score is only in the files."""
    columns = [column for column in columns_of(found.table) if column.key != "last"]
    target = "" if found.run.target is None else f", target {found.run.target:g}"
    shown = _table(f"{found.scenario}: {found.metric} after {found.run.updates} updates{target}")
    for column in columns:
        shown.add_column(column.heading.replace(" ", "\n", 1), justify="right", no_wrap=True)
    for method, row in found.table.items():
        shown.add_row(method, *(cell(column, row, "[bold]{}[/bold]", found.table) for column in columns))
    return shown


def comparison_notes(found: Comparison) -> list[str]:
    """Return the lines below the table of a comparison."""
    runs = max(row["runs"] for row in found.table.values())
    over = f"mean±sd over {runs} seeds" if runs > 1 else "one seed"
    notes = [
        f"{over}; final: mean of the last {found.run.final_evaluations} evaluations; time is virtual",
        "bold: better than every other by more than both deviations together",
    ]
    return notes if found.out is None else [*notes, f"runs, table.md and compare.json in {found.out}"]


def search_table(found: Search) -> Table:
    """Return each method's score for each value, the best in bold."""
    percent = _is_share(found)
    shown = _table(f"validation score{' %' if percent else ''} by {found.key}")
    values = _values(found)
    for value in values:
        shown.add_column(value, justify="right", no_wrap=True)
    for method in found.curves:
        texts = _texts(found, method, "[bold]{}[/bold]")
        shown.add_row(method, *(texts.get(value, "–") for value in values))
    return shown


def search_notes(found: Search) -> list[str]:
    """Return the lines below the table of a search."""
    lower = found.lower_is_better
    at_edge = [name for name, curve in found.curves.items() if is_at_edge(curve, lower_is_better=lower)]
    notes = []
    if at_edge:
        names = ", ".join(at_edge)
        notes.append(f"at the edge of the values tried, so a better one may lie beyond: {names}")
    if found.choice is not None:
        notes.append(f"the best values are in {found.choice}, a scenario for compare")
    return notes


def html_search(found: Search) -> str:
    """Return each method's score for each value as HTML."""
    values = _values(found)
    rows = []
    for method in found.curves:
        texts = _texts(found, method, "<b>{}</b>")
        cells = "".join(f"<td>{texts.get(value, '–')}</td>" for value in values)
        rows.append(f'<tr><th scope="row">{escape(method)}</th>{cells}</tr>\n')
    return html_rows([f"score by {found.key}", *values], rows)


def _values(found: Search) -> list[str]:
    return by_size(point["value"] for curve in found.curves.values() for point in curve)


def _is_share(found: Search) -> bool:
    """Return whether all scores are shares of 1, of which more is better."""
    means = [point["mean"] for curve in found.curves.values() for point in curve]
    return not found.lower_is_better and all(mean is None or 0.0 <= mean <= 1.0 for mean in means)


def _texts(found: Search, method: str, emphasis: str) -> dict[str, str]:
    """Return a method's scores by value."""
    percent = _is_share(found)
    points = {point["value"]: point["mean"] for point in found.curves[method]}
    texts = {
        value: "–" if mean is None else f"{100 * mean:.1f}" if percent else f"{mean:.4g}"
        for value, mean in points.items()
    }
    if (best := found.best[method]) is not None:
        texts[best] = emphasis.format(texts[best])
    return texts


def _table(title: str) -> Table:
    shown = Table(title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), title_justify="left")
    shown.add_column("method", no_wrap=True)
    return shown
