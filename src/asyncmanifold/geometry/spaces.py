"""Parameter spaces: flat, or a product of a flat space and manifolds.

A model is one flat vector wherever it lives, and so is a tangent vector. Parameters that are geoopt's
``ManifoldParameter`` occupy segments of it. In such a segment exp, log, transport, inner product and distance
are its manifold's; everywhere else they are +, −, identity, dot product and norm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from asyncmanifold.geometry.bezier import Floats
from asyncmanifold.geometry.maps import Maps, maps_of


@dataclass(frozen=True)
class Piece:
    """A segment of the vector that lives on a manifold."""

    start: int
    end: int
    shape: tuple[int, ...]
    maps: Maps

    def of(self, vector: Tensor) -> Tensor:
        """Return this segment of a vector, in its own shape."""
        return vector[self.start : self.end].view(self.shape)


class Space:
    """A product of a flat space and the manifolds of ``pieces``; flat if there are none."""

    def __init__(self, pieces: Sequence[Piece] = ()) -> None:
        self.pieces = tuple(pieces)

    @property
    def is_flat(self) -> bool:
        """Whether no parameter lives on a manifold."""
        return not self.pieces

    def exp(self, point: Tensor, tangent: Tensor) -> Tensor:
        """Return the point that the geodesic from ``point`` along ``tangent`` reaches at time 1."""
        return self._map_pieces(point + tangent, lambda maps, x, v: maps.exp(x, v), point, tangent)

    def log(self, point: Tensor, other: Tensor) -> Tensor:
        """Return the tangent vector at ``point`` whose geodesic reaches ``other`` at time 1."""
        return self._map_pieces(other - point, lambda maps, x, y: maps.log(x, y), point, other)

    def transport(self, start: Tensor, end: Tensor, tangent: Tensor) -> Tensor:
        """Return a tangent vector at ``start`` as one at ``end``."""
        return self._map_pieces(
            tangent.clone(), lambda maps, x, y, v: maps.transport(x, y, v), start, end, tangent
        )

    def project(self, point: Tensor, vector: Tensor) -> Tensor:
        """Return the tangent part of any vector at ``point``."""
        return self._map_pieces(vector.clone(), lambda maps, x, v: maps.project(x, v), point, vector)

    def geodesic(self, start: Tensor, end: Tensor, t: float) -> Tensor:
        """Return the point at a fraction ``t`` of the way from ``start`` to ``end``."""
        return self._map_pieces(
            torch.lerp(start, end, t), lambda maps, x, y: maps.exp(x, t * maps.log(x, y)), start, end
        )

    def gram(self, point: Tensor, tangents: Sequence[Tensor]) -> Floats:
        """Return the matrix of all inner products of tangent vectors at ``point``."""
        count = len(tangents)
        matrix = np.zeros((count, count))
        for i in range(count):
            for j in range(i, count):
                matrix[i, j] = matrix[j, i] = self.inner(point, tangents[i], tangents[j])
        return matrix

    def inner(self, point: Tensor, first: Tensor, second: Tensor) -> float:
        """Return the inner product of two tangent vectors at ``point``."""
        product = first.double() * second.double()
        for piece in self.pieces:
            piece.of(product).zero_()
        total = float(product.sum())
        for piece in self.pieces:
            total += float(piece.maps.inner(*(piece.of(v).double() for v in (point, first, second))))
        return total

    def norm(self, point: Tensor, tangent: Tensor) -> float:
        """Return the length of a tangent vector at ``point``."""
        return sqrt(max(0.0, self.inner(point, tangent, tangent)))

    def distance(self, first: Tensor, second: Tensor) -> float:
        """Return the length of the geodesic between two points."""
        return self.norm(first, self.log(first, second))

    def repaired(self, point: Tensor) -> Tensor:
        """Return a point, which rounding has moved off its manifolds, projected back onto them."""
        return self._map_pieces(point.clone(), lambda maps, x: maps.repair(x), point)

    def curved_part(self, vector: Tensor) -> Tensor:
        """Return the concatenated segments of a vector that live on manifolds."""
        return torch.cat([vector[piece.start : piece.end] for piece in self.pieces])

    def with_mean(self, vector: Tensor, points: Tensor) -> Tensor:
        """Return ``vector`` with the Karcher mean of ``points`` (rows of curved parts) on its manifolds."""
        mean, start = vector.clone(), 0
        for piece in self.pieces:
            end = start + piece.end - piece.start
            rows = points[:, start:end].double().view(-1, *piece.shape)
            piece.of(mean).copy_(karcher_mean(piece.maps, rows))
            start = end
        return mean

    def _map_pieces(self, flat: Tensor, rule: Callable[..., Tensor], *vectors: Tensor) -> Tensor:
        """Return ``flat`` with each piece replaced by ``rule`` applied to the vectors' pieces.

        In double precision, since a logarithm of near points loses half the digits.
        """
        for piece in self.pieces:
            made = rule(piece.maps, *(piece.of(vector).double() for vector in vectors))
            piece.of(flat).copy_(made)
        return flat


FLAT = Space()


def karcher_mean(maps: Maps, points: Tensor, tolerance: float = 1e-10, limit: int = 200) -> Tensor:
    """Return the point with the least sum of squared distances to ``points``.

    Steps by the mean logarithm until it is shorter than ``tolerance``, at most ``limit`` times.
    """
    mean = points[-1]
    for _ in range(limit):
        way = torch.stack([maps.log(mean, point) for point in points]).mean(0)
        mean = maps.repair(maps.exp(mean, way))
        if float(maps.inner(mean, way, way)) <= tolerance**2:
            break
    return mean


def space_of(parameters: Iterable[nn.Parameter]) -> Space:
    """Return the space of parameters that are concatenated to one vector."""
    pieces: list[Piece] = []
    start = 0
    for parameter in parameters:
        end = start + parameter.numel()
        manifold: Any = getattr(parameter, "manifold", None)
        if manifold is not None and not _is_plain(manifold):
            pieces.append(Piece(start, end, tuple(parameter.shape), maps_of(manifold, parameter.detach())))
        start = end
    return Space(pieces) if pieces else FLAT


def _is_plain(manifold: Any) -> bool:
    """Return whether a manifold is Euclidean space, which needs no maps."""
    return type(manifold).__name__ == "Euclidean"
