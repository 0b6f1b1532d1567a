"""Run a method on a task from beginning to end, with or without a directory to keep it in."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

from safetensors import SafetensorError
from torch import nn

from asyncmanifold.client.training import LocalTraining
from asyncmanifold.errors import InputError
from asyncmanifold.files import load_tensors, save_tensors, write_json
from asyncmanifold.server.methods import METHODS, Method
from asyncmanifold.simulation.allocator import keep_freed_memory
from asyncmanifold.simulation.checkpoint import load_checkpoint, save_checkpoint
from asyncmanifold.simulation.directory import RunDirectory
from asyncmanifold.simulation.engine import Run, Simulation, finite
from asyncmanifold.simulation.executors import Executor, Workshop
from asyncmanifold.simulation.placement import Placement
from asyncmanifold.simulation.replay import Replay, arranged, recorded_updates
from asyncmanifold.simulation.schedules import Schedule
from asyncmanifold.summary import Summary, summarise
from asyncmanifold.tasks.data import sizes_of
from asyncmanifold.tasks.task import Task
from asyncmanifold.threads import torch_threads
from asyncmanifold.trace import FileTrace, MemoryTrace, Record, read_trace
from asyncmanifold.vectors import FlatModel

Observer = Callable[[Record], None]


@dataclass(frozen=True)
class Result:
    """What a run gives back."""

    model: nn.Module
    """The final model: the average where there is one."""
    summary: Summary
    trace: list[Record]


def simulate(
    task: Task,
    method: Method | str = "asyncbezier",
    *,
    training: LocalTraining | None = None,
    schedule: Schedule | None = None,
    run: Run | None = None,
    workers: int = 1,
    executor: str | None = None,
    ray_address: str | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    observer: Observer | None = None,
    replay: Iterable[Record] | None = None,
    config: dict[str, Any] | None = None,
    labels: dict[str, Any] | None = None,
) -> Result:
    """Run ``method`` on ``task`` and return the final model, a summary and the trace.

    With ``out`` the run is kept in a directory, and a killed one continues with ``resume`` to the same
    bits. ``workers`` above 1 trains in that many processes; the result is the same. ``executor`` and
    ``ray_address`` are as in ``Placement``. ``observer`` is called with every record of the trace. ``replay``
    is the trace of another run: its accepted updates arrive again in their order, in place of the schedule's.
    ``config`` and ``labels`` describe the run in its files.
    """
    placement = Placement(workers=workers, executor=executor, ray_address=ray_address)
    name, chosen = _named_method(method)
    training, schedule, run = training or LocalTraining(), schedule or Schedule(), run or Run()
    updates = None
    if replay is not None:
        updates = recorded_updates(replay)
        task, run = arranged(task, updates), replace(run, updates=len(updates))
    labels = labels or {"scenario": type(task).__name__.lower(), "method": name, "seed": run.seed}
    with ExitStack() as stack:
        stack.enter_context(torch_threads())
        keep_freed_memory()
        model = FlatModel(task.build_model(run.seed))
        simulation: Simulation | Replay
        if updates is None:
            simulation = Simulation(task, chosen, training, schedule, run, model)
        else:
            simulation = Replay(task, chosen, training, run, model, updates)
        directory = None
        if out is not None:
            described = config or _describe(task, name, chosen, training, schedule, run, model)
            directory = RunDirectory(Path(out), described, resume=resume)
            stack.callback(directory.close)
            if directory.is_finished:
                return _finished(directory, model)
        keep = 0
        if directory is not None and isinstance(simulation, Simulation):
            keep = _restore(directory, simulation)
        trainers = _opened(placement, Workshop(task, chosen.embedding, training, run.seed), model, directory)
        stack.callback(trainers.close)
        trace = MemoryTrace() if directory is None else FileTrace(directory.trace, keep)
        stack.callback(trace.close)
        observed = _Observed(trace, observer)
        if isinstance(simulation, Replay):
            simulation.run(trainers, observed)
        else:
            _loop(simulation, trainers, observed, directory, run.checkpoint_seconds)
        return _conclude(simulation, task, run, model, trace, directory, labels)


def _opened(
    placement: Placement, workshop: Workshop, model: FlatModel, directory: RunDirectory | None
) -> Executor:
    """Start the executor; a run that cannot begin leaves its directory free for another try."""
    try:
        return placement.open(workshop, model.size)
    except BaseException:
        if directory is not None:
            directory.give_up()
        raise


class _Observed:
    """A trace that somebody may watch."""

    def __init__(self, trace: FileTrace | MemoryTrace, observer: Observer | None) -> None:
        self.trace = trace
        self._observer = observer

    def write(self, record: Record) -> None:
        self.trace.write(record)
        self.tell(record)

    def tell(self, record: Record) -> None:
        """Say something that is not part of the trace."""
        if self._observer is not None:
            self._observer(record)


def _loop(
    simulation: Simulation,
    executor: Executor,
    observed: _Observed,
    directory: RunDirectory | None,
    checkpoint_seconds: float,
) -> None:
    """Absorb arrivals until the run is finished, with a checkpoint from time to time and on Ctrl-C."""

    def checkpoint() -> None:
        if directory is None or not isinstance(observed.trace, FileTrace):
            return
        try:
            save_checkpoint(directory.checkpoint, simulation, observed.trace.position())
        except (OSError, SafetensorError) as problem:
            # The last complete checkpoint is still there, and a later one may succeed.
            observed.tell({"kind": "warning", "reason": f"checkpoint not written: {problem}"})

    is_settled = False
    saved = perf_counter()
    try:
        simulation.start(executor, observed)
        is_settled = True
        while not simulation.is_finished:
            arrival = simulation.next_update(executor)
            is_settled = False
            simulation.advance(arrival, executor, observed)
            is_settled = True
            if perf_counter() - saved >= checkpoint_seconds:
                checkpoint()
                saved = perf_counter()
    except KeyboardInterrupt:
        if is_settled:
            checkpoint()
        raise
    checkpoint()


def _restore(directory: RunDirectory, simulation: Simulation) -> int:
    """Put the simulation where the last checkpoint was, if there is one; return its trace's length."""
    if not directory.checkpoint.exists():
        return 0
    try:
        return load_checkpoint(directory.checkpoint, simulation)
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{directory.checkpoint}: damaged, remove it to start over: {error}") from error


