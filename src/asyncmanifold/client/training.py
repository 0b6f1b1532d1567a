"""Local training of a point or of a curve on any ``nn.Module`` (design.md, section 3.1).

The parameters that are trained are the offsets v_1 … v_n of the free control points. A batch draws a
place s on the curve, evaluates the plain model at w = Θ^t + Σ_k b_k(s) v_k, and the gradient of control
point k is b_k(s) times the one gradient at w: one backward pass, then a scalar times a vector.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from time import perf_counter
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.adam import adam

from asyncmanifold.errors import InputError
from asyncmanifold.geometry.embeddings import Bezier, Embedding, Tunnel
from asyncmanifold.seeding import Purpose, derive, torch_seed
from asyncmanifold.server.protocol import Job, Update
from asyncmanifold.tasks.data import Data
from asyncmanifold.vectors import FlatModel

Loss = Callable[[Any, Any], Tensor]


@dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """How a client trains: FedProx's objective ℓ(w) + μ/2 ‖w − Θ^t‖², by Adam or SGD."""

    point_epochs: int = 2
    """Epochs at the end point (the paper's K₁)."""
    curve_epochs: int = 2
    """Epochs along the curve (K − K₁); methods without a curve have none."""
    batch_size: int = 32
    optimizer: Literal["adam", "sgd"] = "adam"
    local_lr: float = 1e-3
    """The paper's η_l."""
    proximal: float = 1e-3
    """The paper's μ."""
    momentum: float = 0.0
    """Of SGD."""
    channels_last: bool = False
    """Lay images out with their channels last, which makes most convolutions faster on a CPU; the same up to
    rounding."""

    def __post_init__(self) -> None:
        if self.point_epochs < 1:
            raise InputError(f"LocalTraining(point_epochs={self.point_epochs}) must be at least 1")
        if self.curve_epochs < 0:
            raise InputError(f"LocalTraining(curve_epochs={self.curve_epochs}) must be at least 0")
        if self.batch_size < 1:
            raise InputError(f"LocalTraining(batch_size={self.batch_size}) must be at least 1")
        if self.optimizer not in ("adam", "sgd"):
            raise InputError(f"LocalTraining(optimizer={self.optimizer!r}) must be 'adam' or 'sgd'")
        if not 0.0 < self.local_lr < float("inf"):
            raise InputError(f"LocalTraining(local_lr={self.local_lr}) must be above 0 and finite")
        if not 0.0 <= self.proximal < float("inf"):
            raise InputError(f"LocalTraining(proximal={self.proximal}) must be at least 0 and finite")
        if not 0.0 <= self.momentum < 1.0:
            raise InputError(f"LocalTraining(momentum={self.momentum}) must be in [0, 1)")


class NonFiniteLoss(Exception):  # noqa: N818 - an outcome, not an error
    """A client's loss that is no longer a number; its job is given up."""


