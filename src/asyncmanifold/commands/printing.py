"""Results as tables and text on a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from asyncmanifold.commands.tune import Curves, best_value, by_size, is_at_edge
from asyncmanifold.configuration.config import Config
from asyncmanifold.report.comparison import COLUMNS, cell
from asyncmanifold.session.summary import Summary


def print_summary(summary: Summary, out: Path) -> None:
    """Print the result of a run."""
    metric = summary["metric"]

    def number(key: str, form: str) -> str:
        return "–" if summary[key] is None else format(summary[key], form)

    print(f"{summary['method']} on {summary['scenario']}, seed {summary['seed']}")
    print(f"  {metric:<14}{number('final', '.4f')} at the end, {number('best', '.4f')} at best")
    if summary["target"] is not None:
        print(
            f"  {'target':<14}{summary['target']:g} reached after {number('rounds_to_target', '.0f')} "
            f"updates, virtual time {number('time_to_target', '.1f')}"
        )
    print(f"  {'fairness':<14}Gini {number('gini', '.4f')}, Theil {number('theil', '.5f')}")
    print(f"  {'staleness':<14}{summary['staleness_mean']:.1f} versions on average")
    lost = ", ".join(f"{summary[k]} {k}" for k in ("rejected", "failed", "dropped") if summary[k])
    print(f"  {'updates':<14}{summary['updates']} accepted{', ' + lost if lost else ''}")
    print(
        f"  {'wall time':<14}{summary['wall_seconds']:.1f} s, "
        f"{summary['train_seconds']:.1f} s of it summed over trained jobs"
    )
    print(f"  {'kept in':<14}{out}")


def print_table(config: Config, metric: str, table: Mapping[str, Any], out: Path) -> None:
    """Print the table of a comparison, within 80 columns."""
    target = "" if config.run.target is None else f", target {config.run.target:g}"
    title = f"{config.scenario}: {metric} after {config.run.updates} updates{target}"
    shown = Table(title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), title_justify="left")
    shown.add_column("method", no_wrap=True)
    for column in COLUMNS:
        shown.add_column(column.heading.replace(" ", "\n", 1), justify="right", no_wrap=True)
    for method, row in table.items():
        shown.add_row(method, *(cell(column, row, "[bold]{}[/bold]", table) for column in COLUMNS))
    Console().print(shown)
    runs = max(row["runs"] for row in table.values())
    over = f"mean±sd over {runs} seeds" if runs > 1 else "one seed"
    print(f"{over}; time is virtual; runs, table.md and compare.json in {out}")


def print_curves(key: str, curves: Curves, choice: Path) -> None:
    """Print a line search: each method's score for each value, the best in bold."""
    values = by_size(point["value"] for curve in curves.values() for point in curve)
    shown = Table(
        title=f"validation score % by {key}", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), title_justify="left"
    )
    shown.add_column("method", no_wrap=True)
    for value in values:
        shown.add_column(value, justify="right", no_wrap=True)
    at_edge = []
    for method, curve in curves.items():
        best = best_value(curve)
        if is_at_edge(curve):
            at_edge.append(method)
        points = {point["value"]: point["mean"] for point in curve}
        texts = {value: "–" if mean is None else f"{100 * mean:.1f}" for value, mean in points.items()}
        if best is not None:
            texts[best] = f"[bold]{texts[best]}[/bold]"
        shown.add_row(method, *(texts.get(value, "–") for value in values))
    Console().print(shown)
    if at_edge:
        print(f"at the edge of the values tried, so a better one may lie beyond: {', '.join(at_edge)}")
    print(f"the best values are in {choice}, a scenario for compare")
