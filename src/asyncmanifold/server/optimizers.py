"""Server optimizers transform a step before it is taken: momentum, adaptive rates and the like."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from asyncmanifold.checks import check
from asyncmanifold.server.gram import blocks
from asyncmanifold.server.moves import Move
from asyncmanifold.server.stages import Memory, Part


@dataclass(frozen=True)
class ServerOptimizer(Part):
    """Takes every step unchanged. Subclasses override ``step``.

    A complete optimiser with a memory, and three updates with it:

    >>> import torch
    >>> from dataclasses import dataclass
    >>> from asyncmanifold import Method, ServerOptimizer, ServerState, Update, absorb
    >>> @dataclass(frozen=True)
    ... class HeavyBall(ServerOptimizer):
    ...     tangents = ("velocity",)
    ...     def init(self, theta):
    ...         return {"velocity": torch.zeros_like(theta)}
    ...     def step(self, move, memory):
    ...         velocity = 0.5 * memory["velocity"] + move.vector()
    ...         return velocity, {"velocity": velocity}
    >>> method, state = Method(server_optimizer=HeavyBall()), ServerState(torch.zeros(1))
    >>> for _ in range(3):
    ...     update = Update(client=0, version=state.version, offsets=torch.ones(1, 1))
    ...     state, _ = absorb(method, state, update, base=state.theta, weight=1.0)
    ...     print(state.theta.item())
    1.0
    2.5
    4.25
    """

    takes_rate: ClassVar[bool] = False
    """Whether η_g is a factor of the step that ``step`` returns, not of the steps that it is given: for an
    optimizer whose steps do not grow with the steps it is given."""

    def step(self, move: Move, memory: Memory) -> tuple[Tensor, Memory]:
        """Return the step to take, a tangent vector at the current model, and the new memory."""
        return move.vector(), memory

    def factor(self, move: Move) -> float:
        """Return the factor of the step that ``step`` returns, besides η_g."""
        return 1.0


@dataclass(frozen=True)
class ServerMomentum(ServerOptimizer):
    """m ← β m + step; the model moves by m (FedAvgM, Hsu et al. 2019; here on every step).

    Arguments:
        server_momentum: β.

    >>> from dataclasses import replace
    >>> from asyncmanifold import METHODS, ServerMomentum
    >>> replace(METHODS["fedbuff"], server_optimizer=ServerMomentum(0.5)).server_optimizer
    ServerMomentum(server_momentum=0.5)
    """

    server_momentum: float = 0.9
    tangents: ClassVar[tuple[str, ...]] = ("velocity",)

    def __post_init__(self) -> None:
        check(self, server_momentum="in [0, 1)")

    def init(self, theta: Tensor) -> Memory:
        return {"velocity": torch.zeros_like(theta)}

    def step(self, move: Move, memory: Memory) -> tuple[Tensor, Memory]:
        before = blocks(memory["velocity"])
        velocity = move.vector(lambda number, step: step.add_(before[number], alpha=self.server_momentum))
        return velocity, {"velocity": velocity}
