"""A run whose arrivals were recorded, in a deployment or a simulation: the same updates in the same order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from time import perf_counter

from asyncmanifold.client.training import LocalTraining, NonFiniteLoss
from asyncmanifold.errors import InputError, RunError
from asyncmanifold.server.methods import Method
from asyncmanifold.server.protocol import Job, Rejected, ServerState
from asyncmanifold.server.step import absorb, flush
from asyncmanifold.simulation.engine import Best, Run, TraceWriter, better, evaluation
from asyncmanifold.simulation.executors import Executor
from asyncmanifold.tasks.task import Task
from asyncmanifold.trace import Record
from asyncmanifold.vectors import FlatModel

NEEDED = ("job", "client", "base_version", "version", "weight", "epochs", "time", "dispatched")


def recorded_updates(trace: Iterable[Record]) -> list[Record]:
    """Return the accepted updates of a trace, or say what one lacks."""
    updates = [record for record in trace if record.get("kind") == "update"]
    if not updates:
        raise InputError("no accepted updates to replay")
    for number, record in enumerate(updates, start=1):
        if missing := [name for name in NEEDED if name not in record]:
            raise InputError(f"update {number} has no {missing[0]!r}")
    return updates


def arranged(task: Task, updates: Iterable[Record]) -> Task:
    """Return the task with the data of each recorded client in its place.

    A node of a deployment says which partition it has; a simulator's client is its own.
    """
    part_of: dict[int, int] = {}
    for record in updates:
        client, part = record["client"], record.get("partition", record["client"])
        if part is None:
            raise InputError(f"client {client} was started without partition-id: nobody knows its data here")
        if not isinstance(part, int) or not 0 <= part < len(task.clients):
            count = len(task.clients)
            raise InputError(
                f"client {client} has partition {part}, must be one of the task's {count} clients"
            )
        part_of[client] = part
    parts = [part_of.get(client, 0) for client in range(max(part_of) + 1)]
    validation = None if task.validation is None else [task.validation[part] for part in parts]
    return replace(task, clients=[task.clients[part] for part in parts], validation=validation)


class Replay:
    """Trains every recorded update again from the version it started from, and absorbs it in its turn."""

    def __init__(
        self,
        task: Task,
        method: Method,
        training: LocalTraining,
        run: Run,
        model: FlatModel,
        updates: list[Record],
    ) -> None:
        self._task, self._method, self._run, self._model = task, method, run, model
        self._curve_epochs = training.curve_epochs if method.embedding.is_curve else 0
        self._updates = updates
        self._starting: dict[int, list[int]] = {}
        """The places of the updates that start from each version."""
        for place, record in enumerate(updates):
            self._starting.setdefault(record["base_version"], []).append(place)
        self._jobs: dict[int, Job] = {}
        self.state = ServerState(model.vector.clone(), model.read_buffers())
        self.best: Best | None = None
        self.seconds = 0.0

    def run(self, executor: Executor, trace: TraceWriter) -> None:
        """Make every recorded update again."""
        started = perf_counter()
        self._evaluate(trace, 0.0)
        self._send(executor)
        for number, record in enumerate(self._updates, start=1):
            version = self.state.version
            try:
                made = self._absorb(record, executor)
            except (NonFiniteLoss, Rejected, KeyError) as problem:
                reason = "its base model never was" if isinstance(problem, KeyError) else str(problem)
                raise RunError(f"update {number} of the trace cannot be made again: {reason}") from problem
            self.seconds = perf_counter() - started
            trace.write({**record, **made, "wall_seconds": self.seconds})
            if number % self._run.evaluate_every == 0 or number == len(self._updates):
                self._evaluate(trace, record["time"])
            if self.state.version != version:
                self._send(executor)

    def _absorb(self, record: Record, executor: Executor) -> Record:
        """Train and absorb an update with the weight that was recorded; return what is new about it."""
        job = self._jobs.pop(record["job"])
        update = executor.result(job, len(self._updates) - self.state.updates)
        space, weight = self._model.space, record["weight"]
        self.state, step = absorb(
            self._method, self.state, update, base=job.theta, weight=weight, space=space
        )
        executor.release(job)
        if self._method.synchronous and record["version"] > self.state.version:
            self.state = flush(self._method, self.state, self._model.space)
        trained = {"loss": update.loss, "train_seconds": update.seconds}
        return {**vars(step), **trained, "version": self.state.version}

    def _send(self, executor: Executor) -> None:
        """Send out every job that starts from the model as it is now."""
        for place in self._starting.get(self.state.version, []):
            record = self._updates[place]
            job = Job(
                number=record["job"],
                client=record["client"],
                version=self.state.version,
                theta=self.state.theta,
                buffers=self.state.buffers,
                point_epochs=record["epochs"] - self._curve_epochs,
                curve_epochs=self._curve_epochs,
            )
            self._jobs[job.number] = job
            executor.submit(job, float(place))

    def _evaluate(self, trace: TraceWriter, time: float) -> None:
        self._model.load(*self.state.returned())
        scores = self._task.evaluate(self._model, self._task.test)
        self.best = better(self.best, scores[self._task.metric], self.state)
        trace.write(evaluation(self.state, time, scores, self.seconds))
