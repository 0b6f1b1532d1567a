"""The nodes of a deployment: who is there, who is busy, who has failed too often and rests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass
class Node:
    """A node as the server knows it."""

    id: int
    """Flower's."""
    client: int
    """The number of the node in this run, by first appearance."""
    examples: int | None = None
    partition: int | None = None
    in_flight: int = 0
    failures: int = 0
    """In a row."""
    rests: int = 0
    """In a row."""
    rests_until: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)


class Nodes:
    """All nodes that a run has met.

    A node that fails ``patience`` times in a row rests for ``rest_seconds``, twice as long each further time
    up to ``MOST_DOUBLINGS``, and is tried once more. One accepted update wipes the slate clean.
    """

    MOST_DOUBLINGS = 6

    def __init__(self, patience: int, rest_seconds: float) -> None:
        self._patience = patience
        self._rest_seconds = rest_seconds
        self.known: dict[int, Node] = {}
        self.present: dict[int, Node] = {}

    def update_present(self, ids: Iterable[int]) -> tuple[list[Node], list[Node]]:
        """Take note of who is there now; return who came and who went."""
        there = sorted(ids)
        for node_id in there:
            self.known.setdefault(node_id, Node(node_id, client=len(self.known)))
        came = [self.known[node_id] for node_id in there if node_id not in self.present]
        for node in came:  # what it failed at while it was going is not held against it
            node.failures, node.rests, node.rests_until = 0, 0, 0.0
        went = [node for node_id, node in self.present.items() if node_id not in set(there)]
        self.present = {node_id: self.known[node_id] for node_id in there}
        return came, went

    def free(self, now: float, depth: int) -> list[Node]:
        """Return who can take a job."""
        return [n for n in self.present.values() if n.in_flight < depth and n.rests_until <= now]

    def weight(self, node: Node, examples: int) -> float:
        """Return the share of a node with so many examples among all that are there.

        Those that have not told yet are taken to have as many as the others on average.
        """
        others = [other for other in self.present.values() if other.id != node.id]
        known = [examples, *(other.examples for other in others if other.examples is not None)]
        return examples / (sum(known) / len(known) * (1 + len(others)))

    def record_success(self, node: Node) -> None:
        """Take note of an accepted update."""
        node.outcomes["accepted"] += 1
        node.failures = node.rests = 0

    def record_failure(self, node: Node, kind: str, now: float) -> float:
        """Take note of a failure or a rejection; return for how long the node now rests."""
        node.outcomes[kind] += 1
        node.failures += 1
        if node.failures < self._patience:
            return 0.0
        seconds = self._rest_seconds * 2.0 ** min(node.rests, self.MOST_DOUBLINGS)
        node.failures, node.rests = self._patience - 1, node.rests + 1
        node.rests_until = now + seconds
        return seconds
