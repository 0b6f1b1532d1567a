"""A run's records: an append-only trace, and checkpoints that a killed run continues from."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

Record = dict[str, Any]
_encode = json.JSONEncoder(allow_nan=False).encode


class MemoryTrace:
    """A trace that is kept in a list, for runs without a directory."""

    def __init__(self) -> None:
        self._records: list[Record] = []

    def write(self, record: Record) -> None:
        """Append a record."""
        self._records.append(record)

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records)

    def close(self) -> None:
        """Do nothing."""


class FileTrace:
    """A trace in a file: one JSON object a line, each written out at once."""

    def __init__(self, path: Path, keep: int = 0) -> None:
        """Open for appending after the first ``keep`` bytes; what stands behind them is cut off."""
        self._path = path
        self._file = path.open("a+b")
        self._file.truncate(keep)
        self._file.seek(0, os.SEEK_END)

    def write(self, record: Record) -> None:
        """Append a record."""
        self._file.write(_encode(record).encode() + b"\n")
        self._file.flush()

    def position(self) -> int:
        """Return the length in bytes, once everything is safely on disk."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()

    def __iter__(self) -> Iterator[Record]:
        return read_trace(self._path)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_trace(path: Path) -> Iterator[Record]:
    """Yield the records of a trace file; a last line that was cut off by a kill is left out."""
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield json.loads(line)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a path to write to; afterwards put that file in the place of ``path``, whole or not at all."""
    draft = path.with_name(path.name + ".draft")
    try:
        yield draft
        _sync(draft)
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    _sync(path.parent)


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file by a complete one, or leave it as it was."""
    with replacing(path) as draft:
        draft.write_bytes(content)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file for people and programs, atomically."""
    write_atomically(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())


def save_tensors(path: Path, tensors: dict[str, Tensor], metadata: Any) -> None:
    """Write tensors and plain data to a safetensors file, atomically; equal content gives equal bytes."""
    from safetensors.torch import save_file

    with replacing(path) as draft:
        save_file(_distinct(tensors), draft, metadata={"asyncmanifold": json.dumps(metadata)})


def load_tensors(path: Path) -> tuple[dict[str, Tensor], Any]:
    """Return what ``save_tensors`` wrote."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        metadata = json.loads(file.metadata()["asyncmanifold"])
        return {name: file.get_tensor(name) for name in file.keys()}, metadata  # noqa: SIM118


def _distinct(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors with a copy for each that another one shares memory with."""
    distinct: dict[int, tuple[str, Tensor]] = {}
    copies: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.data_ptr() in distinct:
            copies[name] = tensor.clone()
        else:
            distinct[tensor.data_ptr()] = (name, tensor.contiguous())
    return dict(distinct.values()) | copies


def _sync(path: Path) -> None:
    """See a file, or the names in a folder, safely on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
