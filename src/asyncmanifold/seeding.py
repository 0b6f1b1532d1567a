"""Randomness derived from (run seed, purpose, ids): no global generator is read or left changed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

import numpy as np
import torch


class Purpose(IntEnum):
    """What a stream of random numbers is for. The numbers are part of a run's identity: never reuse one."""

    MODEL = 0
    PARTITION = 1
    TRAINING = 2
    DISPATCH = 3
    SPEED = 4
    LATENCY = 5
    DROP = 6
    MEMBERSHIP = 7
    LAYERS = 8
    LANDSCAPE = 9
    TUNNEL = 10
    OUTGOING = 11


def derive(seed: int, purpose: Purpose, *ids: int) -> np.random.Generator:
    """Return the generator of one purpose; the same arguments always give the same numbers."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence((seed, purpose, *ids))))


@contextmanager
def torch_seed(generator: np.random.Generator) -> Iterator[None]:
    """Seed torch's default generator for a block and put it back afterwards.

    Layers such as dropout and weight initialisation know no other generator. (``torch.manual_seed`` would
    also queue a call for every absent accelerator, each time.)
    """
    state = torch.default_generator.get_state()
    torch.default_generator.manual_seed(int(generator.integers(2**63)))
    try:
        yield
    finally:
        torch.default_generator.set_state(state)
