"""Vectors in 16 and in 8 bits, and back.

All but ``nearest_places`` works entry by entry, so that the bits are the same on every processor.
"""

from __future__ import annotations

from math import frexp, isfinite, ldexp, nan

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from asyncmanifold.server.gram import gram_matrix

LARGEST_EXPONENT = 15
"""16-bit numbers reach 65,504: below 2¹⁵ nothing overflows."""
LEAST_EXPONENT = -126
"""No smaller power of two is a normal float32."""
MOST_STEPS = 127
"""Steps of 8 bits, in both directions."""


def to_half(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows in 16 bits, each divided by its own power of two, and those powers.

    A row with a value that is not finite gets a scale that is not, which no receiver takes.
    """
    powers = [_power_of_two(largest) for largest in rows.abs().amax(dim=1).tolist()]
    scales = torch.tensor(powers, dtype=torch.float32)
    return (rows / scales[:, None]).half(), scales


def from_half(halves: Tensor, scales: Tensor) -> Tensor:
    """Return what ``to_half`` was given, up to rounding."""
    return halves.float() * scales[:, None]


def to_steps(rows: Tensor, block_size: int, random: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Return rows as steps of −127 to 127, rounded at random, and the length of a step in each block."""
    points, size = rows.shape
    count = -(-size // block_size)
    blocks = pad(rows, (0, count * block_size - size)).view(points, count, block_size)
    scales = blocks.abs().amax(dim=2) / MOST_STEPS
    steps = blocks / torch.where(scales == 0.0, 1.0, scales)[:, :, None]
    below = steps.floor()
    drawn = torch.from_numpy(random.random(tuple(blocks.shape), dtype=np.float32))
    whole = below.add_(drawn < steps.sub_(below)).clamp_(-MOST_STEPS, MOST_STEPS)
    return whole.to(torch.int8).view(points, count * block_size)[:, :size].contiguous(), scales


def from_steps(steps: Tensor, scales: Tensor, block_size: int) -> Tensor:
    """Return what ``to_steps`` was given, up to rounding."""
    return steps * scales.repeat_interleave(block_size, dim=1)[:, : steps.shape[1]]


def nearest_places(offsets: Tensor) -> Tensor:
    """Return, for all rows but the last, the multiple of the last row that is nearest."""
    theta = offsets[-1]
    *interior, end = gram_matrix(offsets, theta, theta)[:-1, len(offsets) - 1].tolist()
    places = [product / end if end > 0.0 else 0.0 for product in interior]
    return torch.tensor(places, dtype=torch.float32)


def _power_of_two(largest: float) -> float:
    """Return the power of two that takes a number to [2¹⁴, 2¹⁵) when the number is divided by it."""
    if not isfinite(largest):
        return nan
    return ldexp(1.0, max(frexp(largest)[1] - LARGEST_EXPONENT, LEAST_EXPONENT))
