"""A client's model statistics, such as BatchNorm's: what is plausible, and how far they move the model's.

Statistics never went through a loss, so nothing about them is self-correcting: one impossible value stays.
"""

from __future__ import annotations

import torch
from torch import Tensor

from asyncmanifold.server.protocol import Rejected
from asyncmanifold.server.stages import Memory
from asyncmanifold.vectors import Statistics

FARTHEST = 1e3
"""A value may move by this multiple of 1 + its size with one update; it is cut there."""
MOST_COUNTED = 2**20
"""No job has more steps than this, so no counter grows by more."""


def plausible_statistics(received: Statistics, current: Statistics, variances: Tensor | None) -> Statistics:
    """Return a client's statistics without what no training can have done; reject what is impossible.

    A counter, or any other whole number, is taken if it is between the model's and ``MOST_COUNTED`` more;
    it is lower if the client started from an older model, and the model's stays. ``variances`` marks the
    values that are variances.
    """
    floats = received.floats
    if floats.numel():
        if not torch.isfinite(floats).all():
            raise Rejected("statistics have non-finite values")
        if variances is not None and bool((floats[variances] < 0.0).any()):
            raise Rejected("statistics have negative variances")
        reach = FARTHEST * (1.0 + current.floats.abs())
        floats = floats.clamp(current.floats - reach, current.floats + reach)
    integers = received.integers
    if integers.numel():
        growth = integers - current.integers
        integers = torch.where((growth >= 0) & (growth <= MOST_COUNTED), integers, current.integers)
    return Statistics(floats, integers)


def gather_statistics(held: Memory | None, received: Statistics, fraction: float) -> Memory:
    """Add a client's statistics, weighted by its step, to those that wait for the model to move."""
    floats = received.floats * fraction if received.floats.numel() else received.floats
    if held is not None:
        floats, fraction = held["floats"] + floats, held["fraction"] + fraction
    return {"floats": floats, "fraction": fraction, "integers": received.integers}


def mix_statistics(current: Statistics, gathered: Memory, scale: float) -> Statistics:
    """Move statistics towards the mean of the gathered ones, by the sum of step fractions, at most 1."""
    if gathered["fraction"] <= 0.0 or not current.floats.numel():
        return Statistics(current.floats, gathered["integers"])
    mean = gathered["floats"] / gathered["fraction"]
    fraction = min(1.0, gathered["fraction"] * scale)
    return Statistics(torch.lerp(current.floats, mean, fraction), gathered["integers"])


def shortened(received: Statistics, current: Statistics, factor: float) -> Statistics:
    """Return statistics that have moved ``factor`` of the way, like offsets that a gate has shortened."""
    if factor == 1.0 or not received.floats.numel():
        return received
    return Statistics(torch.lerp(current.floats, received.floats, factor), received.integers)
