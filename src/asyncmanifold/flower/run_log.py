"""The log of a deployment: the records of its trace in words."""

from __future__ import annotations

import logging

from asyncmanifold.flower.loss_watch import LossWatch
from asyncmanifold.session.session import Session
from asyncmanifold.session.trace import Record

log = logging.getLogger("flwr")


class RunLog:
    """An observer that says each record once it is on disk, so that nothing said is ever taken back.

    It is silent until ``begin``, except for warnings: what a resumed run reads from its files was said
    before.
    """

    def __init__(self) -> None:
        self._session: Session | None = None
        self._losses = LossWatch()

    def begin(self, session: Session) -> None:
        """Say what happens in this session from now on."""
        self._session = session

    def __call__(self, record: Record) -> None:
        """Say a record, if it is one to be said."""
        kind = record["kind"]
        if kind == "warning":
            log.warning("%s", record["reason"])
        elif self._session is None:
            return
        elif kind == "update":
            wanted = self._session.run.updates
            log.info("update %s/%s: %s, %s", record["update"], wanted, label(record), progress(record))
            if warning := self._losses.notice(record["loss"], record["clients"]):
                log.warning("%s", warning)
        elif (line := in_words(record)) is not None:
            log.log(LEVELS[kind], "%s", line)


LEVELS = {
    **dict.fromkeys(("joined", "left", "discarded", "changed"), logging.INFO),
    **dict.fromkeys(("failed", "rejected", "resting", "retired", "capped"), logging.WARNING),
    **dict.fromkeys(("exploded", "back"), logging.WARNING),
}
"""The records that are said, besides updates, and how loudly."""


def in_words(record: Record) -> str | None:
    """Return a record as one line; None if it is not one to be said.

    >>> in_words({"kind": "resting", "client": 0, "name": "hospital-a", "seconds": 60.0})
    'client 0 (hospital-a) rests for 60 s'
    """
    kind, said = record["kind"], record.get
    if kind not in LEVELS:
        return None
    words = {
        "joined": f"joined, node {said('node')}",
        "left": f"left, node {said('node')}",
        "resting": f"rests for {said('seconds', 0.0):g} s",
        "retired": f"gets no more jobs: {said('reason')}",
        "capped": f"claims {said('examples')} examples, which count as {said('limit')}",
        "changed": f"{said('key')} changed from {said('from')} to {said('to')}",
        "exploded": f"the model is ruined: {said('reason')}; `back_to` goes back to one kept before",
        "back": f"went back to the model of update {said('to')}, as version {said('version')}",
    }.get(kind, f"{kind}: {said('reason')}")
    return f"{label(record)} {words}" if "client" in record else words


def label(record: Record) -> str:
    """Return whom a record is about: the client's number, and its name if it has one."""
    return f"client {record['client']}" + (f" ({record['name']})" if record.get("name") else "")


def progress(record: Record) -> str:
    """Return an accepted update's staleness, and its loss or, of a private one, its client's ε."""
    loss = record["loss"]
    said = f"ε {record['epsilon']:.3g}" if loss is None else f"loss {loss:.4f}"
    return f"staleness {record['staleness']}, {said}"
