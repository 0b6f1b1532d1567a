"""Two problems whose constants are known: a robust regression in flat space, an eigenvector on the sphere.

Every client draws from the same finite population, so a stochastic gradient is unbiased for the gradient of
the global loss (the paper's "weakly homogeneous" clients), and the global loss can be computed exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from math import sqrt

import torch
from torch import Tensor, nn

from asyncmanifold.tasks.manifolds import make_parameter
from asyncmanifold.tasks.task import Task
from asyncmanifold.theory.findings import KnownConstants

CLIENTS = 8


@dataclass(frozen=True)
class Problem:
    """A task with the constants of its loss; its ``test`` is the whole population."""

    name: str
    title: str
    task: Task
    known: KnownConstants


class Stream:
    """An endless stream of examples: every batch is drawn from a population, with replacement.

    Passes over a fixed set would make the noise of an epoch cancel. It draws from torch's default generator,
    which every job seeds: batches are independent and repeatable. The length is the number of examples per
    epoch.
    """

    def __init__(self, inputs: Tensor, targets: Tensor, length: int) -> None:
        self._inputs, self._targets, self._length = inputs, targets, length

    def __len__(self) -> int:
        return self._length

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return as many random examples as there are indices; their values do not matter."""
        rows = torch.randint(len(self._inputs), (len(indices),))
        return self._inputs[rows], self._targets[rows]


class Direction(nn.Module):
    """One parameter vector; the output is its dot product with the input."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, inputs: Tensor) -> Tensor:
        """Return ⟨a, θ⟩ for every input a."""
        return inputs @ self.weight


def robust_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean of ½ r²/(1 + r²) for residuals r: the Geman–McClure loss, flat for outliers.

    Its slope r/(1 + r²)² is at most 9/(16√3), its curvature (1 − 3r²)/(1 + r²)³ in [−1/4, 1].
    """
    squares = (targets - outputs) ** 2
    return (0.5 * squares / (1.0 + squares)).mean()


def unexplained_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean of ½ (‖a‖² − ⟨a, θ⟩²), what a direction leaves unexplained; targets are ‖a‖²."""
    return 0.5 * (targets - outputs**2).mean()


def regression() -> Problem:
    """Return robust regression: inputs are all sign vectors, targets are noise of ±0.2, so the solution is 0.

    The start is one unit away, where the loss curves down in every direction.
    """
    dimension, noise = 4, 0.2
    signs = _signs(dimension)
    inputs = torch.cat([signs, signs])
    targets = torch.tensor([noise, -noise]).repeat_interleave(len(signs))
    start = torch.tensor([1.0] + [0.0] * (dimension - 1))
    longest = 9.0 / (16.0 * sqrt(3.0)) * sqrt(dimension)
    return Problem(
        name="flat",
        title="robust regression in flat space",
        task=_task(Direction(nn.Parameter(start)), robust_loss, inputs, targets),
        known=KnownConstants(smoothness=1.0, gradient_bound=longest, variance=longest**2, curvature=0.0),
    )


def eigenvector() -> Problem:
    """Return the search for the leading eigenvector of E[aaᵀ] = diag(1.05, 0.05 …), on the unit sphere.

    The start is 60° away, where the loss curves down towards the solution.
    """
    dimension, leading, other = 8, 1.05, 0.05
    spectrum = torch.tensor([leading] + [other] * (dimension - 1))
    inputs = _signs(dimension) * spectrum.sqrt()
    start = torch.tensor([0.5, sqrt(0.75)] + [0.0] * (dimension - 2))
    longest = 0.5 * (leading + (dimension - 1) * other)
    return Problem(
        name="sphere",
        title="leading eigenvector on the sphere",
        task=_task(
            Direction(make_parameter(start, "SphereExact")), unexplained_loss, inputs, (inputs**2).sum(dim=1)
        ),
        known=KnownConstants(
            smoothness=leading - other, gradient_bound=longest, variance=longest**2, curvature=1.0
        ),
    )


PROBLEMS: dict[str, Callable[[], Problem]] = {"flat": regression, "sphere": eigenvector}


def _signs(dimension: int) -> Tensor:
    """Return all vectors of ±1, one per row."""
    return torch.tensor(list(product((-1.0, 1.0), repeat=dimension)))


def _task(
    model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], inputs: Tensor, targets: Tensor
) -> Task:
    """Return a task with equal clients, whose epochs have one example each."""
    return Task(
        model=model,
        loss=loss,
        clients=[Stream(inputs, targets, length=1) for _ in range(CLIENTS)],
        test=(inputs, targets),
    )
