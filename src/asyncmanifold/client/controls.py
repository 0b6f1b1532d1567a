"""The control points that a job trains in flat space, and the optimisers that move them."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.optim.adam import adam

from asyncmanifold.client.local_optimizers import NamedOptimizer, plain_name
from asyncmanifold.client.settings import LocalTraining
from asyncmanifold.client.trajectory import Trajectory
from asyncmanifold.geometry.bezier import Floats
from asyncmanifold.geometry.embeddings import Embedding
from asyncmanifold.geometry.paths import Spot
from asyncmanifold.server.gram import gram_matrix


class Controls(Protocol):
    """The free control points that a job trains: first the end point alone, then all along a curve."""

    def begin(self, theta: Tensor, offsets: Tensor) -> None:
        """Start at ``theta``; the result is written to ``offsets``."""
        ...

    def start_curve(self) -> None:
        """Move interior control points to where they start the curve phase."""
        ...

    def place(self, s: Spot) -> None:
        """Set the model to γ(s)."""
        ...

    def gram(self) -> Floats:
        """Return the inner products of the free control points' offsets."""
        ...

    def shift(self, direction: Tensor, length: float) -> None:
        """Move the model off the curve by ``length``, along the part of ``direction`` orthogonal to it."""
        ...

    def learn(self, factor: float = 1.0) -> None:
        """Move the control points by the gradient at the model's position, at ``factor`` times the rate."""
        ...

    def finish(self) -> None:
        """Write what was learned to the offsets."""
        ...


class TrainedModel(Protocol):
    """A model that is one vector, with a gradient."""

    vector: Tensor
    size: int
    device: torch.device

    def parts(self, vector: Tensor) -> list[Tensor]:
        """Return a vector as views, one in the shape of each parameter."""
        ...

    def take_gradient(self) -> Tensor:
        """Return the gradient as one vector, which may be modified."""
        ...

    def descend(self, rate: float) -> None:
        """Move the model by −rate times its gradient."""
        ...


class FlatControls(Controls):
    """Control points in flat space: the offsets themselves are trained.

    Plain SGD moves the model itself as long as it trains the end point alone, and computes the offset once at
    the end: that saves three passes over the model in every step, a tenth of a small job.
    """

    def __init__(self, model: TrainedModel, embedding: Embedding, settings: LocalTraining) -> None:
        self._model, self._embedding, self._settings = model, embedding, settings
        self._optimizer = _make_optimizer(model, embedding.points, settings)
        self._trajectory: Trajectory | None = None
        if embedding.follows_trajectory:
            self._trajectory = Trajectory(embedding.points, model.size, model.device)
        is_plain = plain_name(settings.optimizer) == "sgd" and not settings.momentum
        self._can_train_in_place = is_plain and not settings.gradient_clip and self._trajectory is None

    def begin(self, theta: Tensor, offsets: Tensor) -> None:
        """Set every control point to ``theta``."""
        self._theta, self._offsets = theta, offsets
        self._along_curve = False
        self._in_place = self._can_train_in_place
        if self._in_place:
            self._model.vector.copy_(theta)
        offsets.zero_()
        self._optimizer.reset(theta)
        if self._trajectory is not None:
            self._trajectory.reset()

    def start_curve(self) -> None:
        self.finish()
        self._along_curve, self._in_place = True, False
        for offset, share in zip(self._offsets, self._embedding.interior_shares(), strict=False):
            torch.mul(self._offsets[-1], share, out=offset)

    def gram(self) -> Floats:
        return gram_matrix(self._offsets, self._theta, self._theta)[:-1, :-1]

    def place(self, s: Spot) -> None:
        """Set the model to Θ^t + Σ b_k(s) v_k."""
        if self._in_place:
            return  # the model is there already
        self._s = s
        weights = self._embedding.weights(s)
        self._active = [(k, weight) for k, weight in enumerate(weights) if weight != 0.0]
        point = self._theta
        for k, weight in self._active:
            point = torch.add(point, self._offsets[k], alpha=weight, out=self._model.vector)

    def shift(self, direction: Tensor, length: float) -> None:
        """Add the component of ``direction`` orthogonal to the curve or surface, scaled to ``length``."""
        direction = direction.to(self._model.device)
        spanned: list[tuple[Tensor, float]] = []
        for slopes in self._embedding.tangents(self._s):
            tangent = torch.zeros_like(direction)
            for slope, offset in zip(slopes, self._offsets, strict=True):
                tangent.add_(offset, alpha=slope)
            for other, square in spanned:
                tangent.sub_(other, alpha=torch.dot(tangent, other).item() / square)
            if (square := torch.dot(tangent, tangent).item()) > 0.0:
                direction.sub_(tangent, alpha=torch.dot(direction, tangent).item() / square)
                spanned.append((tangent, square))
        norm = torch.linalg.vector_norm(direction).item()
        if norm > 0.0:
            self._model.vector.add_(direction, alpha=length / norm)

    def learn(self, factor: float = 1.0) -> None:
        """Move each control point k by b_k(s) times the one gradient."""
        if self._in_place:
            self._descend(factor)
            return
        gradient = self._model.take_gradient()
        if self._settings.proximal:
            for k, weight in self._active:
                gradient.add_(self._offsets[k], alpha=self._settings.proximal * weight)
        clip_gradient(gradient, self._settings.gradient_clip)
        active = [k for k, _ in self._active]
        trained = self._embedding.trained(active) if self._along_curve else active
        for k, weight in self._active:
            if k in trained:
                scaled = gradient if weight == 1.0 else gradient * weight
                self._optimizer.step(k, self._offsets[k], scaled, factor)
        if self._trajectory is not None and not self._along_curve:
            self._trajectory.include(self._offsets[-1])

    def _descend(self, factor: float) -> None:
        """Take a step of plain SGD, which does not need the gradient as one vector."""
        lr, proximal = self._settings.local_lr * factor, self._settings.proximal
        if proximal:
            self._model.vector.lerp_(self._theta, lr * proximal)
        self._model.descend(lr)

    def finish(self) -> None:
        """Compute the offset of an end point that was trained in place; fit a curve to its trajectory."""
        if self._in_place:
            torch.sub(self._model.vector, self._theta, out=self._offsets[-1])
        if self._trajectory is not None and not self._along_curve:
            self._trajectory.fit(self._offsets)


