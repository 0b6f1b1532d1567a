"""Files that are written whole or not at all, and read without executing anything."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor


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
