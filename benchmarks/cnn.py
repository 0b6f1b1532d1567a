"""The CNN of most federated papers (McMahan et al. 2017), on random 28×28 images."""

from __future__ import annotations

import torch
from torch import nn

from asyncmanifold import Task

PARAMETERS = 1_663_370


class FederatedCNN(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 32, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(7 * 7 * 64, 512),
            nn.ReLU(),
            nn.Linear(512, 10),
        )
        assert sum(p.numel() for p in self.parameters()) == PARAMETERS


def random_task(clients: int, examples: int) -> Task:
    """Return a task with random images and labels; its test set is too small to cost anything."""
    generator = torch.Generator().manual_seed(0)

    def draw(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        images = torch.randn(count, 1, 28, 28, generator=generator)
        return images, torch.randint(10, (count,), generator=generator)

    return Task(
        model=FederatedCNN,
        loss=nn.functional.cross_entropy,
        clients=[draw(examples) for _ in range(clients)],
        test=draw(8),
    )
