"""The table of a comparison as HTML and LaTeX, with the numbers and cells of ``compare``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from asyncmanifold.report.comparison import Column, cell, columns_of, score_rows
from asyncmanifold.report.figure import escape

Table = Mapping[str, Mapping[str, Any]]

_LATEX = {
    "\\": r"\textbackslash{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "–": "--",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{character: "\\" + character for character in "&%$#_{}"},
}
NARROW = {
    "target updates": "$T_e$",
    "target time": "time",
    "Gini ×100": r"Gini\textsubscript{$\times100$}",
    "Theil ×1000": r"Theil\textsubscript{$\times10^3$}",
}
"""Headings that fit a paper's column."""
LEFT_OUT = ("last", "best")
"""Columns that a paper's table has no room for; table.md and compare.json have them."""


def html_table(table: Table) -> str:
    """Return the table as HTML; every cell carries its number, by which the page sorts."""
    columns = columns_of(table)
    heads = ["method", *(column.heading for column in columns), "seeds"]
    rows = []
    for name, row in table.items():
        cells = zip(columns, _cells(table, row, "<b>{}</b>", columns), strict=True)
        numbers = "".join(f'<td data-value="{_number(row[c.key])}">{text}</td>' for c, text in cells)
        shown = escape(name)
        rows.append(
            f'<tr data-name="{shown}"><th scope="row">{shown}</th>{numbers}<td>{row["runs"]}</td></tr>\n'
        )
    return html_rows(heads, rows, "sortable")


def html_scores(table: Table) -> str:
    """Return the final values of all metrics as HTML, if there are several metrics."""
    found = score_rows(table, "<b>{}</b>" if len(table) > 1 else "{}")
    rows = [
        f'<tr><th scope="row">{escape(name)}</th>' + "".join(f"<td>{text}</td>" for text in cells) + "</tr>\n"
        for name, *cells in found
    ]
    return html_rows(["score", *table], rows) if rows else ""


def html_rows(heads: Iterable[str], rows: Iterable[str], kind: str = "") -> str:
    """Return an HTML table; the rows are HTML already."""
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in heads)
    name = f' class="{kind}"' if kind else ""
    return f"<table{name}>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{''.join(rows)}</tbody>\n</table>"


def _number(entry: Mapping[str, Any]) -> str:
    return "" if entry["mean"] is None else repr(float(entry["mean"]))


def latex_table(table: Table) -> str:
    """Return a tabular with booktabs' rules that fits the column of a two-column paper.

    Deviations are small and lowered, columns without a number and those of ``LEFT_OUT`` are not there.
    """
    columns = [
        column
        for column in columns_of(table)
        if column.key not in LEFT_OUT and any(row[column.key]["mean"] is not None for row in table.values())
    ]
    heads = (NARROW.get(column.heading, latex(column.heading)) for column in columns)
    lines = [" & ".join(["method", *heads])]
    for method, row in table.items():
        cells = _cells(table, row, "\x02{}\x03", columns)
        lines.append(" & ".join([latex(method), *map(_narrow, cells)]))
    head, *body = [f"{line} \\\\\n" for line in lines]
    return (
        "% needs \\usepackage{booktabs}\n"
        "{\\footnotesize\\setlength{\\tabcolsep}{2.5pt}%\n"
        f"\\begin{{tabular}}{{@{{}}l{'r' * len(columns)}@{{}}}}\n\\toprule\n{head}\\midrule\n{''.join(body)}"
        "\\bottomrule\n\\end{tabular}}\n"
    )


def _narrow(text: str) -> str:
    r"""Return a cell in LaTeX, its deviation as a small lowered number.

    >>> _narrow("85.0±7.1")
    '85.0\\textsubscript{$\\pm$7.1}'
    """
    begin, bare, end = (r"\textbf{", text[1:-1], "}") if text.startswith("\x02") else ("", text, "")
    number, sign, deviation = bare.partition("±")
    lowered = rf"\textsubscript{{$\pm${latex(deviation)}}}" if sign else ""
    return f"{begin}{latex(number)}{end}{lowered}"


def latex(text: str) -> str:
    r"""Return a string with LaTeX's special characters escaped.

    >>> latex("a_b 5%")
    'a\\_b 5\\%'
    """
    sound = " ".join(text.encode("utf-8", "replace").decode().split())
    return "".join(_LATEX.get(character, character) for character in sound)


def _cells(table: Table, row: Mapping[str, Any], emphasis: str, columns: Sequence[Column]) -> list[str]:
    """Return a method's cells; with a single method, none is emphasised as the best."""
    return [cell(column, row, emphasis if len(table) > 1 else "{}", table) for column in columns]
