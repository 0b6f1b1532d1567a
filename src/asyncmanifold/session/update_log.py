"""The log of accepted updates since the last checkpoint: one durable event for each, all of it in one file.

An entry is everything that is needed to absorb the update again: absorbing is a pure function, so the last
checkpoint and the log give the same state, bit for bit. An entry is preceded by its length and checksum. One
that was cut off by a kill or a full disk was never made known to anybody, and is ignored.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from asyncmanifold.errors import RunError
from asyncmanifold.files import decode_tree, encode_tree

FRAME = struct.Struct("<4sIQ")
"""Mark, checksum and length of an entry."""
MARK = b"AMU1"


class UpdateLog:
    """A file of entries; what was appended counts from the next ``commit`` on."""

    def __init__(self, path: Path) -> None:
        """Open or create the file."""
        self._path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        self._waiting: list[bytes | memoryview] = []
        self.size = 0
        """Bytes of complete entries."""

    def entries(self) -> Iterator[Mapping[str, Any]]:
        """Yield the complete entries, and cut off what follows the last one."""
        self.size = 0
        length = os.fstat(self._file).st_size
        while (content := self._read(self.size, length)) is not None:
            yield decode_tree(content)
            self.size += FRAME.size + len(content)
        os.ftruncate(self._file, self.size)

    def append(self, entry: Mapping[str, Any]) -> None:
        """Take an entry; its tensors must not change until the next ``commit``."""
        content = encode_tree(entry)
        checksum = 0
        for piece in content:
            checksum = zlib.crc32(piece, checksum)
        self._waiting += [FRAME.pack(MARK, checksum, sum(map(len, content))), *content]

    def commit(self) -> None:
        """Wait until all entries are on disk; on any error none of the new ones counts."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        try:
            end = self.size
            for piece in waiting:
                end += _write_all(self._file, piece, end)
            os.fdatasync(self._file)
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._file, self.size)
            raise RunError(f"{self._path}: {error.strerror}; the update is not accepted") from error
        self.size = end

    def cut(self) -> None:
        """Remove all entries: a checkpoint holds their effect."""
        self.size = 0
        os.ftruncate(self._file, 0)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _read(self, place: int, length: int) -> bytes | None:
        """Return the content of the entry at ``place``, or None if there is no complete one."""
        head = os.pread(self._file, FRAME.size, place)
        if len(head) < FRAME.size:
            return None
        mark, checksum, size = FRAME.unpack(head)
        if mark != MARK or place + FRAME.size + size > length:
            return None
        content = os.pread(self._file, size, place + FRAME.size)
        return content if zlib.crc32(content) == checksum else None


def _write_all(file: int, piece: bytes | memoryview, place: int) -> int:
    """Write all bytes at ``place``, however many the system takes at a time; return their number."""
    rest = memoryview(piece)
    while len(rest):
        done = os.pwrite(file, rest, place)
        rest, place = rest[done:], place + done
    return len(piece)
