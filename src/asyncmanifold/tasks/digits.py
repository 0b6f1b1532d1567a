"""The default task: scikit-learn's 1,797 real 8×8 digits, unevenly partitioned over clients."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from asyncmanifold.checks import check
from asyncmanifold.errors import InputError
from asyncmanifold.seeding import Purpose, derive
from asyncmanifold.tasks.cnn import FederatedCNN
from asyncmanifold.tasks.data import TensorData, split_examples
from asyncmanifold.tasks.partitions import split_rows
from asyncmanifold.tasks.task import Task


@dataclass(frozen=True, kw_only=True)
class Digits:
    """The digits, partitioned by Dirichlet(``concentration``) on labels, as in the paper for FEMNIST.

    Arguments:
        clients: how many clients share the training digits.
        concentration: of the Dirichlet distribution; small values give each client few classes.
        min_examples: the partition is drawn again until every client has at least this many.
        test_fraction: the share of all digits that the global model is evaluated on.
        validation_fraction: the share of a client's digits that is held out for fairness and tuning.
        trusted_examples: how many digits the server has itself, taken before clients get theirs.
    """

    clients: int = 20
    concentration: float = 0.3
    min_examples: int = 8
    test_fraction: float = 0.25
    validation_fraction: float = 0.2
    trusted_examples: int = 0

    def __post_init__(self) -> None:
        check(self, clients="at least 1", concentration="above 0 and finite", min_examples="at least 2")
        check(self, **dict.fromkeys(("test_fraction", "validation_fraction"), "above 0 and below 1"))
        check(self, trusted_examples="at least 0")
        available = max(0, int(1797 * (1.0 - self.test_fraction)) - self.trusted_examples)
        if self.clients * self.min_examples > available // 2:
            raise InputError(
                f"Digits(clients={self.clients}, min_examples={self.min_examples}) must need at most "
                f"{available // 2} examples: half of the {available} for training"
            )

    def build(self, seed: int) -> Task:
        """Return the task; the same seed gives the same split."""
        images, labels = read_digits()
        inputs = torch.from_numpy(images).to(torch.float32).div_(16.0).view(-1, 1, 8, 8)
        targets = torch.from_numpy(labels)
        random = derive(seed, Purpose.PARTITION)
        order = random.permutation(len(labels))
        test, rest = np.split(order, [int(len(order) * self.test_fraction)])
        trusted, rest = np.split(rest, [self.trusted_examples])
        parts = dirichlet_partition(labels[rest], self.clients, self.concentration, self.min_examples, random)
        cut = [split_rows(rest[part], self.validation_fraction) for part in parts]
        return Task(
            model=partial(FederatedCNN, 10, kernel=3, channels=16, hidden=64, side=8),
            loss=nn.functional.cross_entropy,
            trusted=TensorData(inputs, targets, torch.from_numpy(trusted)) if len(trusted) else None,
            **split_examples(inputs, targets, cut, test),
        )


def read_digits() -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the images, a row of 64 each, and their labels, as scikit-learn's ``load_digits`` does.

    They are read from its file: importing scikit-learn takes longer than torch, in every process that starts.
    """
    package = find_spec("sklearn")
    assert package is not None
    assert package.origin is not None
    file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    with gzip.open(file, "rt") as lines:
        rows = np.array([line.split(",") for line in lines], dtype=np.int64)
    return rows[:, :-1], rows[:, -1]


def dirichlet_partition(
    labels: npt.NDArray[np.int64],
    clients: int,
    concentration: float,
    min_examples: int,
    random: np.random.Generator,
    tries: int = 1000,
) -> list[npt.NDArray[np.int64]]:
    """Return index arrays, one per client: each label's examples are divided in Dirichlet proportions."""
    for _ in range(tries):
        parts: list[list[npt.NDArray[np.int64]]] = [[] for _ in range(clients)]
        for label in np.unique(labels):
            members = random.permutation(np.flatnonzero(labels == label))
            shares = random.dirichlet(np.full(clients, concentration))
            cuts = (np.cumsum(shares)[:-1] * len(members)).astype(np.int64)
            for part, piece in zip(parts, np.split(members, cuts), strict=True):
                part.append(piece)
        joined = [random.permutation(np.concatenate(part)) for part in parts]
        if min(len(part) for part in joined) >= min_examples:
            return joined
    raise InputError(
        f"no Dirichlet({concentration}) partition with {min_examples} examples for each of {clients} "
        f"clients in {tries} tries: fewer clients, a larger concentration or a smaller min_examples is needed"
    )
