"""Where requests to a running run arrive: small files in its directory, consumed in order, answered in files.

A request is written by ``asyncmanifold control`` as ``request-ID.json``. The run renames it to
``taken-ID.json``, and removes it when its answer, ``answer-ID.json``, is written. So a request is taken or
withdrawn, never both, and one that was taken and not answered before a kill is found again.
"""

from __future__ import annotations

import json
import os
import secrets
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, time_ns
from typing import Any

NAME = "control"
INTERVAL = 0.25
"""Seconds between two looks for requests."""
LONGEST_REQUEST = 2**14
MOST_WORDS = 3


@dataclass(frozen=True)
class ControlRequest:
    """What somebody asks of a run."""

    id: str
    words: tuple[str, ...]


class ControlDesk:
    """A run's side: takes requests and answers them; without a directory there are none."""

    def __init__(self, run: Path | None) -> None:
        """Open the desk of a run's directory."""
        self._path = None if run is None else run / NAME
        self._next = 0.0
        if self._path is not None:
            with suppress(OSError):  # a disk that is full now may not be later
                self._path.mkdir(exist_ok=True)

    @property
    def is_due(self) -> bool:
        """Whether it is time to look for requests."""
        return self._path is not None and perf_counter() >= self._next

    def take(self) -> list[ControlRequest]:
        """Return the requests that wait, oldest first."""
        self._next = perf_counter() + INTERVAL
        if self._path is None:
            return []
        taken = []
        try:
            names = sorted(os.listdir(self._path), key=lambda name: name.partition("-")[2])
        except OSError:
            return []
        for name in names:
            kind, _, rest = name.partition("-")
            if kind not in ("request", "taken") or not rest.endswith(".json"):
                continue
            path = self._path / f"taken-{rest}"
            with suppress(OSError):  # one that was withdrawn just now
                os.replace(self._path / name, path)
                taken.append(ControlRequest(rest.removesuffix(".json"), _read_words(path)))
        return taken

    def answer(self, request: ControlRequest, *, is_done: bool, line: str) -> None:
        """Tell whoever asked, and forget the request."""
        if self._path is not None:
            with suppress(OSError):
                write_whole(self._path / f"answer-{request.id}.json", {"is_done": is_done, "line": line})
                (self._path / f"taken-{request.id}.json").unlink()

    def close(self) -> None:
        """Tell those who still wait that the run has ended."""
        for request in self.take():
            self.answer(request, is_done=False, line="the run has ended")
        if self._path is not None:
            with suppress(OSError):
                self._path.rmdir()


class ControlSlip:
    """The asking side: one request, and its answer."""

    def __init__(self, run: Path, words: list[str]) -> None:
        """Leave a request at the desk of a run; raise ``OSError`` if there is none."""
        self._desk = run / NAME
        self._id = f"{time_ns():020d}-{secrets.token_hex(4)}"
        write_whole(self._desk / f"request-{self._id}.json", {"words": words})

    def answer(self) -> tuple[bool, str] | None:
        """Return whether the request was carried out, and a line about it; None if there is no answer yet."""
        path = self._desk / f"answer-{self._id}.json"
        try:
            said = json.loads(path.read_text(encoding="utf-8"))
        except OSError:
            return None
        path.unlink(missing_ok=True)
        return bool(said["is_done"]), str(said["line"])

    def withdraw(self) -> bool:
        """Take the request back; return False if the run has taken it already."""
        try:
            (self._desk / f"request-{self._id}.json").unlink()
        except OSError:
            return False
        return True


def write_whole(path: Path, value: Any) -> None:
    """Write a JSON file that is there completely or not at all."""
    draft = path.with_name(f"draft-{path.name}")
    draft.write_text(json.dumps(value), encoding="utf-8")
    os.replace(draft, path)


def _read_words(path: Path) -> tuple[str, ...]:
    """Return the words of a request; none if it is broken, which no command is."""
    try:
        with path.open("rb") as file:
            words = json.loads(file.read(LONGEST_REQUEST))["words"]
        return tuple(map(str, words))[: MOST_WORDS + 1] if isinstance(words, list) else ()
    except (ValueError, LookupError, TypeError, RecursionError):
        return ()
