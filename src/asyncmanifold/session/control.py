"""Control of a run while it runs: pause, resume, exclude, readmit, set, updates, stop.

A request changes the run's state and is recorded in the trace; a checkpoint makes both final; only then is
it answered. After a kill in between, the request is still there, or the record or the checkpoint says that it
was carried out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from asyncmanifold.errors import InputError, RunError
from asyncmanifold.session.control_desk import ControlDesk, ControlRequest
from asyncmanifold.session.trace import Record

if TYPE_CHECKING:
    from asyncmanifold.session.session import Session

STOPPED = "stopped"
"""Why a run ended that was told to stop; unlike other ends this one can be resumed."""
EXCLUDED = "its client is excluded"
"""Why an update is refused that arrives while its client is excluded."""
COMMANDS = {"pause": 0, "resume": 0, "stop": 0, "updates": 1, "exclude": 1, "readmit": 1, "set": 1}
"""The commands, and the number of their arguments."""
MOST_HANDLED = 100


class ControlState:
    """What was asked of a run so far, as far as the rest of the run depends on it."""

    def __init__(self) -> None:
        self.is_paused = False
        self.excluded: set[int] = set()
        """Clients that get no jobs, and whose updates are refused."""
        self.updates: int | None = None
        self.policy: dict[str, Any] = {}
        self.handled: list[str] = []
        """The requests that were carried out last, which are not to be carried out again."""
        self.superseded: set[str] = set()
        """Settings that whoever resumes the run gives explicitly."""

    def apply(self, record: Record) -> None:
        """Follow a record of the trace."""
        command = record["command"]
        if command in ("pause", "resume"):
            self.is_paused = command == "pause"
        elif command == "exclude":
            self.excluded.add(record["client"])
        elif command == "readmit":
            self.excluded.discard(record["client"])
        elif command == "updates":
            self.updates = record["to"]
        elif command == "set":
            self.policy[record["key"].removeprefix("policy.")] = record["to"]
        self.handled = [*self.handled, record["request"]][-MOST_HANDLED:]

    def pack(self) -> dict[str, Any]:
        """Return what a checkpoint holds."""
        return {
            "is_paused": self.is_paused,
            "excluded": sorted(self.excluded),
            "updates": self.updates,
            "policy": self.policy,
            "handled": self.handled,
        }

    def unpack(self, packed: Mapping[str, Any]) -> None:
        """Restore what ``pack`` returned, except settings that are given explicitly now."""
        self.is_paused, self.excluded = packed["is_paused"], set(packed["excluded"])
        self.updates = None if "run.updates" in self.superseded else packed["updates"]
        self.policy = {k: v for k, v in packed["policy"].items() if f"policy.{k}" not in self.superseded}
        self.handled = packed["handled"]


class Steward(ABC):
    """Carries out the requests to one run; each engine has its own."""

    def __init__(self, session: Session, desk: ControlDesk) -> None:
        self.session, self.desk = session, desk

    @abstractmethod
    def find_client(self, name: str) -> tuple[int, dict[str, Any]]:
        """Return a client's number and its facts for the record; refuse a name that nobody has."""

    @abstractmethod
    def find_setting(self, key: str, value: str) -> dict[str, Any]:
        """Return ``key``, ``from`` and ``to`` of a setting; refuse one that cannot be changed."""

    @abstractmethod
    def follow(self) -> None:
        """Make the engine follow the session's control state."""

    @abstractmethod
    def say(self, line: str) -> None:
        """Put a line into the run's log."""

    @abstractmethod
    def checkpoint(self) -> None:
        """Write a checkpoint."""

    @property
    @abstractmethod
    def time(self) -> float:
        """The run's time."""

    def attend(self) -> None:
        """Carry out the requests that wait, if it is time to look."""
        if not self.desk.is_due:
            return
        answers: list[tuple[ControlRequest, bool, str]] = []
        has_changed = False
        for request in self.desk.take():
            if request.id in self.session.control.handled:
                answers.append((request, True, "carried out"))
                continue
            try:
                record = self._interpret(request)
            except InputError as problem:
                answers.append((request, False, str(problem)))
                continue
            self.session.write("control", **record)
            self.session.obey(record)
            self.follow()
            self.say(record["text"])
            has_changed = True
            answers.append((request, True, record["text"]))
        note = self._make_final() if has_changed else ""
        for request, is_done, line in answers:
            self.desk.answer(request, is_done=is_done, line=line + note * is_done)

    def _make_final(self) -> str:
        try:
            self.checkpoint()
        except RunError as problem:
            return f" (in effect, but not on disk yet: {problem})"
        return ""

    def _interpret(self, request: ControlRequest) -> Record:
        """Return the record of a request; refuse one that cannot be carried out."""
        check_words(request.words)
        command, *arguments = request.words
        found = getattr(self, f"_read_{command}")(*arguments)
        where = {"update": self.session.state.updates, "time": self.time}
        return {**where, "request": request.id, "command": command, **found}

    def _read_pause(self) -> dict[str, Any]:
        if self.session.control.is_paused:
            raise InputError("the run is paused already")
        return {"text": f"paused after update {self.session.state.updates}"}

    def _read_resume(self) -> dict[str, Any]:
        if not self.session.control.is_paused:
            raise InputError("the run is not paused")
        return {"text": f"resumed after update {self.session.state.updates}"}

    def _read_stop(self) -> dict[str, Any]:
        done = self.session.state.updates
        return {"text": f"stopped after update {done}; --resume continues"}

    def _read_updates(self, words: str) -> dict[str, Any]:
        done, before = self.session.state.updates, self.session.run.updates
        if not words.isdecimal() or int(words) <= done:
            raise InputError(f"updates {words}: must be a whole number above {done}, the updates so far")
        return {"from": before, "to": int(words), "text": f"updates changed from {before} to {int(words)}"}

    def _read_exclude(self, name: str) -> dict[str, Any]:
        client, facts = self.find_client(name)
        if client in self.session.control.excluded:
            raise InputError(f"{name} is excluded already")
        return {**facts, "client": client, "text": f"{_label(client, facts)} is excluded"}

    def _read_readmit(self, name: str) -> dict[str, Any]:
        client, facts = self.find_client(name)
        if client not in self.session.control.excluded:
            raise InputError(f"{name} is not excluded")
        return {**facts, "client": client, "text": f"{_label(client, facts)} is readmitted"}

    def _read_set(self, setting: str) -> dict[str, Any]:
        key, _, value = setting.partition("=")
        found = self.find_setting(key.strip(), value.strip())
        return {**found, "text": f"{found['key']} changed from {found['from']} to {found['to']}"}


def check_words(words: tuple[str, ...] | list[str]) -> None:
    """Refuse what is no request."""
    if not words or words[0] not in COMMANDS:
        raise InputError(f"{' '.join(words) or 'nothing'}: must be one of {', '.join(COMMANDS)}")
    if len(words) - 1 != COMMANDS[words[0]]:
        needed = {"updates": "N", "exclude": "NODE", "readmit": "NODE", "set": "policy.KEY=VALUE"}
        raise InputError(f"{' '.join(words)}: must be {words[0]} {needed.get(words[0], 'alone')}")
    if words[0] == "set" and not words[1].partition("=")[1]:
        raise InputError(f"{' '.join(words)}: must be set policy.KEY=VALUE")


def _label(client: int, facts: Mapping[str, Any]) -> str:
    return f"client {client} ({facts['name']})" if facts.get("name") else f"client {client}"
