"""Files that are written whole or not at all, and read without executing anything."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from asyncmanifold.errors import InputError, RunError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a path to write to; afterwards put that file in the place of ``path``, whole or not at all."""
    draft = path.with_name(path.name + ".draft")
    try:
        yield draft
        _sync(draft)
        os.replace(draft, path)
        _sync(path.parent)
    except OSError as error:
        raise RunError(f"{path}: {error.strerror or error}") from error
    finally:
        draft.unlink(missing_ok=True)


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file by a complete one, or leave it as it was."""
    with replacing(path) as draft:
        draft.write_bytes(content)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file for people and programs, atomically."""
    write_atomically(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Any) -> None:
    """Write tensors and plain data to a safetensors file, atomically; equal content gives equal bytes."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    with replacing(path) as draft:
        try:
            save_file(_distinct(tensors), draft, metadata={"asyncmanifold": json.dumps(metadata)})
        except SafetensorError as error:
            raise OSError(str(error)) from error


def load_tensors(path: Path) -> tuple[dict[str, Tensor], Any]:
    """Return what ``save_tensors`` wrote."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            metadata = json.loads(file.metadata()["asyncmanifold"])
            return {name: file.get_tensor(name) for name in file.keys()}, metadata  # noqa: SIM118
    except (SafetensorError, LookupError, TypeError, ValueError) as error:
        raise InputError(f"{path}: not a file of asyncmanifold: {error}") from error


def save_tree(path: Path, tree: Any) -> None:
    """Write dictionaries and lists of tensors, numbers and strings, nested at will, atomically.

    A tensor that stands in several places is written once, and is one tensor again when it is read.
    """
    tensors: dict[str, Tensor] = {}
    names: dict[int, str] = {}

    def plain(value: Any, path: str) -> Any:
        if isinstance(value, Tensor):
            name = names.setdefault(id(value), path)
            tensors[name] = value
            return {"tensor": name}
        if isinstance(value, Mapping):
            return {"entries": [[key, plain(entry, f"{path}.{key}")] for key, entry in value.items()]}
        if isinstance(value, list | tuple):
            return {"list": [plain(entry, f"{path}.{place}") for place, entry in enumerate(value)]}
        return value

    save_tensors(path, tensors, plain(tree, "tree"))


def load_tree(path: Path) -> Any:
    """Return what ``save_tree`` wrote, tuples as lists."""
    tensors, plain = load_tensors(path)

    def full(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        if "tensor" in value:
            return tensors[value["tensor"]]
        if "entries" in value:
            return {key: full(entry) for key, entry in value["entries"]}
        return [full(entry) for entry in value["list"]]

    return full(plain)


def _distinct(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
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
