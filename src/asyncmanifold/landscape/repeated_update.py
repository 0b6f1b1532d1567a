"""One update of a run with every model around it, found by repeating the run from its configuration.

A run keeps no model but the last, and need not: it is a function of its configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from json import JSONDecodeError
from math import isclose
from pathlib import Path

from torch import Tensor

from asyncmanifold.configuration.config import Config
from asyncmanifold.devices import find_device
from asyncmanifold.errors import InputError
from asyncmanifold.execution.placement import Placement
from asyncmanifold.server.outgoing import Parcel, unpack_update
from asyncmanifold.server.protections import require_repeatable
from asyncmanifold.server.protocol import Job, ServerState, Update
from asyncmanifold.session.observers import Observer
from asyncmanifold.session.run import Run
from asyncmanifold.session.session import Session
from asyncmanifold.session.trace import Record, read_trace
from asyncmanifold.simulation.engine import Simulation
from asyncmanifold.simulation.runner import make_recipe, open_session
from asyncmanifold.tasks.data import sizes_of
from asyncmanifold.tasks.task import Task
from asyncmanifold.vectors import FlatModel

COMPARED = ("update_norm", "end_norm", "fraction", "t", "step_norm")
"""The numbers of an update that are compared to check that a repeated run is the same."""


@dataclass(frozen=True)
class RepeatedUpdate:
    """One accepted update, with every model around it."""

    job: Job
    """With the base model Θ^t."""
    update: Update
    before: ServerState
    """With the model Θ^τ."""
    after: ServerState
    record: Record
    """The update's line in the trace of the repeated run."""
    trusted: Callable[[], Tensor] | None = None
    """Returns the server's own update, if a gate compares with it."""


def read_updates(directory: Path) -> list[Record]:
    """Return the accepted updates that a run has recorded so far."""
    trace = directory / "trace.jsonl"
    if missing := [path for path in (directory / "config.toml", trace) if not path.is_file()]:
        raise InputError(f"{directory}: not a run (it has no {missing[0].name})")
    try:
        updates = [record for record in read_trace(trace) if record["kind"] == "update"]
        complete = {"update", "client", "staleness", *COMPARED}
        if any(not complete <= set(record) for record in updates):
            raise InputError(f"{trace}: damaged, an update is incomplete")
    except (JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise InputError(f"{trace}: damaged: {error}") from error
    if not updates:
        raise InputError(f"{directory}: no update has been accepted yet")
    return updates


def choose_update(updates: Sequence[Record], wanted: int | None, *, is_curve: bool) -> Record:
    """Return the update to draw: the one asked for, else the first from the middle of the run on.

    In the middle the model has learned something and still has far to go, and repeating the run up to there
    takes half the time of the whole run. A straight update must also be stale: without a curve, only the
    server's own movement in the meantime gives a second direction for a plane.
    """
    if wanted is not None:
        if not 1 <= wanted <= len(updates):
            raise InputError(f"--update {wanted}: the run has updates 1 to {len(updates)}")
        chosen = updates[wanted - 1]
        if not is_curve and chosen["staleness"] == 0:
            raise InputError(f"--update {wanted}: straight and not stale, so there is no plane to draw")
        return chosen
    middle = (len(updates) - 1) // 2
    for record in [*updates[middle:], *updates[:middle][::-1]]:
        if is_curve or record["staleness"] > 0:
            return record
    raise InputError("every update is straight and none is stale: there is no plane to draw")


def repeat_run(
    config: Config, task: Task, update: int, *, workers: int, observer: Observer
) -> RepeatedUpdate:
    """Repeat a run up to an accepted update and return that update; the caller limits torch to one thread.

    ``observer`` is called with every record except evaluations, most of which are skipped: they change
    nothing.
    """
    require_repeatable(config.method, config.training, "repeated")
    given = config.run
    run = Run(  # with none of its other ends
        updates=update, evaluate_every=update, seed=given.seed, device=given.device, threads=given.threads
    )
    model, trace = FlatModel(task.build_model(run.seed), find_device(run.device)), _LastUpdate(observer)
    session = open_session(task, config.method, config.training, run, model, trace)
    simulation = Simulation(session, config.schedule, sizes_of(task.clients))
    recipe = make_recipe(task, config.method, config.training, run, config.schedule.attack)
    with closing(Placement(workers=workers).open(recipe)) as executor:
        simulation.start(executor)
        while True:
            arrival = simulation.next_arrival(executor)
            copies = None
            if arrival is not None and session.remaining == 1 and isinstance(arrival[1], Parcel):
                copies = _copy_inputs(arrival[0].job, arrival[1], session)
            simulation.advance(arrival, executor)
            if session.is_finished and copies is not None and trace.update is not None:
                trusted = session.trusted and partial(session.trusted, copies[2])
                return RepeatedUpdate(*copies, session.state, trace.update, trusted)


def differs(recorded: Record, repeated: Record) -> bool:
    """Return whether a repeated update is not the recorded one."""
    if recorded["client"] != repeated["client"]:
        return True
    return not all(isclose(recorded[key], repeated[key], rel_tol=1e-6, abs_tol=1e-12) for key in COMPARED)


def _copy_inputs(job: Job, parcel: Parcel, session: Session) -> tuple[Job, Update, ServerState]:
    """Return copies of the job, update and state, whose memory the run will reuse."""
    update = unpack_update(parcel, job, session.method.outgoing)
    return (
        replace(job, theta=job.theta.clone()),
        replace(update, offsets=update.offsets.clone()),
        replace(session.state, theta=session.state.theta.clone()),
    )


class _LastUpdate:
    """A trace that keeps the last update only."""

    def __init__(self, observer: Observer) -> None:
        self.update: Record | None = None
        self._observer = observer

    def write(self, record: Record) -> None:
        if record["kind"] == "update":
            self.update = record
        if record["kind"] != "evaluation":
            self._observer(record)
