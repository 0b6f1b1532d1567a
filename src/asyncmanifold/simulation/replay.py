"""Repeat recorded arrivals, of a deployment or a simulation: the same updates in the same order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from asyncmanifold.errors import InputError, RunError
from asyncmanifold.execution.executors import Executor
from asyncmanifold.server.methods import Method
from asyncmanifold.server.protocol import Failure, Job
from asyncmanifold.session.kept_models import KeptModels
from asyncmanifold.session.session import Session
from asyncmanifold.session.trace import Record
from asyncmanifold.simulation.attacker import Attacker
from asyncmanifold.tasks.task import Task

NEEDED: dict[str, Any] = {
    **dict.fromkeys(("job", "client", "base_version", "version", "epochs"), int),
    **dict.fromkeys(("weight", "time", "dispatched"), (int, float)),
}
"""The fields that a recorded update must have, and their types."""


def recorded_updates(trace: Iterable[Record]) -> list[Record]:
    """Return the accepted updates of a trace; an ``InputError`` names a missing or wrong field."""
    updates = list(_updates_and_returns(trace))
    if not updates:
        raise InputError("no accepted updates to replay")
    for number, record in enumerate(updates, start=1):
        if "epsilon" in record:
            raise InputError(f"update {number} has noise for privacy, which nobody can repeat")
        for name, kind in NEEDED.items():
            if name not in record:
                raise InputError(f"update {number} has no {name!r}")
            if not isinstance(record[name], kind) or isinstance(record[name], bool) or record[name] < 0:
                raise InputError(
                    f"update {number} has {name} = {record[name]!r}, must be a number, at least 0"
                )
    return updates


def _updates_and_returns(trace: Iterable[Record]) -> Iterator[Record]:
    """Yield the updates; one before which the run went back to a kept model says to which, as ``after``."""
    after: int | None = None
    for record in trace:
        kind = record.get("kind")
        if kind == "changed" and str(record["key"]).startswith(("method.", "training.")):
            raise InputError(
                f"{record['key']} changed after update {record['update']}: only runs of one configuration "
                "can be repeated"
            )
        if kind == "back":
            after = record["to"]
        elif kind == "update":
            yield record if after is None else {**record, "after": after}
            after = None


def arrange_clients(task: Task, updates: Iterable[Record]) -> Task:
    """Return the task with its clients' data in the order of the recorded clients.

    A deployment records which partition each node has; in a simulation, client and partition are the same.
    Clients without an update stay: how many there are decides which of them are hostile.
    """
    part_of: dict[int, int] = {}
    for record in updates:
        client, part = record["client"], record.get("partition", record["client"])
        if part is None:
            raise InputError(f"client {client} was started without partition-id: its data is unknown here")
        if not isinstance(part, int) or not 0 <= part < len(task.clients):
            count = len(task.clients)
            raise InputError(
                f"client {client} has partition {part}, must be one of the task's {count} clients"
            )
        part_of[client] = part
    given = range(len(task.clients))
    clients = range(max(len(given), 1 + max(part_of)))
    parts = [part_of.get(client, client if client in given else 0) for client in clients]
    validation = None if task.validation is None else [task.validation[part] for part in parts]
    return replace(task, clients=[task.clients[part] for part in parts], validation=validation)


def without_decisions(method: Method) -> Method:
    """Return a method without the gates that only decide: what is repeated was admitted."""
    return replace(method, gates=tuple(gate for gate in method.gates if not gate.decides_only))


class Replay:
    """Trains every recorded update again from its base version, and absorbs them in their recorded order."""

    def __init__(self, session: Session, updates: list[Record], attacker: Attacker) -> None:
        self._session, self._updates, self._attacker = session, updates, attacker
        self._starting: dict[int, list[int]] = {}
        """The indices of the updates that start from each version."""
        for place, record in enumerate(updates, start=1):
            if record["epochs"] <= session.curve_epochs:
                raise InputError(
                    f"update {place} has {record['epochs']} epochs, must have more than the "
                    f"{session.curve_epochs} along the curve"
                )
            self._starting.setdefault(record["base_version"], []).append(place - 1)
        self._returns = {record["after"] for record in updates if "after" in record}
        session.kept = KeptModels(None, most=len(self._returns))
        self._jobs: dict[int, Job] = {}
        self._last_version = max(max(record["version"], record["base_version"]) for record in updates)

    def run(self, executor: Executor) -> None:
        """Repeat every recorded update."""
        time = 0.0
        self._session.evaluate(time)
        self._keep()
        self._send(executor)
        for number, record in enumerate(self._updates, start=1):
            if "after" in record:
                self._session.go_back(record["time"], record["after"])
                self._send(executor)
            version = self._session.state.version
            if self._session.is_over(record["time"]):
                self._session.evaluate_last(time)
                return
            time = record["time"]
            problem = self._absorb(record, executor)
            if problem is not None:
                raise RunError(f"update {number} of the trace cannot be repeated: {problem}")
            self._session.evaluate_if_due(record["time"])
            self._keep()
            if self._session.state.version != version:
                self._send(executor)

    def _keep(self) -> None:
        """Keep the model if the run went back to it later."""
        if self._session.state.updates in self._returns:
            self._session.kept.keep(self._session.state, self._session.epochs)

    def _absorb(self, record: Record, executor: Executor) -> str | None:
        """Train and absorb an update with its recorded weight; return the problem, if there is one."""
        job = self._jobs.pop(record["job"], None)
        if job is None:
            return "its base version was never made"
        outcome = self._attacker.send(job, executor.result(job, self._session.remaining))
        if isinstance(outcome, Failure):
            return outcome.reason
        known = ("time", "node", "dispatched", "partition", "clients")
        where: dict[str, Any] = {name: record[name] for name in known if name in record}
        where |= self._attacker.marks(job.client)
        made = self._session.accept(job, outcome, record["weight"], **where)
        self._attacker.note(job, outcome, made)
        executor.release(job)
        return None if made["kind"] == "update" else str(made["reason"])

    def _send(self, executor: Executor) -> None:
        """Send every job that starts from the current model."""
        for place in self._starting.get(self._session.state.version, []):
            record = self._updates[place]
            job = self._session.job(record["client"], number=record["job"], epochs=record["epochs"])
            self._jobs[job.number] = job
            executor.submit(job, float(place))
            if job.version == self._last_version:
                self._session.adopt(job)  # out twice: a round that was cut short is never flushed
