"""Invent a correction: one small class, usable with every embedding, penalty and buffer."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from asyncmanifold import Bezier, Correction, Method, OrthoDC, Run, Task, simulate


@dataclass(frozen=True)
class HalfWay(Correction):
    """v' = v − share · d: between trusting the direction (share 0) and the position (share 1)."""

    share: float = 0.5

    def coefficients(self, gram: np.ndarray) -> np.ndarray:
        matrix = super().coefficients(gram)  # row k expresses v'_k in (v_1 … v_n, d)
        matrix[:, -1] = -self.share
        return matrix


def make_task() -> Task:
    torch.manual_seed(0)
    truth = torch.randn(10, 3)
    inputs = torch.randn(1100, 10)
    targets = (inputs @ truth).argmax(dim=1)
    *clients, test = zip(inputs.split(100), targets.split(100), strict=True)
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 3))
    return Task(model=model, loss=nn.functional.cross_entropy, clients=clients, test=test)


if __name__ == "__main__":
    for correction in (HalfWay(), OrthoDC(0.0)):
        method = Method(embedding=Bezier(2), correction=correction, global_lr=2.0)
        result = simulate(make_task(), method, run=Run(updates=100))
        print(f"{correction}: accuracy {result.summary['final']:.3f}")
