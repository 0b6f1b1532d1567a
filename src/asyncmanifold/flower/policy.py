"""How a deployment treats its nodes."""

from __future__ import annotations

from dataclasses import dataclass

from asyncmanifold.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Policy:
    """How a deployment treats its nodes."""

    queue_depth: int = 1
    """Jobs that a node has at a time. 2 hides much of Flower's fixed cost per message, for one more version
    of staleness."""
    concurrency: int | None = None
    """The most nodes that have a job at the same time."""
    deadline: float | None = None
    """Seconds after which a job counts as failed."""
    patience: int = 3
    """Failures in a row after which a node rests."""
    rest_seconds: float = 60.0
    """How long; each further time twice as long."""
    wait_seconds: float = 600.0
    """How long to wait when no node is there, or none answers."""
    poll_seconds: float = 0.2
    """Between two questions for replies."""
    meet_seconds: float = 3.0
    """Between two questions who is there."""
    evaluate_clients: bool = True
    """Ask every node at the end how the best model does on its data."""

    def __post_init__(self) -> None:
        if self.queue_depth not in (1, 2):
            raise InputError(f"Policy(queue_depth={self.queue_depth}) must be 1 or 2")
        for name in ("concurrency", "patience"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise InputError(f"Policy({name}={value}) must be at least 1")
        for name in ("deadline", "rest_seconds", "wait_seconds", "poll_seconds", "meet_seconds"):
            if (value := getattr(self, name)) is not None and not 0.0 < value < float("inf"):
                raise InputError(f"Policy({name}={value}) must be above 0 and finite")
