"""The optimisers of local training: any of torch's by name with its arguments, or a function that makes one.

Plain Adam and SGD, the defaults, have faster ways of their own in ``controls.py``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from asyncmanifold.errors import InputError

OptimizerFactory = Callable[[list[Tensor]], torch.optim.Optimizer]
"""Makes an optimiser of tensors: one for each parameter of the model, in the model's order and shapes."""
OptimizerChoice = str | dict[str, Any] | OptimizerFactory
PLAIN = ("adam", "sgd")


def plain_name(choice: OptimizerChoice) -> str | None:
    """Return ``"adam"`` or ``"sgd"`` if the choice is one of them without arguments, else None."""
    if isinstance(choice, dict) and list(choice) == ["name"]:
        choice = choice["name"]
    return choice.lower() if isinstance(choice, str) and choice.lower() in PLAIN else None


def check_optimizer(choice: OptimizerChoice, rate: float) -> None:
    """Refuse an optimiser that does not exist, or that cannot take a step here, with one line.

    One step is tried on a single weight: what torch says about wrong arguments is passed on.
    """
    if plain_name(choice) is not None:
        return
    weight = torch.zeros(1, 1, requires_grad=True)
    weight.grad = torch.zeros(1, 1)
    label = f"optimizer {label_of(choice)!r}"
    try:
        optimizer = make_optimizer(choice, [weight], rate)
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise InputError(f"{label} makes a {type(optimizer).__name__}, not a torch.optim.Optimizer")
        if inspect.signature(type(optimizer).step).parameters["closure"].default is inspect.Parameter.empty:
            raise InputError(
                f"{label} needs a closure, to compute the loss several times per step: use another"
            )
        optimizer.step()
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{label} cannot be used: {' '.join(str(error).split())}") from error


def make_optimizer(choice: OptimizerChoice, weights: list[Tensor], rate: float) -> torch.optim.Optimizer:
    """Return a fresh optimiser of ``weights``; a factory decides about its rate itself."""
    if isinstance(choice, type):
        choice = choice.__name__
    if not isinstance(choice, (str, dict)):
        return choice(weights)
    table = {"name": choice} if isinstance(choice, str) else dict(choice)
    cls = optimizer_class(table.pop("name", None))
    allowed = [name for name in inspect.signature(cls).parameters if name not in ("params", "lr")]
    for name in table:
        if name == "lr":
            raise InputError(f"optimizer {cls.__name__!r}: give the learning rate as local_lr, not as lr")
        if name not in allowed:
            raise InputError(
                f"optimizer {cls.__name__!r} has no argument {name!r} (allowed: {', '.join(allowed)})"
            )
    arguments = {name: tuple(value) if isinstance(value, list) else value for name, value in table.items()}
    return cls(weights, lr=rate, **arguments)


def optimizer_class(name: Any) -> Callable[..., torch.optim.Optimizer]:
    """Return the class of ``torch.optim`` with this name, in capitals or not."""
    known = {
        cls.__name__.lower(): cls
        for cls in vars(torch.optim).values()
        if isinstance(cls, type)
        and issubclass(cls, torch.optim.Optimizer)
        and cls is not torch.optim.Optimizer
    }
    if not isinstance(name, str) or name.lower() not in known:
        names = ", ".join(sorted(cls.__name__ for cls in known.values()))
        raise InputError(f"optimizer {name!r} is not in torch.optim (there are: {names})")
    return known[name.lower()]


def label_of(choice: Any) -> str:
    """Return the name of an optimiser, or of any function, for messages and records."""
    if isinstance(choice, str):
        return choice
    if isinstance(choice, dict):
        return str(choice.get("name"))
    made = getattr(choice, "func", choice)  # of a functools.partial
    return f"{made.__module__}:{getattr(made, '__qualname__', type(made).__name__)}"


class NamedOptimizer:
    """One optimiser of ``torch.optim`` for each control point.

    It trains the point's weights, Θ^t plus the offset, so that weight decay acts on weights. They have the
    shapes of the model's parameters: some optimisers, such as Adafactor, treat matrices unlike vectors.
    """

    def __init__(
        self,
        choice: OptimizerChoice,
        rate: float,
        points: int,
        parts: Callable[[Tensor], list[Tensor]],
    ) -> None:
        self._choice, self._rate, self._points, self._parts = choice, rate, points, parts

    def reset(self, theta: Tensor) -> None:
        """Start with fresh optimisers, so that no job depends on earlier ones."""
        self._theta = theta
        self._weights = [theta.clone() for _ in range(self._points)]
        self._leaves = [[part.requires_grad_() for part in self._parts(each)] for each in self._weights]
        self._optimizers: Sequence[torch.optim.Optimizer]
        try:
            self._optimizers = [make_optimizer(self._choice, each, self._rate) for each in self._leaves]
        except ValueError as error:
            label = label_of(self._choice)
            raise InputError(f"optimizer {label!r} does not fit this model: {error}") from error
        self._rates = [[group["lr"] for group in each.param_groups] for each in self._optimizers]

    @torch.no_grad()
    def step(self, k: int, point: Tensor, gradient: Tensor, factor: float) -> None:
        """Move control point k, given by its offset, with the learning rate times ``factor``."""
        torch.add(self._theta, point, out=self._weights[k])
        for leaf, part in zip(self._leaves[k], self._parts(gradient), strict=True):
            leaf.grad = part
        optimizer = self._optimizers[k]
        for group, rate in zip(optimizer.param_groups, self._rates[k], strict=True):
            group["lr"] = rate * factor
        optimizer.step()
        torch.sub(self._weights[k], self._theta, out=point)
