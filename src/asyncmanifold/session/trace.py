"""A run's trace: append-only, one record per server update, evaluation and event."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from asyncmanifold.errors import RunError

Record = dict[str, Any]
_encode = json.JSONEncoder(allow_nan=False).encode


class MemoryTrace(list[Record]):
    """A trace that is kept in a list, for runs without a directory."""

    def write(self, record: Record) -> None:
        """Append a record."""
        self.append(record)

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
        self._file.write(_encode(record).encode() + b"\n")
        self._flush()

    def position(self) -> int:
        """Return the length in bytes, after everything is on disk."""
        self._flush()
        os.fsync(self._file.fileno())
        return self._file.tell()

    def __iter__(self) -> Iterator[Record]:
        return read_trace(self._path)

    def close(self) -> None:
        """Close the file; an error of a full disk has been raised by ``write`` already."""
        with suppress(OSError):
            self._file.close()

    def _flush(self) -> None:
        try:
            self._file.flush()
        except OSError as error:
            raise RunError(f"{self._path}: {error.strerror}") from error


def read_trace(path: Path) -> Iterator[Record]:
    """Yield the records of a trace file, without a last line that was cut off when the process was killed."""
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield json.loads(line)
