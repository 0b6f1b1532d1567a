"""Partition examples over clients: Dirichlet on labels, or whole writers and patients."""

from __future__ import annotations

import heapq
import warnings

import numpy as np
import numpy.typing as npt

from asyncmanifold.errors import InputError
from asyncmanifold.seeding import Purpose, derive
from asyncmanifold.tasks.optional import import_optional

Indices = npt.NDArray[np.int64]

_STREAM = 1
"""An extra id, so that random numbers here differ from a task's own with the same seed and purpose."""


def draw_subset(most: int | None, indices: Indices, random: np.random.Generator) -> Indices:
    """Return ``most`` random indices in ascending order, or all of them unchanged if there are no more."""
    if most is None or len(indices) <= most:
        return indices
    return np.sort(random.choice(indices, most, replace=False))


def set_aside(count: int, indices: Indices, random: np.random.Generator) -> tuple[Indices, Indices]:
    """Return ``count`` random indices, in ascending order, and the rest; refuse to take all."""
    if count == 0:
        return indices[:0], indices
    if count >= len(indices):
        raise InputError(f"trusted_examples={count} must be below the {len(indices)} training examples")
    aside = draw_subset(count, indices, random)
    return aside, np.setdiff1d(indices, aside)


def split_rows(rows: Indices, fraction: float) -> list[Indices]:
    """Return the first fraction of the rows, at least one row, and the rest."""
    return np.split(rows, [max(1, int(len(rows) * fraction))])


def split_by_label(
    labels: npt.NDArray[np.integer], clients: int, concentration: float, min_examples: int, seed: int
) -> list[Indices]:
    """Return index arrays, one per client: each label's examples are divided in Dirichlet proportions.

    The partition is that of Flower Datasets' ``DirichletPartitioner`` without self-balancing, so that
    results can be compared with other studies that use it.
    """
    datasets = import_optional("datasets", "a Dirichlet partition")
    partitioners = import_optional("flwr_datasets.partitioner", "a Dirichlet partition")
    numbers = np.arange(len(labels), dtype=np.int64)
    partitioner = partitioners.DirichletPartitioner(
        num_partitions=clients,
        partition_by="label",
        alpha=concentration,
        min_partition_size=min_examples,
        self_balancing=False,
        seed=int(derive(seed, Purpose.PARTITION, _STREAM).integers(2**63)),
    )
    # Arrow columns are converted at once; others are read row by row, which takes seconds.
    partitioner.dataset = datasets.Dataset.from_dict({"label": labels, "index": numbers}).with_format("arrow")
    try:
        with warnings.catch_warnings():
            # Every new attempt warns; the error below says it once.
            warnings.simplefilter("ignore")
            parts = [partitioner.load_partition(client) for client in range(clients)]
    except ValueError as error:
        raise InputError(
            f"no Dirichlet({concentration}) partition of {len(labels)} examples gives {min_examples} to each "
            f"of {clients} clients: fewer clients, a larger concentration or a smaller min_examples is needed"
        ) from error
    return [np.array(part["index"], dtype=np.int64) for part in parts]


def split_by_group(groups: npt.NDArray[np.integer], clients: int, seed: int) -> list[Indices]:
    """Return index arrays, one per client: a group (a writer, a patient) is never split.

    In random order, each group goes to the client with the fewest examples so far.
    """
    members = _members(groups)
    if len(members) < clients:
        raise InputError(
            f"{len(members)} groups cannot be dealt to {clients} clients: fewer clients are needed"
        )
    random = derive(seed, Purpose.PARTITION, _STREAM)
    parts: list[list[Indices]] = [[] for _ in range(clients)]
    smallest = [(0, client) for client in range(clients)]
    for group in random.permutation(len(members)):
        size, client = smallest[0]
        parts[client].append(members[group])
        heapq.heapreplace(smallest, (size + len(members[group]), client))
    return [np.concatenate(part) for part in parts]


def hold_out_groups(
    groups: npt.NDArray[np.integer], fraction: float, random: np.random.Generator
) -> tuple[Indices, Indices]:
    """Return the indices held out and the rest: whole groups, in random order, if they fit.

    At most the fraction is held out (or one example, if that is more), and never everything.
    """
    members = _members(groups)
    room = min(max(1, int(len(groups) * fraction)), len(groups) - 1)
    held_out, rest = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for group in random.permutation(len(members)):
        if len(members[group]) <= room:
            room -= len(members[group])
            held_out.append(members[group])
        else:
            rest.append(members[group])
    return np.concatenate(held_out), np.concatenate(rest)


def _members(groups: npt.NDArray[np.integer]) -> list[Indices]:
    """Return the indices of each group's examples."""
    _, sizes = np.unique(groups, return_counts=True)
    return np.split(np.argsort(groups, kind="stable").astype(np.int64), np.cumsum(sizes)[:-1])
