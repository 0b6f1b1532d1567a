"""The table of a comparison: the results of several methods over several seeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncmanifold.files import write_atomically, write_json
from asyncmanifold.session.summary import Summary, mean_and_deviation


@dataclass(frozen=True)
class Column:
    """A number of a summary, averaged over seeds, and how the table shows it."""

    key: str
    heading: str
    scale: float
    digits: int
    largest_is_best: bool = False


COLUMNS = (
    Column("final", "final %", 100.0, 1, largest_is_best=True),
    Column("best", "best %", 100.0, 1, largest_is_best=True),
    Column("rounds_to_target", "target updates", 1.0, 0),
    Column("time_to_target", "target time", 1.0, 0),
    Column("gini", "Gini ×100", 100.0, 2),
    Column("theil", "Theil ×1000", 1000.0, 2),
)


def tabulate(summaries: Iterable[Summary]) -> dict[str, dict[str, Any]]:
    """Return, by method, the mean and deviation of each column, and the number of seeds that have a value.

    For a task with several metrics, ``scores`` holds the final value of each.
    """
    by_method: dict[str, list[Summary]] = {}
    for summary in summaries:
        by_method.setdefault(summary["method"], []).append(summary)
    table: dict[str, dict[str, Any]] = {}
    for method, runs in by_method.items():
        averages = {column.key: average(run[column.key] for run in runs) for column in COLUMNS}
        scores = [run.get("scores", {}) for run in runs]
        names = list(scores[0]) if len(scores[0]) > 1 else []
        by_name = {name: average(found.get(name) for found in scores) for name in names}
        table[method] = {"runs": len(runs), **averages, "scores": by_name}
    return table


def average(values: Iterable[float | None]) -> dict[str, Any]:
    """Return the mean, the deviation and the number of the values that are not None."""
    known = [value for value in values if value is not None]
    mean, deviation = mean_and_deviation(known) if known else (None, None)
    return {"mean": mean, "sd": deviation, "count": len(known)}


def write_table(out: Path, scenario: str, metric: str, table: Mapping[str, Any]) -> None:
    """Write ``compare.json`` and ``table.md``."""
    write_json(out / "compare.json", {"scenario": scenario, "metric": metric, "methods": table})
    headings = ["method", *(column.heading for column in COLUMNS)]
    lines = [headings, ["---", *["--:"] * len(COLUMNS)]]
    for method, row in table.items():
        lines.append([method, *(cell(column, row, "**{}**", table) for column in COLUMNS)])
    text = _markdown(lines)
    if scores := score_rows(table, "**{}**"):
        text += "\n" + _markdown([["score %", *table], ["---", *["--:"] * len(table)], *scores])
    write_atomically(out / "table.md", text.encode())


def _markdown(lines: Iterable[Sequence[str]]) -> str:
    return "".join("| " + " | ".join(text.replace("|", "\\|") for text in line) + " |\n" for line in lines)


def score_rows(table: Mapping[str, Any], emphasis: str) -> list[list[str]]:
    """Return one row per metric, if there are several: its name, and each method's final value in percent."""
    names = dict.fromkeys(name for row in table.values() for name in row["scores"])
    rows = []
    for name in names:
        column = Column(name, name, 100.0, 1, largest_is_best=True)
        scores = {
            method: {name: average([]), **row["scores"], "runs": row["runs"]} for method, row in table.items()
        }
        rows.append([name, *(cell(column, row, emphasis, scores) for row in scores.values())])
    return rows


def cell(column: Column, row: Mapping[str, Any], emphasis: str, table: Mapping[str, Any]) -> str:
    """Return a table's cell: mean±sd, emphasised if no other mean is better."""
    entry = row[column.key]
    if entry["mean"] is None:
        return "–"
    text = f"{entry['mean'] * column.scale:.{column.digits}f}"
    if entry["count"] < row["runs"]:
        return f"{text} ({entry['count']}/{row['runs']})"
    if entry["sd"] is not None:
        text += f"±{entry['sd'] * column.scale:.{column.digits}f}"
    means = [other[column.key]["mean"] for other in table.values() if other[column.key]["mean"] is not None]
    best = max(means) if column.largest_is_best else min(means)
    return emphasis.format(text) if entry["mean"] == best else text
