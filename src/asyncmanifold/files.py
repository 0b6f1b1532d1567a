"""Write files completely or not at all, and read them without executing anything."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asyncmanifold.errors import InputError, RunError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a draft path to write to, and replace ``path`` with it at the end of the block.

    The draft is on disk before it is renamed, so a crash leaves the old file or the new one, never a part.
    """
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
    """Replace a file with new content, or leave it unchanged on any error."""
    with replacing(path) as draft:
        draft.write_bytes(content)


def write_json(path: Path, value: Any) -> None:
    """Write an indented JSON file, atomically."""
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
    """Return the tensors and the plain data that ``save_tensors`` wrote."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            metadata = json.loads(file.metadata()["asyncmanifold"])
            return {name: file.get_tensor(name) for name in file.keys()}, metadata  # noqa: SIM118
    except (SafetensorError, LookupError, TypeError, ValueError) as error:
        raise InputError(f"{path}: not an asyncmanifold file: {error}") from error


def save_tree(path: Path, tree: Any) -> None:
    """Write arbitrarily nested dictionaries and lists of tensors, numbers and strings, atomically.

    A tensor that occurs in several places, such as the base model of several jobs, is written once and read
    back as one tensor.
    """
    plain, tensors = _take_tensors(tree)
    save_tensors(path, tensors, plain)


def load_tree(path: Path) -> Any:
    """Return what ``save_tree`` wrote, with tuples as lists."""
    tensors, plain = load_tensors(path)
    return _put_tensors(plain, tensors)


def encode_tree(tree: Any) -> list[bytes | memoryview]:
    """Return a tree like those of ``save_tree`` as bytes in several pieces, without copying its tensors.

    A line of JSON gives the tree and the type and shape of each tensor; their numbers follow. For small
    tensors this takes a tenth of the time of a safetensors file.
    """
    plain, tensors = _take_tensors(tree)
    arrays = {name: np.ascontiguousarray(tensor.detach().cpu().numpy()) for name, tensor in tensors.items()}
    forms = {name: [array.dtype.str, array.shape] for name, array in arrays.items()}
    head = json.dumps([plain, forms], allow_nan=False).encode() + b"\n"
    return [head, *(array.reshape(-1).view(np.uint8).data for array in arrays.values())]


def decode_tree(content: bytes) -> Any:
    """Return the tree whose pieces ``encode_tree`` returned."""
    place = content.index(b"\n") + 1
    plain, forms = json.loads(content[:place])
    tensors: dict[str, Tensor] = {}
    for name, (kind, shape) in forms.items():
        count = prod(shape)
        array = np.frombuffer(content, np.dtype(kind), count, place).reshape(shape)
        tensors[name] = torch.from_numpy(array.copy())
        place += array.nbytes
    return _put_tensors(plain, tensors)


def _take_tensors(tree: Any) -> tuple[Any, dict[str, Tensor]]:
    """Return a tree as JSON with names in place of its tensors, and the tensors by name."""
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

    return plain(tree, "tree"), tensors


def _put_tensors(plain: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Return the tree that ``_take_tensors`` took apart."""

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
    """Return the tensors, with copies of those that share memory, which safetensors refuses to save."""
    distinct: dict[int, tuple[str, Tensor]] = {}
    copies: dict[str, Tensor] = {}
    for name, anywhere in tensors.items():
        tensor = anywhere.cpu()
        if tensor.data_ptr() in distinct:
            copies[name] = tensor.clone()
        else:
            distinct[tensor.data_ptr()] = (name, tensor.contiguous())
    return dict(distinct.values()) | copies


def _sync(path: Path) -> None:
    """Wait until a file, or the file names in a folder, are on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
