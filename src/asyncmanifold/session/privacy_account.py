"""What a run has released of each client, and who takes no further part."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from asyncmanifold.privacy.protection import Protection

SPENT = "privacy budget spent"
"""Why a client takes no further part, and why a run ends without clients that do."""
LOCALLY_WITHHELD = ("loss", "train_seconds", "examples", "statistics")
"""What clients keep to themselves under local privacy."""


class PrivacyAccount:
    """Counts releases by client; a run without protection counts nothing.

    Counts only ever grow, also when a run goes back to an earlier model: what was released stays so.
    """

    def __init__(self, protection: Protection | None, *, is_local: bool) -> None:
        self.protection = protection
        self.is_local = protection is not None and is_local
        """Whether every job is a release; otherwise the sums that move the model are."""
        self.releases: dict[int, int] = {}
        self.retired: list[int] = []
        """Clients that are sent no more jobs."""

    def count(self, clients: Iterable[int], change: int = 1) -> None:
        """Count one more release of each client, or one less of one that sent nothing."""
        for client in clients:
            self.releases[client] = self.releases.get(client, 0) + change

    def is_spent(self, client: int) -> bool:
        """Return whether one more release would exceed what the protection allows a client."""
        return self.protection is not None and not self.protection.allows(self.releases.get(client, 0) + 1)

    def is_over(self, active: int, out: int) -> bool:
        """Return whether a run must end with so many clients that take part, and so many jobs out."""
        if self.protection is None or not self.retired:
            return False
        return active < self.protection.least_clients and (not self.is_local or not out)

    def facts(self, client: int) -> dict[str, Any]:
        """Return the fields of a record about a client: none without protection."""
        if self.protection is None:
            return {}
        made = self.releases.get(client, 0)
        return {"releases": made, "epsilon": self.protection.epsilon(made)}

    def recall(self, record: Mapping[str, Any]) -> None:
        """Take over a client's count from a record that was made after the last checkpoint."""
        if "releases" in record:
            client = record["client"]
            self.releases[client] = max(record["releases"], self.releases.get(client, 0))

    def summary(self) -> dict[str, Any]:
        """Return what a run's summary says about privacy; nothing without protection."""
        if self.protection is None:
            return {}
        part = self.protection
        clients = range(max(self.releases, default=-1) + 1)
        made = [self.releases.get(client, 0) for client in clients]
        kind = "local" if self.is_local else "central"
        return {
            "privacy": {
                "kind": kind,
                "delta": part.delta,
                "relation": part.relation,
                "clip_norm": part.clip_norm,
                "noise_multiplier": part.noise_multiplier,
                "epsilon": part.epsilon(max(made, default=0)),
                "releases": made,
                "epsilon_per_client": [part.epsilon(count) for count in made],
                "withheld": list(LOCALLY_WITHHELD if self.is_local else ("statistics",)),
                "retired": sorted(self.retired),
                "repeatable": False,
            }
        }

    def cautions(self, *, has_statistics: bool) -> list[str]:
        """Return what a user must know before a private run starts; nothing without protection."""
        if self.protection is None:
            return []
        name = type(self.protection).__name__
        resumed = "a resumed one draws other noise" if self.is_local else "only a resumed one repeats it"
        said = [f"{name}: noise comes from the operating system, so this run cannot be repeated; {resumed}"]
        if has_statistics:
            said.append(
                f"{name}: BatchNorm's statistics are withheld and stay the initial model's; "
                "GroupNorm or LayerNorm has none"
            )
        return said

    def pack(self) -> dict[str, Any]:
        """Return what a checkpoint must hold: nothing without protection."""
        if self.protection is None:
            return {}
        return {"privacy": {"releases": list(self.releases.items()), "retired": self.retired}}

    def unpack(self, packed: Mapping[str, Any]) -> None:
        """Restore what ``pack`` returned."""
        kept = packed.get("privacy", {"releases": [], "retired": []})
        self.releases = dict(kept["releases"])
        self.retired = list(kept["retired"])
