"""What has come back for a job: an update, a failure, or a refusal for good."""

from __future__ import annotations

from flwr.app import Error, Message

from asyncmanifold.flower.mailbox import Delivery
from asyncmanifold.server.protocol import Failure, Rejected

ERRORS = {
    2: "the client app raised an exception",
    3: "no reply within the deadline",
    5: "the node is gone",
    8: "the client app crashed",
}


def open_delivery(delivery: Delivery) -> Message | Failure:
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
