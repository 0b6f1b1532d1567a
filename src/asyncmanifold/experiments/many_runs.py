"""Runs from configurations: one, or many in parallel, each in its own directory."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from queue import Empty
from time import perf_counter
from typing import Any

from asyncmanifold.configuration.config import Config, config_tree
from asyncmanifold.configuration.python_tasks import PythonTask
from asyncmanifold.errors import InputError, RunError
from asyncmanifold.execution.importable import check_importable
from asyncmanifold.execution.placement import Placement
from asyncmanifold.execution.process_workers import NOT_STARTED, block_interrupts
from asyncmanifold.progress import Display, display
from asyncmanifold.results import Result
from asyncmanifold.session.journal import Records
from asyncmanifold.session.observers import Observer
from asyncmanifold.session.summary import Summary
from asyncmanifold.session.trace import Record
from asyncmanifold.simulation.runner import simulate
from asyncmanifold.sinks import open_sinks

Key = tuple[str, ...]
"""A run's method, seed …, which identify it among several; also its path below the common directory."""


@dataclass(frozen=True)
class FinishedRun:
    """What a study keeps of one of its runs."""

    summary: Summary
    evaluations: list[Record]


def run_config(
    config: Config,
    records: Records,
    placement: Placement | None = None,
    replay: list[Record] | None = None,
) -> Result:
    """Run one configuration; ``replay`` is as in ``simulate``."""
    config = replace(config, run=config.run.resolved())
    labels = {"scenario": config.scenario, "method": config.method_name, "seed": config.run.seed}
    described = None if isinstance(config.task, PythonTask) else config_tree(config)
    return simulate(
        config.build_task(),
        config.method,
        training=config.training,
        schedule=config.schedule,
        run=config.run,
        placement=placement,
        records=replace(records, config=described, labels=labels),
        replay=replay,
        progress=False,
    )


def run_all(
    configs: Mapping[Key, Config],
    out: Path | None,
    *,
    resume: bool,
    workers: int,
    on_progress: Callable[[Key, int], None],
    on_end: Callable[[Key, Summary | BaseException], None],
    sinks: Sequence[str] = (),
) -> dict[Key, FinishedRun]:
    """Run every configuration, ``workers`` at a time; return the successful ones.

    One worker is this process. Each run trains inline: whole runs in parallel share nothing and never wait
    for each other.
    """
    if workers > 1:
        return _run_in_processes(configs, out, resume, workers, on_progress, on_end, sinks)
    runs: dict[Key, FinishedRun] = {}
    for key, config in configs.items():
        report = partial(on_progress, key)
        try:
            runs[key] = _run_one(key, config, run_directory(out, key), resume, report, sinks)
            on_end(key, runs[key].summary)
        except RunError as error:
            on_end(key, error)
    return runs


def _run_in_processes(
    configs: Mapping[Key, Config],
    out: Path | None,
    resume: bool,
    workers: int,
    on_progress: Callable[[Key, int], None],
    on_end: Callable[[Key, Summary | BaseException], None],
    sinks: Sequence[str],
) -> dict[Key, FinishedRun]:
    """Run in processes. They are spawned: forking a process that runs threads, as torch does, is not safe."""
    check_importable(list(configs.values()))
    context = multiprocessing.get_context("spawn")
    reports: Any = context.Queue()
    runs: dict[Key, FinishedRun] = {}
    with ProcessPoolExecutor(
        max_workers=min(workers, len(configs)),
        mp_context=context,
        initializer=_prepare_process,
        initargs=(reports,),
    ) as pool:
        with block_interrupts():
            futures: dict[Future[FinishedRun], Key] = {
                pool.submit(_run_in_process, key, config, run_directory(out, key), resume, sinks): key
                for key, config in configs.items()
            }
        waiting = set(futures)
        try:
            while waiting:
                ended, waiting = wait(waiting, timeout=0.2, return_when=FIRST_COMPLETED)
                _drain_reports(reports, on_progress)
                for future in ended:
                    key = futures[future]
                    error = future.exception()
                    if isinstance(error, BrokenProcessPool):
                        raise RunError(NOT_STARTED) from error
                    if error is None:
                        runs[key] = future.result()
                    on_end(key, error or runs[key].summary)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()  # each run writes a checkpoint first
            raise
    return {key: runs[key] for key in configs if key in runs}


