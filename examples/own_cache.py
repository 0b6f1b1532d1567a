"""Remember something of every client: step by the mean of all clients' last steps, however old they are."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from own_correction import make_task
from torch import Tensor

from asyncmanifold import METHODS, Run, StepBuffer, simulate


@dataclass(frozen=True)
class CachedMean(StepBuffer):
    """u ← u + (step − last step of this client) / clients; the model moves by u."""

    cached_clients: int
    tangents: ClassVar[tuple[str, ...]] = ("mean", "last")

    def init(self, theta: Tensor) -> dict[str, Any]:
        return {"mean": torch.zeros_like(theta), "last": {}}

    def gather(self, move: Any, arrival: Any, memory: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        step, last = move.vector(), memory["last"]
        change = step - last[arrival.client] if arrival.client in last else step
        mean = torch.add(memory["mean"], change, alpha=1.0 / self.cached_clients)
        return move.along(mean), {"mean": mean, "last": {**last, arrival.client: step}}


if __name__ == "__main__":
    task = make_task()
    for buffer in (None, CachedMean(len(task.clients))):
        method = replace(METHODS["asyncsgd"], buffer=buffer, weighting="none", global_lr=0.3)
        result = simulate(task, method, run=Run(updates=60))
        print(f"{buffer}: accuracy {result.summary['final']:.3f}")
