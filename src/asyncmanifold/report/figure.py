"""A figure: a Vega-Lite specification and its rows, with a title and a caption."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape as html_escape
from typing import Any

from asyncmanifold.report.figure_theme import LIGHT, FigureTheme, vega_config

Row = dict[str, Any]
Specification = dict[str, Any]
"""A Vega-Lite specification, or a part of one."""

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"


@dataclass(frozen=True)
class Figure:
    """A drawing with its title and caption."""

    name: str
    title: str
    caption: str
    specification: Specification
    """Without data and without colours."""
    data: dict[str, list[Row]] = field(default_factory=dict)
    """Rows, by the names of the datasets that the specification uses."""

    def complete(self, theme: FigureTheme = LIGHT) -> Specification:
        """Return the specification that stands alone, with its data and the colours of a theme."""
        return {
            "$schema": SCHEMA,
            "description": self.title,
            **self.specification,
            "config": vega_config(theme),
            "datasets": self.data,
        }


def quantity(field: str, **more: Any) -> Row:
    """Return the encoding of a field of numbers.

    >>> quantity("time", title="virtual time")
    {'field': 'time', 'type': 'quantitative', 'title': 'virtual time'}
    """
    return {"field": field, "type": "quantitative", **more}


def category(field: str, **more: Any) -> Row:
    """Return the encoding of a field of names."""
    return {"field": field, "type": "nominal", **more}


def layer(
    mark: str, encoding: Row, data: str = "", transform: Sequence[Row] = (), name: str = "", **style: Any
) -> Specification:
    """Return one kind of marks of a figure; ``data`` is a dataset's name, ``style`` the marks' properties.

    >>> layer("line", {"x": quantity("x")}, "means", clip=True)["mark"]
    {'type': 'line', 'clip': True}
    """
    made: Specification = {"name": name} if name else {}
    if data:
        made["data"] = {"name": data}
    if transform:
        made["transform"] = list(transform)
    return {**made, "mark": {"type": mark, **style}, "encoding": encoding}


def rounded(value: float) -> float:
    """Return a number with the six digits that a figure can show.

    >>> rounded(0.1 + 0.2), rounded(12345678.9)
    (0.3, 12345700.0)
    """
    return float(f"{value:.6g}")


def as_table(rows: Sequence[Row]) -> dict[str, Any]:
    """Return rows as a list of fields and a list of values for each row, which is much shorter in a page.

    >>> as_table([{"x": 1, "y": 2}, {"x": 3}])
    {'fields': ['x', 'y'], 'rows': [[1, 2], [3, None]]}
    """
    fields = list(dict.fromkeys(name for row in rows for name in row))
    return {"fields": fields, "rows": [[row.get(name) for name in fields] for row in rows]}


def as_script(value: Any) -> str:
    """Return a value as JSON that is safe inside of a script element, whatever strings it contains."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def escape(text: str) -> str:
    """Return a string that is safe in HTML and its attributes, whatever it contained."""
    sound = text.encode("utf-8", "replace").decode()
    return html_escape("".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in sound))


def shorten(text: str, length: int) -> str:
    """Return at most ``length`` characters; the middle is cut, because long names often begin alike.

    >>> shorten("digits: asyncbezier", 11)
    'digit…ezier'
    """
    if len(text) <= length:
        return text
    return text[: length // 2] + "…" + text[len(text) - (length - 1) // 2 :]
