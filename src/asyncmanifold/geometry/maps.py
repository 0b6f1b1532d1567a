"""The maps of a manifold that a space needs: geoopt's, or replacements.

If geoopt has exp, log and transport, they are used. The Stiefel manifolds have no log: there the polar
retraction R_X(V) = (X + V)(I + VᵀV)^(−1/2) and its inverse replace exp and log, and projection replaces
transport, which is what convergence theory requires of a retraction. Other manifolds are refused by name.
"""

from __future__ import annotations

from collections.abc import Callable
from math import pi
from typing import Any, Protocol

import torch
from torch import Tensor

from asyncmanifold.errors import InputError


class Maps(Protocol):
    """The maps of a manifold, for points and tangent vectors in its own shape."""

    manifold: Any
    """geoopt's manifold, for its optimisers."""

    def exp(self, point: Tensor, tangent: Tensor) -> Tensor:
        """Return the point that ``tangent`` leads to from ``point``."""
        ...

    def log(self, point: Tensor, other: Tensor) -> Tensor:
        """Return the tangent vector that leads from ``point`` to ``other``."""
        ...

    def transport(self, start: Tensor, end: Tensor, tangent: Tensor) -> Tensor:
        """Return a tangent vector at ``start`` as one at ``end``."""
        ...

    def inner(self, point: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """Return the inner product of two tangent vectors, summed over independent points."""
        ...

    def project(self, point: Tensor, vector: Tensor) -> Tensor:
        """Return the tangent part of a vector."""
        ...

    def repair(self, point: Tensor) -> Tensor:
        """Return the nearest point on the manifold."""
        ...


class GeooptMaps:
    """geoopt's own maps, of a manifold that has all of them."""

    def __init__(self, manifold: Any) -> None:
        self.manifold = manifold

    def exp(self, point: Tensor, tangent: Tensor) -> Tensor:
        """Return geoopt's exponential map."""
        return self.manifold.expmap(point, tangent)

    def log(self, point: Tensor, other: Tensor) -> Tensor:
        """Return geoopt's logarithm."""
        return self.manifold.logmap(point, other)

    def transport(self, start: Tensor, end: Tensor, tangent: Tensor) -> Tensor:
        """Return geoopt's transport."""
        return self.manifold.transp(start, end, tangent)

    def inner(self, point: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """Return geoopt's inner product; without ``keepdim`` the Poincaré ball's has a wrong shape."""
        return self.manifold.inner(point, first, second, keepdim=True).sum()

    def project(self, point: Tensor, vector: Tensor) -> Tensor:
        """Return geoopt's projection."""
        return self.manifold.proju(point, vector)

    def repair(self, point: Tensor) -> Tensor:
        """Return geoopt's projection of a point."""
        return self.manifold.projx(point)


class SphereMaps(GeooptMaps):
    """The sphere, exact also for near points, with parallel transport along the great circle.

    geoopt's logarithm is never shorter than 0.014 in single precision (0.0004 in double), its exp has no
    derivative at 0, and its transport is a projection.
    """

    def exp(self, point: Tensor, tangent: Tensor) -> Tensor:
        """Return cos‖v‖ x + sin‖v‖ v/‖v‖."""
        length = tangent.norm(dim=-1, keepdim=True)
        return torch.cos(length) * point + torch.sinc(length / pi) * tangent

    def log(self, point: Tensor, other: Tensor) -> Tensor:
        """Return the component of y orthogonal to x, scaled to the angle between them."""
        along = (point * other).sum(-1, keepdim=True)
        across = other - point - (point * (other - point)).sum(-1, keepdim=True) * point
        return across * _ratio(lambda length: torch.atan2(length, along), across.norm(dim=-1, keepdim=True))

    def transport(self, start: Tensor, end: Tensor, tangent: Tensor) -> Tensor:
        """Return P v = v − ⟨y, v⟩ / (1 + ⟨x, y⟩) · (x + y), which keeps lengths and angles."""
        across = (end * tangent).sum(-1, keepdim=True) / (1.0 + (start * end).sum(-1, keepdim=True))
        return tangent - across * (start + end)


class PoincareMaps(GeooptMaps):
    """The Poincaré ball, with the right derivatives where points coincide.

    geoopt keeps lengths away from 0, so that a logarithm's derivative there is finite and wrong: half its
    size in single precision.
    """

    def exp(self, point: Tensor, tangent: Tensor) -> Tensor:
        """Return x ⊕ tanh(√c λ_x ‖v‖/2) v/(√c ‖v‖)."""
        half = self.manifold.lambda_x(point, keepdim=True) / 2.0
        length = (-self.manifold.k).to(point).sqrt() * half * tangent.norm(dim=-1, keepdim=True)
        step = half * _ratio(torch.tanh, length) * tangent
        return self.manifold.mobius_add(point, step, project=False)

    def log(self, point: Tensor, other: Tensor) -> Tensor:
        """Return 2/(√c λ_x) artanh(√c ‖w‖) w/‖w‖ with w = −x ⊕ y."""
        way = self.manifold.mobius_add(-point, other, project=False)
        length = (-self.manifold.k).to(point).sqrt() * way.norm(dim=-1, keepdim=True)
        inside = length.clamp(max=1.0 - 1e-12)  # rounding may put a far point on the rim
        tangent: Tensor = (
            2.0 / self.manifold.lambda_x(point, keepdim=True) * _ratio(torch.atanh, inside) * way
        )
        return tangent


class LorentzMaps(GeooptMaps):
    """The hyperboloid, exact also for near points.

    geoopt's lengths are never below 1e-4, so that its logarithm of a nearer point is too short, and its
    derivative there wrong by up to a factor of five.
    """

    def exp(self, point: Tensor, tangent: Tensor) -> Tensor:
        """Return cosh(‖v‖/√k) x + √k sinh(‖v‖/√k) v/‖v‖."""
        length = self._length(point, tangent)
        return torch.cosh(length) * point + _ratio(torch.sinh, length) * tangent

    def log(self, point: Tensor, other: Tensor) -> Tensor:
        """Return the component of y orthogonal to x, scaled to the distance between them."""
        way = other - point
        along = self.manifold.inner(point, point, way, keepdim=True) / self.manifold.k.to(point)
        across: Tensor = way + along * point
        return across * _ratio(torch.asinh, self._length(point, across))

    def _length(self, point: Tensor, tangent: Tensor) -> Tensor:
        """Return lengths in units of √k; 0, with derivative 0, where rounding leaves nothing."""
        square = self.manifold.inner(point, tangent, tangent, keepdim=True) / self.manifold.k.to(point)
        is_apart = square > 0.0
        return torch.where(is_apart, torch.where(is_apart, square, torch.ones_like(square)).sqrt(), 0.0)


def _ratio(function: Callable[[Tensor], Tensor], length: Tensor) -> Tensor:
    """Return f(x)/x, and 1 with derivative 0 at x = 0, for a function that is x + O(x³) there."""
    is_apart = length > 0.0
    divisor = torch.where(is_apart, length, torch.ones_like(length))
    return torch.where(is_apart, function(divisor) / divisor, torch.ones_like(length))


class StiefelMaps(GeooptMaps):
    """The Stiefel manifolds with the polar retraction and its inverse in place of exp and log."""

    def exp(self, point: Tensor, tangent: Tensor) -> Tensor:
        """Return (X + V)(I + VᵀV)^(−1/2), the nearest point to X + V."""
        left, _, right = torch.linalg.svd(point + tangent, full_matrices=False)
        return left @ right

    def log(self, point: Tensor, other: Tensor) -> Tensor:
        """Return V = Y S − X with S symmetric and XᵀY S + S YᵀX = 2 I."""
        return other @ _symmetric_solution(point.mT @ other) - point

    def transport(self, start: Tensor, end: Tensor, tangent: Tensor) -> Tensor:
        """Return the tangent part at the end."""
        return self.project(end, tangent)

    def project(self, point: Tensor, vector: Tensor) -> Tensor:
        """Return V − X sym(XᵀV); geoopt's for the canonical metric is not a projection."""
        inside = point.mT @ vector
        return vector - point @ (0.5 * (inside + inside.mT))


def _symmetric_solution(matrix: Tensor) -> Tensor:
    """Return the S with M S + S Mᵀ = 2 I, by one linear system."""
    size = matrix.shape[-1]
    identity = torch.eye(size, dtype=matrix.dtype)
    system = torch.einsum("...ij,kl->...ikjl", matrix, identity)
    system = system + torch.einsum("...kl,ij->...ikjl", matrix, identity)
    flat = system.reshape(*matrix.shape[:-2], size * size, size * size)
    right = (2.0 * identity).reshape(size * size).expand(*flat.shape[:-1])
    solution: Tensor = torch.linalg.solve(flat, right)
    return solution.reshape(*matrix.shape)


class ScaledMaps(GeooptMaps):
    """A manifold whose lengths geoopt scales: its tangent vectors are the base's, times the scale."""

    def __init__(self, manifold: Any, base: Maps) -> None:
        super().__init__(manifold)
        self._base = base

    def exp(self, point: Tensor, tangent: Tensor) -> Tensor:
        return self._base.exp(point, tangent / self.manifold.scale)

    def log(self, point: Tensor, other: Tensor) -> Tensor:
        return self._base.log(point, other) * self.manifold.scale


def maps_of(manifold: Any, point: Tensor) -> Maps:
    """Return the maps of the manifold of ``point``; an ``InputError`` names a map that geoopt lacks."""
    kind = type(manifold).__name__
    if "Stiefel" in kind:
        return StiefelMaps(manifold)
    if kind == "Scaled":
        return ScaledMaps(manifold, maps_of(manifold.base, point))
    zero = torch.zeros_like(point)
    for name, arguments in (("expmap", (zero,)), ("logmap", (point,)), ("transp", (point, zero))):
        try:
            getattr(manifold, name)(point, *arguments)
        except (NotImplementedError, TypeError) as problem:
            raise InputError(
                f"parameters on {kind} cannot be trained: geoopt has no {name} for it"
            ) from problem
    return EXACT_MAPS.get(kind.removesuffix("Exact"), GeooptMaps)(manifold)


EXACT_MAPS = {"Sphere": SphereMaps, "PoincareBall": PoincareMaps, "Lorentz": LorentzMaps}
"""Where geoopt's maps are wrong for near points."""
