"""At the end of a run: how the best model does on each node's own data."""

from __future__ import annotations

import logging
import time
from math import isfinite
from time import monotonic

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from asyncmanifold.flower.codec import ARRAYS, CONFIG, METRICS, model_record
from asyncmanifold.flower.mailbox import Mailbox
from asyncmanifold.flower.nodes import Node, Nodes
from asyncmanifold.flower.policy import Policy
from asyncmanifold.session.session import Session

log = logging.getLogger("flwr")


def score_on_nodes(
    grid: Grid,
    mailbox: Mailbox,
    session: Session,
    nodes: Nodes,
    config: ConfigRecord,
    policy: Policy,
) -> dict[int, float]:
    """Ask every node to evaluate the best model on its data; return the scores that come in time, by client.

    A node that still trains a job answers only after it. The job is no longer needed, and Flower cannot take
    it back: such nodes are not waited for longer than ``evaluate_seconds``.
    """
    best = session.best
    theta, statistics = session.state.returned() if best is None else (best.theta, best.statistics)
    content = RecordDict({ARRAYS: model_record(theta, statistics), CONFIG: config})
    asked = [node for node in nodes.present.values() if not node.is_excluded]
    busy = sum(node.in_flight > 0 for node in asked)
    log.info(
        "all updates are in; asking %s nodes for the model's score on their data, for at most %g s "
        "(%s of them still train jobs that are no longer needed)",
        *(len(asked), policy.evaluate_seconds, busy),
    )
    waiting: dict[str, Node] = {}
    if asked:
        messages = [Message(content, node.id, MessageType.EVALUATE) for node in asked]
        waiting = {one: node for one, node in zip(grid.push_messages(messages), asked, strict=True) if one}
    for message_id, node in waiting.items():
        mailbox.expect(message_id, node.id)
    scores: dict[int, float] = {}
    metric = next(iter(session.metrics), None)
    until = monotonic() + policy.evaluate_seconds
    while waiting and monotonic() < until:
        deliveries = mailbox.pull()
        for delivery in deliveries:
            node = waiting.pop(delivery.message_id)
            score = read_score(delivery.outcome, metric)
            if score is not None:
                scores[node.client] = score
        if not deliveries:
            time.sleep(policy.poll_seconds)
    log.info("%s of %s nodes have answered", len(asked) - len(waiting), len(asked))
    return scores


def read_score(reply: object, metric: str | None) -> float | None:
    """Return the score in a reply, None if there is none; by default the first metric."""
    try:
        assert isinstance(reply, Message)
        scores = reply.content.metric_records[METRICS]
        value = scores.get(metric) if metric is not None else next(iter(scores.values()), None)
        return float(value) if isinstance(value, (int, float)) and isfinite(value) else None
    except Exception:  # untrusted bytes may raise anything
        return None
