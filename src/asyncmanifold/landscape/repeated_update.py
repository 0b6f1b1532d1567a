"""One update of a run with every model around it, found by repeating the run from its configuration."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from json import JSONDecodeError
from math import isclose
from pathlib import Path

import torch
from torch import Tensor

from asyncmanifold.config import Config
from asyncmanifold.errors import InputError
from asyncmanifold.server.gram import gram_matrix
from asyncmanifold.server.methods import Method
from asyncmanifold.server.protocol import Job, ServerState, Update
from asyncmanifold.simulation.engine import Simulation
from asyncmanifold.simulation.executors import Workshop
from asyncmanifold.simulation.placement import Placement
from asyncmanifold.simulation.runner import Observer
from asyncmanifold.tasks.task import Task
from asyncmanifold.trace import Record, read_trace
from asyncmanifold.vectors import FlatModel

COMPARED = ("update_norm", "end_norm", "fraction", "t", "step_norm")
"""The numbers of an update by which a repeated run is known to be the same."""


@dataclass(frozen=True)
class RepeatedUpdate:
    """One accepted update, with every model around it."""

    job: Job
    """With Θ^t."""
    update: Update
    before: ServerState
    """With Θ^τ."""
    after: ServerState
    record: Record
    """The update's line in the trace of the repeated run."""


def read_updates(directory: Path) -> list[Record]:
    """Return the accepted updates that a run has recorded so far."""
    trace = directory / "trace.jsonl"
    if missing := [path for path in (directory / "config.toml", trace) if not path.is_file()]:
        raise InputError(f"{directory}: no run (it has no {missing[0].name})")
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

    In the middle the model knows something and still has far to go, and repeating the run up to there
    takes half the time of all of it. A straight update must also be stale: without a curve, only the way
    that the server went meanwhile makes a plane of a line.
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

    ``observer`` is called with every record but evaluations, most of which are left out: they change nothing.
    """
    run = replace(config.run, updates=update, evaluate_every=update)
    model = FlatModel(task.build_model(run.seed))
    simulation = Simulation(task, config.method, config.training, config.schedule, run, model)
    trace = _LastUpdate(observer)
    workshop = Workshop(task, config.method.embedding, config.training, run.seed)
    with closing(Placement(workers=workers).open(workshop, model.size)) as executor:
        simulation.start(executor, trace)
        while True:
            arrival = simulation.next_update(executor)
            copies = None
            if arrival is not None and simulation.state.updates == update - 1:
                copies = _copied(arrival[0].job, arrival[1], simulation.state)
            simulation.advance(arrival, executor, trace)
            if simulation.is_finished and copies is not None and trace.update is not None:
                return RepeatedUpdate(*copies, simulation.state, trace.update)


def differs(recorded: Record, repeated: Record) -> bool:
    """Return whether a repeated update is not the recorded one."""
    if recorded["client"] != repeated["client"]:
        return True
    return not all(isclose(recorded[key], repeated[key], rel_tol=1e-6, abs_tol=1e-12) for key in COMPARED)


def corrected_offsets(method: Method, repeated: RepeatedUpdate) -> Tensor:
    """Return v'_1 … v'_n: what the server made of the offsets, to be added to Θ^τ."""
    theta, offsets = repeated.before.theta, repeated.update.offsets
    is_fresh = repeated.before.version == repeated.job.version
    base = theta if is_fresh else repeated.job.theta
    drift = theta - base
    if method.correction.transforms:
        offsets, _ = method.correction.transform(offsets, drift, repeated.before.memory)
    mixing = method.correction.coefficients(gram_matrix(offsets, theta, base))
    rows = torch.cat([offsets, drift[None]])
    return torch.stack([_combined(rows, [float(c) for c in row]) for row in mixing])


def _combined(rows: Tensor, coefficients: Sequence[float]) -> Tensor:
    total = torch.zeros_like(rows[0])
    for row, coefficient in zip(rows, coefficients, strict=True):
        total.add_(row, alpha=coefficient)
    return total


def _copied(job: Job, result: Update | str, state: ServerState) -> tuple[Job, Update, ServerState] | None:
    """Return copies of what the run will write over; None for a job that failed."""
    if isinstance(result, str):
        return None
    return (
        replace(job, theta=job.theta.clone()),
        replace(result, offsets=result.offsets.clone()),
        replace(state, theta=state.theta.clone()),
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
