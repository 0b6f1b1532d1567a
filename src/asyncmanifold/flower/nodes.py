"""The nodes of a deployment: which are present, which are busy, and which rest after too many failures.

Nothing here takes longer with more nodes, except comparing the list of those that are present.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from asyncmanifold.flower.measured_times import MeasuredTimes
from asyncmanifold.flower.policy import Policy
from asyncmanifold.session.claims import Claims
from asyncmanifold.session.idle import IdleClients

LONGEST_NAME = 64


@dataclass(eq=False)
class Node:
    """A node as the server knows it."""

    id: int
    """Flower's node id."""
    client: int
    """The node's number in this run, in order of first appearance."""
    examples: int | None = None
    partition: int | None = None
    name: str = ""
    """As registered with Flower; otherwise as the node calls itself."""
    in_flight: int = 0
    failures: int = 0
    """Consecutive failures."""
    rests: int = 0
    """Consecutive rests."""
    rests_until: float = 0.0
    """0 unless it rests."""
    is_excluded: bool = False
    times: MeasuredTimes = field(default_factory=MeasuredTimes)

    @property
    def facts(self) -> dict[str, int | str]:
        """The node in a record of the trace."""
        known: dict[str, int | str] = {"client": self.client, "node": self.id}
        return {**known, "name": self.name} if self.name else known


