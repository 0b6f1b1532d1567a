"""A step that has not been made yet, so that parts can hold it back, add to it or replace it.

In flat space the usual step is formed in the one pass that writes the new model, because every pass over
memory costs time: the step is stored as a vector only if a part asks for it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, dataclass, replace

import numpy as np
import torch
from torch import Tensor

from asyncmanifold.geometry.bezier import Floats
from asyncmanifold.geometry.spaces import Space
from asyncmanifold.server.gram import Visit, combine


@dataclass(frozen=True)
class Move(ABC):
    """A step from the current model."""

    space: Space
    theta: Tensor
    """The current model."""
    _: KW_ONLY
    staleness: int = 0
    """The greatest staleness of the updates in this step."""
    scale: float = 1.0
    """The factor of the sum of the updates' steps; model statistics move in the same proportion."""

    @abstractmethod
    def vector(self, *visits: Visit) -> Tensor:
        """Return the step as a new tangent vector at the current model.

        A part that goes on with the step may do so in ``visits``: they are made, in their order, to every
        block of the step, which then need not be read from memory again.
        """

    @abstractmethod
    def after(self, held: Tensor | None, staleness: int = 0) -> Move:
        """Return this step added to the steps that a buffer held, if any, with their greatest staleness."""

    @abstractmethod
    def target(self, out: Tensor | None) -> Tensor:
        """Return the model after the step; it is written to ``out`` if given."""

    def along(self, vector: Tensor, scale: float = 1.0) -> Move:
        """Return another step, ``scale`` times ``vector``, to replace this one."""
        return TangentMove(self.space, self.theta, vector, staleness=self.staleness, scale=scale)

    def with_staleness(self, staleness: int) -> Move:
        """Return the step with another greatest staleness."""
        return replace(self, staleness=staleness)


@dataclass(frozen=True)
class TangentMove(Move):
    """A step given as a tangent vector; on a curved space it follows a geodesic."""

    tangent: Tensor
    _: KW_ONLY
    reached: Tensor | None = None
    """The model after the step, if it is known already."""

    def vector(self, *visits: Visit) -> Tensor:
        weights = np.array([self.scale, 0.0])
        return combine(None, self.tangent[None], self.theta, self.theta, weights, visits=visits)

    def after(self, held: Tensor | None, staleness: int = 0) -> Move:
        if held is None:
            return self
        return replace(self.along(held + self.vector()), staleness=max(self.staleness, staleness))

    def target(self, out: Tensor | None) -> Tensor:
        if self.reached is not None:
            return self.reached
        if self.space.is_flat:
            return torch.add(self.theta, self.tangent, alpha=self.scale, out=out)
        return self.space.repaired(self.space.exp(self.theta, self.scale * self.tangent))


@dataclass(frozen=True)
class FusedMove(Move):
    """Σ_k c_k v_k + c_d (Θ^τ − Θ^t) in flat space, plus the steps that a buffer held."""

    base: Tensor
    offsets: Tensor
    coefficients: Floats
    """c_1 … c_n, c_d."""
    _: KW_ONLY
    held: Tensor | None = None

    def vector(self, *visits: Visit) -> Tensor:
        return self._add_to(self.held, None, *visits)

    def after(self, held: Tensor | None, staleness: int = 0) -> Move:
        return replace(self, held=held, staleness=max(self.staleness, staleness))

    def target(self, out: Tensor | None) -> Tensor:
        return self._add_to(self.theta if self.held is None else self.theta + self.held, out)

    def _add_to(self, start: Tensor | None, out: Tensor | None, *visits: Visit) -> Tensor:
        return combine(start, self.offsets, self.theta, self.base, self.coefficients, out, visits)
