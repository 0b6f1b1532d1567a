"""Settings for how a deployment treats its nodes."""

from __future__ import annotations

from dataclasses import dataclass

from asyncmanifold.checks import check


@dataclass(frozen=True, kw_only=True)
class Policy:
    """How a deployment treats its nodes.

    Arguments:
        queue_depth: jobs per node at a time, 1 or 2. 2 hides much of Flower's fixed cost per message, but
            adds one version of staleness. By default a node has 2 once its own jobs have shown that a round
            trip costs at least a second and a third of the time in training besides training; never under
            local privacy, where the time in training is withheld.
        concurrency: the most nodes that have a job at the same time.
        deadline: seconds after which a job counts as failed; ``inf`` for Flower's own, 12 hours. By default
            10 times the longest of the node's last 8 jobs, at least 600 and at most 43,200 seconds; Flower's
            own until two jobs of the node are known.
        patience: failures in a row after which a node rests.
        rest_seconds: how long it rests; twice as long each further time.
        wait_seconds: how long to wait when no node is present, or none answers.
        poll_seconds: the polling interval for replies.
        meet_seconds: the polling interval for the list of nodes.
        evaluate_clients: at the end, ask every node to evaluate the best model on its data.
        evaluate_seconds: how long to wait for that; a node that is still training answers late.
        reply_bytes: the most bytes of a reply; by default derived from the model.
        claim_limit: a node's examples count up to this multiple of the median number that nodes claim.

    >>> from asyncmanifold.flower import Policy
    >>> Policy(queue_depth=2, deadline=600.0).patience
    3
    """

    queue_depth: int | None = None
    concurrency: int | None = None
    deadline: float | None = None
    patience: int = 3
    rest_seconds: float = 60.0
    wait_seconds: float = 600.0
    poll_seconds: float = 0.2
    meet_seconds: float = 3.0
    evaluate_clients: bool = True
    evaluate_seconds: float = 30.0
    reply_bytes: int | None = None
    claim_limit: float = 5.0

    def __post_init__(self) -> None:
        check(self, queue_depth="between 1 and 2", concurrency="at least 1", patience="at least 1")
        check(
            self,
            claim_limit="at least 1 and finite",
            reply_bytes="at least 1",
            evaluate_seconds="above 0 and finite",
        )
        check(self, deadline="above 0")
        seconds = ("rest_seconds", "wait_seconds", "poll_seconds", "meet_seconds")
        check(self, **dict.fromkeys(seconds, "above 0 and finite"))
