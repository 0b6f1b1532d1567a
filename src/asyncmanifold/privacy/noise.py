"""Gaussian noise that nobody can predict: made of the operating system's entropy, never of a run's seed.

A seed is written to ``config.toml`` and sent to every node, so noise derived from it would protect nothing.
Neither torch's nor NumPy's generators are used: from a few of their numbers the following can be computed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

RandomBytes = Callable[[int], bytes]
"""Returns so many bytes, different ones with every call."""
BLOCK = 2**18
"""Numbers that are made at a time: they stay in cache."""


def gaussian_noise(count: int, random_bytes: RandomBytes = os.urandom) -> npt.NDArray[np.float64]:
    """Return independent standard normal numbers (Box and Muller), from 53 random bits for each.

    The largest possible one is 8.6; a true one is beyond that with probability 1e-17.

    >>> from asyncmanifold.privacy.noise import gaussian_noise
    >>> gaussian_noise(3).shape
    (3,)
    """
    pairs = (count + 1) // 2
    uniform = (np.frombuffer(random_bytes(16 * pairs), np.uint64) >> np.uint64(11)) * 2.0**-53
    radius, angle = np.sqrt(-2.0 * np.log1p(-uniform[:pairs])), 2.0 * np.pi * uniform[pairs:]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]


def secret_stream(secret: str, purpose: bytes) -> RandomBytes:
    """Return bytes derived from a secret by SHAKE-256: the same ones for the same purpose."""
    calls = 0

    def random_bytes(count: int) -> bytes:
        nonlocal calls
        calls += 1
        return hashlib.shake_256(bytes.fromhex(secret) + purpose + calls.to_bytes(8, "big")).digest(count)

    return random_bytes


def clip_factor(tensor: Tensor, clip_norm: float) -> float:
    """Return the factor that scales a tensor down to a norm, at most 1; 0 for one that is not finite.

    >>> import torch
    >>> from asyncmanifold.privacy.noise import clip_factor
    >>> [clip_factor(torch.tensor([3.0, 4.0]), norm) for norm in (1.0, 10.0)]
    [0.2, 1.0]
    """
    norm = torch.linalg.vector_norm(tensor, dtype=torch.float64).item()
    if not np.isfinite(norm):
        return 0.0
    return clip_norm / norm if norm > clip_norm else 1.0


def add_noise(
    tensor: Tensor, deviation: float, *, factor: float = 1.0, random_bytes: RandomBytes = os.urandom
) -> None:
    """Scale a contiguous tensor by ``factor`` and add noise to every entry, in place.

    With the factor 0 nothing is left of the tensor, whatever it held. Arithmetic is in double precision and
    rounded once, to the tensor's precision.
    """
    entries = tensor.view(-1)
    for start in range(0, len(entries), BLOCK):
        block = entries[start : start + BLOCK]
        noise = torch.from_numpy(gaussian_noise(block.numel(), random_bytes)).mul_(deviation)
        if factor != 0.0:
            noise.add_(block.to("cpu", torch.float64), alpha=factor)
        block.copy_(noise)
