"""What a session's state is, and how one update after another changes it: live, or again from a log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from asyncmanifold.devices import find_device, move
from asyncmanifold.errors import InputError
from asyncmanifold.server.memories import Memories
from asyncmanifold.server.methods import Method
from asyncmanifold.server.outgoing import Parcel, unpack_update
from asyncmanifold.server.private_buffer import PrivateBuffer
from asyncmanifold.server.protections import check_unmixed
from asyncmanifold.server.protocol import Job, ServerState, Situation, Update
from asyncmanifold.server.step import Step, absorb, flush
from asyncmanifold.server.workloads import FinishedJob
from asyncmanifold.session.privacy_account import PrivacyAccount
from asyncmanifold.session.run import Run
from asyncmanifold.session.trace import Record
from asyncmanifold.vectors import FlatModel


class AbsorbingState:
    """The state of a run, and the bookkeeping that belongs to every accepted update."""

    def __init__(self, method: Method, run: Run, model: FlatModel, privacy: PrivacyAccount) -> None:
        """Start from the weights of ``model``."""
        if method.embedding.follows_shape and not model.space.is_flat:
            raise InputError(
                f"{method.embedding}: its geodesics or lengths follow from inner products in flat space, and "
                "the model has parameters on manifolds; curves measured by their parameter run there"
            )
        for part in method.stages.values() if not model.space.is_flat else ():
            if part.flat_only:
                raise InputError(f"{part}: {part.flat_only}, and the model has parameters on manifolds")
        self.privacy = privacy
        self.method, self.run, self.model = method, run, model
        self._device = find_device(run.server_device)
        theta = model.vector.to(self._device, copy=True)
        self.state = ServerState(theta, self.place(model.read_statistics()))
        if isinstance(method.buffer, PrivateBuffer):  # its secret must be in the first checkpoint already
            self.state = replace(self.state, memory={"buffer": method.buffer.init(theta)})
        self._variances = self.place(model.variances)
        self.epochs: dict[int, int] = {}
        """Point epochs by client, for clients whose number has adapted."""
        self.dispatched = 0
        self.refused = 0
        """Consecutive arrivals without an accepted update."""
        self._users: Counter[int] = Counter()  # version -> jobs that started from it and are out
        self._spare: Tensor | None = None
        self._outside: dict[str, dict[str, Any]] = {}
        """Memories that changed since the last accepted update."""
        self.trusted: Callable[[ServerState], Tensor] | None = None
        """Returns the server's own update on its trusted data, if it has any."""
        self._started = perf_counter()

    @property
    def seconds(self) -> float:
        """Wall time of the run so far, without interruptions."""
        return perf_counter() - self._started

    def set_clock_back(self, seconds: float) -> None:
        """Leave out wall time in which the run was paused."""
        self._started += seconds

    @property
    def cautions(self) -> list[str]:
        """What a user must know before the run starts."""
        return self.privacy.cautions(has_statistics=bool(self.state.statistics.floats.numel()))

    def absorb_again(self, job: Job, parcel: Parcel, entry: Mapping[str, Any]) -> None:
        """Absorb a logged update; the versions of its job and its record say when a round ended."""
        for stage, memory in entry["outside"].items():
            self._remember(stage, memory)
        if job.version > self.state.version:
            self.state = flush(self.method, self.state, self.model.space)
        state, _, step = self._absorb(job, parcel, entry["weight"], Situation.of(entry["record"]))
        self._count_released_sum(state, job)
        self.privacy.recall(entry["record"])
        if entry["record"]["version"] > state.version:
            state = flush(self.method, state, self.model.space)
        self._advance(state, job, step, Situation.of(entry["record"]))
        self.dispatched = max(self.dispatched, entry["dispatched"])
        self._started = perf_counter() - entry["record"]["wall_seconds"]

    def _absorb(
        self, job: Job, parcel: Parcel, weight: float, situation: Situation
    ) -> tuple[ServerState, Update, Step]:
        """Return the state after a job's result, which is not the session's yet."""
        update = self._place_update(unpack_update(parcel, job, self.method.outgoing))
        if self.method.protection is not None:  # which leaves the model's statistics as they are
            update = replace(update, statistics=self.state.statistics)
        if self.method.outgoing and not self.model.space.is_flat:
            update = self._tangent_update(update, job.theta)
        state, step = absorb(
            self.method,
            self.state,
            update,
            base=job.theta,
            weight=weight,
            situation=situation,
            out=self._spare,
            space=self.model.space,
            variances=self._variances,
            trusted=None if self.trusted is None else self._train_trusted,
        )
        return state, update, step

    def _train_trusted(self) -> Tensor:
        assert self.trusted is not None
        trained: Tensor = self.place(self.trusted(self.state))
        return trained

    def _count_released_sum(self, state: ServerState, job: Job) -> None:
        """Count a release of every client in a private buffer that this job's update filled."""
        buffer = self.method.buffer
        if isinstance(buffer, PrivateBuffer):
            check_unmixed(self.method, state.memory)
            if state.version > self.state.version:
                held = buffer.contributors(self.state.memory.get("buffer", {}))
                self.privacy.count({*held, job.client})

    def _advance(self, state: ServerState, job: Job, step: Step, situation: Situation) -> ServerState:
        """Make a state the session's; return the one before it."""
        before, self.state = self.state, state
        self.refused = 0
        self._outside = {}
        if state.theta is self._spare:
            self._spare = None
        if self.method.adaptive_epochs is not None:
            self._plan_epochs(job, step, situation, before.updates)
        return before

    def _plan_epochs(self, job: Job, step: Step, situation: Situation, updates: int) -> None:
        """Decide how many epochs the client's next job has."""
        rule, memories = self.method.adaptive_epochs, Memories(self.method, self.state)
        assert rule is not None
        finished = FinishedJob(
            client=job.client,
            point_epochs=job.point_epochs,
            curve_epochs=job.curve_epochs,
            drift_norm=step.drift_norm,
            update_norm=step.update_norm,
            updates=updates,
            situation=situation,
        )
        self.epochs[job.client] = memories.call("adaptive_epochs", rule.plan, finished)
        self.state = replace(self.state, memory=memories.kept)

    def _log_entry(self, record: Record, job: Job, parcel: Parcel, weight: float) -> dict[str, Any]:
        """Return everything that ``absorb_again`` needs."""
        return {
            "record": record,
            "job": job.numbers(),
            "parcel": vars(parcel),
            "weight": weight,
            "outside": self._outside,
            "dispatched": self.dispatched,
        }

    def _remember(self, stage: str, memory: dict[str, Any]) -> None:
        """Keep a memory that changed although no update was absorbed."""
        self.state = replace(self.state, memory={**self.state.memory, stage: memory})
        self._outside[stage] = memory

    def place(self, value: Any) -> Any:
        """Return tensors, or a tree of them, on the server's device."""
        return value if self._device.type == "cpu" else move(value, self._device)

    def _place_update(self, update: Update) -> Update:
        if self._device.type == "cpu":
            return update
        return replace(update, offsets=self.place(update.offsets), statistics=self.place(update.statistics))

    def _tangent_update(self, update: Update, base: Tensor) -> Update:
        """Return an update without what a codec's rounding added across the space at its base model."""
        if update.offsets.dim() != 2 or update.offsets.shape[1:] != base.shape:
            return update  # which is refused below
        rows = [self.model.space.project(base, row) for row in update.offsets]
        return replace(update, offsets=torch.stack(rows) if rows else update.offsets)

    def _retire(self, version: int, theta: Tensor) -> None:
        """Keep the memory of a model that no job needs any more, for the next model.

        Touching fresh memory pages costs as much as the arithmetic of an update.
        """
        if version != self.state.version and self._users[version] <= 0:
            del self._users[version]
            self._spare = theta
