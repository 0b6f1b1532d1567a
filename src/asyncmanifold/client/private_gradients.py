"""Gradients of DP-SGD: of every example by itself, clipped, summed and noised."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.utils._pytree import tree_map

from asyncmanifold.errors import InputError, one_line
from asyncmanifold.privacy.example_privacy import ExamplePrivacy
from asyncmanifold.privacy.noise import add_noise
from asyncmanifold.vectors import FlatModel

AT_ONCE = 32
"""Examples whose gradients are in memory at the same time."""


class PrivateGradients:
    """Draws the examples of a step and leaves their noised gradient in a model.

    Random numbers are the operating system's: those of the run's seed are public, and who is in a batch must
    be as secret as the noise.
    """

    def __init__(
        self,
        model: FlatModel,
        loss: Callable[[Any, Any], Tensor],
        privacy: ExamplePrivacy,
        batch_size: int,
    ) -> None:
        privacy.check_model(model.module)
        self._model, self._loss, self._privacy, self._batch_size = model, loss, privacy, batch_size
        self._trained = {name: p for name, p in model.module.named_parameters() if p.requires_grad}
        self._gradients = vmap(grad(self._loss_of_one), in_dims=(None, 0, 0), randomness="different")

    def draw(self, count: int) -> Tensor:
        """Return which of so many examples are in a step: each with the same probability, independently."""
        random = np.frombuffer(os.urandom(8 * count), np.uint64) >> np.uint64(11)
        return torch.from_numpy(np.flatnonzero(random * 2.0**-53 < self._privacy.sampling))

    def leave(self, batch: tuple[Any, Any] | None) -> None:
        """Leave (Σ clipped gradients + noise) / batch size in the model; without a batch, the noise alone."""
        total = torch.zeros(self._model.size, device=self._model.device)
        for inputs, targets in () if batch is None else _chunks(batch):
            total += self._clipped_sum(inputs, targets)
        add_noise(total, self._privacy.noise_multiplier * self._privacy.clip_norm)
        total /= self._batch_size
        for parameter, part in zip(self._trained.values(), self._model.parts(total), strict=True):
            parameter.grad = part

    def _clipped_sum(self, inputs: Any, targets: Any) -> Tensor:
        parameters = {name: p.detach() for name, p in self._trained.items()}
        try:
            found = self._gradients(parameters, inputs, targets)
        except RuntimeError as error:
            raise InputError(f"example_privacy: no gradient by example: {one_line(error)}") from error
        rows = torch.cat([found[name].flatten(start_dim=1) for name in self._trained], dim=1)
        norms = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
        factors = torch.clamp(self._privacy.clip_norm / norms, max=1.0).nan_to_num(nan=1.0)
        finite = torch.isfinite(norms)  # what is not finite adds nothing, and is not to be seen
        return (rows[finite].double() * factors[finite, None]).sum(dim=0).float()

    def _loss_of_one(self, parameters: dict[str, Tensor], inputs: Any, targets: Any) -> Tensor:
        one = tree_map(lambda tensor: tensor.unsqueeze(0), inputs)
        arguments = ((), dict(one)) if isinstance(one, Mapping) else ((one,), {})
        outputs = functional_call(self._model.module, parameters, *arguments)
        return self._loss(outputs, tree_map(lambda tensor: tensor.unsqueeze(0), targets))


def _chunks(batch: tuple[Any, Any]) -> list[tuple[Any, Any]]:
    """Return a batch in pieces that fit into memory with a gradient of each example."""
    first = batch[0]
    while not isinstance(first, Tensor):
        first = next(iter(first.values() if isinstance(first, Mapping) else first))
    starts = range(0, len(first), AT_ONCE)
    return [tree_map(lambda tensor, s=start: tensor[s : s + AT_ONCE], batch) for start in starts]
