"""Random generators derived from (run seed, purpose, ids), so that no global generator affects a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

import numpy as np
import torch


class Purpose(IntEnum):
    """What a stream of random numbers is for. Never reuse or change a value: results depend on it."""

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
    """Return the generator for one purpose; the same arguments always give the same numbers."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence((seed, purpose, *ids))))


@contextmanager
def torch_seed(generator: np.random.Generator) -> Iterator[None]:
    """Seed torch's default generator for a block and restore its state afterwards.

    Layers such as dropout, and weight initialisation, can use no other generator. ``torch.manual_seed`` is
    avoided: it would also queue a call for every absent accelerator, each time.
    """
    state = torch.default_generator.get_state()
    torch.default_generator.manual_seed(int(generator.integers(2**63)))
    try:
        yield
    finally:
        torch.default_generator.set_state(state)
