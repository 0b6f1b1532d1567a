"""FEMNIST: 28×28 handwritten characters of 62 classes, by writer (LEAF, Caldas et al. 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from asyncmanifold.checks import check
from asyncmanifold.errors import InputError
from asyncmanifold.seeding import Purpose, derive
from asyncmanifold.tasks.cnn import FederatedCNN
from asyncmanifold.tasks.data import TensorData, split_examples
from asyncmanifold.tasks.npz import Arrays, check_images, check_integers, read_npz
from asyncmanifold.tasks.partitions import (
    Indices,
    draw_subset,
    set_aside,
    split_by_group,
    split_by_label,
    split_rows,
)
from asyncmanifold.tasks.task import Task

CLASSES = 62


@dataclass(frozen=True, kw_only=True)
class Femnist:
    """FEMNIST, partitioned by Dirichlet(``concentration``) on labels, or by whole writers.

    The test set is the file's own, ``is_test``.

    Arguments:
        data: an .npz file with images (N, 28, 28; background 255), labels, user and is_test.
        clients: how many clients share the training images.
        partition: ``"dirichlet"`` on labels, or by whole ``"writer"``.
        concentration: of the Dirichlet distribution; small values give each client few classes.
        min_examples: every client has at least this many, including those for validation.
        max_examples: train on a random subset of this size.
        max_test: test on a random subset of this size.
        validation_fraction: the share of a client's images that is held out for fairness and tuning.
        kernel: the kernel size of the CNN's convolutions, odd.
        channels: output channels of its first convolution; the second has twice as many.
        hidden: the width of its first dense layer.
        trusted_examples: how many training images the server has itself, taken before clients get theirs.
    """

    data: str | None = None
    clients: int = 30
    partition: Literal["dirichlet", "writer"] = "dirichlet"
    concentration: float = 0.5
    min_examples: int = 20
    max_examples: int | None = None
    max_test: int | None = None
    validation_fraction: float = 0.1
    kernel: int = 5
    channels: int = 32
    hidden: int = 512
    trusted_examples: int = 0

    def __post_init__(self) -> None:
        counts = ("clients", "channels", "hidden", "kernel", "max_examples", "max_test")
        check(self, partition="'dirichlet' or 'writer'", **dict.fromkeys(counts, "at least 1"))
        check(self, concentration="above 0 and finite", min_examples="at least 2")
        check(self, validation_fraction="above 0 and below 1", trusted_examples="at least 0")
        if self.kernel % 2 == 0:
            raise InputError(f"Femnist(kernel={self.kernel}) must be odd")

    def build(self, seed: int) -> Task:
        """Return the task; the same seed gives the same split."""
        if self.data is None:
            raise InputError("femnist needs a data file: give --data PATH")
        records = _read(self.data)
        random = derive(seed, Purpose.PARTITION)
        is_test = records["is_test"].astype(bool)
        trained = draw_subset(self.max_examples, np.flatnonzero(~is_test), random)
        tested = draw_subset(self.max_test, np.flatnonzero(is_test), random)
        trusted, trained = set_aside(self.trusted_examples, trained, random)
        inputs = torch.from_numpy(records["images"]).unsqueeze(1)
        targets = torch.from_numpy(records["labels"].astype(np.int64))
        parts = self._parts(records, trained, seed)
        cut = [split_rows(random.permutation(trained[part]), self.validation_fraction) for part in parts]
        return Task(
            model=partial(FederatedCNN, CLASSES, self.kernel, self.channels, self.hidden),
            loss=nn.functional.cross_entropy,
            trusted=TensorData(inputs, targets, torch.from_numpy(trusted), scale_ink)
            if len(trusted)
            else None,
            **split_examples(inputs, targets, cut, tested, scale_ink),
        )

    def _parts(self, records: Arrays, chosen: Indices, seed: int) -> list[Indices]:
        if self.partition == "dirichlet":
            labels = records["labels"][chosen]
            return split_by_label(labels, self.clients, self.concentration, self.min_examples, seed)
        parts = split_by_group(records["user"][chosen], self.clients, seed)
        if (least := min(len(part) for part in parts)) < self.min_examples:
            raise InputError(
                f"a client has {least} examples, must have {self.min_examples}: fewer clients, more examples "
                f"or a smaller min_examples is needed"
            )
        return parts


def scale_ink(images: Tensor) -> Tensor:
    """Return bytes as floats, ink 1 and background 0, channels last: the CNN then trains a quarter faster."""
    return images.to(torch.float32, memory_format=torch.channels_last).div_(-255.0).add_(1.0)


def _read(path: str) -> Arrays:
    records = read_npz(path, ("images", "labels", "user", "is_test"))
    check_images(path, records["images"].dtype, records["images"].shape, 28)
    check_integers(path, "labels", records["labels"], highest=CLASSES - 1)
    check_integers(path, "user", records["user"])
    check_integers(path, "is_test", records["is_test"], highest=1)
    if len(np.unique(records["is_test"])) < 2:
        raise InputError(f"{path}: record 'is_test' must mark some images, and not all")
    return records
