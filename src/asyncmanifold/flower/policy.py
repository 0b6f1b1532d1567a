"""How a deployment treats its nodes."""

from __future__ import annotations

from dataclasses import dataclass

from asyncmanifold.checks import check


@dataclass(frozen=True, kw_only=True)
class Policy:
    """How a deployment treats its nodes.

    Arguments:
        queue_depth: jobs that a node has at a time, 1 or 2. 2 hides much of Flower's fixed cost per message,
            for one more version of staleness.
        concurrency: the most nodes that have a job at the same time.
        deadline: seconds after which a job counts as failed.
        patience: failures in a row after which a node rests.
        rest_seconds: how long it rests; each further time twice as long.
        wait_seconds: how long to wait when no node is there, or none answers.
        poll_seconds: the polling interval for replies.
        meet_seconds: the polling interval for which nodes are there.
        evaluate_clients: ask every node at the end how the best model does on its data.

    >>> from asyncmanifold.flower import Policy
    >>> Policy(queue_depth=2, deadline=600.0).patience
    3
    """

    queue_depth: int = 1
    concurrency: int | None = None
    deadline: float | None = None
    patience: int = 3
    rest_seconds: float = 60.0
    wait_seconds: float = 600.0
    poll_seconds: float = 0.2
    meet_seconds: float = 3.0
    evaluate_clients: bool = True

    def __post_init__(self) -> None:
        check(self, queue_depth="between 1 and 2", concurrency="at least 1", patience="at least 1")
        seconds = ("deadline", "rest_seconds", "wait_seconds", "poll_seconds", "meet_seconds")
        check(self, **dict.fromkeys(seconds, "above 0 and finite"))
