"""The results of comparisons and searches as text tables."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from io import StringIO
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape as escape_markup
from rich.table import Table

from asyncmanifold.experiments.grid_search import by_size, keys_at_edge, values_of
from asyncmanifold.experiments.halving import KEPT
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
    """Return the table of a comparison; the very last score is only in the files."""
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
    """Return each method's score for each value, the best in bold; every further key has a column."""
    first, *others = found.keys
    by = first if not others else f"{first} (across) and {', '.join(others)}"
    shown = _table(f"validation score{' %' if _is_share(found) else ''} by {by}")
    for heading in [*others, *_values(found)]:
        shown.add_column(heading, justify="right", no_wrap=True)
    for names, texts in _score_rows(found, "[bold]{}[/bold]"):
        shown.add_row(*map(escape_markup, names), *texts)
    return shown


def search_notes(found: Search) -> list[str]:
    """Return the lines below the table of a search."""
    notes = _rung_notes(found)
    at_edge = []
    for name, curve in found.curves.items():
        if keys := keys_at_edge(curve, found.keys, lower_is_better=found.lower_is_better):
            at_edge.append(f"{name} ({', '.join(keys)})" if len(found.keys) > 1 else name)
    if at_edge:
        names = ", ".join(at_edge)
        notes.append(f"at the edge of the values tried, so a better one may lie beyond: {names}")
    if found.choice is not None:
        notes.append(f"the best values are in {found.choice}, a scenario for compare")
    return notes


def html_search(found: Search) -> str:
    """Return each method's score for each value as HTML."""
    first, *others = found.keys
    rows = []
    for (method, *values), texts in _score_rows(found, "<b>{}</b>"):
        cells = "".join(f"<td>{text}</td>" for text in [*map(escape, values), *texts])
        rows.append(f'<tr><th scope="row">{escape(method)}</th>{cells}</tr>\n')
    return html_rows([f"score by {first}", *others, *_values(found)], rows)


def _rung_notes(found: Search) -> list[str]:
    """Return how successive halving went: how many values of a method ran how long."""
    if not any("updates" in point for point in _points(found)):
        return []
    plans: dict[str, list[str]] = {}
    for method, curve in found.curves.items():
        lengths = [point["updates"] for point in curve]
        steps = [
            f"{sum(own >= length for own in lengths)} for {length} updates" for length in sorted({*lengths})
        ]
        plans.setdefault(", ".join(steps), []).append(method)
    notes = [
        f"halving: {plan}{'' if len(plans) == 1 else ' of ' + ', '.join(methods)}"
        for plan, methods in plans.items()
    ]
    kept = f"the best of every {KEPT} values are kept and run {KEPT} times as long"
    return [*notes, f"{kept}; in brackets: dropped after so many updates"]


def _values(found: Search) -> list[str]:
    """Return the values of the first key."""
    return by_size(values_of(point, found.keys)[found.keys[0]] for point in _points(found))


def _points(found: Search) -> list[dict[str, Any]]:
    return [point for curve in found.curves.values() for point in curve]


def _is_share(found: Search) -> bool:
    """Return whether all scores are shares of 1, of which more is better."""
    means = [point["mean"] for point in _points(found)]
    return not found.lower_is_better and all(mean is None or 0.0 <= mean <= 1.0 for mean in means)


def _score_rows(found: Search, emphasis: str) -> list[tuple[tuple[str, ...], list[str]]]:
    """Return a row for each method and combination of the other keys: these names, and scores by value."""
    first, *others = found.keys
    percent = _is_share(found)
    best = found.best
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    for method, curve in found.curves.items():
        longest = max((point.get("updates", 0) for point in curve), default=0)
        for point in curve:
            mean, values = point["mean"], values_of(point, found.keys)
            text = "–" if mean is None else f"{100 * mean:.1f}" if percent else f"{mean:.4g}"
            if point["value"] == best[method]:
                text = emphasis.format(text)
            elif point.get("updates", 0) < longest:
                text = f"{text} ({point['updates']})"
            rows.setdefault((method, *(values[key] for key in others)), {})[values[first]] = text
    columns = _values(found)
    return [(names, [texts.get(value, "–") for value in columns]) for names, texts in rows.items()]


def _table(title: str) -> Table:
    shown = Table(title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), title_justify="left")
    shown.add_column("method", no_wrap=True)
    return shown
