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
from asyncmanifold.execution.process_workers import NOT_STARTED, block_interrupts, worker_context
from asyncmanifold.progress import Display, display, is_watched
from asyncmanifold.results import Result
from asyncmanifold.session.journal import Records
from asyncmanifold.session.observers import Observer
from asyncmanifold.session.summary import Summary
from asyncmanifold.session.trace import Record
from asyncmanifold.simulation.runner import simulate
from asyncmanifold.sinks import check_sink, open_sinks

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


@dataclass(frozen=True, kw_only=True)
class ManyRuns:
    """How the runs of a study are made: where they are stored, and how many at the same time.

    Arguments:
        out: the directory of all runs; each has one of its own below it.
        resume: continue the runs in ``out``.
        workers: one is this process; more are processes of their own, with a run each. Every run trains
            inline: whole runs in parallel share nothing and never wait for each other.
        progress: show a progress bar; by default in a terminal and in a notebook.
        score: the key of the summary that is shown when a run ends.
        sinks: where else the runs' figures go, as ``"tensorboard=DIR"``.
    """

    out: Path | None = None
    resume: bool = False
    workers: int = 1
    progress: bool | None = None
    score: str = "final"
    sinks: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise InputError(f"workers={self.workers} must be at least 1")
        for sink in self.sinks:
            check_sink(sink)

    def refuse_existing(self, keys: Iterable[Key]) -> None:
        """Refuse runs that the directory holds already, unless they are to be continued."""
        for key in () if self.resume else keys:
            if (folder := run_directory(self.out, key)) is not None and folder.exists():
                raise InputError(
                    f"{self.out}: holds a run of {', '.join(key)} already: choose another directory, or "
                    "resume it (--resume)"
                )

    def run(self, configs: Mapping[Key, Config]) -> tuple[dict[Key, FinishedRun], list[str]]:
        """Run configurations; return the finished runs, at least one, and a line for each that failed."""
        if not configs:
            raise InputError("no seeds are given")
        self.refuse_existing(configs)
        total = sum(config.run.updates for config in configs.values())
        title = f"{len(configs)} runs on {next(iter(configs.values())).scenario}"
        quiet = not (is_watched() if self.progress is None else self.progress)
        workers = min(self.workers, len(configs))
        with display(title, total, quiet=quiet) as shown:
            say_cautions(configs.values(), shown)
            if (crowding := Placement(workers=workers).crowding()) is not None:
                shown.say(f"warning: {crowding}")
            watcher = ManyRunsWatcher(configs, shown, self.score)
            runs = (self._run_in_processes if workers > 1 else self._run_here)(configs, watcher)
        if not runs:
            raise RunError(watcher.failures[0])
        return runs, watcher.failures

    def _run_here(self, configs: Mapping[Key, Config], watcher: ManyRunsWatcher) -> dict[Key, FinishedRun]:
        runs: dict[Key, FinishedRun] = {}
        for key, config in configs.items():
            report = partial(watcher.progress, key)
            try:
                folder = run_directory(self.out, key)
                runs[key] = _run_one(key, config, folder, self.resume, report, self.sinks)
                watcher.end(key, runs[key].summary)
            except RunError as error:
                watcher.end(key, error)
        return runs

    def _run_in_processes(
        self, configs: Mapping[Key, Config], watcher: ManyRunsWatcher
    ) -> dict[Key, FinishedRun]:
        """Run in processes."""
        check_importable(list(configs.values()))
        context = worker_context()
        reports: Any = context.Queue()
        runs: dict[Key, FinishedRun] = {}
        with ProcessPoolExecutor(
            max_workers=min(self.workers, len(configs)),
            mp_context=context,
            initializer=_prepare_process,
            initargs=(reports,),
        ) as pool:
            with block_interrupts():
                futures: dict[Future[FinishedRun], Key] = {
                    pool.submit(
                        _run_in_process, key, config, run_directory(self.out, key), self.resume, self.sinks
                    ): key
                    for key, config in configs.items()
                }
            waiting = set(futures)
            try:
                while waiting:
                    ended, waiting = wait(waiting, timeout=0.2, return_when=FIRST_COMPLETED)
                    _drain_reports(reports, watcher)
                    for future in ended:
                        key = futures[future]
                        error = future.exception()
                        if isinstance(error, BrokenProcessPool):
                            raise RunError(NOT_STARTED) from error
                        if error is None:
                            runs[key] = future.result()
                        watcher.end(key, error or runs[key].summary)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                for process in multiprocessing.active_children():
                    process.terminate()  # each run writes a checkpoint first
                raise
        return {key: runs[key] for key in configs if key in runs}


class ManyRunsWatcher:
    """Shows how far several runs are, and collects one line for each that failed."""

    def __init__(self, configs: Mapping[Key, Config], shown: Display, score: str) -> None:
        """Begin before the first update of any run."""
        self._updates = {key: config.run.updates for key, config in configs.items()}
        self._shown, self._score = shown, score
        self._reached: dict[Key, int] = {}
        self._found: dict[Key, int] = {}  # updates that an earlier call made of a run
        self.failures: list[str] = []

    def progress(self, key: Key, update: int) -> None:
        """Show that a run has reached an update."""
        self._reached[key] = update
        self._found.setdefault(key, update - 1)
        self._shown.show(sum(self._reached.values()), found=sum(self._found.values()))

    def end(self, key: Key, ended: Summary | BaseException) -> None:
        """Show that a run has ended, and how; wrong input is raised, since it is wrong for every run."""
        name = ", ".join(key)
        if isinstance(ended, InputError):
            raise ended
        if isinstance(ended, BaseException):
            self.failures.append(f"{name}: {ended or type(ended).__name__}")
            self._shown.say(self.failures[-1])
            return
        score = ended[self._score]
        value = "not finite" if score is None else f"{score:.4f}"
        self._shown.say(f"{name}: {self._score} {ended['metric']} {value}")
        self._found.setdefault(key, self._updates[key])
        self.progress(key, self._updates[key])


def say_cautions(configs: Iterable[Config], shown: Display) -> None:
    """Show, once each, what a reader of these runs' results has to know about their tasks."""
    for line in dict.fromkeys(getattr(config.task, "caution", None) for config in configs):
        if line is not None:
            shown.say(f"note: {line}")


def run_directory(out: Path | None, key: Key) -> Path | None:
    """Return the directory of one of several runs."""
    return None if out is None else out.joinpath(*key)


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


def _drain_reports(reports: Any, watcher: ManyRunsWatcher) -> None:
    while True:
        try:
            watcher.progress(*reports.get_nowait())
        except Empty:
            return
