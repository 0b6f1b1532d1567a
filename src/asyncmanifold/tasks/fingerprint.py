"""A fingerprint of a task's data and model: enough to notice that a run is resumed with others, and cheap."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from asyncmanifold.tasks.data import Data, sizes_of
from asyncmanifold.tasks.task import Task

CLIENTS, ROWS = 16, 8
"""How many clients, and how many examples of each, are read."""
LENGTH = 16


def fingerprint_task(task: Task, module: nn.Module) -> dict[str, str]:
    """Return the fingerprints of a task's data and of its model's structure.

    The data's is computed from every client's size and a few examples of a few clients, not from gigabytes.
    """
    words: list[str | bytes] = [str(sizes_of(task.clients)), str(len(task.test))]
    if task.validation is not None:
        words.append(str(sizes_of(task.validation)))
    for number in _spread(len(task.clients), CLIENTS):
        words += _sample(task.clients[number])
    words += _sample(task.test)
    if task.trusted is not None:
        words += [str(len(task.trusted)), *_sample(task.trusted)]
    structure = [f"{name} {tuple(part.shape)} {part.dtype}" for name, part in module.state_dict().items()]
    return {"data": _digest(words), "model": _digest(structure)}


def _sample(data: Data) -> list[str | bytes]:
    """Return a few examples as words: their bytes too, unless they change when they are read again."""
    rows = torch.tensor(_spread(len(data), ROWS))
    first, second = (_words(data.batch(rows)) for _ in range(2))
    if first == second:
        return first
    return [word for word in _words(data.batch(rows[:1])) if isinstance(word, str)]


def _words(value: Any) -> list[str | bytes]:
    """Return a batch as words: kinds and shapes as strings, contents as bytes."""
    if isinstance(value, Tensor):
        plain = value.detach().cpu().contiguous()
        content = plain.view(torch.uint8) if plain.dim() else plain.reshape(1).view(torch.uint8)
        return [f"{value.dtype} {tuple(value.shape)}", content.numpy().tobytes()]
    if isinstance(value, np.ndarray):
        return [f"{value.dtype} {value.shape}", value.tobytes()]
    if isinstance(value, Mapping):
        return [word for name in value for word in (str(name), *_words(value[name]))]
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [word for entry in value for word in _words(entry)]
    return [type(value).__name__, str(value).encode()]


def _spread(count: int, most: int) -> list[int]:
    """Return at most ``most`` numbers below ``count``, evenly spread, with the first and the last."""
    return sorted({round(place) for place in np.linspace(0, count - 1, min(count, most)).tolist()})


def _digest(words: Iterable[str | bytes]) -> str:
    found = hashlib.sha256()
    for word in words:
        content = word.encode() if isinstance(word, str) else word
        found.update(len(content).to_bytes(8, "little") + content)
    return found.hexdigest()[:LENGTH]
