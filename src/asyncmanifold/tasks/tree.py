"""Embed the nodes of a tree as points, to tell which are ancestors of which (Nickel and Kiela 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from asyncmanifold.checks import check
from asyncmanifold.errors import InputError
from asyncmanifold.seeding import Purpose, derive
from asyncmanifold.tasks.data import split_examples
from asyncmanifold.tasks.manifolds import make_parameter
from asyncmanifold.tasks.partitions import split_rows
from asyncmanifold.tasks.task import Task

Pairs = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class TreeTask:
    """A tree with ``branching`` to the power of ``depth`` leaves; each client knows one part of it.

    An example is a node, one of its ancestors and ``negatives`` other nodes; the ancestor is to be found.
    Nodes are points of a Poincaré ball (``hyperbolic``), where a tree has room, or of ``flat`` space.

    Arguments:
        space: where nodes live: ``"hyperbolic"`` or ``"flat"``.
        clients: how many clients share the tree; at most the branches of its second level.
        branching: children per node.
        depth: levels below the root.
        dimension: the dimension of a node's point.
        negatives: wrong answers per example.
        repeats: examples per pair, each with other wrong answers.
        test_fraction: the share of examples that the global model is evaluated on.
        validation_fraction: the share of a client's examples that is held out for fairness and tuning.
    """

    space: Literal["hyperbolic", "flat"] = "hyperbolic"
    clients: int = 8
    branching: int = 3
    depth: int = 4
    dimension: int = 2
    negatives: int = 9
    repeats: int = 4
    test_fraction: float = 0.2
    validation_fraction: float = 0.1

    def __post_init__(self) -> None:
        check(self, space="'hyperbolic' or 'flat'", branching="at least 2", depth="at least 2")
        check(self, **dict.fromkeys(("clients", "dimension", "negatives", "repeats"), "at least 1"))
        check(self, **dict.fromkeys(("test_fraction", "validation_fraction"), "above 0 and below 1"))
        if self.clients > self.branching**2:
            raise InputError(
                f"TreeTask(clients={self.clients}) must be at most {self.branching**2}, the branches of the "
                f"second level"
            )

    def build(self, seed: int) -> Task:
        """Return the task; the same seed gives the same examples."""
        random = derive(seed, Purpose.PARTITION)
        parents = parents_of(self.branching, self.depth)
        pairs = random.permutation(np.repeat(ancestor_pairs(parents), self.repeats, axis=0))
        inputs, targets = self._examples(pairs, parents, random)
        test, rest = np.split(np.arange(len(pairs)), [int(len(pairs) * self.test_fraction)])
        holder = self._holders(pairs[rest, 0], parents)
        cut = [split_rows(rest[holder == client], self.validation_fraction) for client in range(self.clients)]
        return Task(
            model=partial(NodeEmbedding, len(parents), self.dimension, self.space),
            loss=nn.functional.cross_entropy,
            **split_examples(inputs, targets, cut, test),
        )

    def _examples(self, pairs: Pairs, parents: Pairs, random: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Return (node, candidates) rows and the index of the ancestor among the candidates."""
        related = np.eye(len(parents), dtype=bool)
        for node, ancestor in ancestor_pairs(parents):
            related[node, ancestor] = related[ancestor, node] = True
        places = random.integers(self.negatives + 1, size=len(pairs))
        rows = np.empty((len(pairs), self.negatives + 2), dtype=np.int64)
        for row, (node, ancestor), place in zip(rows, pairs, places, strict=True):
            others = np.flatnonzero(~related[node])
            row[0], row[1:] = node, random.choice(others, self.negatives + 1)
            row[1 + place] = ancestor
        return torch.from_numpy(rows), torch.from_numpy(places)

    def _holders(self, nodes: Pairs, parents: Pairs) -> Pairs:
        """Return the client of each node's branch of the second level; higher nodes are dealt in turn."""
        first, last = 1 + self.branching, 1 + self.branching + self.branching**2
        branch = nodes.copy()
        while (above := branch >= last).any():
            branch[above] = parents[branch[above]]
        place = np.where(branch >= first, branch - first, branch)
        return place % self.clients


def parents_of(branching: int, depth: int) -> Pairs:
    """Return each node's parent, in breadth-first order; the root is its own parent."""
    count = sum(branching**level for level in range(depth + 1))
    return np.maximum(0, (np.arange(count) - 1) // branching)


def ancestor_pairs(parents: Pairs) -> Pairs:
    """Return all (node, ancestor) pairs."""
    pairs = []
    for node in range(1, len(parents)):
        above = node
        while above:
            above = int(parents[above])
            pairs.append((node, above))
    return np.array(pairs)


class NodeEmbedding(nn.Module):
    """A point for every node; nearer candidates are likelier ancestors."""

    SHARPNESS = 2.0

    def __init__(self, nodes: int, dimension: int, space: str) -> None:
        super().__init__()
        self.points = make_parameter(
            0.1 * torch.randn(nodes, dimension), "PoincareBall" if space == "hyperbolic" else None
        )
        self.is_hyperbolic = space == "hyperbolic"

    def forward(self, rows: Tensor) -> Tensor:
        """Return minus the distance of each candidate to the node."""
        nodes, candidates = self.points[rows[:, :1]], self.points[rows[:, 1:]]
        square = ((nodes - candidates) ** 2).sum(-1)
        if not self.is_hyperbolic:
            return -self.SHARPNESS * (square + 1e-9).sqrt()
        room = (1.0 - (nodes**2).sum(-1)) * (1.0 - (candidates**2).sum(-1))
        return -self.SHARPNESS * torch.acosh(1.0 + 2.0 * square / room.clamp_min(1e-7) + 1e-7)