class Trainer:
    """Trains jobs one after another on one module, reusing its memory."""

    def __init__(
        self,
        module: nn.Module,
        loss: Loss,
        embedding: Embedding,
        settings: LocalTraining,
        seed: int,
    ) -> None:
        self._model = FlatModel(module)
        self._loss = loss
        self._embedding = embedding
        self._settings = settings
        self._seed = seed
        self._controls: Controls
        if self._model.space.is_flat:
            self._controls = FlatControls(self._model, embedding, settings)
        else:
            from asyncmanifold.client.curved import CurvedControls

            self._controls = CurvedControls(self._model, embedding, settings)

    def train(self, job: Job, data: Data, out: Tensor | None = None) -> Update:
        """Return what the client of ``job`` learned; ``out`` may name where to write its offsets.

        Raises ``NonFiniteLoss`` when training breaks down. The result depends on nothing but the job, the
        data and the seed.
        """
        started = perf_counter()
        shape = (self._embedding.points, self._model.size)
        offsets = torch.empty(shape) if out is None else out
        self._controls.begin(job.theta, offsets)
        self._model.write_buffers(job.buffers)
        self._model.module.train()
        random = derive(self._seed, Purpose.TRAINING, job.client, job.number)
        losses: list[float] = []
        if isinstance(self._embedding, Tunnel):
            self._directions = derive(self._seed, Purpose.TUNNEL, job.client, job.number)
        with torch_seed(derive(self._seed, Purpose.LAYERS, job.client, job.number)):
            for epoch in range(job.point_epochs + job.curve_epochs):
                along_curve = epoch >= job.point_epochs
                if epoch == job.point_epochs:
                    self._controls.start_curve()
                for indices in _batches(len(data), self._settings.batch_size, random):
                    s = 1.0 - float(random.random()) if along_curve else 1.0
                    inputs, targets = self._laid_out(data.batch(indices))
                    value = self._step(s, along_curve, inputs, targets)
                    if not isfinite(value):
                        raise NonFiniteLoss(f"loss became {value} in epoch {epoch + 1}")
                    losses.append(value)
        self._controls.finish()
        return Update(
            client=job.client,
            version=job.version,
            offsets=offsets,
            buffers=self._model.read_buffers(),
            loss=sum(losses) / len(losses),
            seconds=perf_counter() - started,
        )

    def _step(self, s: float, along_curve: bool, inputs: Any, targets: Any) -> float:
        """Take one optimiser step at γ(s), or beside it in a tunnel, and return the loss there."""
        self._controls.place(s)
        if along_curve and isinstance(self._embedding, Tunnel) and self._embedding.radius:
            self._leave_curve(self._embedding, inputs, targets)
        value = self._pass(inputs, targets)
        self._controls.learn()
        return value

    def _laid_out(self, batch: tuple[Any, Any]) -> tuple[Any, Any]:
        inputs, targets = batch
        if self._settings.channels_last and isinstance(inputs, Tensor) and inputs.dim() == 4:
            inputs = inputs.to(memory_format=torch.channels_last)
        return inputs, targets

    def _pass(self, inputs: Any, targets: Any) -> float:
        """Return the loss, and leave its gradient in the model."""
        self._model.clear_gradients()
        value = self._loss(self._model.module(inputs), targets)
        value.backward()  # type: ignore[no-untyped-call]
        return value.item()

    def _leave_curve(self, tunnel: Tunnel, inputs: Any, targets: Any) -> None:
        """Move the model off the curve: where the loss rises, or anywhere within the radius."""
        if tunnel.sharpness_aware:
            self._pass(inputs, targets)
            self._controls.shift(self._model.take_gradient(), tunnel.radius)
            return
        size = self._model.size
        direction = torch.from_numpy(self._directions.standard_normal(size, dtype=np.float32))
        self._controls.shift(direction, tunnel.radius * float(self._directions.random()) ** (1.0 / size))


class Controls(Protocol):
    """The free control points that a job trains: first the end point alone, then all along a curve."""

    def begin(self, theta: Tensor, offsets: Tensor) -> None:
        """Start at ``theta``; ``offsets`` is where the result goes."""
        ...

    def start_curve(self) -> None:
        """Put interior control points where they begin the curve phase."""
        ...

    def place(self, s: float) -> None:
        """Put the model at γ(s)."""
        ...

    def shift(self, direction: Tensor, length: float) -> None:
        """Move the model off the curve by ``length``, along the part of ``direction`` orthogonal to it."""
        ...

    def learn(self) -> None:
        """Move the control points by the model's gradient there."""
        ...

    def finish(self) -> None:
        """See that the offsets are what was learned."""
        ...


