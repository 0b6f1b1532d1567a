"""The nodes of a deployment: which are present, which are busy, and which rest after too many failures."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass
class Node:
    """A node as the server knows it."""

    id: int
    """Flower's node id."""
    client: int
    """The node's number in this run, in order of first appearance."""
    examples: int | None = None
    partition: int | None = None
    in_flight: int = 0
    failures: int = 0
    """Consecutive failures."""
    rests: int = 0
    """Consecutive rests."""
    rests_until: float = 0.0


class Nodes:
    """All nodes that a run has seen.

    A node that fails ``patience`` times in a row rests for ``rest_seconds``, twice as long each further time
    up to ``MOST_DOUBLINGS``, and is tried once more. An accepted update resets both counts.
    """

    MOST_DOUBLINGS = 6

    def __init__(self, patience: int, rest_seconds: float) -> None:
        self._patience = patience
        self._rest_seconds = rest_seconds
        self.known: dict[int, Node] = {}
        self.present: dict[int, Node] = {}

    def update_present(self, ids: Iterable[int]) -> tuple[list[Node], list[Node]]:
        """Record which nodes are present now; return those that joined and those that left."""
        there = sorted(ids)
        for node_id in there:
            self.known.setdefault(node_id, Node(node_id, client=len(self.known)))
        came = [self.known[node_id] for node_id in there if node_id not in self.present]
        for node in came:  # failures from before it left do not count
            node.failures, node.rests, node.rests_until = 0, 0, 0.0
        went = [node for node_id, node in self.present.items() if node_id not in set(there)]
        self.present = {node_id: self.known[node_id] for node_id in there}
        return came, went

    def free(self, now: float, depth: int) -> list[Node]:
        """Return the nodes that can take a job."""
        return [n for n in self.present.values() if n.in_flight < depth and n.rests_until <= now]

    def weight(self, node: Node, examples: int) -> float:
        """Return a node's share of the examples of all nodes that are present.

        A node whose number of examples is still unknown counts with the mean of the others: otherwise the
        first reply would have all the weight.
        """
        others = [other for other in self.present.values() if other.id != node.id]
        known = [examples, *(other.examples for other in others if other.examples is not None)]
        return examples / (sum(known) / len(known) * (1 + len(others)))

    def record_success(self, node: Node) -> None:
        """Count an accepted update."""
        node.failures = node.rests = 0

    def record_failure(self, node: Node, now: float) -> float:
        """Count a failure or a rejection; return for how many seconds the node now rests."""
        node.failures += 1
        if node.failures < self._patience:
            return 0.0
        seconds = self._rest_seconds * 2.0 ** min(node.rests, self.MOST_DOUBLINGS)
        node.failures, node.rests = self._patience - 1, node.rests + 1
        node.rests_until = now + seconds
        return seconds
