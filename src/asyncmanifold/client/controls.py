"""The control points that a job trains in flat space, and the optimisers that move them."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.optim.adam import adam

from asyncmanifold.client.settings import LocalTraining
from asyncmanifold.geometry.embeddings import Embedding
from asyncmanifold.vectors import FlatModel


class Controls(Protocol):
    """The free control points that a job trains: first the end point alone, then all along a curve."""

    def begin(self, theta: Tensor, offsets: Tensor) -> None:
        """Start at ``theta``; the result is written to ``offsets``."""
        ...

    def start_curve(self) -> None:
        """Move interior control points to where they start the curve phase."""
        ...

    def place(self, s: float) -> None:
        """Set the model to γ(s)."""
        ...

    def shift(self, direction: Tensor, length: float) -> None:
        """Move the model off the curve by ``length``, along the part of ``direction`` orthogonal to it."""
        ...

    def learn(self) -> None:
        """Move the control points by the gradient at the model's current position."""
        ...

    def finish(self) -> None:
        """Write what was learned to the offsets."""
        ...


class FlatControls(Controls):
    """Control points in flat space: the offsets themselves are trained.

    Plain SGD moves the model itself as long as it trains the end point alone, and computes the offset once at
    the end: that saves three passes over the model in every step, a tenth of a small job.
    """

    def __init__(self, model: FlatModel, embedding: Embedding, settings: LocalTraining) -> None:
        self._model, self._embedding, self._settings = model, embedding, settings
        self._optimizer = _OPTIMIZERS[settings.optimizer](settings, embedding.points, model.size)
        self._parts = model.parts(model.vector)

    def begin(self, theta: Tensor, offsets: Tensor) -> None:
        """Set every control point to ``theta``."""
        self._theta, self._offsets = theta, offsets
        self._along_curve = False
        self._in_place = self._settings.optimizer == "sgd" and not self._settings.momentum
        if self._in_place:
            self._model.vector.copy_(theta)
        offsets.zero_()
        self._optimizer.reset()

    def start_curve(self) -> None:
        self.finish()
        self._along_curve, self._in_place = True, False
        for offset, share in zip(self._offsets, self._embedding.interior_shares(), strict=False):
            torch.mul(self._offsets[-1], share, out=offset)

    def place(self, s: float) -> None:
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
        """Add the component of ``direction`` orthogonal to γ'(s), scaled to ``length``."""
        tangent = torch.zeros_like(direction)
        for slope, offset in zip(self._embedding.slopes(self._s), self._offsets, strict=True):
            tangent.add_(offset, alpha=slope)
        square = torch.dot(tangent, tangent).item()
        if square > 0.0:
            direction.sub_(tangent, alpha=torch.dot(direction, tangent).item() / square)
        norm = torch.linalg.vector_norm(direction).item()
        if norm > 0.0:
            self._model.vector.add_(direction, alpha=length / norm)

    def learn(self) -> None:
        """Move each control point k by b_k(s) times the one gradient."""
        if self._in_place:
            self._descend()
            return
        gradient = self._model.take_gradient()
        if self._settings.proximal:
            for k, weight in self._active:
                gradient.add_(self._offsets[k], alpha=self._settings.proximal * weight)
        active = [k for k, _ in self._active]
        trained = self._embedding.trained(active) if self._along_curve else active
        for k, weight in self._active:
            if k in trained:
                scaled = gradient if weight == 1.0 else gradient * weight
                self._optimizer.step(k, self._offsets[k], scaled)

    def _descend(self) -> None:
        """Take a step of plain SGD, parameter by parameter: it does not need the gradient as one vector."""
        lr, proximal = self._settings.local_lr, self._settings.proximal
        if proximal:
            self._model.vector.lerp_(self._theta, lr * proximal)
        for part, gradient in zip(self._parts, self._model.gradients, strict=True):
            part.add_(gradient, alpha=-lr)

    def finish(self) -> None:
        """Compute the offset of an end point that was trained in place."""
        if self._in_place:
            torch.sub(self._model.vector, self._theta, out=self._offsets[-1])


class _Adam:
    """Adam with torch's fused step and default hyper-parameters, separately for each control point."""

    def __init__(self, settings: LocalTraining, points: int, size: int) -> None:
        self._lr = settings.local_lr
        self._memory = [(torch.zeros(size), torch.zeros(size), torch.zeros(())) for _ in range(points)]

    def reset(self) -> None:
        """Reset to zero, so that no job depends on earlier ones."""
        for memory in self._memory:
            for tensor in memory:
                tensor.zero_()

    def step(self, k: int, point: Tensor, gradient: Tensor) -> None:
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
            lr=self._lr,
            weight_decay=0.0,
            eps=1e-8,
            maximize=False,
        )


class _SGD:
    """SGD with optional momentum, separately for each control point."""

    def __init__(self, settings: LocalTraining, points: int, size: int) -> None:
        self._lr, self._momentum = settings.local_lr, settings.momentum
        self._speeds = torch.zeros(points, size if self._momentum else 0)

    def reset(self) -> None:
        """Reset to zero, so that no job depends on earlier ones."""
        self._speeds.zero_()

    def step(self, k: int, point: Tensor, gradient: Tensor) -> None:
        """Move control point k."""
        if self._momentum:
            gradient = self._speeds[k].mul_(self._momentum).add_(gradient)
        point.add_(gradient, alpha=-self._lr)


_OPTIMIZERS: dict[str, type[_Adam] | type[_SGD]] = {"adam": _Adam, "sgd": _SGD}
