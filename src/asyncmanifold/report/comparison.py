"""The table of a comparison: the results of several methods over several seeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import floor, log10
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


SCORES = ("final", "last", "best")
"""The columns that hold values of the reported metric."""
COLUMNS = (
    Column("final", "final %", 100.0, 1, largest_is_best=True),
    Column("last", "last %", 100.0, 1, largest_is_best=True),
    Column("best", "best %", 100.0, 1, largest_is_best=True),
    Column("rounds_to_target", "target updates", 1.0, 0),
    Column("time_to_target", "target time", 1.0, 0),
    Column("gini", "Gini ×100", 100.0, 2),
    Column("theil", "Theil ×1000", 1000.0, 2),
)


def columns_of(table: Mapping[str, Any]) -> tuple[Column, ...]:
    """Return the columns of a table: scores in percent if they are shares of 1, of which more is better."""
    metric = next((row["metric"] for row in table.values()), "")
    return tuple(
        score_column(column.key, column.key, metric, table) if column.key in SCORES else column
        for column in COLUMNS
    )


def score_column(key: str, heading: str, metric: str, table: Mapping[str, Any]) -> Column:
    """Return the column of a metric's values; those that are not shares of 1, such as errors, are plain."""
    is_lower = any(metric in row["lower_is_better"] for row in table.values())
    means = [row[key]["mean"] for row in table.values() if row[key]["mean"] is not None]
    if is_lower or not all(0.0 <= mean <= 1.0 for mean in means):
        return Column(key, heading, 1.0, _digits(means), largest_is_best=not is_lower)
    return Column(key, f"{heading} %", 100.0, 1, largest_is_best=True)


def _digits(values: Sequence[float]) -> int:
    """Return how many decimal places show about three digits of the largest value."""
    largest = max((abs(value) for value in values), default=0.0)
    return max(0, min(6, 2 - floor(log10(largest)))) if largest > 0.0 else 3


def tabulate(summaries: Iterable[Summary]) -> dict[str, dict[str, Any]]:
    """Return, by method, the mean and deviation of each column, and the number of seeds that have a value.

    For a task with several metrics, ``scores`` holds the final value of each, over the last evaluations.
    """
    by_method: dict[str, list[Summary]] = {}
    for summary in summaries:
        by_method.setdefault(summary["method"], []).append(summary)
    table: dict[str, dict[str, Any]] = {}
    for method, runs in by_method.items():
        averages = {column.key: average(run[column.key] for run in runs) for column in COLUMNS}
        about = {"metric": runs[0]["metric"], "lower_is_better": runs[0].get("lower_is_better", [])}
        scores = [run.get("scores", {}) for run in runs]
        names = list(scores[0]) if len(scores[0]) > 1 else []
        by_name = {name: average(found.get(name) for found in scores) for name in names}
        table[method] = {"runs": len(runs), **about, **averages, "scores": by_name}
    return table


def average(values: Iterable[float | None]) -> dict[str, Any]:
    """Return the mean, the deviation and the number of the values that are not None."""
    known = [value for value in values if value is not None]
    mean, deviation = mean_and_deviation(known) if known else (None, None)
    return {"mean": mean, "sd": deviation, "count": len(known)}


def write_table(out: Path, scenario: str, metric: str, table: Mapping[str, Any]) -> None:
    """Write ``compare.json`` and ``table.md``."""
    write_json(out / "compare.json", {"scenario": scenario, "metric": metric, "methods": table})
    columns = columns_of(table)
    headings = ["method", *(column.heading for column in columns)]
    lines = [headings, ["---", *["--:"] * len(columns)]]
    for method, row in table.items():
        lines.append([method, *(cell(column, row, "**{}**", table) for column in columns)])
    text = _markdown(lines)
    if scores := score_rows(table, "**{}**"):
        text += "\n" + _markdown([["score", *table], ["---", *["--:"] * len(table)], *scores])
    write_atomically(out / "table.md", text.encode())


def _markdown(lines: Iterable[Sequence[str]]) -> str:
    return "".join("| " + " | ".join(text.replace("|", "\\|") for text in line) + " |\n" for line in lines)


def score_rows(table: Mapping[str, Any], emphasis: str) -> list[list[str]]:
    """Return one row per metric, if there are several: its name, and each method's final value."""
    names = dict.fromkeys(name for row in table.values() for name in row["scores"])
    rows = []
    for name in names:
        scores = {
            method: {**row, "score": row["scores"].get(name, average([]))} for method, row in table.items()
        }
        column = score_column("score", name, name, scores)
        rows.append([column.heading, *(cell(column, row, emphasis, scores) for row in scores.values())])
    return rows


def cell(column: Column, row: Mapping[str, Any], emphasis: str, table: Mapping[str, Any]) -> str:
    """Return a table's cell: mean±sd, emphasised if it is the best beyond the spread over seeds."""
    entry = row[column.key]
    if entry["mean"] is None:
        return "–"
    text = f"{entry['mean'] * column.scale:.{column.digits}f}"
    if entry["count"] < row["runs"]:
        return f"{text} ({entry['count']}/{row['runs']})"
    if entry["sd"] is not None:
        text += f"±{entry['sd'] * column.scale:.{column.digits}f}"
    others = [other[column.key] for other in table.values() if other is not row]
    return emphasis.format(text) if is_clearly_best(column, entry, others) else text


def is_clearly_best(column: Column, entry: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a mean is better than every other by more than both standard deviations together.

    So the ranges mean±sd of the best and of any other do not overlap. The spread of a single run is unknown:
    it is never called the best.
    """
    if entry["sd"] is None or not others:
        return False
    sign = 1.0 if column.largest_is_best else -1.0
    known = [other for other in others if other["mean"] is not None]
    return all(sign * (entry["mean"] - other["mean"]) > entry["sd"] + (other["sd"] or 0.0) for other in known)
