"""How many threads torch uses: the order of every sum, and so every bit, depends on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def torch_threads(count: int = 1) -> Iterator[None]:
    """Use so many torch threads; with one, results are the same to the last bit."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
