"""A run's trace: append-only, one record per server update, evaluation and event."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from asyncmanifold.errors import RunError

Record = dict[str, Any]
PLACES = ("kind", "update", "version", "time", "wall_seconds")
"""What the record of an evaluation holds besides scores."""
_encode = json.JSONEncoder(allow_nan=False).encode


class TraceWriter(Protocol):
    """Where records go."""

    def write(self, record: Record) -> None:
        """Append a record."""
        ...


class MemoryTrace(list[Record]):
    """A trace that is kept in a list, for runs without a directory."""

    def write(self, record: Record) -> None:
        """Append a record."""
        self.append(record)

    def write_all(self, records: Iterable[Record]) -> None:
        """Append records."""
        self.extend(records)

    def close(self) -> None:
        """Do nothing."""


class FileTrace:
    """A trace in a file: one JSON object per line, each flushed at once, so that a kill loses no record."""

    def __init__(self, path: Path, keep: int = 0) -> None:
        """Open for appending after the first ``keep`` bytes, and cut off the rest."""
        self._path = path
        self._file = path.open("a+b")
        self._file.truncate(keep)
        self._file.seek(0, os.SEEK_END)

    def write(self, record: Record) -> None:
        """Append a record."""
        self.write_all([record])

    def write_all(self, records: Iterable[Record]) -> None:
        """Append records, all at once."""
        self._file.write(b"".join(_encode(record).encode() + b"\n" for record in records))
        self._flush()

    def position(self) -> int:
        """Return the length in bytes, after everything is on disk."""
        self._flush(durably=True)
        return self._file.tell()

    def __iter__(self) -> Iterator[Record]:
        return read_trace(self._path)

    def close(self) -> None:
        """Close the file; an error of a full disk has been raised by ``write`` already."""
        with suppress(OSError):
            self._file.close()

    def _flush(self, *, durably: bool = False) -> None:
        try:
            self._file.flush()
            if durably:
                os.fsync(self._file.fileno())
        except OSError as error:
            raise RunError(f"{self._path}: {error.strerror}") from error


def read_tail(path: Path, start: int) -> Iterator[Record]:
    """Yield the records after the first ``start`` bytes, up to the first that is not complete."""
    with suppress(ValueError, FileNotFoundError), path.open("rb") as file:
        file.seek(start)
        for line in file:
            record = json.loads(line)
            if not line.endswith(b"\n") or not isinstance(record, dict) or "kind" not in record:
                return
            yield record


def read_trace(path: Path) -> Iterator[Record]:
    """Yield the records of a trace file, without a last line that was cut off when the process was killed."""
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield json.loads(line)
