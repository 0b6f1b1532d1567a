"""The hostile clients of a run: who they are, what they know, and what they make of their jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from asyncmanifold.errors import InputError
from asyncmanifold.execution.training_worker import Outcome
from asyncmanifold.seeding import Purpose, derive
from asyncmanifold.server.outgoing import Parcel, pack_update, unpack_update
from asyncmanifold.server.protocol import Job, Rejected
from asyncmanifold.session.claims import Claims
from asyncmanifold.session.session import Session
from asyncmanifold.session.trace import Record
from asyncmanifold.simulation.attacks import Attack
from asyncmanifold.tasks.data import Data, TensorData
from asyncmanifold.tasks.task import Task

KNOWN = 16
"""Of how many honest clients the latest accepted update is known, those accepted last."""


class Attacker:
    """All hostile clients of a run, who share what they know.

    What is sent depends on the job and on the updates that were accepted before it arrived, so it is the
    same for any executor, after a resume and in a replay.
    """

    def __init__(self, attack: Attack | None, clients: int, session: Session) -> None:
        """Choose the hostile clients; without an attack there are none."""
        self.attack = attack or Attack(0.0)
        self._session, seed = session, session.run.seed
        self.hostile = self.attack.hostile_clients(clients, seed)
        self.known: dict[int, Tensor] = {}
        """The latest accepted offsets of honest clients, in the order of acceptance."""

    def marks(self, client: int) -> dict[str, bool]:
        """Return what the trace says of a client's arrivals: nothing, unless it is hostile."""
        return {"hostile": True} if client in self.hostile else {}

    def pace(self, client: int) -> float:
        """Return how many times as fast as it should a client is."""
        return self.attack.pace if client in self.hostile else 1.0

    def send(self, job: Job, outcome: Outcome) -> Outcome:
        """Return what arrives at the server: what was trained, or what a hostile client makes of it."""
        if job.client not in self.hostile or not isinstance(outcome, Parcel):
            return outcome
        method, run, space = self._session.method, self._session.run, self._session.model.space
        try:
            update = unpack_update(outcome, job, method.outgoing)
        except Rejected:
            return outcome
        known = torch.stack(list(self.known.values())) if self.known else None
        random = derive(run.seed, Purpose.ATTACK, job.client, job.number)
        sent = self.attack.change(update.offsets, known, random)
        if not space.is_flat:
            sent = torch.stack([space.project(job.theta, row) for row in sent])
        return pack_update(replace(update, offsets=sent), job, method.outgoing, run.seed)

    def note(self, job: Job, outcome: Outcome, record: Record) -> None:
        """Remember an honest update that was accepted, if the attack needs it."""
        if not self.attack.needs_honest or record["kind"] != "update" or job.client in self.hostile:
            return
        assert isinstance(outcome, Parcel)
        offsets = unpack_update(outcome, job, self._session.method.outgoing).offsets
        self.known = {client: kept for client, kept in self.known.items() if client != job.client}
        self.known[job.client] = offsets.clone()
        if len(self.known) > KNOWN:
            del self.known[next(iter(self.known))]

    def shares(self, sizes: Sequence[int], limit: float | None) -> list[float]:
        """Return each client's share of all examples, as far as their claims are believed."""
        boast = self.attack.boast
        claimed = [
            round(size * boast) if client in self.hostile else size for client, size in enumerate(sizes)
        ]
        if limit is None:
            total = sum(claimed)
            return [claim / total for claim in claimed]
        claims = Claims(limit)
        for client, claim in enumerate(claimed):
            claims.join(client, claim)
        return [claims.share(client, claim)[0] for client, claim in enumerate(claimed)]


def poisoned(task: Task, attack: Attack | None, seed: int) -> Task:
    """Return the task that workers train on, in which hostile clients may have wrong labels."""
    if attack is None or not attack.flips_labels:
        return task
    hostile = attack.hostile_clients(len(task.clients), seed)
    classes = _count_classes(task.test)
    clients = [
        _flip_labels(data, classes) if client in hostile else data for client, data in enumerate(task.clients)
    ]
    return replace(task, clients=clients)


@dataclass(frozen=True, eq=False)
class FlippedLabels:
    """Other examples with wrong labels: C − 1 − y for y."""

    data: Data
    classes: int

    def __len__(self) -> int:
        return len(self.data)

    def batch(self, indices: Tensor) -> tuple[Any, Any]:
        """Return the inputs of these examples, and wrong targets."""
        inputs, targets = self.data.batch(indices)
        return inputs, self.classes - 1 - targets


def _flip_labels(data: Data, classes: int) -> Data:
    if isinstance(data, TensorData):  # which training reads faster than other data
        return replace(data, targets=classes - 1 - data.targets)
    return FlippedLabels(data, classes)


def _count_classes(test: Data) -> int:
    """Return the number of classes among the test targets; 2 where these are 0 or 1 as floating point."""
    _, targets = test.batch(torch.arange(len(test)))
    if isinstance(targets, Tensor) and not targets.is_floating_point():
        return int(targets.max()) + 1
    if isinstance(targets, Tensor) and bool(((targets == 0.0) | (targets == 1.0)).all()):
        return 2
    raise InputError("attack 'label-flip' needs targets that are classes, or labels of 0 and 1")
