"""What has come back for a job: an update, a failure, or a refusal for good."""

from __future__ import annotations

from flwr.app import Error, Message

from asyncmanifold.flower.codec import Report, read_refusal, read_reply, read_sender
from asyncmanifold.flower.identity import Identity
from asyncmanifold.flower.mailbox import Delivery
from asyncmanifold.flower.nodes import Node, Nodes
from asyncmanifold.flower.sizes import expected_form
from asyncmanifold.server.protocol import Failure, Rejected
from asyncmanifold.session.session import Session

ERRORS = {
    2: "the client app raised an exception",
    3: "no reply within the deadline",
    5: "the node is gone",
    8: "the client app crashed",
}


class Reception:
    """Reads replies: who sent them, what they hold, and how much it counts. Nothing in them is trusted."""

    def __init__(self, session: Session, nodes: Nodes, identity: Identity) -> None:
        """Compare replies with what the server itself runs."""
        self._session, self._nodes, self._identity = session, nodes, identity
        expected = expected_form(session.method, session.state)
        self._names = None if expected is None else set(expected.tensors)
        self._met: dict[int, Identity] = {}  # by client: what its last reply said
        self._capped: set[int] = set()  # clients whose claims were found too high

    def read(self, node: Node, delivery: Delivery) -> tuple[Report, float] | Failure:
        """Return what a reply reports and its node's share of all examples, or why there is no update.

        Raises ``Rejected`` for a reply that must not be absorbed.
        """
        reply = _open(delivery)
        if isinstance(reply, Failure):
            return reply
        self._meet(node, reply)
        if (refusal := read_refusal(reply.content)) is not None:
            return refusal
        report = read_reply(reply.content, self._names, is_private=self._session.privacy.is_local)
        if self._session.run.arithmetic == "portable" and not report.is_portable:
            raise Rejected("the node does not compute portably: start it as docs/portability.md says")
        return report, self._share(node, report.examples)

    def _meet(self, node: Node, reply: Message) -> None:
        """Compare what a node runs with what the server runs; record it when it is new."""
        sender = read_sender(reply.content)
        if self._met.get(node.client) != sender.identity:
            self._met[node.client] = sender.identity
            node.name = node.name or sender.name
            self._session.write("met", time=self._session.seconds, **node.facts, **vars(sender.identity))
        if difference := self._identity.difference(sender.identity, "the server", "the node"):
            raise Rejected(difference)

    def _share(self, node: Node, examples: int) -> float:
        """Return a node's share of all examples; say it once if the node claims too many to count in full."""
        share, counts_in_full = self._nodes.weight(node, examples)
        if not counts_in_full and node.client not in self._capped:
            self._capped.add(node.client)
            limit = f"{self._nodes.claim_limit:g} times the median claim"
            now = self._session.seconds
            self._session.write("capped", time=now, **node.facts, examples=examples, limit=limit)
        return share


def _open(delivery: Delivery) -> Message | Failure:
    """Return the reply of a delivery, or why there is none; raise ``Rejected``."""
    outcome = delivery.outcome
    if isinstance(outcome, Rejected):
        raise outcome
    if isinstance(outcome, Message) and outcome.has_error():
        return Failure(_describe_error(outcome.error))
    return outcome


def _describe_error(error: Error) -> str:
    """Return one of Flower's errors as one line; its reason may be a whole traceback."""
    lines = [line.strip() for line in (error.reason or "").splitlines() if line.strip()]
    known = ERRORS.get(error.code, f"error {error.code}")
    return f"{known}: {lines[-1][:200]}" if lines else known
