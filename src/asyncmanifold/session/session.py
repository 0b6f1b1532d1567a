"""One server session: the jobs it sends, the updates it absorbs, and the state of the run.

An engine (simulation, replay, deployment) decides only which update arrives when. The session makes jobs,
absorbs or refuses their results, evaluates, and knows what a checkpoint must hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from time import perf_counter
from typing import Any, Protocol, TypeVar

from torch import Tensor

from asyncmanifold.client.settings import LocalTraining
from asyncmanifold.errors import RunError
from asyncmanifold.seeding import Purpose, derive
from asyncmanifold.server.methods import Method
from asyncmanifold.server.outgoing import Parcel, unpack_update
from asyncmanifold.server.protocol import Job, Rejected, ServerState
from asyncmanifold.server.step import absorb, flush
from asyncmanifold.session.run import Run
from asyncmanifold.session.trace import Record
from asyncmanifold.vectors import FlatModel, Statistics

Judge = Callable[[int, FlatModel], Mapping[str, float]]
"""Takes the number of updates and the model; returns its scores, none if there is no evaluation."""
Restored = TypeVar("Restored")
LEAST_REFUSALS = 100
"""The run stops after this many consecutive arrivals without an update; more if many jobs are out."""


class TraceWriter(Protocol):
    """Where records go."""

    def write(self, record: Record) -> None:
        """Append a record."""
        ...


@dataclass(frozen=True)
class BestModel:
    """The best model among those evaluated."""

    score: float
    update: int
    theta: Tensor
    statistics: Statistics


class Session:
    """The server's side of one run."""

    def __init__(
        self,
        method: Method,
        training: LocalTraining,
        run: Run,
        model: FlatModel,
        trace: TraceWriter,
        judge: Judge,
        metrics: Sequence[str] = (),
    ) -> None:
        """Start from the weights of ``model``, which is then used for evaluations.

        The first of ``metrics`` is the score that counts; without any, the first that ``judge`` returns.
        """
        self.method, self.training, self.run, self.model = method, training, run, model
        self.metrics = list(metrics)
        self.state = ServerState(model.vector.clone(), model.read_statistics())
        self.best: BestModel | None = None
        self.epochs: dict[int, int] = {}
        """Point epochs by client, for clients whose number has adapted."""
        self.dispatched = 0
        self.refused = 0
        """Consecutive arrivals without an accepted update."""
        self.curve_epochs = training.curve_epochs if method.embedding.is_curve else 0
        self._trace, self._judge = trace, judge
        self._users: Counter[int] = Counter()  # version -> jobs that started from it and are out
        self._jobs_out = 0
        self._spare: Tensor | None = None
        self._started = perf_counter()

    @property
    def is_finished(self) -> bool:
        """Whether all updates have been accepted."""
        return self.state.updates >= self.run.updates

    @property
    def remaining(self) -> int:
        """How many updates are still to be accepted."""
        return self.run.updates - self.state.updates

    @property
    def seconds(self) -> float:
        """Wall time of the run so far, without interruptions."""
        return perf_counter() - self._started

    def choose(self, waiting: Sequence[int]) -> int:
        """Return the index in ``waiting`` of the client that is sent the next job."""
        random = derive(self.run.seed, Purpose.DISPATCH, self.dispatched)
        memory = self.state.memory.get("selection")
        if memory is None:
            memory = self.method.selection.init(self.state.theta)
        place, memory = self.method.selection.choose(waiting, random, memory)
        if memory:
            self.state = replace(self.state, memory={**self.state.memory, "selection": memory})
        return place

    def job(self, client: int, number: int | None = None, epochs: int | None = None) -> Job:
        """Make a client's next job, from the current model.

        A replay passes the recorded ``number`` and ``epochs``, curve epochs included.
        """
        point_epochs = self.epochs.get(client, self.training.point_epochs)
        job = Job(
            number=self.dispatched if number is None else number,
            client=client,
            version=self.state.version,
            theta=self.state.theta,
            statistics=self.state.statistics,
            point_epochs=point_epochs if epochs is None else epochs - self.curve_epochs,
            curve_epochs=self.curve_epochs,
        )
        self.dispatched += 1
        self.adopt(job)
        return job

    def adopt(self, job: Job) -> None:
        """Count a job as out: a new one, or one that was out at the last checkpoint."""
        self._users[job.version] += 1
        self._jobs_out += 1

    def accept(self, job: Job, parcel: Parcel, weight: float, **arrival: Any) -> Record:
        """Absorb the result of a job and return its record, of an update or of a rejection.

        ``weight`` is the client's share of all examples; ``arrival`` holds further fields of the record,
        such as ``time`` and ``dispatched``.
        """
        before = self.state
        try:
            update = unpack_update(parcel, job, self.method.outgoing)
            self.state, step = absorb(
                self.method,
                before,
                update,
                base=job.theta,
                weight=weight,
                out=self._spare,
                space=self.model.space,
            )
        except Rejected as problem:
            return self.refuse(job, "rejected", str(problem), **arrival)
        self.refused = 0
        if self.state.theta is self._spare:
            self._spare = None
        if self.method.adaptive_epochs is not None:
            self.epochs[job.client] = self.method.adaptive_epochs.next(
                job.point_epochs, step.drift_norm, step.update_norm, before.updates
            )
        self.drop(job)
        self._retire(before.version, before.theta)
        self._retire(job.version, job.theta)
        record = {
            "kind": "update",
            "update": self.state.updates,
            **arrival,
            "client": job.client,
            "job": job.number,
            **vars(step),
            "epochs": job.epochs,
            "loss": update.loss,
            "train_seconds": update.seconds,
            "version": self.state.version,
            "wall_seconds": self.seconds,
        }
        self._trace.write(record)
        return record

    def refuse(self, job: Job, kind: str, reason: str, **arrival: Any) -> Record:
        """Record a job that changed nothing; ``kind`` is ``rejected`` or ``failed``."""
        self.drop(job)
        known = {"client": job.client, "job": job.number, "base_version": job.version}
        record = {"kind": kind, **arrival, **known, "reason": reason}
        self._trace.write(record)
        self.refused += 1
        if self.refused >= max(LEAST_REFUSALS, 4 * self._jobs_out):
            raise RunError(f"no update was accepted in {self.refused} arrivals, the last: {reason}")
        return record

    def drop(self, job: Job) -> None:
        """Count a job as no longer out; a synchronous round ends with its last job."""
        self._users[job.version] -= 1
        self._jobs_out -= 1
        if self.method.synchronous and not self._jobs_out:
            self.state = flush(self.method, self.state, self.model.space)

    def write(self, kind: str, **facts: Any) -> None:
        """Record an event that only the engine knows."""
        self._trace.write({"kind": kind, **facts})

    def evaluate(self, time: float) -> None:
        """Evaluate the model that would be returned now, keep it if it is the best, and record the scores."""
        self.model.load(*self.state.returned())
        scores = self._judge(self.state.updates, self.model)
        if not scores:
            return
        self.metrics = self.metrics or list(scores)
        score = scores[self.metrics[0]]
        if isfinite(score) and (self.best is None or score > self.best.score):
            theta, statistics = self.state.returned()
            self.best = BestModel(score, self.state.updates, theta.clone(), statistics)
        self.write(
            "evaluation",
            update=self.state.updates,
            version=self.state.version,
            time=time,
            **replace_non_finite(scores),
            wall_seconds=self.seconds,
        )

    def evaluate_if_due(self, time: float) -> None:
        """Evaluate after every ``evaluate_every`` updates and at the end."""
        if self.is_finished or self.state.updates % self.run.evaluate_every == 0:
            self.evaluate(time)

    def pack(self) -> dict[str, Any]:
        """Return everything that the rest of the run depends on, except jobs that are out."""
        return {
            "state": vars(self.state),
            "best": None if self.best is None else vars(self.best),
            "epochs": self.epochs,
            "dispatched": self.dispatched,
            "refused": self.refused,
            "metrics": self.metrics,
            "seconds": self.seconds,
        }

    def unpack(self, packed: Mapping[str, Any]) -> None:
        """Restore what ``pack`` returned."""
        self.state = rebuild(ServerState, packed["state"])
        self.best = None if packed["best"] is None else rebuild(BestModel, packed["best"])
        self.epochs = packed["epochs"]
        self.dispatched = packed["dispatched"]
        self.refused = packed["refused"]
        self.metrics = packed["metrics"]
        self._started = perf_counter() - packed["seconds"]

    def _retire(self, version: int, theta: Tensor) -> None:
        """Keep the memory of a model that no job needs any more, for the next model.

        Touching fresh memory pages costs as much as the arithmetic of an update.
        """
        if version != self.state.version and self._users[version] <= 0:
            del self._users[version]
            self._spare = theta


def replace_non_finite(scores: Mapping[str, float]) -> dict[str, float | None]:
    """Return the scores with None for those that are not finite, which JSON cannot represent."""
    return {name: value if isfinite(value) else None for name, value in scores.items()}


def rebuild(cls: type[Restored], packed: Mapping[str, Any]) -> Restored:
    """Return a state, job or model from its packed fields, where statistics are a list of two tensors."""
    return cls(**{**packed, "statistics": Statistics(*packed["statistics"])})
