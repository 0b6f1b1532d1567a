"""Measure one asynchronous run of the simulator, with the exact gradient at every server model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor

from asyncmanifold.client.settings import LocalTraining
from asyncmanifold.execution.executors import InlineExecutor
from asyncmanifold.execution.training_worker import Recipe
from asyncmanifold.server.methods import Method
from asyncmanifold.server.outgoing import OFFSETS
from asyncmanifold.server.protocol import Failure
from asyncmanifold.session.run import Run
from asyncmanifold.session.trace import MemoryTrace, Record
from asyncmanifold.simulation.engine import Simulation
from asyncmanifold.simulation.runner import open_session
from asyncmanifold.simulation.schedules import LogNormalLatency, Schedule
from asyncmanifold.tasks.data import sizes_of
from asyncmanifold.tasks.task import Task
from asyncmanifold.theory.findings import MeasuredConstants, Setting
from asyncmanifold.theory.problems import Problem
from asyncmanifold.vectors import FlatModel

SCHEDULE = Schedule("clock", latency=LogNormalLatency(spread=0.5, jitter=0.2))
"""Clients of different speed; each gets its next job at once, so each version but the first has one job."""


@dataclass(frozen=True)
class RunNumbers:
    """The numbers of one run; the sums are over its updates."""

    square: float
    """The mean of ‖grad L(Θ^t)‖² over the models before each update."""
    start_loss: float
    end_loss: float
    kept: float
    """Σ ⟨−grad L(Θ^τ), step⟩ / η_g."""
    offered: float
    """Σ ⟨−grad L(Θ^τ), transported offset of the local model⟩."""
    moved: float
    """Σ ‖step‖² / η_g², over the steps that the model made."""
    received: float
    """Σ ‖offset of the local model‖²."""
    step_share: float
    """Steps of the model per update: below 1 with a buffer, whose steps are means of several updates."""
    drift: float
    """Σ ‖Θ^τ − Θ^t‖."""
    reach: float
    """Σ of the longest offset among the updates absorbed in between."""
    staleness: float
    """In versions, on average."""


class GradientProbe:
    """Computes the exact Riemannian gradient of a task's loss over its whole population, at any model."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._model = FlatModel(task.build_model(seed=0))
        self._inputs, self._targets = task.test.batch(torch.arange(len(task.test)))

    def __call__(self, theta: Tensor) -> Tensor:
        """Return grad L(Θ), a tangent vector at Θ."""
        self._model.vector.copy_(theta)
        loss = self._task.loss(self._model.module(self._inputs), self._targets)
        loss.backward()  # type: ignore[no-untyped-call]
        return self._model.space.project(theta, self._model.take_gradient())


def measure_run(
    problem: Problem,
    method: Method,
    setting: Setting,
    *,
    length: int,
    local_lr: float,
    seed: int,
    on_update: Callable[[], None] = lambda: None,
) -> RunNumbers:
    """Run ``length`` updates and return the numbers of the theorem; the caller limits torch to one thread."""
    task, run = problem.task, Run(updates=length, evaluate_every=length, seed=seed)
    training = LocalTraining(
        point_epochs=setting.point_steps,
        curve_epochs=setting.curve_steps,
        batch_size=1,
        optimizer="sgd",
        local_lr=local_lr,
        proximal=0.0,
    )
    model, gradient = FlatModel(task.build_model(seed)), GradientProbe(task)
    space, trace = model.space, MemoryTrace()
    session = open_session(task, method, training, run, model, trace)
    simulation = Simulation(session, SCHEDULE, sizes_of(task.clients))
    executor = InlineExecutor(Recipe(task, method.embedding, method.outgoing, training, seed))
    square = kept = offered = moved = received = 0.0
    simulation.start(executor)
    while not session.is_finished:
        theta = session.state.theta
        slope = gradient(theta)
        square += space.inner(theta, slope, slope)
        arrival = simulation.next_arrival(executor)
        if arrival is None or isinstance(arrival[1], Failure):
            raise RuntimeError(f"{problem.name}: an update is missing, which should be impossible: {arrival}")
        base, offset = arrival[0].job.theta, arrival[1].tensors[OFFSETS][-1]
        offered -= space.inner(theta, slope, space.transport(base, theta, offset))
        received += space.inner(base, offset, offset)
        simulation.advance(arrival, executor)
        step = space.log(theta, session.state.theta) / method.global_lr
        kept -= space.inner(theta, slope, step)
        moved += space.inner(theta, step, step)
        on_update()
    records = list(trace)
    updates = [record for record in records if record["kind"] == "update"]
    losses = [record["loss"] for record in records if record["kind"] == "evaluation"]
    drift, reach = drift_and_reach(updates)
    return RunNumbers(
        square=square / length,
        start_loss=losses[0],
        end_loss=losses[-1],
        kept=kept,
        offered=offered,
        moved=moved,
        received=received,
        step_share=session.state.version / length,
        drift=drift,
        reach=reach,
        staleness=sum(record["staleness"] for record in updates) / length,
    )


def drift_and_reach(updates: list[Record]) -> tuple[float, float]:
    """Return the sums whose ratio is S: of drifts, and of the longest offset absorbed during each drift.

    ``updates`` are a trace's. Each record has the version after it, which a buffer may leave as it was.
    """
    lengths = [record["update_norm"] for record in updates]
    made = [0]  # by version: the number of updates that it contains
    drift = reach = 0.0
    for number, record in enumerate(updates, start=1):
        drift += record["drift_norm"]
        reach += max(lengths[made[record["base_version"]] : made[-1]], default=0.0)
        made += [number] * (record["version"] - len(made) + 1)
    return drift, reach


def measured_constants(runs: list[RunNumbers]) -> MeasuredConstants:
    """Return Q, S and R over several runs."""
    offered, reach = sum(run.offered for run in runs), sum(run.reach for run in runs)
    stretch = sum(run.moved for run in runs) / sum(run.received for run in runs)
    least = sum(run.step_share for run in runs) / len(runs)
    return MeasuredConstants(
        quality=sum(run.kept for run in runs) / offered if offered > 0.0 else 0.0,
        staleness=sum(run.drift for run in runs) / reach if reach > 0.0 else 0.0,
        stretch=sqrt(max(least, stretch)),
    )
