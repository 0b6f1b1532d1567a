"""Run a method on a task from beginning to end, with or without an output directory."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

from torch import nn

from asyncmanifold.client.settings import LocalTraining
from asyncmanifold.configuration.tables import to_tree
from asyncmanifold.errors import RunError
from asyncmanifold.execution.allocator import keep_freed_memory
from asyncmanifold.execution.executors import Executor
from asyncmanifold.execution.placement import Placement
from asyncmanifold.execution.training_worker import Recipe
from asyncmanifold.server.methods import Method, named_method
from asyncmanifold.session.journal import Journal, Records
from asyncmanifold.session.run import Run
from asyncmanifold.session.session import Session, TraceWriter, replace_non_finite
from asyncmanifold.session.summary import Summary
from asyncmanifold.session.trace import Record
from asyncmanifold.simulation.engine import Simulation
from asyncmanifold.simulation.replay import Replay, arrange_clients, recorded_updates
from asyncmanifold.simulation.schedules import Schedule
from asyncmanifold.tasks.data import sizes_of
from asyncmanifold.tasks.task import Task
from asyncmanifold.threads import torch_threads
from asyncmanifold.vectors import FlatModel


@dataclass(frozen=True)
class Result:
    """The result of a run.

    Arguments:
        model: the final model, or the average if the method has one.
        summary: the numbers of the run, as in ``summary.json``.
        trace: every record, as in ``trace.jsonl``.

    >>> from asyncmanifold import Result
    >>> Result(model=None, summary={"final": 0.9}, trace=[]).summary["final"]
    0.9
    """

    model: nn.Module
    summary: Summary
    trace: list[Record]


def simulate(
    task: Task,
    method: Method | str = "asyncbezier",
    *,
    training: LocalTraining | None = None,
    schedule: Schedule | None = None,
    run: Run | None = None,
    placement: Placement | None = None,
    records: Records | None = None,
    replay: Iterable[Record] | None = None,
) -> Result:
    """Run ``method`` on ``task`` and return the final model, a summary and the trace.

    Arguments:
        task: model, loss and data.
        method: the name of a published method, or a ``Method`` composed of parts.
        training: how clients train.
        schedule: when clients arrive.
        run: how long the run is, and its seed.
        placement: where jobs are trained; the result is the same everywhere.
        records: where the run is stored, and who observes it.
        replay: the trace of another run, whose accepted updates are repeated in their order; the schedule is
            then not used.

    >>> import torch
    >>> from asyncmanifold import Run, Task, simulate
    >>> clients = [(torch.randn(20, 4), torch.randint(3, (20,))) for _ in range(5)]
    >>> task = Task(torch.nn.Linear(4, 3), torch.nn.functional.cross_entropy, clients, test=clients[0])
    >>> simulate(task, "fedasync", run=Run(updates=8)).summary["updates"]
    8
    """
    name, chosen = named_method(method)
    training, schedule, run = training or LocalTraining(), schedule or Schedule(), run or Run()
    placement, records = placement or Placement(), records or Records()
    updates = None
    if replay is not None:
        updates = recorded_updates(replay)
        task, run = arrange_clients(task, updates), replace(run, updates=len(updates))
    with ExitStack() as stack:
        stack.enter_context(torch_threads())
        keep_freed_memory()
        model = FlatModel(task.build_model(run.seed))
        labels = {"scenario": type(task).__name__.lower(), "method": name, "seed": run.seed}
        described = _describe(task, model, name, method=chosen, training=training, schedule=schedule, run=run)
        journal = Journal(records, described, labels)
        stack.callback(journal.close)
        if journal.is_finished:
            return _make_result(model, journal.load_finished(model), journal)
        session = open_session(task, chosen, training, run, model, journal)
        engine: Simulation | Replay
        if updates is None:
            engine = Simulation(session, schedule, sizes_of(task.clients))
            journal.restore(engine.unpack)
        else:
            engine = Replay(session, updates)
            journal.restore()
        recipe = Recipe(task, chosen.embedding, chosen.outgoing, training, run.seed)
        executor = _open_executor(placement, recipe, journal)
        stack.callback(executor.close)
        if isinstance(engine, Replay):
            engine.run(executor)
        else:
            _run_simulation(engine, executor, journal)
        return _make_result(model, _score_and_conclude(session, task, journal), journal)


def open_session(
    task: Task, method: Method, training: LocalTraining, run: Run, model: FlatModel, trace: TraceWriter
) -> Session:
    """Return a session that evaluates models on the task's test data."""

    def judge(_: int, judged: FlatModel) -> dict[str, float]:
        return task.evaluate(judged, task.test)

    return Session(method, training, run, model, trace, judge, list(task.metrics))


def _open_executor(placement: Placement, recipe: Recipe, journal: Journal) -> Executor:
    """Start the executor; if that fails, free the run's directory for another try."""
    try:
        return placement.open(recipe)
    except BaseException:
        journal.give_up()
        raise


def _run_simulation(simulation: Simulation, executor: Executor, journal: Journal) -> None:
    """Process arrivals until the run is finished, with regular checkpoints and one on Ctrl-C.

    ``is_settled`` is False while the state changes: a checkpoint of half an event could not be resumed.
    """

    def checkpoint() -> None:
        try:
            journal.checkpoint(simulation.pack())
        except RunError as problem:
            # The last complete checkpoint is still there, and a later one may succeed.
            journal.tell({"kind": "warning", "reason": f"checkpoint not written: {problem}"})

    session = simulation.session
    is_settled = False
    saved = perf_counter()
    try:
        simulation.start(executor)
        is_settled = True
        while not session.is_finished:
            arrival = simulation.next_arrival(executor)
            is_settled = False
            simulation.advance(arrival, executor)
            is_settled = True
            if perf_counter() - saved >= session.run.checkpoint_seconds:
                checkpoint()
                saved = perf_counter()
    except KeyboardInterrupt:
        if is_settled:
            checkpoint()
        raise
    checkpoint()


def _score_and_conclude(session: Session, task: Task, journal: Journal) -> Summary:
    """Evaluate the best and the final model on every client, and write the summary."""
    per_client = validation = None
    if task.validation is not None:
        if session.best is not None:
            session.model.load(session.best.theta, session.best.statistics)
            per_client = _client_scores(task, session.model)
        session.model.load(*session.state.returned())
        validation = _weighted_mean(_client_scores(task, session.model), sizes_of(task.validation))
    return journal.conclude(session, per_client, validation)


def _client_scores(task: Task, model: FlatModel) -> list[float | None]:
    """Return the model's score on each client's validation data, or None if it is not finite."""
    scores = [task.evaluate(model, data) if len(data) else {} for data in task.validation or []]
    return [replace_non_finite(score).get(task.metric) for score in scores]


def _weighted_mean(scores: list[float | None], sizes: list[int]) -> float | None:
    known = [(score, size) for score, size in zip(scores, sizes, strict=True) if score is not None]
    total = sum(size for _, size in known)
    return sum(score * size for score, size in known) / total if total else None


def _make_result(model: FlatModel, summary: Summary, journal: Journal) -> Result:
    return Result(model.module.eval(), summary, journal.records)


def _describe(task: Task, model: FlatModel, name: str, **sections: Any) -> dict[str, Any]:
    """Return a configuration to record for a run whose task is not from a scenario."""
    return {
        "method_name": name,
        "task": {"clients": len(task.clients), "parameters": model.size},
        **{section: to_tree(value) for section, value in sections.items()},
    }
