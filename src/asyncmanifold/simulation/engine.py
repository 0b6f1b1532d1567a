"""The event loop: arrivals on a virtual clock, each absorbed the moment it comes.

A run is a pure function of its configuration and seed. Time is virtual, ties break by dispatch number,
and a job's result depends only on the job, so the trace is the same for any executor.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from time import perf_counter
from typing import Protocol

from torch import Tensor

from asyncmanifold.client.training import LocalTraining, NonFiniteLoss
from asyncmanifold.errors import InputError, RunError
from asyncmanifold.seeding import Purpose, derive
from asyncmanifold.server.methods import Method
from asyncmanifold.server.protocol import Job, Rejected, ServerState, Update
from asyncmanifold.server.step import Step, absorb, flush
from asyncmanifold.simulation.executors import Executor
from asyncmanifold.simulation.idle import IdleClients
from asyncmanifold.simulation.schedules import Schedule
from asyncmanifold.tasks.data import sizes_of
from asyncmanifold.tasks.task import Task
from asyncmanifold.trace import Record
from asyncmanifold.vectors import Buffers, FlatModel


@dataclass(frozen=True, kw_only=True)
class Run:
    """How long a run is and what is recorded of it."""

    updates: int = 300
    """Accepted client updates, whether or not a buffer holds them back."""
    evaluate_every: int = 10
    """Updates between two evaluations."""
    target: float | None = None
    """The score whose first reaching is reported (the paper's T_e: 1 − e)."""
    seed: int = 0
    checkpoint_seconds: float = 30.0
    """Wall time between two checkpoints."""

    def __post_init__(self) -> None:
        if self.updates < 1:
            raise InputError(f"Run(updates={self.updates}) must be at least 1")
        if self.evaluate_every < 1:
            raise InputError(f"Run(evaluate_every={self.evaluate_every}) must be at least 1")
        if self.seed < 0:
            raise InputError(f"Run(seed={self.seed}) must be at least 0")
        if self.checkpoint_seconds < 0.0:
            raise InputError(f"Run(checkpoint_seconds={self.checkpoint_seconds}) must be at least 0")


class TraceWriter(Protocol):
    """Where records go."""

    def write(self, record: Record) -> None:
        """Append a record."""
        ...


@dataclass(frozen=True)
class Flight:
    """A job under way."""

    job: Job
    dispatched: float
    arrival: float
    is_lost: bool


@dataclass(frozen=True)
class Best:
    """The best model among those evaluated."""

    score: float
    update: int
    theta: Tensor
    buffers: Buffers


class Simulation:
    """One run: everything that changes while it goes on, and the one step that changes it.

    The public attributes are what a checkpoint holds.
    """

    def __init__(
        self,
        task: Task,
        method: Method,
        training: LocalTraining,
        schedule: Schedule,
        run: Run,
        model: FlatModel,
    ) -> None:
        """Start from ``model``'s weights; it is then used for evaluations."""
        self._task, self._method, self._training = task, method, training
        self._schedule, self._run, self._model = schedule, run, model
        self._sizes = sizes_of(task.clients)
        self._examples = sum(self._sizes)
        self._curve_epochs = training.curve_epochs if method.embedding.is_curve else 0
        self._mean_length = float(training.point_epochs + self._curve_epochs)
        self._spare: Tensor | None = None

        present, changes = schedule.membership(len(self._sizes), run.seed)
        self.state = ServerState(model.vector.clone(), model.read_buffers())
        self.time = 0.0
        self.dispatched = 0
        self.idle = IdleClients(present)
        self.changes = changes[::-1]
        """Clients still to join or leave, the next one last."""
        self.flight: dict[int, Flight] = {}
        self.epochs: dict[int, int] = {}
        """Epochs of clients whose number has adapted."""
        self.best: Best | None = None
        self.refused = 0
        """Arrivals in a row that gave nothing."""
        self.seconds = 0.0
        """Wall time of the run, over interruptions."""

    @property
    def is_finished(self) -> bool:
        """Whether all updates have been accepted."""
        return self.state.updates >= self._run.updates

    def start(self, executor: Executor, trace: TraceWriter) -> None:
        """Send out the first jobs, or again what was in flight at a checkpoint."""
        self._started = perf_counter() - self.seconds
        self._users = Counter(f.job.version for f in self.flight.values())
        self._arrivals = [(f.arrival, f.job.number, client) for client, f in self.flight.items()]
        heapq.heapify(self._arrivals)
        for flight in self.flight.values():
            if not flight.is_lost:
                executor.submit(flight.job, flight.arrival)
        if self.dispatched == 0:
            self._evaluate(trace)
            self._dispatch(executor)

    def next_update(self, executor: Executor) -> tuple[Flight, Update | str] | None:
        """Train the next arrival, without changing anything; None where a client joins or leaves first.

        The result is an update, or the reason why there is none.
        """
        while self._arrivals and not self._is_current(self._arrivals[0]):
            heapq.heappop(self._arrivals)
        if not self._arrivals and not self.changes:
            raise RunError("no client is left")
        if not self._arrivals or (self.changes and self.changes[-1][0] <= self._arrivals[0][0]):
            return None
        flight = self.flight[self._arrivals[0][2]]
        if flight.is_lost:
            return flight, "lost"
        try:
            return flight, executor.result(flight.job, self._run.updates - self.state.updates)
        except NonFiniteLoss as problem:
            return flight, str(problem)

    def advance(
        self,
        arrival: tuple[Flight, Update | str] | None,
        executor: Executor,
        trace: TraceWriter,
    ) -> None:
        """Make one change, record it, and send out what follows."""
        record = None
        if arrival is None:
            self._change_membership(executor, trace)
        else:
            flight, result = arrival
            record = self._arrive(flight, result, trace)
            if not flight.is_lost:
                executor.release(flight.job)
        if self._method.synchronous and not self.flight:
            self.state = flush(self._method, self.state, self._model.space)
        self.seconds = perf_counter() - self._started
        if record is not None:
            record |= {"version": self.state.version, "wall_seconds": self.seconds}
            trace.write(record)
            if self.is_finished or self.state.updates % self._run.evaluate_every == 0:
                self._evaluate(trace)
        if not self.is_finished:
            self._dispatch(executor)

    def _is_current(self, entry: tuple[float, int, int]) -> bool:
        _, number, client = entry
        return client in self.flight and self.flight[client].job.number == number

    def _change_membership(self, executor: Executor, trace: TraceWriter) -> None:
        self.time, kind, client = self.changes.pop()
        if kind == "joined":
            self.idle.add(client)
        elif client in self.flight:
            job = self.flight.pop(client).job
            self._users[job.version] -= 1
            executor.release(job)
        else:
            self.idle.remove(client)
        trace.write({"kind": kind, "time": self.time, "client": client})

    def _arrive(self, flight: Flight, result: Update | str, trace: TraceWriter) -> Record | None:
        """Take a job in; return the record of an accepted update."""
        job, before = flight.job, self.state
        heapq.heappop(self._arrivals)
        del self.flight[job.client]
        self._users[job.version] -= 1
        self.idle.add(job.client)
        self.time = flight.arrival
        arrival: Record = {
            "time": self.time,
            "client": job.client,
            "job": job.number,
            "dispatched": flight.dispatched,
        }
        if flight.is_lost:
            trace.write({"kind": "dropped", **arrival, "base_version": job.version})
            return None
        try:
            if isinstance(result, str):
                raise NonFiniteLoss(result)
            weight = self._sizes[job.client] / self._examples
            self.state, step = absorb(
                self._method,
                before,
                result,
                base=job.theta,
                weight=weight,
                out=self._spare,
                space=self._model.space,
            )
        except (NonFiniteLoss, Rejected) as problem:
            kind = "rejected" if isinstance(problem, Rejected) else "failed"
            self._refuse(
                {"kind": kind, **arrival, "base_version": job.version, "reason": str(problem)},
                trace,
            )
            return None
        self.refused = 0
        self._spare = None
        self._retire(before.version, before.theta)
        self._retire(job.version, job.theta)
        self._adapt_epochs(job, step, before.updates)
        return {
            "kind": "update",
            "update": self.state.updates,
            **arrival,
            **vars(step),
            "epochs": job.point_epochs + job.curve_epochs,
            "loss": result.loss,
            "train_seconds": result.seconds,
        }

    def _refuse(self, record: Record, trace: TraceWriter) -> None:
        trace.write(record)
        self.refused += 1
        if self.refused >= max(100, 4 * len(self.flight)):
            raise RunError(f"no update was accepted in {self.refused} arrivals, the last: {record['reason']}")

    def _retire(self, version: int, theta: Tensor) -> None:
        """Keep the memory of a model that nobody needs any more for the next one."""
        if version != self.state.version and self._users[version] <= 0:
            del self._users[version]
            self._spare = theta

    def _adapt_epochs(self, job: Job, step: Step, updates: int) -> None:
        if self._method.adaptive_epochs is not None:
            self.epochs[job.client] = self._method.adaptive_epochs.next(
                job.point_epochs, step.drift_norm, step.update_norm, updates
            )

    def _evaluate(self, trace: TraceWriter) -> None:
        self._model.load(*self.state.returned())
        scores = self._task.evaluate(self._model, self._task.test)
        self.best = better(self.best, scores[self._task.metric], self.state)
        trace.write(evaluation(self.state, self.time, scores, self.seconds))

    def _dispatch(self, executor: Executor) -> None:
        """Send jobs to idle clients, drawn at random, up to the concurrency limit."""
        if self._method.synchronous and self.flight:
            return  # the round goes on
        limit = self._schedule.concurrency or len(self._sizes)
        while self.idle and len(self.flight) < limit:
            number, seed = self.dispatched, self._run.seed
            drawn = int(derive(seed, Purpose.DISPATCH, number).integers(len(self.idle)))
            client = self.idle.take(drawn)
            job = Job(
                number=number,
                client=client,
                version=self.state.version,
                theta=self.state.theta,
                buffers=self.state.buffers,
                point_epochs=self.epochs.get(client, self._training.point_epochs),
                curve_epochs=self._curve_epochs,
            )
            self._send(job, executor)
            self.dispatched += 1

    def _send(self, job: Job, executor: Executor) -> None:
        relative = self._sizes[job.client] * len(self._sizes) / self._examples
        length = (job.point_epochs + job.curve_epochs) * relative
        seed = self._run.seed
        arrival = self.time + self._schedule.duration(length, self._mean_length, job.client, job.number, seed)
        is_lost = self._schedule.is_lost(job.client, job.number, seed)
        self.flight[job.client] = Flight(job, self.time, arrival, is_lost)
        self._users[job.version] += 1
        heapq.heappush(self._arrivals, (arrival, job.number, job.client))
        if not is_lost:
            executor.submit(job, arrival)


def better(best: Best | None, score: float, state: ServerState) -> Best | None:
    """Return the best model so far, given the score of the one that ``state`` hands out."""
    if not isfinite(score) or (best is not None and score <= best.score):
        return best
    theta, buffers = state.returned()
    return Best(score, state.updates, theta.clone(), buffers)


def evaluation(state: ServerState, time: float, scores: Mapping[str, float], seconds: float) -> Record:
    """Return the record of an evaluation."""
    return {
        "kind": "evaluation",
        "update": state.updates,
        "version": state.version,
        "time": time,
        **finite(scores),
        "wall_seconds": seconds,
    }


def finite(scores: Mapping[str, float]) -> dict[str, float | None]:
    """Return the scores with None for those that are not finite, which JSON cannot say."""
    return {name: value if isfinite(value) else None for name, value in scores.items()}
