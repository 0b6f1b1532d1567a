"""Stochastic weight averaging: return a mean of late models."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from asyncmanifold.checks import check
from asyncmanifold.geometry.server_manifold import mean_on_manifold
from asyncmanifold.geometry.spaces import FLAT, Space
from asyncmanifold.server.protocol import ServerState
from asyncmanifold.server.stages import Memory, Part


@dataclass(frozen=True)
class Averaging(Part):
    """The returned model is the mean of late models (stochastic weight averaging).

    On manifolds it is the Karcher mean, the point with the least sum of squared distances.

    Arguments:
        average_from: the first version that is averaged.
        average_every: versions from one averaged model to the next.
        curve_degree: take the mean along the Bézier curve of this degree that lies closest to the averaged
            models (the paper's ι_ξ); this keeps all of them in memory.
        curve_dimension: 2 for a surface instead of a curve, with that degree along both of its axes.

    >>> from dataclasses import replace
    >>> from asyncmanifold import METHODS, Averaging
    >>> replace(METHODS["asyncsgd"], averaging=Averaging(100, 2)).averaging
    Averaging(average_from=100, average_every=2, curve_degree=None, curve_dimension=1)
    """

    average_from: int
    average_every: int = 1
    curve_degree: int | None = None
    curve_dimension: int = 1

    def __post_init__(self) -> None:
        check(self, average_from="at least 0", average_every="at least 1", curve_degree="at least 1")
        check(self, curve_dimension="between 1 and 2")

    def include(self, memory: Memory, state: ServerState, space: Space = FLAT) -> Memory:
        """Return the memory with the state's model added, if its version is one to average."""
        past = state.version - self.average_from
        if past < 0 or past % self.average_every:
            return memory
        kept = self._kept_models(memory, state.theta, space)
        count = memory.get("count", 0) + 1
        theta, floats = state.theta.clone(), state.statistics.floats
        if count > 1:
            floats = torch.lerp(memory["floats"], floats, 1.0 / count)
            theta = torch.lerp(memory["theta"], theta, 1.0 / count)
        entries = {"theta": theta, "floats": floats, "integers": state.statistics.integers, "count": count}
        if kept is None:
            return entries
        if count > 1:
            entries["theta"] = self._mean_model(theta, kept, space)
        return {**entries, "models": kept}

    def _kept_models(self, memory: Memory, theta: Tensor, space: Space) -> Tensor | None:
        """Return one row per averaged model with what its mean needs: all of it, its curved part, or None."""
        if self.curve_degree is None and space.is_flat:
            return None
        row = (theta if self.curve_degree is not None else space.curved_part(theta))[None]
        return torch.cat([memory["models"], row]) if "models" in memory else row.clone()

    def _mean_model(self, mean: Tensor, kept: Tensor, space: Space) -> Tensor:
        if self.curve_degree is None:
            return space.with_mean(mean, kept)
        centre = kept.mean(0)
        if not space.is_flat:
            centre = space.with_mean(centre, torch.stack([space.curved_part(model) for model in kept]))
        ways = torch.stack([space.log(centre, model) for model in kept])
        gram = space.gram(centre, list(ways))
        shares = mean_on_manifold(gram, self.curve_degree, self.curve_dimension)
        return space.exp(centre, torch.from_numpy(shares).to(ways) @ ways)
