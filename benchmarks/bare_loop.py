"""The MLP of ``bench_peers`` with random data, and the training steps of its updates as a bare loop."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

BATCH_SIZE, STEPS = 32, 5
"""Per update: five steps of 32 examples."""

Shards = list[tuple[torch.Tensor, torch.Tensor]]


def make_problem(clients: int) -> tuple[nn.Module, Shards]:
    """Return the model of 53,850 parameters, and each client's examples."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
    examples = BATCH_SIZE * STEPS
    return model, [(torch.randn(examples, 784), torch.randint(10, (examples,))) for _ in range(clients)]


def bare_loop(
    model: nn.Module, shards: Shards, updates: int, rate: float, clock: Callable[[], float]
) -> float:
    """Return the time of the training steps of an update, and nothing else, on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    started = clock()
    for number in range(updates):
        inputs, targets = shards[number % len(shards)]
        for indices in torch.split(torch.randperm(len(inputs)), BATCH_SIZE):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs[indices]), targets[indices])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    spent = (clock() - started) / updates
    torch.set_num_threads(threads)
    return spent
