"""One server session: the jobs it sends, the updates it absorbs, and the state of the run.

An engine (simulation, replay, deployment) decides only which update arrives when. The session makes jobs,
absorbs or refuses their results, evaluates, and knows what a checkpoint must hold.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

from torch import Tensor

from asyncmanifold.client.settings import LocalTraining
from asyncmanifold.errors import RunError
from asyncmanifold.seeding import Purpose, derive
from asyncmanifold.server.memories import Memories
from asyncmanifold.server.methods import Method
from asyncmanifold.server.outgoing import Parcel, check_report
from asyncmanifold.server.protocol import Discarded, Job, Rejected, ServerState, Situation
from asyncmanifold.server.step import flush
from asyncmanifold.session.control import STOPPED, ControlState
from asyncmanifold.session.evaluated_state import EvaluatedState, Judge
from asyncmanifold.session.packing import rebuild
from asyncmanifold.session.privacy_account import SPENT, open_account
from asyncmanifold.session.run import Run
from asyncmanifold.session.trace import PLACES, Record, TraceWriter
from asyncmanifold.vectors import FlatModel

LEAST_REFUSALS = 100
"""The run stops after this many consecutive arrivals without an update; more if many jobs are out."""


class Session(EvaluatedState):
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
        lower_is_better: Collection[str] = (),
        glance: Judge | None = None,
    ) -> None:
        """Start from the weights of ``model``, which is then used for evaluations.

        The first of ``metrics`` is the score that counts; without any, the first that ``judge`` returns. Less
        is better for those in ``lower_is_better``. ``glance`` judges by fewer examples.
        """
        privacy = open_account(method, training, model)
        super().__init__(method, run, model, privacy, trace, judge, metrics, lower_is_better, glance)
        self.training = training
        self.curve_epochs = training.curve_epochs if method.embedding.is_curve else 0
        self.control = ControlState()
        self._jobs_out = 0
        self.log: Callable[[dict[str, Any], Tensor], None] | None = None
        """Stores what is needed to absorb an accepted update again, and its base model if need be."""

    def choose(self, waiting: Sequence[int]) -> int:
        """Return the index in ``waiting`` of the client that is sent the next job."""
        random = derive(self.run.seed, Purpose.DISPATCH, self.dispatched)
        memories = Memories(self.method, self.state)
        place = memories.call("selection", self.method.selection.choose, waiting, random)
        if "selection" in memories.kept:
            self._remember("selection", memories.kept["selection"])
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
        if self.privacy.is_local:
            self.privacy.count([client], self.privacy.job_releases(job.epochs))
        return job

    def is_spent(self, client: int) -> bool:
        """Return whether a client's privacy budget does not allow its next job."""
        epochs = self.epochs.get(client, self.training.point_epochs) + self.curve_epochs
        return self.privacy.is_spent(client, epochs)

    def retire(self, client: int, reason: str, time: float, facts: Mapping[str, Any] | None = None) -> None:
        """Send a client no more jobs, and record it with what else the engine knows of it."""
        if client not in self.privacy.retired:
            self.privacy.retired.append(client)
            known = {"time": time, "client": client, **(facts or {}), "reason": reason}
            self.write("retired", **known, **self.privacy.facts(client))

    def adopt(self, job: Job) -> None:
        """Count a job as out: a new one, or one that was out at the last checkpoint."""
        self._users[job.version] += 1
        self._jobs_out += 1

    def accept(self, job: Job, parcel: Parcel, weight: float, **arrival: Any) -> Record:
        """Absorb the result of a job and return its record, of an update or of a rejection.

        ``weight`` is the client's share of all examples; ``arrival`` holds further fields of the record,
        such as ``time``, ``dispatched`` and ``clients``, which parts may use.
        """
        try:
            if job.version < self.oldest:
                raise Rejected(f"its base version {job.version} was taken back")
            check_report(parcel, is_private=self.privacy.is_local)
            if not self.privacy.is_local and self.is_spent(job.client):
                raise Rejected(SPENT)
            state, update, step = self._absorb(job, parcel, weight, Situation.of(arrival))
        except Rejected as problem:
            if problem.stage and problem.memory is not None:
                self._remember(problem.stage, problem.memory)
            kind = "discarded" if isinstance(problem, Discarded) else "rejected"
            return self.refuse(job, kind, str(problem), **arrival)
        if self.method.synchronous and self._jobs_out == 1:
            state = flush(self.method, state, self.model.space)
        self._count_released_sum(state, job)
        record = {
            "kind": "update",
            "update": state.updates,
            **arrival,
            "client": job.client,
            "job": job.number,
            **vars(step),
            "epochs": job.epochs,
            "loss": update.loss,
            "train_seconds": update.seconds,
            "upload_bytes": parcel.size,
            "download_bytes": job.size,
            "version": state.version,
            **self.privacy.facts(job.client),
            "wall_seconds": self.seconds,
        }
        if self.log is not None:
            self.log(self._log_entry(record, job, parcel, weight), job.theta)
        self._trace.write(record)
        before = self._advance(state, job, step, Situation.of(arrival))
        self._users[job.version] -= 1
        self._jobs_out -= 1
        self._retire(before.version, before.theta)
        self._retire(job.version, job.theta)
        return record

    def recall(self, record: Record) -> None:
        """Take note of a record that was written between two logged updates."""
        if record["kind"] == "evaluation":
            self._evaluated = record["update"]
            self._include({name: record[name] for name in record if name not in PLACES})
        elif record["kind"] == "back":
            self._take_kept(record["to"])
        elif record["kind"] == "control":
            self.obey(record)
        self.privacy.recall(record)
        self.dispatched = max(self.dispatched, record.get("job", -1) + 1)

    def obey(self, record: Record) -> None:
        """Follow what was asked of the run from outside, as recorded."""
        self.control.apply(record)
        self._follow_control()
        if record["command"] == "stop":
            self.end(STOPPED)

    def _follow_control(self) -> None:
        if self.control.updates is not None:
            self.run = replace(self.run, updates=self.control.updates)

    def refuse(self, job: Job, kind: str, reason: str, *, is_final: bool = False, **arrival: Any) -> Record:
        """Record a job that changed nothing; ``kind`` is ``rejected``, ``failed`` or ``discarded``.

        ``is_final`` if the client itself refused it, and any other, and has released nothing.
        """
        self.drop(job)
        known = {"client": job.client, "job": job.number, "base_version": job.version}
        if is_final and self.privacy.is_local:
            self.privacy.count([job.client], -self.privacy.job_releases(job.epochs))
        record = {"kind": kind, **arrival, **known, "reason": reason, **self.privacy.facts(job.client)}
        self._trace.write(record)
        if is_final or kind == "discarded":  # no failure; a discard comes only after accepted updates
            return record
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

    def pack(self) -> dict[str, Any]:
        """Return everything that the rest of the run depends on, except jobs that are out."""
        return {
            "state": vars(self.state),
            **self.scores.pack(),
            "epochs": self.epochs,
            "dispatched": self.dispatched,
            "refused": self.refused,
            "ended": self.ended,
            "evaluated": self._evaluated,
            "oldest": self.oldest,
            "seconds": self.seconds,
            "control": self.control.pack(),
            **self.privacy.pack(),
        }

    def unpack(self, packed: Mapping[str, Any]) -> None:
        """Restore what ``pack`` returned."""
        packed = self.place(packed)
        state = rebuild(ServerState, packed["state"])
        known = {*self.method.stages, "statistics"}  # gates may have been removed since
        memory = {stage: kept for stage, kept in state.memory.items() if stage in known}
        self.state = replace(state, memory=memory)
        self.scores.unpack(packed)
        self.epochs = packed["epochs"]
        self.dispatched = packed["dispatched"]
        self.refused = packed["refused"]
        self.privacy.unpack(packed)
        self.oldest = packed["oldest"]
        self.ended, self._evaluated = packed["ended"], packed["evaluated"]
        self._started = perf_counter() - packed["seconds"]
        self.control.unpack(packed["control"])
        self._follow_control()
