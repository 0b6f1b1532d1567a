"""Local training of a point or of a curve on any ``nn.Module`` (docs/design.md, Local training).

The trained parameters are the offsets v_1 … v_n of the free control points. Each batch draws a
position s on the curve, evaluates the plain model at w = Θ^t + Σ_k b_k(s) v_k, and the gradient of control
point k is b_k(s) times the one gradient at w: one backward pass, then a scalar times a vector.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from asyncmanifold.client.controls import Controls, FlatControls
from asyncmanifold.client.settings import LocalTraining
from asyncmanifold.geometry.embeddings import Embedding
from asyncmanifold.seeding import Purpose, derive, torch_seed
from asyncmanifold.server.protocol import Job, Update
from asyncmanifold.tasks.data import Data
from asyncmanifold.vectors import FlatModel

Loss = Callable[[Any, Any], Tensor]


class NonFiniteLoss(Exception):  # noqa: N818 - an outcome, not an error
    """A client's loss became infinite or NaN; its job is abandoned."""


class Trainer:
    """Trains jobs one after another on one module, whose memory is reused."""

    def __init__(
        self, module: nn.Module, loss: Loss, embedding: Embedding, settings: LocalTraining, seed: int
    ) -> None:
        """Modify ``module`` in place; every job brings its own weights."""
        self._model = FlatModel(module)
        self._loss, self._embedding, self._settings, self._seed = loss, embedding, settings, seed
        self.size = self._model.size
        self._random: np.random.Generator | None = None
        self._controls: Controls
        if self._model.space.is_flat:
            self._controls = FlatControls(self._model, embedding, settings)
        else:
            from asyncmanifold.client.curved import CurvedControls

            self._controls = CurvedControls(self._model, embedding, settings)

    def train(self, job: Job, data: Data, out: Tensor | None = None) -> Update:
        """Return what the client of ``job`` learned; its offsets are written to ``out`` if given.

        Raises ``NonFiniteLoss`` if training diverges. The result depends only on the job, the
        data and the seed.
        """
        started = perf_counter()
        offsets = torch.empty(self._embedding.points, self.size) if out is None else out
        self._job, self._random = job, None
        self._controls.begin(job.theta, offsets)
        self._model.write_statistics(job.statistics)
        self._model.module.train()
        random = derive(self._seed, Purpose.TRAINING, job.client, job.number)
        losses: list[float] = []
        with torch_seed(derive(self._seed, Purpose.LAYERS, job.client, job.number)):
            for epoch in range(job.epochs):
                along_curve = epoch >= job.point_epochs
                if epoch == job.point_epochs:
                    self._controls.start_curve()
                for indices in _batches(len(data), self._settings.batch_size, random):
                    s = self._embedding.draw(random) if along_curve else 1.0
                    self._batch = self._set_memory_format(data.batch(indices))
                    value = self._step(s, along_curve)
                    if not isfinite(value):
                        raise NonFiniteLoss(f"loss became {value} in epoch {epoch + 1}")
                    losses.append(value)
        self._controls.finish()
        return Update(
            client=job.client,
            version=job.version,
            offsets=offsets,
            statistics=self._model.read_statistics(),
            loss=sum(losses) / len(losses),
            seconds=perf_counter() - started,
        )

    @property
    def random(self) -> np.random.Generator:
        """The job's random generator for leaving the curve, created on first use."""
        if self._random is None:
            self._random = derive(self._seed, Purpose.TUNNEL, self._job.client, self._job.number)
        return self._random

    def gradient(self) -> Tensor:
        """Return the gradient of the batch's loss at the model's current position."""
        self._backpropagate()
        return self._model.take_gradient()

    def shift(self, direction: Tensor, length: float) -> None:
        """Move the model off the curve."""
        self._controls.shift(direction, length)

    def _step(self, s: float, along_curve: bool) -> float:
        """Take one optimiser step at γ(s), or beside it in a tunnel, and return the loss at that position."""
        self._controls.place(s)
        if along_curve:
            self._embedding.leave(self)
        value = self._backpropagate()
        self._controls.learn()
        return value

    def _set_memory_format(self, batch: tuple[Any, Any]) -> tuple[Any, Any]:
        inputs, targets = batch
        if self._settings.channels_last and isinstance(inputs, Tensor) and inputs.dim() == 4:
            inputs = inputs.to(memory_format=torch.channels_last)
        return inputs, targets

    def _backpropagate(self) -> float:
        """Return the batch's loss, and leave its gradient in the model."""
        inputs, targets = self._batch
        self._model.clear_gradients()
        value = self._loss(self._model.module(inputs), targets)
        value.backward()  # type: ignore[no-untyped-call]
        return value.item()


def _batches(count: int, size: int, random: np.random.Generator) -> list[Tensor]:
    """Return a shuffled epoch as ⌈count / size⌉ batches whose sizes differ by at most one.

    Batches are nearly even because a last batch of a single example would break BatchNorm, and would weigh as
    much as a full one.
    """
    order = torch.from_numpy(random.permutation(count))
    return list(order.tensor_split(-(-count // size)))
