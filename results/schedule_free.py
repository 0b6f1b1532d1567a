"""A server optimizer that the search for a composition tried: steps are held back and given out slowly."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from asyncmanifold import ServerOptimizer
from asyncmanifold.server.moves import Move


@dataclass(frozen=True)
class ScheduleFree(ServerOptimizer):
    """Clients are sent y = (1 − β) z + β x: z makes the steps, x is their mean (Defazio et al. 2024).

    With r = z − y, which is all that has to be kept: r ← (1 − c)(r + β step), and the model moves by what is
    left of r + step. c is the weight of the latest z in its mean over about the last ``mean_share`` of all.
    """

    interpolation: float = 0.9
    mean_share: float = 0.25
    tangents: ClassVar[tuple[str, ...]] = ("held",)

    def init(self, theta: Tensor) -> dict[str, Any]:
        return {"held": torch.zeros_like(theta), "count": 0}

    def step(self, move: Move, memory: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
        count, power = memory["count"] + 1, 1.0 / self.mean_share - 1.0
        latest = (power + 1.0) / (count + power)
        step = move.vector()
        held = (memory["held"] + self.interpolation * step).mul_(1.0 - latest)
        return memory["held"] + step - held, {"held": held, "count": count}
