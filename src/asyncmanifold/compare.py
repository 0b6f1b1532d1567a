"""Several methods and seeds on one scenario, run side by side, and the table of what they came to."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from queue import Empty
from statistics import mean, stdev
from time import perf_counter
from typing import Any

from asyncmanifold.config import Config, config_tree
from asyncmanifold.simulation.runner import Observer, simulate
from asyncmanifold.summary import Summary
from asyncmanifold.trace import Record, write_atomically, write_json

COLUMNS = ("final", "best", "rounds_to_target", "time_to_target", "gini", "theil", "staleness_mean")
"""The numbers of a summary that are averaged over seeds."""

Key = tuple[str, int]
"""A run: its method's name and its seed."""


def run_config(
    config: Config, out: Path, *, resume: bool, workers: int, observer: Observer | None
) -> Summary:
    """Run one configuration in its directory and return its summary."""
    return simulate(
        config.build_task(),
        config.method,
        training=config.training,
        schedule=config.schedule,
        run=config.run,
        workers=workers,
        out=out,
        resume=resume,
        observer=observer,
        config=config_tree(config),
        labels={
            "scenario": config.scenario,
            "method": config.method_name,
            "seed": config.run.seed,
        },
    ).summary


def run_all(
    configs: Mapping[Key, Config],
    out: Path,
    *,
    resume: bool,
    workers: int,
    on_progress: Callable[[Key, int], None],
    on_end: Callable[[Key, Summary | BaseException], None],
) -> dict[Key, Summary]:
    """Run every configuration, ``workers`` at a time, each in a process of its own; return what ended well.

    Whole runs side by side waste nothing, so each trains inline.
    """
    context = multiprocessing.get_context("spawn")
    reports: Any = context.Queue()
    summaries: dict[Key, Summary] = {}
    with ProcessPoolExecutor(
        max_workers=min(workers, len(configs)),
        mp_context=context,
        initializer=_keep_reports,
        initargs=(reports,),
    ) as pool:
        futures: dict[Future[Summary], Key] = {
            pool.submit(_run_one, key, config, run_directory(out, key), resume): key
            for key, config in configs.items()
        }
        waiting = set(futures)
        try:
            while waiting:
                ended, waiting = wait(waiting, timeout=0.2, return_when=FIRST_COMPLETED)
                _drain(reports, on_progress)
                for future in ended:
                    key = futures[future]
                    error = future.exception()
                    if error is None:
                        summaries[key] = future.result()
                    on_end(key, error or summaries[key])
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return {key: summaries[key] for key in configs if key in summaries}


def run_directory(out: Path, key: Key) -> Path:
    """Return where a comparison keeps one of its runs."""
    method, seed = key
    return out / method / f"seed-{seed}"


def tabulate(summaries: Iterable[Summary]) -> dict[str, dict[str, Any]]:
    """Return, by method, the mean and standard deviation of each column, and how many seeds have it."""
    by_method: dict[str, list[Summary]] = {}
    for summary in summaries:
        by_method.setdefault(summary["method"], []).append(summary)
    table: dict[str, dict[str, Any]] = {}
    for method, runs in by_method.items():
        row: dict[str, Any] = {"runs": len(runs)}
        for column in COLUMNS:
            values = [run[column] for run in runs if run[column] is not None]
            row[column] = {
                "mean": mean(values) if values else None,
                "sd": stdev(values) if len(values) > 1 else None,
                "count": len(values),
            }
        table[method] = row
    return table


def write_table(out: Path, scenario: str, metric: str, table: Mapping[str, Any]) -> None:
    """Write ``compare.json`` and ``table.md``."""
    write_json(out / "compare.json", {"scenario": scenario, "metric": metric, "methods": table})
    headings, rows = table_cells(metric, table)
    lines = ["| " + " | ".join(row) + " |" for row in (headings, ["---"] * len(headings), *rows)]
    write_atomically(out / "table.md", ("\n".join(lines) + "\n").encode())


def table_cells(metric: str, table: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return a table's headings and rows as text."""
    headings = [
        "method",
        f"final {metric}",
        f"best {metric}",
        "updates to target",
        "time to target",
        "Gini",
        "Theil",
        "staleness",
    ]
    digits = dict(zip(COLUMNS, (4, 4, 0, 1, 4, 5, 1), strict=True))
    rows = [
        [method, *(_cell(row[column], row["runs"], digits[column]) for column in COLUMNS)]
        for method, row in table.items()
    ]
    return headings, rows


def best_rows(table: Mapping[str, Any], column: str, *, largest: bool) -> Sequence[str]:
    """Return the methods whose mean is the best of a column."""
    means = {method: row[column]["mean"] for method, row in table.items() if row[column]["mean"] is not None}
    if not means:
        return []
    best = max(means.values()) if largest else min(means.values())
    return [method for method, value in means.items() if value == best]


def _cell(entry: Mapping[str, Any], runs: int, digits: int) -> str:
    if entry["mean"] is None:
        return "–"
    text = f"{entry['mean']:.{digits}f}"
    if entry["sd"] is not None:
        text += f" ± {entry['sd']:.{digits}f}"
    return text if entry["count"] == runs else f"{text} ({entry['count']} of {runs})"


_reports: Any = None


def _keep_reports(reports: Any) -> None:
    """Remember, in a worker process, where to report to."""
    global _reports
    _reports = reports


def _run_one(key: Key, config: Config, out: Path, resume: bool) -> Summary:
    """Run in a worker process, reporting a few times a second."""
    reported = 0.0

    def observe(record: Record) -> None:
        nonlocal reported
        if record["kind"] == "update" and perf_counter() - reported > 0.2:
            reported = perf_counter()
            _reports.put((key, record["update"]))

    return run_config(config, out, resume=resume, workers=1, observer=observe)


def _drain(reports: Any, on_progress: Callable[[Key, int], None]) -> None:
    while True:
        try:
            on_progress(*reports.get_nowait())
        except Empty:
            return
