"""The CNN of most federated papers (McMahan et al. 2017), on random 28×28 images."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from asyncmanifold import Task
from asyncmanifold.tasks.cnn import FederatedCNN


def random_task(clients: int, examples: int) -> Task:
    """Return a task with random images and labels; its test set is too small to cost anything."""
    generator = torch.Generator().manual_seed(0)

    def draw(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        images = torch.randn(count, 1, 28, 28, generator=generator)
        return images, torch.randint(10, (count,), generator=generator)

    return Task(
        model=partial(FederatedCNN, 10),  # 1,663,370 parameters
        loss=nn.functional.cross_entropy,
        clients=[draw(examples) for _ in range(clients)],
        test=draw(8),
    )