class Nodes:
    """All nodes that a run has seen.

    A node that fails ``patience`` times in a row rests for ``rest_seconds``, twice as long each further time
    up to ``MOST_DOUBLINGS``, and is tried once more. An accepted update resets both counts. A node has at
    most ``depth`` jobs, by default as its measured times suggest, and at most ``concurrency`` nodes have one
    at the same time. A node that is excluded gets none.
    """

    MOST_DOUBLINGS = 6
    MOST_DEPTH = 2

    def __init__(
        self,
        patience: int,
        rest_seconds: float,
        depth: int | None = 1,
        concurrency: int | None = None,
        claim_limit: float = 5.0,
    ) -> None:
        self._patience, self._rest_seconds = patience, rest_seconds
        self._concurrency, self._depth = concurrency, depth
        self._excluded: set[int] = set()
        self._retired: set[int] = set()  # ids of those present
        self.known: dict[int, Node] = {}
        self.present: dict[int, Node] = {}
        self._by_client: list[Node] = []
        self._waiting = [IdleClients(()) for _ in range(self.MOST_DEPTH)]  # by their number of jobs
        self._resting: list[tuple[float, int]] = []  # heap of (until when, client)
        self._busy = 0
        self._claims = Claims(claim_limit)

    def follow(self, policy: Policy, *, is_synchronous: bool) -> None:
        """Treat nodes as a policy says from now on; a synchronous round has one job per node."""
        self._patience, self._rest_seconds = policy.patience, policy.rest_seconds
        self._concurrency, self._claims.limit = policy.concurrency, policy.claim_limit
        self._depth = 1 if is_synchronous else policy.queue_depth
        for node in self.present.values():
            self._wait_again(node)

    def exclude(self, clients: Collection[int]) -> None:
        """Give no jobs to these clients, nor to nodes that become these clients, and to all others again."""
        self._excluded = set(clients)
        for node in self._by_client:
            if node.is_excluded != (node.client in self._excluded):
                node.is_excluded = node.client in self._excluded
                self._wait_again(node)

    def measure(self, node: Node, round_trip: float, training: float, *, was_free: bool) -> None:
        """Count how long a job took; the node may have more jobs at a time from now on, or fewer."""
        before = node.times.queue_depth
        node.times.add(round_trip, training, was_free=was_free)
        if node.times.queue_depth != before:
            self._wait_again(node)

    def restore(self, known: Iterable[Node]) -> None:
        """Take over the nodes that an interrupted run knew; none is present yet."""
        for node in known:
            while len(self._by_client) < node.client:  # of these only the numbers are left
                self._by_client.append(Node(-1, client=len(self._by_client)))
            self.known[node.id] = node
            node.is_excluded = node.client in self._excluded
            self._by_client.append(node)

    def update_present(self, names: Mapping[int, str]) -> tuple[list[Node], list[Node]]:
        """Record which nodes are present, and their names; return those that joined and those that left."""
        went = [node for node_id, node in self.present.items() if node_id not in names]
        came = [self._meet(node_id) for node_id in sorted(names.keys() - self.present.keys())]
        for node in went:
            self._claims.leave(node.client)
            self._stop_waiting(node)
            self._retired.discard(node.id)
            del self.present[node.id]
        for node in came:  # failures from before it left do not count
            node.failures, node.rests, node.rests_until = 0, 0, 0.0
            node.name = printable_name(names[node.id]) or node.name
            self.present[node.id] = node
            self._claims.join(node.client, node.examples)
            self._start_waiting(node)
        return came, went

    def next(self, now: float, choose: Callable[[Sequence[int]], int], *, ahead: bool = True) -> Node | None:
        """Return the node for the next job, chosen among those with the fewest jobs, and count the job.

        Without ``ahead`` no node is given a job that it could not begin at once.
        """
        while self._resting and self._resting[0][0] <= now:
            node = self._by_client[heapq.heappop(self._resting)[1]]
            if node.rests_until <= now:
                self._start_waiting(node)
        for jobs, waiting in enumerate(self._waiting if ahead else self._waiting[:1]):
            is_full = self._concurrency is not None and self._busy >= self._concurrency
            if len(waiting) and not (jobs == 0 and is_full):
                node = self._by_client[waiting[choose(waiting)]]
                self._change_jobs(node, 1)
                return node
        return None

    def take_back(self, node: Node) -> None:
        """Count one of a node's jobs as back."""
        self._change_jobs(node, -1)

    @property
    def claim_limit(self) -> float:
        """The multiple of the median claim up to which examples count."""
        return self._claims.limit

    def weight(self, node: Node, examples: int) -> tuple[float, bool]:
        """Return a node's share of the examples of all nodes that are present, and whether all of its count.

        Raises ``Rejected`` if its claim is no number of examples.
        """
        return self._claims.share(node.client, examples)

    def record_success(self, node: Node, examples: int, partition: int | None) -> None:
        """Count an accepted update, and keep what the node says about its data."""
        node.failures = node.rests = 0
        node.examples, node.partition = examples, partition
        if node.id in self.present:
            self._claims.join(node.client, examples)

    def record_failure(self, node: Node, now: float) -> float:
        """Count a failure or a rejection; return for how many seconds the node now rests."""
        if node.rests_until == inf:
            return 0.0
        node.failures += 1
        if node.failures < self._patience:
            return 0.0
        seconds = self._rest_seconds * 2.0 ** min(node.rests, self.MOST_DOUBLINGS)
        node.failures, node.rests = self._patience - 1, node.rests + 1
        self._stop_waiting(node)
        node.rests_until = now + seconds
        heapq.heappush(self._resting, (node.rests_until, node.client))
        return seconds

    def retire(self, node: Node) -> None:
        """Give a node no more jobs while it is present."""
        self._stop_waiting(node)
        node.rests_until = inf
        if node.id in self.present:
            self._retired.add(node.id)

    @property
    def active(self) -> int:
        """How many nodes are present and not retired."""
        return len(self.present) - len(self._retired)

    def _meet(self, node_id: int) -> Node:
        if node_id not in self.known:
            self.known[node_id] = Node(node_id, client=len(self._by_client))
            self._by_client.append(self.known[node_id])
        return self.known[node_id]

    def _change_jobs(self, node: Node, change: int) -> None:
        """Change a node's number of jobs, and with it where it waits."""
        self._stop_waiting(node)  # from where it waited with its number of jobs so far
        was_busy = node.in_flight > 0
        node.in_flight += change
        self._busy += (node.in_flight > 0) - was_busy
        self._wait_again(node)

    def _is_waiting(self, node: Node) -> bool:
        return node.in_flight < len(self._waiting) and node.client in self._waiting[node.in_flight]

    def _start_waiting(self, node: Node) -> None:
        node.rests_until = 0.0
        depth = node.times.queue_depth if self._depth is None else self._depth
        is_able = node.id in self.present and not node.is_excluded and node.in_flight < depth
        if is_able and not self._is_waiting(node):
            self._waiting[node.in_flight].add(node.client)

    def _wait_again(self, node: Node) -> None:
        """Let a node wait where it now belongs."""
        self._stop_waiting(node)
        if node.rests_until == 0.0:
            self._start_waiting(node)

    def _stop_waiting(self, node: Node) -> None:
        if self._is_waiting(node):
            self._waiting[node.in_flight].remove(node.client)


def printable_name(name: object) -> str:
    """Return a name that can stand in a line of the log, empty if it is none."""
    return "".join(c for c in name if c.isprintable()).strip()[:LONGEST_NAME] if isinstance(name, str) else ""
