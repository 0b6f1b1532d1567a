"""Control of a deployment while it runs: what is asked of its nodes, and of its policy."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import fields, replace
from math import isfinite
from typing import Any

from asyncmanifold.configuration.tables import change, parse_value
from asyncmanifold.errors import InputError
from asyncmanifold.flower.nodes import Nodes
from asyncmanifold.flower.policy import Policy
from asyncmanifold.session.control import Steward
from asyncmanifold.session.control_desk import ControlDesk
from asyncmanifold.session.session import Session

log = logging.getLogger("flwr")
FIXED = ("reply_bytes",)
"""What of a policy cannot change while a run goes on."""


class DeploymentControl(Steward):
    """Carries out requests between two looks for replies; while paused, nodes get no new jobs."""

    def __init__(
        self,
        session: Session,
        desk: ControlDesk,
        nodes: Nodes,
        policy: Policy,
        checkpoint: Callable[[], None],
    ) -> None:
        """Start with the policy as given, and with what was asked before the run was resumed."""
        super().__init__(session, desk)
        self._nodes, self._given, self._write = nodes, policy, checkpoint
        self.policy = policy
        self.follow()

    @property
    def time(self) -> float:
        return self.session.seconds

    def find_client(self, name: str) -> tuple[int, dict[str, Any]]:
        """Find a node by its name, its number as a client, or Flower's id."""
        known = list(self._nodes.known.values())
        found = [node for node in known if node.name == name]
        found = found or [node for node in known if name in (str(node.client), str(node.id))]
        if not found:
            raise InputError(f"{name}: no such node, must be its name, its number as a client or its id")
        if len(found) > 1:
            raise InputError(f"{name}: {len(found)} nodes have this name, give a client's number or an id")
        return found[0].client, found[0].facts

    def find_setting(self, key: str, value: str) -> dict[str, Any]:
        name = key.removeprefix("policy.")
        allowed = [field.name for field in fields(Policy) if field.name not in FIXED]
        if not key.startswith("policy.") or name not in allowed:
            raise InputError(f"set {key}: must be policy. and one of {', '.join(allowed)}")
        wanted = parse_value(value)
        if isinstance(wanted, float) and not isfinite(wanted):
            raise InputError(f"set {key}={value}: must be finite")
        changed = change(self.policy, {name: wanted}, f"set {key}={value}")
        before = getattr(self.policy, name)
        is_known = not isinstance(before, float) or isfinite(before)
        return {"key": key, "from": before if is_known else str(before), "to": getattr(changed, name)}

    def follow(self) -> None:
        state = self.session.control
        self.policy = replace(self._given, **state.policy)
        self._nodes.follow(self.policy, is_synchronous=self.session.method.synchronous)
        self._nodes.exclude(state.excluded)

    def say(self, line: str) -> None:
        log.info("control: %s", line)

    def checkpoint(self) -> None:
        self._write()
