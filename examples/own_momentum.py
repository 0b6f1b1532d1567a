"""Invent a server optimiser: momentum on asynchronous steps; its memory is kept, saved and resumed."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from own_correction import make_task
from torch import Tensor

from asyncmanifold import METHODS, Run, ServerOptimizer, simulate


@dataclass(frozen=True)
class Momentum(ServerOptimizer):
    """m ← decay · m + step; the model moves by m."""

    momentum_decay: float = 0.5
    tangents: ClassVar[tuple[str, ...]] = ("velocity",)  # on a curved space it is carried along

    def init(self, theta: Tensor) -> dict[str, Any]:
        return {"velocity": torch.zeros_like(theta)}

    def step(self, move: Any, memory: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
        velocity = torch.add(move.vector(), memory["velocity"], alpha=self.momentum_decay)
        return velocity, {"velocity": velocity}


if __name__ == "__main__":
    for optimizer in (None, Momentum(0.5), Momentum(0.8)):
        method = replace(METHODS["asyncsgd"], server_optimizer=optimizer, global_lr=2.0)
        result = simulate(make_task(), method, run=Run(updates=60))
        print(f"{optimizer}: accuracy {result.summary['final']:.3f}")
