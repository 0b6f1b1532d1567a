"""What a run has released of each client, and who takes no further part."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from asyncmanifold.client.settings import LocalTraining
from asyncmanifold.errors import InputError
from asyncmanifold.privacy.example_privacy import ExamplePrivacy
from asyncmanifold.privacy.protection import Protection
from asyncmanifold.server.methods import Method
from asyncmanifold.server.private_buffer import PrivateBuffer
from asyncmanifold.server.protections import check_examples
from asyncmanifold.vectors import FlatModel

SPENT = "privacy budget spent"
"""Why a client takes no further part, and why a run ends without clients that do."""
LOCALLY_WITHHELD = ("loss", "train_seconds", "examples", "statistics")
"""What clients keep to themselves under local privacy."""


class PrivacyAccount:
    """Counts releases by client; a run without protection counts nothing.

    Counts only ever grow, also when a run goes back to an earlier model: what was released stays so.
    """

    def __init__(self, protection: Protection | None, kind: str = "local") -> None:
        """``kind`` is ``"local"``, ``"central"`` or ``"example"``."""
        self.protection, self.kind = protection, kind
        self.is_local = protection is not None and kind != "central"
        """Whether jobs are releases, and replies withhold what is not protected; otherwise the sums that
        move the model are releases."""
        self.releases: dict[int, int] = {}
        self.retired: list[int] = []
        """Clients that are sent no more jobs."""

    def count(self, clients: Iterable[int], change: int = 1) -> None:
        """Count one more release of each client, or one less of one that sent nothing."""
        for client in clients:
            self.releases[client] = self.releases.get(client, 0) + change

    def job_releases(self, epochs: int) -> int:
        """Return how many releases a job of so many epochs is, unless sums are."""
        return epochs * self.protection.steps_per_epoch if isinstance(self.protection, ExamplePrivacy) else 1

    def is_spent(self, client: int, epochs: int) -> bool:
        """Return whether one more job would exceed what the protection allows a client."""
        if self.protection is None:
            return False
        return not self.protection.allows(self.releases.get(client, 0) + self.job_releases(epochs))

    def is_over(self, active: int, out: int) -> bool:
        """Return whether a run must end with so many clients that take part, and so many jobs out.

        Clients may retire from a run without protection too: by their own budgets.
        """
        if not self.retired:
            return False
        if self.kind == "central" and self.protection is not None:
            return active < self.protection.least_clients
        return not active and not out

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
        return {
            "privacy": {
                "kind": self.kind,
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
        if has_statistics and self.kind != "example":
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


def open_account(method: Method, training: LocalTraining, model: FlatModel) -> PrivacyAccount:
    """Return the account of a run that begins; refuse what its protection would not account for."""
    protection = method.protection
    kind = "central" if isinstance(protection, PrivateBuffer) else "local"
    if training.example_privacy is not None:
        check_examples(method, training.example_privacy, model.module)
        protection, kind = training.example_privacy, "example"
    if protection is not None and not model.space.is_flat:
        raise InputError(f"{protection}: noise is for flat space, and the model has parameters on manifolds")
    return PrivacyAccount(protection, kind)
