"""Several methods and seeds on one scenario, run side by side, and the table of what they came to."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from queue import Empty
from statistics import mean, stdev
from time import perf_counter
from typing import Any

from asyncmanifold.config import Config, config_tree
from asyncmanifold.simulation.executors import sheltered_from_interrupts
from asyncmanifold.simulation.runner import Observer, simulate
from asyncmanifold.summary import Summary
from asyncmanifold.trace import Record, write_atomically, write_json


@dataclass(frozen=True)
class Column:
    """A number of a summary that is averaged over seeds, and how the table shows it."""

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
        initializer=_prepare_process,
        initargs=(reports,),
    ) as pool:
        with sheltered_from_interrupts():
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
            for process in multiprocessing.active_children():
                process.terminate()  # each writes a checkpoint first
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
            values = [run[column.key] for run in runs if run[column.key] is not None]
            row[column.key] = {
                "mean": mean(values) if values else None,
                "sd": stdev(values) if len(values) > 1 else None,
                "count": len(values),
            }
        table[method] = row
    return table


def write_table(out: Path, scenario: str, metric: str, table: Mapping[str, Any]) -> None:
    """Write ``compare.json`` and ``table.md``."""
    write_json(out / "compare.json", {"scenario": scenario, "metric": metric, "methods": table})
    headings = ["method", *(column.heading for column in COLUMNS)]
    lines = [headings, ["---", *["--:"] * len(COLUMNS)]]
    for method, row in table.items():
        lines.append([method, *(cell(column, row, "**{}**", table) for column in COLUMNS)])
    text = "".join("| " + " | ".join(line) + " |\n" for line in lines)
    write_atomically(out / "table.md", text.encode())


def cell(column: Column, row: Mapping[str, Any], emphasis: str, table: Mapping[str, Any]) -> str:
    """Return a table's cell: mean±sd, emphasised where no other mean is better."""
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


_reports: Any = None
_is_ending = False


def _prepare_process(reports: Any) -> None:
    """Remember, in a worker process, where to report to; end its run as Ctrl-C does when asked to."""
    global _reports
    _reports = reports
    signal.signal(signal.SIGTERM, _end)


def _end(signal_number: int, frame: object) -> None:
    global _is_ending
    _is_ending = True
    raise KeyboardInterrupt


def _run_one(key: Key, config: Config, out: Path, resume: bool) -> Summary:
    """Run in a worker process, reporting a few times a second."""
    if _is_ending:
        raise KeyboardInterrupt
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
