"""Control points on manifolds, trained by geoopt's optimisers along curves of geodesics.

The gradient at γ(s) is pulled back to the control points exactly, by differentiating de Casteljau's
geodesics. If control points coincide, torch finds no derivative of the logarithm; the limit is used instead,
b_k(s) times the gradient, as in flat space.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from asyncmanifold.client.controls import Controls, clip_gradient
from asyncmanifold.client.local_optimizers import label_of, plain_name
from asyncmanifold.client.settings import LocalTraining
from asyncmanifold.errors import InputError
from asyncmanifold.geometry.bezier import Floats
from asyncmanifold.geometry.embeddings import Embedding
from asyncmanifold.geometry.maps import Maps
from asyncmanifold.vectors import FlatModel

NEARBY = 1e-3
"""The distance along a curve, in its parameter, at which its direction is measured."""


class CurvedControls(Controls):
    """The free control points of a model with parameters on manifolds."""

    def __init__(self, model: FlatModel, embedding: Embedding, settings: LocalTraining) -> None:
        self._model, self._embedding, self._settings = model, embedding, settings
        self._pieces = model.space.pieces
        if plain_name(settings.optimizer) is None:
            raise InputError(
                f"optimizer {label_of(settings.optimizer)!r} cannot train parameters on manifolds: "
                f"use 'adam' or 'sgd'"
            )
        if embedding.follows_trajectory:
            raise InputError(
                "interior_start='trajectory' is not for parameters on manifolds: use 'base' or 'chord'"
            )

    def begin(self, theta: Tensor, offsets: Tensor) -> None:
        """Set every control point to ``theta``, with a fresh optimiser."""
        import geoopt

        self._theta, self._offsets = theta, offsets
        self._along_curve = False
        count = self._embedding.points
        self._flat = [nn.Parameter(theta.clone()) for _ in range(count)]
        """The flat coordinates of each control point; the entries of manifold pieces are unused."""
        self._curved = [
            [geoopt.ManifoldParameter(piece.of(theta).clone(), piece.maps.manifold) for _ in range(count)]
            for piece in self._pieces
        ]
        self._base = [piece.of(theta) for piece in self._pieces]
        trained = [*self._flat, *(point for points in self._curved for point in points)]
        lr, momentum = self._settings.local_lr, self._settings.momentum
        if plain_name(self._settings.optimizer) == "adam":
            self._optimizer = geoopt.optim.RiemannianAdam(trained, lr=lr)
        else:
            self._optimizer = geoopt.optim.RiemannianSGD(trained, lr=lr, momentum=momentum)

    @torch.no_grad()
    def start_curve(self) -> None:
        self._along_curve = True
        for k, share in enumerate(self._embedding.interior_shares()):
            self._flat[k].copy_(torch.lerp(self._theta, self._flat[-1], share))
            for piece, base, points in zip(self._pieces, self._base, self._curved, strict=True):
                points[k].copy_(geodesic(piece.maps, base, points[-1], share))

    def gram(self) -> Floats:
        space, theta = self._model.space, self._theta
        return space.gram(theta, [space.log(theta, point) for point in self._points()])

    def place(self, s: float) -> None:
        """Set the model to γ(s), and keep its graph back to the control points for ``learn``."""
        self._s = s
        self._weights = self._embedding.weights(s)
        vector = self._model.vector
        with torch.no_grad():
            torch.mul(self._theta, 1.0 - sum(self._weights), out=vector)
            for weight, point in zip(self._weights, self._flat, strict=True):
                vector.add_(point, alpha=weight)
        self._reached = []
        for piece, base, points in zip(self._pieces, self._base, self._curved, strict=True):
            with torch.enable_grad():
                controls = [point.double() for point in (base, *points)]  # near points lose half the digits
                along = partial(geodesic, piece.maps)
                reached = controls[-1] if s == 1.0 else self._embedding.at(controls, s, along)
            self._reached.append(reached)
            piece.of(vector).copy_(reached.detach())
        self._here = vector.clone()

    def shift(self, direction: Tensor, length: float) -> None:
        """Follow a geodesic of ``length`` from γ(s), orthogonal to the curve."""
        space, here = self._model.space, self._here
        nearby = self._s + NEARBY if self._s < 0.5 else self._s - NEARBY
        ahead = self._embedding.at([self._theta, *self._points()], nearby, space.geodesic)
        tangent, direction = space.log(here, ahead), space.project(here, direction)
        square = space.inner(here, tangent, tangent)
        if square > 0.0:
            direction = direction - space.inner(here, direction, tangent) / square * tangent
        norm = space.norm(here, direction)
        if norm > 0.0:
            self._model.vector.copy_(space.exp(here, length / norm * direction))

    def _points(self) -> list[Tensor]:
        """Return the free control points as vectors."""
        vectors = [point.detach().clone() for point in self._flat]
        for k, vector in enumerate(vectors):
            for piece, points in zip(self._pieces, self._curved, strict=True):
                piece.of(vector).copy_(points[k].detach())
        return vectors

    def learn(self, factor: float = 1.0) -> None:
        """Move each control point by the gradient, pulled back along the curve."""
        active = [k for k, weight in enumerate(self._weights) if weight != 0.0]
        trained = self._embedding.trained(active) if self._along_curve else active
        self._optimizer.zero_grad(set_to_none=True)
        for group in self._optimizer.param_groups:
            group["lr"] = self._settings.local_lr * factor
        gradient = self._model.take_gradient()
        clip_gradient(gradient, self._settings.gradient_clip)
        self._learn_flat(gradient, trained)
        for number, piece in enumerate(self._pieces):
            self._learn_piece(number, piece.of(gradient), trained)
        self._optimizer.step()

    def _learn_flat(self, gradient: Tensor, trained: Sequence[int]) -> None:
        gradient = gradient + self._settings.proximal * (self._here - self._theta)
        for piece in self._pieces:
            piece.of(gradient).zero_()
        for k in trained:
            self._flat[k].grad = self._weights[k] * gradient

    def _learn_piece(self, number: int, gradient: Tensor, trained: Sequence[int]) -> None:
        maps, points, reached = self._pieces[number].maps, self._curved[number], self._reached[number]
        here, gradient = reached.detach(), gradient.double()
        if self._settings.proximal:
            way = -maps.log(here, self._base[number].double())
            gradient = gradient + self._settings.proximal * plain_gradient(maps, here, way)
        if self._s == 1.0:
            points[-1].grad = gradient.float() if trained else None
            return
        pulled = torch.autograd.grad(reached, points, gradient, allow_unused=True)
        for k in trained:
            found = pulled[k]
            is_sound = found is not None and bool(torch.isfinite(found).all())
            points[k].grad = found if is_sound else self._weights[k] * gradient.float()

    @torch.no_grad()
    def finish(self) -> None:
        """Write the logarithm at Θ^t of each control point to the offsets."""
        for offset, point in zip(self._offsets, self._points(), strict=True):
            offset.copy_(self._model.space.log(self._theta, point))


def geodesic(maps: Maps, start: Tensor, end: Tensor, t: float) -> Tensor:
    """Return the point at a fraction ``t`` of the geodesic from ``start`` to ``end``."""
    return maps.exp(start, t * maps.log(start, end))


def plain_gradient(maps: Maps, point: Tensor, tangent: Tensor) -> Tensor:
    """Return the Euclidean gradient that corresponds to a Riemannian one: the metric applied to it.

    geoopt's optimisers expect Euclidean gradients.
    """
    with torch.enable_grad():
        other = torch.zeros_like(tangent, requires_grad=True)
        (gradient,) = torch.autograd.grad(maps.inner(point, other, tangent), other)
    return gradient
