"""Stochastic weight averaging: the returned model is a mean of late ones."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from asyncmanifold.geometry.spaces import FLAT, Space
from asyncmanifold.server.protocol import Average, ServerState
from asyncmanifold.vectors import Buffers


@dataclass(frozen=True)
class Averaging:
    """From version ``average_from`` on, average every ``average_every``-th model (SWA).

    On manifolds the mean is Karcher's, the point with the least sum of squared distances.
    """

    average_from: int
    average_every: int = 1

    def __post_init__(self) -> None:
        if self.average_from < 0:
            raise ValueError(f"Averaging(average_from={self.average_from}) must be at least 0")
        if self.average_every < 1:
            raise ValueError(f"Averaging(average_every={self.average_every}) must be at least 1")

    def next(self, state: ServerState, space: Space = FLAT) -> Average | None:
        """Return the average with the state's model in it, if its version is one of those averaged."""
        past = state.version - self.average_from
        if past < 0 or past % self.average_every:
            return state.average
        if state.average is None:
            points = None if space.is_flat else space.curved_part(state.theta)[None]
            return Average(state.theta.clone(), state.buffers, 1, points)
        count = state.average.count + 1
        floats = torch.lerp(state.average.buffers.floats, state.buffers.floats, 1.0 / count)
        theta, points = torch.lerp(state.average.theta, state.theta, 1.0 / count), state.average.points
        if points is not None:
            points = torch.cat([points, space.curved_part(state.theta)[None]])
            theta = space.with_mean(theta, points)
        return Average(theta, Buffers(floats, state.buffers.integers), count, points)