def say_cautions(configs: Iterable[Config], shown: Display) -> None:
    """Show, once each, what a reader of these runs' results has to know about their tasks."""
    for line in dict.fromkeys(getattr(config.task, "caution", None) for config in configs):
        if line is not None:
            shown.say(f"note: {line}")


def run_directory(out: Path | None, key: Key) -> Path | None:
    """Return the directory of one of several runs."""
    return None if out is None else out.joinpath(*key)


def run_with_progress(
    configs: Mapping[Key, Config],
    out: Path | None,
    *,
    resume: bool,
    workers: int,
    quiet: bool,
    score: str = "final",
    sinks: Sequence[str] = (),
) -> tuple[dict[Key, FinishedRun], list[str]]:
    """Run every configuration with a progress display; return the runs, and one line per failed run.

    ``score`` is the key of the summary that is shown when a run ends.
    """
    reached: dict[Key, int] = {}
    found: dict[Key, int] = {}  # updates that an earlier call made of a run
    failures: list[str] = []
    total = sum(config.run.updates for config in configs.values())
    title = f"{len(configs)} runs on {next(iter(configs.values())).scenario}"
    with display(title, total, quiet=quiet) as shown:
        say_cautions(configs.values(), shown)

        def on_progress(key: Key, update: int) -> None:
            reached[key] = update
            found.setdefault(key, update - 1)
            shown.show(sum(reached.values()), found=sum(found.values()))

        def on_end(key: Key, ended: Summary | BaseException) -> None:
            name = ", ".join(key)
            if isinstance(ended, InputError):
                raise ended  # wrong input is wrong for every run
            if isinstance(ended, BaseException):
                failures.append(f"{name}: {ended or type(ended).__name__}")
                shown.say(failures[-1])
                return
            value = "not finite" if ended[score] is None else f"{ended[score]:.4f}"
            shown.say(f"{name}: {score} {ended['metric']} {value}")
            found.setdefault(key, configs[key].run.updates)
            on_progress(key, configs[key].run.updates)

        if (crowding := Placement(workers=workers).crowding()) is not None:
            shown.say(f"warning: {crowding}")
        runs = run_all(
            configs,
            out,
            resume=resume,
            workers=workers,
            on_progress=on_progress,
            on_end=on_end,
            sinks=sinks,
        )
    return runs, failures


_reports: Any = None
_is_ending = False
_is_running = False


def _prepare_process(reports: Any) -> None:
    """Set up a worker process: where it reports progress, and that SIGTERM ends its run as Ctrl-C would."""
    global _reports
    _reports = reports
    signal.signal(signal.SIGTERM, _interrupt_run)


def _interrupt_run(signal_number: int, frame: object) -> None:
    global _is_ending
    _is_ending = True
    if not _is_running:
        raise SystemExit(1)  # a KeyboardInterrupt outside a run would be printed with the worker's name
    raise KeyboardInterrupt


def _run_in_process(
    key: Key, config: Config, out: Path | None, resume: bool, sinks: Sequence[str]
) -> FinishedRun:
    """Run one configuration in a worker process."""
    global _is_running
    if _is_ending:
        raise KeyboardInterrupt
    _is_running = True
    try:
        return _run_one(key, config, out, resume, lambda update: _reports.put((key, update)), sinks)
    finally:
        _is_running = False


def _run_one(
    key: Key,
    config: Config,
    out: Path | None,
    resume: bool,
    report: Callable[[int], None],
    sinks: Sequence[str] = (),
) -> FinishedRun:
    """Run one configuration, and report its progress a few times per second."""
    reported = 0.0

    def observe(record: Record) -> None:
        nonlocal reported
        if record["kind"] == "update" and perf_counter() - reported > 0.2:
            reported = perf_counter()
            report(record["update"])

    observers: list[Observer] = [observe, *open_sinks(sinks, "/".join(key))]
    result = run_config(config, Records(out=out, resume=resume, observer=observers))
    evaluations = [record for record in result.trace if record["kind"] == "evaluation"]
    return FinishedRun(result.summary, evaluations)


def _drain_reports(reports: Any, on_progress: Callable[[Key, int], None]) -> None:
    while True:
        try:
            on_progress(*reports.get_nowait())
        except Empty:
            return
