"""An update's offsets at the current model, with one interface for flat space and manifolds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from asyncmanifold.geometry.bezier import Floats
from asyncmanifold.geometry.embeddings import Embedding
from asyncmanifold.geometry.spaces import Space
from asyncmanifold.server.corrections import Correction
from asyncmanifold.server.gram import gram_matrix
from asyncmanifold.server.moves import FusedMove, Move, TangentMove
from asyncmanifold.server.stages import Arrival, Memory


class Tangents(Protocol):
    """The offsets v_1 … v_n of an update and the drift d, as tangent vectors at the current model."""

    def gram(self) -> Floats:
        """Return all inner products of (v_1 … v_n, d)."""
        ...

    def at_model(self) -> Tensor:
        """Return v_1 … v_n, one per row."""
        ...

    def scaled(self, factor: float) -> Tangents:
        """Return the tangents with every offset multiplied by ``factor``."""
        ...

    def transformed(
        self, correction: Correction, arrival: Arrival, memory: Memory
    ) -> tuple[Tangents, Memory]:
        """Return the tangents after the correction's ``transform``, and its new memory."""
        ...

    def coefficients(self, correction: Correction, gram: Floats) -> Floats:
        """Return the corrected offsets as combinations of (v_1 … v_n, d), one row per offset."""
        ...

    def combined(self, mixing: Floats) -> list[Tensor]:
        """Return combinations of (v_1 … v_n, d) as tangent vectors, one per row of ``mixing``."""
        ...

    def replaced(self, offsets: list[Tensor]) -> Tangents:
        """Return other offsets with the same drift."""
        ...

    def step(
        self, embedding: Embedding, mixing: Floats, gram: Floats, fraction: float, staleness: int
    ) -> tuple[float, Move, float]:
        """Return where on the corrected curve a step ends, the step, and its length.

        ``mixing`` holds the corrected offsets' coefficients, ``gram`` their inner products.
        """
        ...


@dataclass(frozen=True)
class FlatTangents(Tangents):
    """Tangents in flat space.

    No vector is stored, which saves passes over memory: the factor stays a number, and the drift is formed
    block by block.
    """

    space: Space
    theta: Tensor
    base: Tensor
    offsets: Tensor
    factor: float = 1.0

    def gram(self) -> Floats:
        return gram_matrix(self.offsets, self.theta, self.base)

    def at_model(self) -> Tensor:
        return self.offsets if self.factor == 1.0 else self.offsets * self.factor

    def scaled(self, factor: float) -> Tangents:
        return replace(self, factor=self.factor * factor)

    def transformed(
        self, correction: Correction, arrival: Arrival, memory: Memory
    ) -> tuple[Tangents, Memory]:
        changed, memory = correction.transform(self.at_model(), self.theta - self.base, arrival, memory)
        return replace(self, offsets=changed, factor=1.0), memory

    def coefficients(self, correction: Correction, gram: Floats) -> Floats:
        return correction.coefficients(gram)

    def step(
        self, embedding: Embedding, mixing: Floats, gram: Floats, fraction: float, staleness: int
    ) -> tuple[float, Move, float]:
        t, spot = embedding.stop(gram, fraction)
        weights = np.array(embedding.weights(spot))
        coefficients = weights @ mixing
        if self.factor != 1.0:
            coefficients[:-1] *= self.factor
        move = FusedMove(self.space, self.theta, self.base, self.offsets, coefficients, staleness=staleness)
        return t, move, sqrt(max(0.0, float(weights @ gram @ weights)))

    def combined(self, mixing: Floats) -> list[Tensor]:
        rows = torch.cat([self.offsets * self.factor, (self.theta - self.base)[None]])
        return list((torch.from_numpy(mixing).to(rows.device) @ rows.double()).to(rows))

    def replaced(self, offsets: list[Tensor]) -> Tangents:
        return replace(self, offsets=torch.stack(offsets), factor=1.0)


@dataclass(frozen=True)
class CurvedTangents(Tangents):
    """Tangents on a curved space.

    Offsets are tangent vectors at the base model; a correction takes them to the current model and then acts
    as in flat space, with the inner product there.
    """

    space: Space
    theta: Tensor
    rows: Tensor
    """v_1 … v_n at the current model, then d."""

    @classmethod
    def lift(
        cls, space: Space, theta: Tensor, base: Tensor, offsets: Tensor, correction: Correction
    ) -> CurvedTangents:
        """Transport offsets from ``base`` to ``theta``, as the correction says."""
        if base is theta:
            return cls(space, theta, torch.cat([offsets, torch.zeros_like(theta)[None]]))
        lifted = correction.lifted(space, theta, base, offsets)
        return cls(space, theta, torch.stack([*lifted, -space.log(theta, base)]))

    def gram(self) -> Floats:
        return self.space.gram(self.theta, list(self.rows))

    def at_model(self) -> Tensor:
        return self.rows[:-1]

    def scaled(self, factor: float) -> Tangents:
        return replace(self, rows=torch.cat([self.rows[:-1] * factor, self.rows[-1:]]))

    def transformed(
        self, correction: Correction, arrival: Arrival, memory: Memory
    ) -> tuple[Tangents, Memory]:
        changed, memory = correction.transform(self.at_model(), self.rows[-1], arrival, memory)
        tangent = [self.space.project(self.theta, offset) for offset in changed]
        return replace(self, rows=torch.stack([*tangent, self.rows[-1]])), memory

    def coefficients(self, correction: Correction, gram: Floats) -> Floats:
        return correction.lifted_coefficients(gram)

    def combined(self, mixing: Floats) -> list[Tensor]:
        return list(torch.from_numpy(mixing).to(self.rows) @ self.rows)

    def replaced(self, offsets: list[Tensor]) -> Tangents:
        return replace(self, rows=torch.stack([*offsets, self.rows[-1]]))

    def step(
        self, embedding: Embedding, mixing: Floats, gram: Floats, fraction: float, staleness: int
    ) -> tuple[float, Move, float]:
        space, theta = self.space, self.theta
        controls = [theta, *(space.exp(theta, offset) for offset in self.combined(mixing))]
        t = embedding.place(space, controls, fraction)
        reached = space.repaired(embedding.at(controls, t, space.geodesic))
        way = space.log(theta, reached)
        move = TangentMove(space, theta, way, reached=reached, staleness=staleness)
        return t, move, space.norm(theta, way)


def tangents_at(
    space: Space, theta: Tensor, base: Tensor, offsets: Tensor, correction: Correction
) -> Tangents:
    """Return an update's offsets at the current model."""
    if space.is_flat:
        return FlatTangents(space, theta, base, offsets)
    return CurvedTangents.lift(space, theta, base, offsets, correction)