class FlatControls:
    """Control points in flat space: the offsets themselves are trained.

    Plain SGD moves the model in place as long as it trains the end point alone, and takes the offset once.
    """

    def __init__(self, model: FlatModel, embedding: Embedding, settings: LocalTraining) -> None:
        self._model, self._embedding, self._settings = model, embedding, settings
        self._optimizer = _OPTIMIZERS[settings.optimizer](settings, embedding.points, model.size)
        self._parts = model.parts(model.vector)

    def begin(self, theta: Tensor, offsets: Tensor) -> None:
        """Put every control point at ``theta``."""
        self._theta, self._offsets = theta, offsets
        self._along_curve = False
        self._in_place = self._settings.optimizer == "sgd" and not self._settings.momentum
        if self._in_place:
            self._model.vector.copy_(theta)
        offsets.zero_()
        self._optimizer.reset()

    def start_curve(self) -> None:
        """Spread interior points on the chord, where that is asked for."""
        self.finish()
        self._along_curve, self._in_place = True, False
        embedding = self._embedding
        if isinstance(embedding, Bezier) and embedding.interior_start == "chord":
            for k in range(1, embedding.points):
                torch.mul(self._offsets[-1], k / embedding.points, out=self._offsets[k - 1])

    def place(self, s: float) -> None:
        """Put the model at Θ^t + Σ b_k(s) v_k."""
        if self._in_place:
            return  # it is there
        self._s = s
        weights = self._embedding.weights(s)
        self._active = [(k, weight) for k, weight in enumerate(weights) if weight != 0.0]
        point = self._theta
        for k, weight in self._active:
            point = torch.add(point, self._offsets[k], alpha=weight, out=self._model.vector)

    def shift(self, direction: Tensor, length: float) -> None:
        """Add what is left of ``direction`` without its part along γ'(s), scaled to ``length``."""
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
        """Move each control point by its share of the one gradient."""
        if self._in_place:
            self._descend()
            return
        gradient = self._model.take_gradient()
        if self._settings.proximal:
            for k, weight in self._active:
                gradient.add_(self._offsets[k], alpha=self._settings.proximal * weight)
        is_frozen = self._along_curve and isinstance(self._embedding, Bezier) and self._embedding.freeze_end
        for k, weight in self._active[:-1] if is_frozen else self._active:
            scaled = gradient if weight == 1.0 else gradient * weight
            self._optimizer.step(k, self._offsets[k], scaled)

    def _descend(self) -> None:
        """Take a step of plain SGD, which does not need the gradient as a vector."""
        lr, proximal = self._settings.local_lr, self._settings.proximal
        if proximal:
            self._model.vector.lerp_(self._theta, lr * proximal)
        for part, gradient in zip(self._parts, self._model.gradients, strict=True):
            part.add_(gradient, alpha=-lr)

    def finish(self) -> None:
        """Take the offset of an end point that was trained in place."""
        if self._in_place:
            torch.sub(self._model.vector, self._theta, out=self._offsets[-1])


def _batches(count: int, size: int, random: np.random.Generator) -> list[Tensor]:
    """Return a shuffled epoch as ⌈count / size⌉ batches whose sizes differ by at most one.

    Even batches: a last batch of a single example would break BatchNorm and carry too much weight.
    """
    order = torch.from_numpy(random.permutation(count))
    return list(order.tensor_split(-(-count // size)))


class _Adam:
    """Adam, with torch's fused step and default moments, for each control point."""

    def __init__(self, settings: LocalTraining, points: int, size: int) -> None:
        self._lr = settings.local_lr
        self._memory = [(torch.zeros(size), torch.zeros(size), torch.zeros(())) for _ in range(points)]

    def reset(self) -> None:
        """Forget everything about earlier jobs."""
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
    """SGD with optional momentum, for each control point."""

    def __init__(self, settings: LocalTraining, points: int, size: int) -> None:
        self._lr, self._momentum = settings.local_lr, settings.momentum
        self._speeds = torch.zeros(points, size if self._momentum else 0)

    def reset(self) -> None:
        """Forget everything about earlier jobs."""
        self._speeds.zero_()

    def step(self, k: int, point: Tensor, gradient: Tensor) -> None:
        """Move control point k."""
        if self._momentum:
            gradient = self._speeds[k].mul_(self._momentum).add_(gradient)
        point.add_(gradient, alpha=-self._lr)


_OPTIMIZERS: dict[str, type[_Adam] | type[_SGD]] = {"adam": _Adam, "sgd": _SGD}
