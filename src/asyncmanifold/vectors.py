"""A module's parameters as one flat vector, with its statistics beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from asyncmanifold.errors import InputError
from asyncmanifold.geometry.spaces import space_of


class Statistics(NamedTuple):
    """A module's state besides its parameters, such as BatchNorm's running statistics.

    Floating-point statistics are one vector and may be averaged. All others (counters, masks) are one vector
    of integers, which is only ever copied.
    """

    floats: Tensor
    integers: Tensor

    @classmethod
    def none(cls) -> Statistics:
        """Return the statistics of a module that has none."""
        return cls(torch.zeros(0), torch.zeros(0, dtype=torch.int64))

    def named(self, name: str) -> dict[str, Tensor]:
        """Return both vectors by name, for a file."""
        return {f"{name}.floats": self.floats, f"{name}.integers": self.integers}

    @classmethod
    def from_named(cls, name: str, tensors: Mapping[str, Tensor]) -> Statistics:
        """Return the statistics whose vectors ``named`` returned."""
        return cls(tensors[f"{name}.floats"], tensors[f"{name}.integers"])


class FlatModel:
    """An ``nn.Module`` whose trainable parameters are views of one float32 vector, ``vector``.

    Writing to ``vector`` changes the module. Parameters that do not require a gradient are not part of the
    vector and never change. The module itself is modified: pass a copy if the original must stay unchanged.
    """

    def __init__(self, module: nn.Module, device: torch.device | None = None) -> None:
        """Move the module to ``device`` if one is given."""
        self.module = module if device is None else _moved(module, device)
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        if not self._parameters:
            raise InputError(f"model {type(module).__name__} has no trainable parameters")
        for name, parameter in module.named_parameters():
            if parameter.requires_grad and parameter.dtype != torch.float32:
                raise InputError(
                    f"parameter {name} is {parameter.dtype}; only float32 can be trained: call "
                    f"model.float(), and set precision='bf16' for steps in half precision"
                )
        self.vector = torch.cat([p.detach().reshape(-1) for p in self._parameters])
        self.device = self.vector.device
        self.size = self.vector.numel()
        """The number P of trainable parameters."""
        self._views = self.parts(self.vector)
        for parameter, part in zip(self._parameters, self._views, strict=True):
            parameter.data = part
        self.space = space_of(self._parameters)
        """Where the vector lives: flat, unless parameters are geoopt's ``ManifoldParameter``."""
        held = dict(module.named_buffers())
        self._floats = [b for b in held.values() if b.is_floating_point()]
        self._integers = [b for b in held.values() if not b.is_floating_point()]
        self.variances = torch.cat(
            [
                torch.zeros(0, dtype=torch.bool),
                *(
                    torch.full((b.numel(),), name.endswith("running_var"))
                    for name, b in held.items()
                    if b.is_floating_point()
                ),
            ]
        )
        """Which of the floating-point statistics are variances."""

    def outputs(self, inputs: Any) -> Any:
        """Return the module's outputs for a batch; the entries of a dictionary are keyword arguments."""
        return self.module(**inputs) if isinstance(inputs, Mapping) else self.module(inputs)

    def parts(self, vector: Tensor) -> list[Tensor]:
        """Return a vector of the model's size as views, one in the shape of each parameter."""
        pieces = torch.split(vector, [parameter.numel() for parameter in self._parameters])
        return [piece.view(p.shape) for piece, p in zip(pieces, self._parameters, strict=True)]

    def clear_gradients(self) -> None:
        """Remove the gradients that backward passes left."""
        for parameter in self._parameters:
            parameter.grad = None

    @property
    def gradients(self) -> list[Tensor]:
        """The gradient of each parameter; zeros if the loss does not depend on it."""
        return [torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters]

    def take_gradient(self) -> Tensor:
        """Return the gradients as one vector, and remove them from the module."""
        gradient = torch.cat([gradient.reshape(-1) for gradient in self.gradients])
        self.clear_gradients()
        return gradient

    def descend(self, rate: float) -> None:
        """Move every parameter by −rate times the gradient that the backward pass left."""
        for part, gradient in zip(self._views, self.gradients, strict=True):
            part.add_(gradient, alpha=-rate)

    def read_statistics(self) -> Statistics:
        """Return a copy of the module's statistics, on the CPU."""
        none = Statistics.none()
        return Statistics(
            torch.cat([none.floats, *(b.reshape(-1).to("cpu", torch.float32) for b in self._floats)]),
            torch.cat([none.integers, *(b.reshape(-1).to("cpu", torch.int64) for b in self._integers)]),
        )

    def write_statistics(self, statistics: Statistics) -> None:
        """Set the module's statistics."""
        for targets, source in ((self._floats, statistics.floats), (self._integers, statistics.integers)):
            start = 0
            for target in targets:
                end = start + target.numel()
                target.copy_(source[start:end].view(target.shape))
                start = end

    def load(self, theta: Tensor, statistics: Statistics) -> None:
        """Set parameters and statistics."""
        self.vector.copy_(theta)
        self.write_statistics(statistics)

    def named_tensors(self) -> dict[str, Tensor]:
        """Return a copy of the module's state by name, on the CPU, for ``load_state_dict``."""
        state = self.module.state_dict()
        return {name: tensor.detach().to("cpu", copy=True) for name, tensor in state.items()}


def _moved(module: nn.Module, device: torch.device) -> nn.Module:
    if device.type != "cpu" and not space_of(module.parameters()).is_flat:
        raise InputError(f"a model with parameters on manifolds is trained on the CPU, not on {device}")
    return module.to(device)
