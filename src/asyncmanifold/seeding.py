"""Random generators derived from (run seed, purpose, ids), so that no global generator affects a run."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
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
    EXAMPLES = 12
    TRUSTED = 20
    HOSTILE = 21
    ATTACK = 22


def derive(seed: int, purpose: Purpose, *ids: int) -> np.random.Generator:
    """Return the generator for one purpose; the same arguments always give the same numbers."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence((seed, purpose, *ids))))


@contextmanager
def torch_seed(generator: np.random.Generator, device: torch.device | None = None) -> Iterator[None]:
    """Seed torch's default generators, of the CPU and a device, for a block; restore their states afterwards.

    Layers such as dropout, and weight initialisation, can use no other generator. ``torch.manual_seed`` is
    avoided on the CPU: it would also queue a call for every absent accelerator, each time.
    """
    state, seed = torch.default_generator.get_state(), int(generator.integers(2**63))
    torch.default_generator.manual_seed(seed)
    restore = _seed_device(device, seed) if device is not None and device.type != "cpu" else None
    try:
        yield
    finally:
        torch.default_generator.set_state(state)
        if restore is not None:
            restore()


def _seed_device(device: torch.device, seed: int) -> Callable[[], None]:
    """Seed a device's default generator, and return a function that restores its state."""
    module = torch.get_device_module(device)
    which = () if device.type == "mps" else (device,)
    state = module.get_rng_state(*which)
    torch.manual_seed(seed)
    return lambda: module.set_rng_state(state, *which)


@contextmanager
def global_seeds(generator: np.random.Generator) -> Iterator[None]:
    """Seed the global generators of NumPy and Python for a block and restore their states afterwards.

    A torch ``Dataset`` may augment its examples with them, and its author knows of no other.
    """
    states = np.random.get_state(), random.getstate()
    np.random.seed(int(generator.integers(2**32)))
    random.seed(int(generator.integers(2**63)))
    try:
        yield
    finally:
        np.random.set_state(states[0])
        random.setstate(states[1])
