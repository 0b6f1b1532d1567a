"""The table of a comparison as HTML and LaTeX, with the numbers and cells of ``compare``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from asyncmanifold.report.comparison import COLUMNS, cell, score_rows
from asyncmanifold.report.svg import escape

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


def html_table(table: Table) -> str:
    """Return the table as HTML."""
    headings = [*(column.heading for column in COLUMNS), "seeds"]
    rows = ((name, [*_cells(table, row, "<b>{}</b>"), row["runs"]]) for name, row in table.items())
    return _html("method", headings, rows)


def html_scores(table: Table) -> str:
    """Return the final values of all metrics as HTML, if there are several metrics."""
    rows = score_rows(table, "<b>{}</b>" if len(table) > 1 else "{}")
    return _html("score %", table, ((name, cells) for name, *cells in rows)) if rows else ""


def _html(corner: str, headings: Iterable[str], rows: Iterable[tuple[str, Sequence[object]]]) -> str:
    """Return an HTML table; the cells are HTML already."""
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in (corner, *headings))
    body = "".join(
        f'<tr><th scope="row">{escape(name)}</th>' + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>\n"
        for name, cells in rows
    )
    return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>\n</table>"


def latex_table(table: Table) -> str:
    """Return a tabular with booktabs' rules."""
    lines = [" & ".join(["method", *(latex(column.heading) for column in COLUMNS)])]
    for method, row in table.items():
        cells = _cells(table, row, "\x02{}\x03")
        marked = [latex(text).replace("\x02", r"\textbf{").replace("\x03", "}") for text in cells]
        lines.append(" & ".join([latex(method), *marked]))
    head, *body = [f"{line} \\\\\n" for line in lines]
    return (
        "% needs \\usepackage{booktabs}\n"
        f"\\begin{{tabular}}{{l{'r' * len(COLUMNS)}}}\n\\toprule\n{head}\\midrule\n{''.join(body)}"
        "\\bottomrule\n\\end{tabular}\n"
    )


def latex(text: str) -> str:
    r"""Return a string with LaTeX's special characters escaped.

    >>> latex("a_b 5%")
    'a\\_b 5\\%'
    """
    sound = " ".join(text.encode("utf-8", "replace").decode().split())
    return "".join(_LATEX.get(character, character) for character in sound)


def _cells(table: Table, row: Mapping[str, Any], emphasis: str) -> list[str]:
    """Return a method's cells; with a single method, none is emphasised as the best."""
    return [cell(column, row, emphasis if len(table) > 1 else "{}", table) for column in COLUMNS]
