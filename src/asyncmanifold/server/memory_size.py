"""What a method remembers, in words."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from asyncmanifold.server.methods import Method

SIZE = 1000
"""The length of the vector that a memory is measured with."""


def describe_memory(method: Method) -> str:
    """Return what the server keeps besides the model, for n clients and P parameters.

    >>> from asyncmanifold import METHODS
    >>> [describe_memory(METHODS[name]) for name in ("fadas", "ace", "fedasync")]
    ['3 P + P held', 'P + n × P', 'nothing']
    """
    theta = torch.zeros(SIZE)
    vectors = sum(_count_vectors(part.init(theta)) for part in method.stages.values())
    known = [f"{vectors if vectors > 1 else ''} P".strip()] if vectors else []
    grown = [part.memory_size for part in method.stages.values() if part.memory_size]
    held = ["P held"] if method.buffer is not None and method.buffer.holds_back else []
    return " + ".join([*known, *grown, *held]) or "nothing"


def _count_vectors(value: Any) -> int:
    if isinstance(value, dict):
        return sum(map(_count_vectors, value.values()))
    return int(isinstance(value, Tensor) and value.numel() == SIZE)
