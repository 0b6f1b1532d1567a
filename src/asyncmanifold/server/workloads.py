"""How much a client's next job is: rules for its epochs."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from math import floor
from typing import ClassVar

from asyncmanifold.checks import check
from asyncmanifold.server.protocol import UNKNOWN, Situation
from asyncmanifold.server.stages import Memory, Part


@dataclass(frozen=True)
class FinishedJob:
    """A job whose update was accepted, as rules for the next one see it."""

    client: int
    point_epochs: int
    curve_epochs: int = 0
    drift_norm: float = 0.0
    """‖d‖."""
    update_norm: float = 0.0
    """‖v_n‖ as received."""
    updates: int = 0
    """Updates accepted before this one."""
    situation: Situation = UNKNOWN


@dataclass(frozen=True)
class EpochRule(Part):
    """Leaves a client's epochs as they are. Subclasses override ``plan``.

    >>> from dataclasses import dataclass
    >>> from asyncmanifold import EpochRule, Method
    >>> @dataclass(frozen=True)
    ... class Falling(EpochRule):
    ...     def plan(self, job, memory):
    ...         return max(1, job.point_epochs - 1), memory
    >>> Method(adaptive_epochs=Falling()).adaptive_epochs
    Falling()
    """

    target_ratio: ClassVar[float] = 1.0
    """γ̄, the ‖d‖/‖v‖ that a rule aims at."""

    def plan(self, job: FinishedJob, memory: Memory) -> tuple[int, Memory]:
        """Return the epochs of the client's next job, those along a curve not counted, and the new memory."""
        return job.point_epochs, memory


@dataclass(frozen=True)
class ArrivalGroups(EpochRule):
    """Gives every client so many epochs that groups of clients arrive together (FedCompass, Li et al. 2024).

    A client's pace is the moving average of its time per epoch. It joins the group whose arrival it can meet
    with the most epochs between the bounds; if there is none, it begins a group, which arrives together with
    the next jobs of the fastest client of another group, or after the most epochs.

    Arguments:
        fewest_epochs: Q_min.
        most_epochs: Q_max.
        pace_momentum: the weight of the latest job in a client's pace.
        lateness: λ; a group is waited for until its time, counted from its beginning, is over by this factor.

    >>> from asyncmanifold import ArrivalGroups, Situation
    >>> from asyncmanifold.server.workloads import FinishedJob
    >>> fast = FinishedJob(0, point_epochs=2, situation=Situation(time=2.0))  # 1 per epoch: 4 until 6
    >>> slow = FinishedJob(1, point_epochs=2, situation=Situation(time=4.0))  # 2 per epoch: 1 until 6
    >>> epochs, memory = ArrivalGroups(1, 4).plan(fast, {})
    >>> epochs, ArrivalGroups(1, 4).plan(slow, memory)[0]
    (4, 1)
    """

    fewest_epochs: int = 1
    most_epochs: int = 5
    _: KW_ONLY
    pace_momentum: float = 0.9
    lateness: float = 1.2

    def __post_init__(self) -> None:
        check(self, fewest_epochs="at least 1", most_epochs=f"at least {self.fewest_epochs}")
        check(self, pace_momentum="above 0 and below 1", lateness="at least 1 and finite")

    def plan(self, job: FinishedJob, memory: Memory) -> tuple[int, Memory]:
        now, client = job.situation.time, job.client
        paces = self._paces(job, memory.get("paces", {}))
        pace = paces[client]
        groups = {
            number: {**group, "members": [member for member in group["members"] if member != client]}
            for number, group in memory.get("groups", {}).items()
        }
        groups = {number: g for number, g in groups.items() if g["members"] and g["latest"] > now}
        epochs, chosen = 0, memory.get("next", 0)
        for number, group in groups.items():
            fitting = self._fitting(group["expected"] - now, pace, job.curve_epochs)
            if fitting > epochs:
                epochs, chosen = fitting, number
        if epochs == 0:
            epochs = self._begun(now, pace, job.curve_epochs, groups, paces)
            takes = (epochs + job.curve_epochs) * pace
            groups[chosen] = {"members": [], "expected": now + takes, "latest": now + takes * self.lateness}
        groups[chosen]["members"].append(client)
        return epochs, {"paces": paces, "groups": groups, "next": max(memory.get("next", 0), chosen + 1)}

    def _paces(self, job: FinishedJob, known: dict[int, float]) -> dict[int, float]:
        """Return all clients' times per epoch, with this job's."""
        pace = max(job.situation.duration, 1e-9) / (job.point_epochs + job.curve_epochs)
        if job.client in known:
            pace = known[job.client] + self.pace_momentum * (pace - known[job.client])
        return {**known, job.client: pace}

    def _fitting(self, remaining: float, pace: float, curve_epochs: int) -> int:
        """Return the epochs that fit into a time, 0 if they are not between the bounds."""
        epochs = floor(remaining / pace + 1e-9) - curve_epochs
        return epochs if self.fewest_epochs <= epochs <= self.most_epochs else 0

    def _begun(
        self, now: float, pace: float, curve_epochs: int, groups: Memory, paces: dict[int, float]
    ) -> int:
        """Return the epochs of a client that begins a group."""
        found = -1
        for group in groups.values():
            fastest = min(paces[member] for member in group["members"])
            arrival = group["latest"] + fastest * (self.most_epochs + curve_epochs)
            epochs = floor((arrival - now) / pace) - curve_epochs
            if epochs <= self.most_epochs:
                found = max(found, epochs)
        return self.most_epochs if found < 0 else max(self.fewest_epochs, found)
