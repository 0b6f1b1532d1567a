"""What every system trains: two models with their initial weights, and the clients' shards, from one file.

Plain torch, so that it can be imported in every environment. Shards are as long as a client's steps on one
update: a library that counts epochs and one that counts steps do the same.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

CLIENTS = 10
CONCURRENCY = 5
"""Clients at work at once, where a system is asynchronous."""
BUFFER_SIZE = 5
"""Of FedBuff."""
BATCH_SIZE = 32
LEARNING_RATE = 1e-6
"""Of plain SGD. Tiny, so that all models stay near the initial weights: max pooling branches on values, and
its time, a quarter of an update's, would depend on how far a library's server has moved."""
CLASSES = 10
PASSES_FILE = "PEERS_PASSES"
"""The environment variable that names the file in which training passes are noted."""


@dataclass(frozen=True)
class Size:
    """A model and how long it is trained."""

    name: str
    parameters: int
    steps: int
    """SGD steps of one client on one update."""
    warm_up: int
    """Updates before the measurement begins."""
    measured: int
    """Updates that are measured, at most; this and the warm-up are whole statistics."""

    @property
    def examples(self) -> int:
        """Examples of one client: an epoch is its steps on one update."""
        return self.steps * BATCH_SIZE


SIZES = {
    "mlp": Size("mlp", 53_850, steps=5, warm_up=5, measured=1000),
    "cnn": Size("cnn", 1_663_370, steps=20, warm_up=5, measured=20),
}


class CountedSequential(nn.Sequential):
    """Layers one after another; every batch that they are trained on is noted."""

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            os.write(_passes(), bytes([len(inputs)]))
        output: Tensor = super().forward(inputs)  # type: ignore[no-untyped-call]
        return output


@dataclass(frozen=True)
class Problem:
    size: Size
    model: nn.Module
    """With the initial weights."""
    inputs: Tensor
    """Shape (clients, examples, …)."""
    targets: Tensor


def write_problem(path: Path, size: Size) -> None:
    """Draw initial weights and shards: a blurred image of each class under noise."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    shape = (1, 28, 28) if size.name == "cnn" else (784,)
    prototypes = torch.randn(CLASSES, *shape, generator=generator)
    targets = torch.randint(CLASSES, (CLIENTS, size.examples), generator=generator)
    inputs = prototypes[targets] + torch.randn(*targets.shape, *shape, generator=generator)
    torch.save({"weights": _layers(size).state_dict(), "inputs": inputs, "targets": targets}, path)


def read_problem(path: Path, size: Size) -> Problem:
    stored = torch.load(path, weights_only=True)
    model = _layers(size)
    model.load_state_dict(stored["weights"])
    assert sum(p.numel() for p in model.parameters()) == size.parameters
    return Problem(size, model, stored["inputs"], stored["targets"])


def read_passes() -> bytes:
    """Return the size of every batch that any process has trained on so far, a byte each."""
    return Path(os.environ[PASSES_FILE]).read_bytes()


@cache
def _passes() -> int:
    """Open the file in which passes are noted: appending a byte is atomic, whichever process does it."""
    return os.open(os.environ[PASSES_FILE], os.O_CREAT | os.O_APPEND | os.O_WRONLY)


def _layers(size: Size) -> nn.Module:
    if size.name == "mlp":
        return CountedSequential(
            nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, CLASSES)
        )
    return CountedSequential(  # McMahan et al. 2017
        nn.Conv2d(1, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(7 * 7 * 64, 512),
        nn.ReLU(),
        nn.Linear(512, CLASSES),
    )
