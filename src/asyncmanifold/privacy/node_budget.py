"""A node's own privacy budget and the ledger of its uploads: it refuses what exceeds them, whoever asks.

Both belong to whoever owns the data. The server's word for its noise, its relation or its caps is not used.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from asyncmanifold.checks import check
from asyncmanifold.errors import InputError
from asyncmanifold.files import write_json
from asyncmanifold.privacy.accounting import GaussianRelease, total_epsilon
from asyncmanifold.privacy.protection import Protection, Relation, sensed_release

FORMAT = "asyncmanifold privacy ledger 1"
PREFIX = "privacy-"


class BudgetRefusal(Exception):  # noqa: N818 - an outcome, not an error
    """A job that a node refuses, and will refuse again; the message says why."""


@dataclass(frozen=True, kw_only=True)
class NodeBudget:
    """What a node's owner allows: every upload protected by ``LocalPrivacy``, and no more of them than this.

    Settings are keys of the node's config, such as ``privacy-epsilon``, or environment variables, such as
    ``ASYNCMANIFOLD_PRIVACY_EPSILON``. Without any of them a node has no budget, and keeps no ledger.

    Arguments:
        epsilon: ε over everything that the node ever uploads.
        delta: the δ at which ε is counted.
        relation: as in ``LocalPrivacy``.
        least_noise: the least noise multiplier σ of an upload.
        most_clip: the greatest clip norm C of an upload.
        most_uploads: how many uploads there may be.
        ledger: the file of the ledger; by default in ``~/.asyncmanifold``, by the node's name or part.

    >>> from asyncmanifold.privacy.node_budget import NodeBudget
    >>> NodeBudget(epsilon=8.0, least_noise=4.0, ledger="ledger.json").delta
    1e-05
    """

    epsilon: float
    delta: float = 1e-5
    relation: Relation = "replace-one"
    least_noise: float = 0.0
    most_clip: float | None = None
    most_uploads: int | None = None
    ledger: str

    def __post_init__(self) -> None:
        check(self, epsilon="above 0 and finite", delta="above 0 and below 1", least_noise="at least 0")
        check(self, relation="'replace-one' or 'add-or-remove-one'", most_clip="above 0")
        check(self, most_uploads="at least 1")

    @classmethod
    def find(cls, node_config: Mapping[str, Any], environment: Mapping[str, str]) -> NodeBudget | None:
        """Return a node's budget, None if it has none; a setting that is not understood is refused."""
        names = {field.name for field in fields(cls)}
        variables = {f"ASYNCMANIFOLD_PRIVACY_{name.upper()}": name for name in names}
        given: dict[str, Any] = {
            variables[key]: value for key, value in environment.items() if key in variables
        }
        for key, value in node_config.items():
            if key.startswith(PREFIX):
                given[key.removeprefix(PREFIX).replace("-", "_")] = value
        if unknown := sorted(set(given) - names):
            allowed = ", ".join(PREFIX + name.replace("_", "-") for name in sorted(names))
            raise InputError(f"node config: unknown privacy setting {unknown[0]!r} (allowed: {allowed})")
        if not given:
            return None
        if "epsilon" not in given:
            raise InputError("node config: a privacy budget needs privacy-epsilon")
        given.setdefault("ledger", _default_ledger(node_config))
        return cls(**{name: _typed(name, value) for name, value in given.items()})

    def check_job(self, parts: Sequence[object]) -> None:
        """Raise ``BudgetRefusal`` if a job with these outgoing parts must not be answered."""
        with self._locked() as uploads:
            self._allow(parts, uploads)

    def spend(self, parts: Sequence[object]) -> None:
        """Count an upload in the ledger, on disk, before it is made, or raise ``BudgetRefusal``.

        What is counted stays counted, even if the upload never arrives.
        """
        with self._locked() as uploads:
            noise = self._allow(parts, uploads)
            uploads[noise] = uploads.get(noise, 0) + 1
            entries = [{"noise": each, "uploads": count} for each, count in sorted(uploads.items())]
            write_json(Path(self.ledger), {"format": FORMAT, "uploads": entries})

    def _allow(self, parts: Sequence[object], uploads: dict[float, int]) -> float:
        """Return the noise multiplier of a job's upload, if it is allowed after those in the ledger."""
        part = parts[0] if parts else None
        if not isinstance(part, Protection):
            raise BudgetRefusal("this node uploads nothing without local-privacy as the first outgoing part")
        if part.noise_multiplier < self.least_noise:
            raise BudgetRefusal(
                f"noise_multiplier {part.noise_multiplier:g} is below this node's {self.least_noise:g}"
            )
        if self.most_clip is not None and part.clip_norm > self.most_clip:
            raise BudgetRefusal(f"clip_norm {part.clip_norm:g} is above this node's {self.most_clip:g}")
        made = sum(uploads.values())
        if self.most_uploads is not None and made >= self.most_uploads:
            raise BudgetRefusal(f"this node has made all of its {self.most_uploads} uploads")
        releases: dict[GaussianRelease, int] = {}
        for noise, count in [*uploads.items(), (part.noise_multiplier, 1)]:
            release = sensed_release(noise, self.relation)
            releases[release] = releases.get(release, 0) + count
        if (epsilon := total_epsilon(releases, self.delta)) > self.epsilon:
            raise BudgetRefusal(
                f"this node's privacy budget is spent: {made} uploads, and one more would make "
                f"ε {epsilon:.3g} of {self.epsilon:g} at δ {self.delta:g}"
            )
        return part.noise_multiplier

    @contextmanager
    def _locked(self) -> Iterator[dict[float, int]]:
        """Yield the uploads made so far, by noise multiplier, while no other process may change them."""
        path = Path(self.ledger)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.with_name(path.name + ".lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield read_ledger(path)
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}") from error


def read_ledger(path: Path) -> dict[float, int]:
    """Return the uploads in a ledger, by noise multiplier; refuse one that is not as it was written."""
    if not path.exists():
        return {}
    try:
        tree = json.loads(path.read_bytes())
        uploads = {entry["noise"]: entry["uploads"] for entry in tree["uploads"]}
        written = {
            "format": FORMAT,
            "uploads": [{"noise": each, "uploads": count} for each, count in sorted(uploads.items())],
        }
        sound = all(
            type(each) is float and 0.0 < each < 1e12 and type(count) is int and count > 0
            for each, count in uploads.items()
        )
        if not sound or tree != written:
            raise ValueError("not a ledger's content")
    except (ValueError, LookupError, TypeError) as error:
        raise InputError(
            f"{path}: a damaged privacy ledger, so nothing is uploaded: restore it, or remove it if what it "
            f"counted may be forgotten: {error}"
        ) from error
    return uploads


def _default_ledger(node_config: Mapping[str, Any]) -> str:
    who = node_config.get("name", node_config.get("partition-id", "node"))
    safe = "".join(c if c.isalnum() else "-" for c in str(who))
    return str(Path.home() / ".asyncmanifold" / f"privacy-{safe}.json")


def _typed(name: str, value: Any) -> Any:
    """Return a setting as its type; node configs and environments may hold strings."""
    kind = {"ledger": str, "relation": str, "most_uploads": int}.get(name, float)
    try:
        if isinstance(value, bool) or (kind is int and float(value) != int(value)):
            raise ValueError
        return kind(value)
    except (TypeError, ValueError):
        words = {float: "a number", int: "a whole number", str: "a string"}[kind]
        key = PREFIX + name.replace("_", "-")
        raise InputError(f"node config: {key} = {value!r}, must be {words}") from None