def _conclude(
    simulation: Simulation | Replay,
    task: Task,
    run: Run,
    model: FlatModel,
    trace: FileTrace | MemoryTrace,
    directory: RunDirectory | None,
    labels: dict[str, Any],
) -> Result:
    """Judge the best model on every client, write model and summary, and return the final model."""
    per_client = validation = None
    if task.validation is not None and simulation.best is not None:
        model.load(simulation.best.theta, simulation.best.buffers)
        per_client = _client_scores(task, model)
    model.load(*simulation.state.returned())
    if task.validation is not None:
        validation = _weighted_mean(_client_scores(task, model), sizes_of(task.validation))
    records = list(trace)
    summary = labels | summarise(
        records,
        metrics=list(task.metrics),
        target=run.target,
        per_client=per_client,
        validation=validation,
    )
    summary["parameters"] = model.size
    if directory is not None:
        metadata = labels | {
            "updates": simulation.state.updates,
            "version": simulation.state.version,
        }
        save_tensors(directory.model, model.named_tensors(), metadata)
        write_json(directory.summary, summary)
    return Result(model.module.eval(), summary, records)


def _client_scores(task: Task, model: FlatModel) -> list[float | None]:
    """Return the model's score on each client's validation data, None where it has no value."""
    scores = [task.evaluate(model, data) if len(data) else {} for data in task.validation or []]
    return [finite(score).get(task.metric) for score in scores]


def _weighted_mean(scores: list[float | None], sizes: list[int]) -> float | None:
    known = [(score, size) for score, size in zip(scores, sizes, strict=True) if score is not None]
    total = sum(size for _, size in known)
    return sum(score * size for score, size in known) / total if total else None


def _finished(directory: RunDirectory, model: FlatModel) -> Result:
    """Return what a run that ended earlier left behind."""
    tensors, _ = load_tensors(directory.model)
    model.module.load_state_dict(tensors)
    return Result(model.module.eval(), directory.read_summary(), list(read_trace(directory.trace)))


def _named_method(method: Method | str) -> tuple[str, Method]:
    if isinstance(method, Method):
        known = next((name for name, published in METHODS.items() if published == method), "custom")
        return known, method
    if method not in METHODS:
        raise InputError(f"unknown method {method!r} (allowed: {', '.join(METHODS)})")
    return method, METHODS[method]


def _describe(
    task: Task,
    name: str,
    method: Method,
    training: LocalTraining,
    schedule: Schedule,
    run: Run,
    model: FlatModel,
) -> dict[str, Any]:
    """Return a configuration for the record of a run whose task was brought by a program."""
    from asyncmanifold.tables import to_tree

    return {
        "task": {"clients": len(task.clients), "parameters": model.size},
        "method": {"method": name} | to_tree(method),
        "training": to_tree(training),
        "schedule": to_tree(schedule),
        "run": to_tree(run),
    }
