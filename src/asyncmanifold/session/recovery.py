"""Bring a run back to its last accepted update: the last checkpoint, and the log of updates since."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor

from asyncmanifold.errors import InputError
from asyncmanifold.server.outgoing import Parcel
from asyncmanifold.server.protocol import Job
from asyncmanifold.session.session import Session
from asyncmanifold.session.trace import Record


class Recovery:
    """Absorbs logged updates again, and puts the trace's records since the checkpoint in order.

    The log is what counts. A trace may lack the last lines, which the system had not written yet, and is
    completed from the log; a line of an update that is not in the log is left out.
    """

    def __init__(self, session: Session, tail: Iterable[Record], write: Callable[[Record], None]) -> None:
        """Continue a session at its checkpoint; ``tail`` is the trace after it, as far as it can be read."""
        self._session, self._write = session, write
        self._tail = deque(tail)
        self._bases: dict[int, Tensor] = {session.state.version: session.state.theta.clone()}

    def absorb(self, entries: Iterable[Mapping[str, Any]]) -> None:
        """Absorb every entry that is newer than the checkpoint, with the records around it."""
        for entry in entries:
            record = entry["record"]
            if record["update"] <= self._session.state.updates:
                continue  # the process ended after the checkpoint and before the log was cut
            self._pass_until(record["update"])
            self._absorb_one(entry)
            self._write(record)
            self._evaluate_if_due(record)
        self._pass_until(None)

    def _absorb_one(self, entry: Mapping[str, Any]) -> None:
        record, version = entry["record"], entry["job"]["version"]
        base = entry.get("base", self._bases.get(version))
        if base is None:
            raise InputError(f"update {record['update']} has no base model")
        self._bases[version] = base
        job = Job(**entry["job"], theta=base)
        self._session.absorb_again(job, Parcel(**entry["parcel"]), entry)
        state = self._session.state
        if (state.updates, state.version) != (record["update"], record["version"]):
            raise InputError(f"update {record['update']} does not continue the checkpoint")
        self._bases.setdefault(state.version, state.theta)

    def _pass_until(self, update: int | None) -> None:
        """Pass on the records before an update and remove its line; without one, pass on all."""
        while self._tail:
            record = self._tail.popleft()
            if record["kind"] != "update":
                self._pass(record)
            elif record["update"] == update:
                return

    def _evaluate_if_due(self, record: Record) -> None:
        """Evaluate again, unless the scores are among the records that follow the update's line."""
        is_known = False
        while self._tail and self._tail[0]["kind"] != "update":
            later = self._tail.popleft()
            is_known |= later["kind"] == "evaluation"
            self._pass(later)
        if not is_known:
            self._session.evaluate_if_due(record["time"])

    def _pass(self, record: Record) -> None:
        self._session.recall(record)
        self._write(record)
