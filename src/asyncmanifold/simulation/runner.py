"""Run a method on a task from beginning to end, with or without an output directory."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

from torch import nn

from asyncmanifold.arithmetic import require_arithmetic
from asyncmanifold.client.settings import LocalTraining
from asyncmanifold.client.trusted_training import TrustedTrainer
from asyncmanifold.configuration.own_tasks import OwnTask, place_title
from asyncmanifold.configuration.python_tasks import PythonTask, task_settings
from asyncmanifold.configuration.tables import to_tree
from asyncmanifold.devices import CPU, find_device, repeatable
from asyncmanifold.errors import RunError
from asyncmanifold.execution.allocator import keep_freed_memory
from asyncmanifold.execution.executors import Executor
from asyncmanifold.execution.placement import Placement
from asyncmanifold.execution.training_worker import Recipe
from asyncmanifold.progress import RunWatcher, display, is_watched
from asyncmanifold.results import Result, load_model
from asyncmanifold.server.methods import Method, named_method
from asyncmanifold.server.protections import require_repeatable
from asyncmanifold.server.trusted_gates import require_trusted
from asyncmanifold.session.best_model import replace_non_finite
from asyncmanifold.session.journal import Journal, Records
from asyncmanifold.session.model_files import load_weights
from asyncmanifold.session.observers import as_observers
from asyncmanifold.session.run import Run
from asyncmanifold.session.session import Session
from asyncmanifold.session.summary import Summary
from asyncmanifold.session.trace import Record, TraceWriter
from asyncmanifold.simulation.attacker import Attacker, poisoned
from asyncmanifold.simulation.attacks import Attack
from asyncmanifold.simulation.engine import Simulation
from asyncmanifold.simulation.replay import Replay, arrange_clients, recorded_updates, without_decisions
from asyncmanifold.simulation.schedules import Schedule
from asyncmanifold.simulation.simulation_control import SimulationControl
from asyncmanifold.tasks.data import Excerpt, sizes_of
from asyncmanifold.tasks.fingerprint import fingerprint_task
from asyncmanifold.tasks.task import Task, TaskSettings
from asyncmanifold.threads import torch_threads
from asyncmanifold.vectors import FlatModel

CURVED = "portable arithmetic does not cover curved spaces: their square roots depend on the processor"


def simulate(
    task: Task | Callable[[int], Task],
    method: Method | str = "asyncbezier",
    *,
    training: LocalTraining | None = None,
    schedule: Schedule | None = None,
    run: Run | None = None,
    placement: Placement | None = None,
    records: Records | None = None,
    replay: Iterable[Record] | None = None,
    progress: bool | None = None,
) -> Result:
    """Run ``method`` on ``task`` and return the final model, a summary and the trace.

    Arguments:
        task: model, loss and data; or a function of the seed that returns them. Of a function in a file the
            run's directory notes the place, so that ``landscape`` can build the task again.
        method: the name of a published method, or a ``Method`` composed of parts.
        training: how clients train.
        schedule: when clients arrive.
        run: how long the run is, and its seed.
        placement: where jobs are trained; the result is the same everywhere.
        records: where the run is stored, and who observes it.
        replay: the trace of another run, whose accepted updates are repeated in their order; the schedule is
            then used for its attack only.
        progress: show a progress bar; by default in a terminal and in a notebook.

    >>> import torch
    >>> from asyncmanifold import Run, Task, simulate
    >>> clients = [(torch.randn(20, 4), torch.randint(3, (20,))) for _ in range(5)]
    >>> task = Task(torch.nn.Linear(4, 3), torch.nn.functional.cross_entropy, clients, test=clients[0])
    >>> simulate(task, "fedasync", run=Run(updates=8)).summary["updates"]
    8
    """
    name, chosen = named_method(method)
    training, schedule, run = training or LocalTraining(), schedule or Schedule(), (run or Run()).resolved()
    device = find_device(run.device)
    placement, records = placement or Placement(), records or Records()
    require_arithmetic(run.arithmetic)
    settings = task_settings(task)
    task = settings.build(run.seed)
    task.check_target(run.target)
    require_trusted(chosen, is_given=task.trusted is not None)
    updates = None
    if replay is not None:
        require_repeatable(chosen, training, "replayed")
        updates = recorded_updates(replay)
        task, run = (
            arrange_clients(task, updates),
            replace(run, updates=len(updates), keep_models=0, roll_back=False, wall_budget=None),
        )
    with ExitStack() as stack:
        stack.enter_context(torch_threads(run.threads))
        stack.enter_context(repeatable(device))
        quiet = not (is_watched() if progress is None else progress)
        shown = stack.enter_context(display(name, run.updates, quiet=quiet))
        if not quiet:
            records = replace(records, observer=[RunWatcher(shown), *as_observers(records.observer)])
        keep_freed_memory()
        model = FlatModel(task.build_model(run.seed), device)
        sections = {"method": chosen, "training": training, "schedule": schedule, "run": run}
        labels = {"scenario": _title(settings), "method": name, "seed": run.seed}
        described = _describe(settings, task, model, name, sections)
        fingerprint = None if records.out is None else fingerprint_task(task, model.module)
        journal = Journal(records, described, labels, fingerprint)
        stack.callback(journal.close)
        if journal.is_finished:
            return _finished_result(model, journal)
        _warn(journal, placement, is_doubtful=run.arithmetic == "portable" and not model.space.is_flat)
        rules = chosen if updates is None else without_decisions(chosen)
        session = open_session(task, rules, training, run, model, journal)
        journal.attach(session)
        for caution in session.cautions:
            journal.tell({"kind": "warning", "reason": caution})
        engine: Simulation | Replay
        if updates is None:
            session.kept = journal.kept_models(run.keep_models)
            engine = Simulation(session, schedule, sizes_of(task.clients))
            journal.restore(engine.unpack)
        else:
            engine = Replay(session, updates, Attacker(schedule.attack, len(task.clients), session))
            journal.restore()
        recipe = make_recipe(task, chosen, training, run, schedule.attack)
        executor = _open_executor(placement, recipe, journal)
        stack.callback(executor.close)
        if isinstance(engine, Replay):
            engine.run(executor)
        else:
            _run_simulation(engine, executor, journal)
        summary = _score_and_conclude(session, task, journal)
        return Result(model.module.eval().to(CPU), summary, journal.records, _best_model(session))


def _warn(journal: Journal, placement: Placement, *, is_doubtful: bool) -> None:
    """Tell the observer of what is allowed, but perhaps not meant."""
    for reason in (CURVED if is_doubtful else None, placement.crowding()):
        if reason is not None:
            journal.tell({"kind": "warning", "reason": reason})


def open_session(
    task: Task, method: Method, training: LocalTraining, run: Run, model: FlatModel, trace: TraceWriter
) -> Session:
    """Return a session that evaluates models on the task's test data, from the run's initial model, if
    any."""
    if run.initial_model is not None:
        load_weights(Path(run.initial_model), model)

    def judge(_: int, judged: FlatModel) -> dict[str, float]:
        return task.evaluate(judged, task.test)

    def glance(_: int, judged: FlatModel) -> dict[str, float]:
        return task.evaluate(judged, Excerpt(task.test, run.target_examples))

    names, lower = task.metric_names, task.lower_is_better
    session = Session(method, training, run, model, trace, judge, names, lower, glance)
    if task.trusted is not None and method.needs_trusted:
        module, device = task.build_model(run.seed), find_device(run.device)
        session.trusted = TrustedTrainer(
            module, task.loss, task.trusted, method.embedding, training, run.seed, device
        ).update
    return session


def make_recipe(
    task: Task, method: Method, training: LocalTraining, run: Run, attack: Attack | None = None
) -> Recipe:
    """Return what the workers of a run need."""
    device = find_device(run.device)
    return Recipe(
        poisoned(task, attack, run.seed),
        method.embedding,
        method.outgoing,
        training,
        run.seed,
        device,
        run.threads,
    )


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
    if session.dispatched:  # resumed: a full disk shows here, before any training
        journal.begin(session, simulation.time)
        journal.checkpoint(simulation.pack())
    is_settled = False
    saved = perf_counter()
    try:
        simulation.start(executor)
        is_settled = True
        control = SimulationControl(simulation, executor, journal)
        while not session.is_finished:
            control.wait_while_paused()
            if session.is_finished:
                break
            arrival = simulation.next_arrival(executor)
            is_settled = False
            simulation.advance(arrival, executor)
            is_settled = True
            if journal.live.is_due:
                simulation.show_jobs(journal.live)
            if session.must_checkpoint or perf_counter() - saved >= session.run.checkpoint_seconds:
                session.must_checkpoint = False
                checkpoint()
                saved = perf_counter()
    except KeyboardInterrupt:
        if is_settled:
            checkpoint()
        raise
    session.evaluate_last(simulation.time)
    checkpoint()


def _score_and_conclude(session: Session, task: Task, journal: Journal) -> Summary:
    """Evaluate the best and the final model on every client, and write the summary."""
    per_client = validation = None
    if task.validation is not None:
        if session.best is not None:
            session.model.load(session.best.theta, session.best.statistics)
            per_client = _client_scores(task, session.model)
        session.model.load(*session.state.returned())
        validation = validation_score(task, session.model)
    return journal.conclude(session, per_client, validation)


def validation_score(task: Task, model: FlatModel) -> float | None:
    """Return the mean of the clients' scores on their validation data, each weighted by its size."""
    sizes = sizes_of(task.validation or [])
    known = [
        (score, size)
        for score, size in zip(_client_scores(task, model), sizes, strict=True)
        if score is not None
    ]
    total = sum(size for _, size in known)
    return sum(score * size for score, size in known) / total if total else None


