"""What a session's state is, and how one update after another changes it: live, or again from a log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from time import perf_counter
from typing import Any

from torch import Tensor

from asyncmanifold.devices import find_device, move
from asyncmanifold.server.methods import Method
from asyncmanifold.server.outgoing import Parcel, unpack_update
from asyncmanifold.server.protocol import Job, ServerState, Update
from asyncmanifold.server.step import Step, absorb, flush
from asyncmanifold.session.run import Run
from asyncmanifold.session.trace import Record
from asyncmanifold.vectors import FlatModel


class AbsorbingState:
    """The state of a run, and the bookkeeping that belongs to every accepted update."""

    def __init__(self, method: Method, run: Run, model: FlatModel) -> None:
        """Start from the weights of ``model``."""
        self.method, self.run, self.model = method, run, model
        self._device = find_device(run.server_device)
        theta = model.vector.to(self._device, copy=True)
        self.state = ServerState(theta, self.place(model.read_statistics()))
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

    def absorb_again(self, job: Job, parcel: Parcel, entry: Mapping[str, Any]) -> None:
        """Absorb a logged update; the versions of its job and its record say when a round ended."""
        for stage, memory in entry["outside"].items():
            self._remember(stage, memory)
        if job.version > self.state.version:
            self.state = flush(self.method, self.state, self.model.space)
        state, _, step = self._absorb(job, parcel, entry["weight"])
        if entry["record"]["version"] > state.version:
            state = flush(self.method, state, self.model.space)
        self._advance(state, job, step)
        self.dispatched = max(self.dispatched, entry["dispatched"])
        self._started = perf_counter() - entry["record"]["wall_seconds"]

    def _absorb(self, job: Job, parcel: Parcel, weight: float) -> tuple[ServerState, Update, Step]:
        """Return the state after a job's result, which is not the session's yet."""
        update = self._place_update(unpack_update(parcel, job, self.method.outgoing))
        state, step = absorb(
            self.method,
            self.state,
            update,
            base=job.theta,
            weight=weight,
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

    def _advance(self, state: ServerState, job: Job, step: Step) -> ServerState:
        """Make a state the session's; return the one before it."""
        before, self.state = self.state, state
        self.refused = 0
        self._outside = {}
        if state.theta is self._spare:
            self._spare = None
        if self.method.adaptive_epochs is not None:
            self.epochs[job.client] = self.method.adaptive_epochs.next(
                job.point_epochs, step.drift_norm, step.update_norm, before.updates
            )
        return before

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

    def _retire(self, version: int, theta: Tensor) -> None:
        """Keep the memory of a model that no job needs any more, for the next model.

        Touching fresh memory pages costs as much as the arithmetic of an update.
        """
        if version != self.state.version and self._users[version] <= 0:
            del self._users[version]
            self._spare = theta