class _Adam:
    """Adam with torch's fused step and default hyper-parameters, separately for each control point."""

    def __init__(self, settings: LocalTraining, points: int, size: int, device: torch.device) -> None:
        self._lr = settings.local_lr
        shapes = (size,), (size,), ()
        self._memory = [tuple(torch.zeros(each, device=device) for each in shapes) for _ in range(points)]

    def reset(self, theta: Tensor) -> None:
        """Reset to zero, so that no job depends on earlier ones."""
        for memory in self._memory:
            for tensor in memory:
                tensor.zero_()

    def step(self, k: int, point: Tensor, gradient: Tensor, factor: float) -> None:
        """Move control point k."""
        mean, square, count = self._memory[k]
        adam(
            [point],
            [gradient],
            [mean],
            [square],
            [],
            [count],
            fused=True,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=self._lr * factor,
            weight_decay=0.0,
            eps=1e-8,
            maximize=False,
        )


class _SGD:
    """SGD with optional momentum, separately for each control point."""

    def __init__(self, settings: LocalTraining, points: int, size: int, device: torch.device) -> None:
        self._lr, self._momentum = settings.local_lr, settings.momentum
        self._speeds = torch.zeros(points, size if self._momentum else 0, device=device)

    def reset(self, theta: Tensor) -> None:
        """Reset to zero, so that no job depends on earlier ones."""
        self._speeds.zero_()

    def step(self, k: int, point: Tensor, gradient: Tensor, factor: float) -> None:
        """Move control point k."""
        if self._momentum:
            gradient = self._speeds[k].mul_(self._momentum).add_(gradient)
        point.add_(gradient, alpha=-self._lr * factor)


class _PointOptimizer(Protocol):
    """Moves the control points, each with its own state."""

    def reset(self, theta: Tensor) -> None: ...

    def step(self, k: int, point: Tensor, gradient: Tensor, factor: float) -> None: ...


def _make_optimizer(model: TrainedModel, points: int, settings: LocalTraining) -> _PointOptimizer:
    plain = plain_name(settings.optimizer)
    if plain is None:
        return NamedOptimizer(settings.optimizer, settings.local_lr, points, model.parts)
    return (_Adam if plain == "adam" else _SGD)(settings, points, model.size, model.device)


def clip_gradient(gradient: Tensor, most: float | None) -> None:
    """Scale a gradient down to the norm ``most``, as ``torch.nn.utils.clip_grad_norm_`` does."""
    if most is not None:
        norm = torch.linalg.vector_norm(gradient)
        gradient.mul_(torch.clamp(most / (norm + 1e-6), max=1.0))
