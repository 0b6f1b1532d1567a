"""Follow a trace while it grows. The file is only read: no lock, no write, no word to the run's process."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from asyncmanifold.session.trace import Record

MOST_BYTES = 2**24
"""The most that one call reads, so that a long trace does not keep the first reader waiting."""
LONGEST_LINE = 2**20


class TraceFollower:
    """Passes each complete record of a trace on, once; starts over if the trace was cut or replaced.

    A resumed run cuts its trace and may have written more than before until the next look. So the last line
    that was read is compared with what stands at its place now, not only the file's length.
    """

    def __init__(self, path: Path) -> None:
        """Begin at the start of the file, which need not exist yet."""
        self._path = path
        self._begin()

    def _begin(self) -> None:
        self._position, self._file_number = 0, -1
        self._last_line = b""

    def follow(self, start_over: Callable[[], None], take: Callable[[Record], None]) -> bool:
        """Pass new records to ``take``, after ``start_over`` if what was read is void; return if more waits.

        A last line without its end waits for the next call; a line that is no record is left out.
        """
        try:
            with self._path.open("rb") as file:
                is_new = os.fstat(file.fileno()).st_ino != self._file_number
                file.seek(max(0, self._position - len(self._last_line)))
                if is_new or file.read(len(self._last_line)) != self._last_line:
                    self._begin()
                    self._file_number = os.fstat(file.fileno()).st_ino
                    start_over()
                    file.seek(0)
                read = file.read(MOST_BYTES)
        except OSError:
            return False
        end = read.rfind(b"\n") + 1
        lines = read[:end].splitlines(keepends=True)
        for line in lines:
            if (record := _as_record(line)) is not None:
                take(record)
        if lines:
            self._position += end
            self._last_line = lines[-1][-LONGEST_LINE:]
        return end > 0 and len(read) == MOST_BYTES


def _as_record(line: bytes) -> Record | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and isinstance(record.get("kind"), str) else None
