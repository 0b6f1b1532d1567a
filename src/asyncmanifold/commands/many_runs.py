"""Runs from configurations: one, or many in parallel, each in its own directory."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from queue import Empty
from time import perf_counter
from typing import Any

from asyncmanifold.configuration.config import Config, config_tree
from asyncmanifold.errors import InputError
from asyncmanifold.execution.placement import Placement
from asyncmanifold.execution.process_workers import block_interrupts
from asyncmanifold.progress import display
from asyncmanifold.session.journal import Records
from asyncmanifold.session.summary import Summary
from asyncmanifold.session.trace import Record
from asyncmanifold.simulation.runner import simulate

Key = tuple[str, ...]
"""A run's method, seed …, which identify it among several; also its path below the common directory."""


def run_config(
    config: Config,
    records: Records,
    placement: Placement | None = None,
    replay: list[Record] | None = None,
) -> Summary:
    """Run one configuration and return its summary; ``replay`` is as in ``simulate``."""
    labels = {"scenario": config.scenario, "method": config.method_name, "seed": config.run.seed}
    return simulate(
        config.build_task(),
        config.method,
        training=config.training,
        schedule=config.schedule,
        run=config.run,
        placement=placement,
        records=replace(records, config=config_tree(config), labels=labels),
        replay=replay,
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
    """Run every configuration, ``workers`` at a time, each in its own process; return the successful ones.

    Each run trains inline: whole runs in parallel share nothing and never wait for each other. Processes are
    spawned, since forking a process that runs threads, as torch does, is not safe.
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
        with block_interrupts():
            futures: dict[Future[Summary], Key] = {
                pool.submit(_run_one, key, config, run_directory(out, key), resume): key
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
                    if error is None:
                        summaries[key] = future.result()
                    on_end(key, error or summaries[key])
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()  # each run writes a checkpoint first
            raise
    return {key: summaries[key] for key in configs if key in summaries}


def run_directory(out: Path, key: Key) -> Path:
    """Return the directory of one of several runs."""
    return out.joinpath(*key)


def run_with_progress(
    configs: Mapping[Key, Config],
    out: Path,
    *,
    resume: bool,
    workers: int | None,
    quiet: bool,
    score: str = "final",
) -> tuple[dict[Key, Summary], list[str]]:
    """Run every configuration with a progress display; return the summaries, and one line per failed run.

    The default for ``workers`` is one per core. ``score`` is the key of the summary that is shown when a run
    ends.
    """
    reached: dict[Key, int] = {}
    found: dict[Key, int] = {}  # updates that an earlier call made of a run
    failures: list[str] = []
    total = sum(config.run.updates for config in configs.values())
    title = f"{len(configs)} runs on {next(iter(configs.values())).scenario}"
    with display(title, total, quiet=quiet) as shown:

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

        summaries = run_all(
            configs,
            out,
            resume=resume,
            workers=workers or len(os.sched_getaffinity(0)),
            on_progress=on_progress,
            on_end=on_end,
        )
    return summaries, failures


_reports: Any = None
_is_ending = False


def _prepare_process(reports: Any) -> None:
    """Set up a worker process: where it reports progress, and that SIGTERM ends its run as Ctrl-C would."""
    global _reports
    _reports = reports
    signal.signal(signal.SIGTERM, _interrupt_run)


def _interrupt_run(signal_number: int, frame: object) -> None:
    global _is_ending
    _is_ending = True
    raise KeyboardInterrupt


def _run_one(key: Key, config: Config, out: Path, resume: bool) -> Summary:
    """Run one configuration in a worker process, and report progress a few times per second."""
    if _is_ending:
        raise KeyboardInterrupt
    reported = 0.0

    def observe(record: Record) -> None:
        nonlocal reported
        if record["kind"] == "update" and perf_counter() - reported > 0.2:
            reported = perf_counter()
            _reports.put((key, record["update"]))

    return run_config(config, Records(out=out, resume=resume, observer=observe))


def _drain_reports(reports: Any, on_progress: Callable[[Key, int], None]) -> None:
    while True:
        try:
            on_progress(*reports.get_nowait())
        except Empty:
            return
