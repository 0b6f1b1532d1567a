"""Server optimizers transform a step before it is taken: momentum, adaptive rates and the like."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

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

    def step(self, move: Move, memory: Memory) -> tuple[Tensor, Memory]:
        """Return the step to take, a tangent vector at the current model, and the new memory."""
        return move.vector(), memory


SERVER_OPTIMIZERS: dict[str, type[ServerOptimizer]] = {}