def _client_scores(task: Task, model: FlatModel) -> list[float | None]:
    """Return the model's score on each client's validation data, or None if it is not finite."""
    scores = [task.evaluate(model, data) if len(data) else {} for data in task.validation or []]
    return [replace_non_finite(score).get(task.metric) for score in scores]


def _best_model(session: Session) -> nn.Module | None:
    """Return a copy of the best model; the session's own module holds the final one."""
    if session.best is None:
        return None
    best = FlatModel(copy.deepcopy(session.model.module))
    best.load(session.best.theta, session.best.statistics)
    return best.module.eval().to(CPU)


def _finished_result(model: FlatModel, journal: Journal) -> Result:
    """Return the result of a run that its directory holds."""
    assert journal.directory is not None
    summary = journal.load_finished(model)
    best = None
    if journal.directory.best.exists():
        best = load_model(copy.deepcopy(model.module), journal.directory.best)
    return Result(model.module.eval().to(CPU), summary, journal.records, best)


def _title(settings: TaskSettings) -> str:
    """Return a short name of a task for summaries and reports."""
    return place_title(settings.place) if isinstance(settings, OwnTask) else "task"


def _describe(
    settings: TaskSettings, task: Task, model: FlatModel, name: str, sections: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a configuration to record for a run whose task is not from a scenario."""
    counts = {"clients": len(task.clients), "parameters": model.size}
    return {
        "method_name": name,
        "task": counts if isinstance(settings, PythonTask) else to_tree(settings),
        **{section: to_tree(value) for section, value in sections.items()},
    }
