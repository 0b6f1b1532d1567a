"""The loop of a deployment: which nodes are present, which jobs are in flight, and which replies arrive.

``grid.push_messages`` and ``grid.pull_messages`` do not block, so a server on stock Flower never has to wait
for a slow node. Replies of one pull are absorbed one at a time, in the order in which their jobs were sent.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from asyncmanifold.errors import RunError
from asyncmanifold.flower.codec import (
    ARRAYS,
    CONFIG,
    METRICS,
    TrainingRequest,
    job_content,
    model_record,
    read_reply,
)
from asyncmanifold.flower.nodes import Node, Nodes
from asyncmanifold.flower.policy import Policy
from asyncmanifold.server.protocol import Job, Rejected
from asyncmanifold.session.journal import Journal
from asyncmanifold.session.session import Session
from asyncmanifold.session.trace import Record

GRACE_SECONDS = 60.0
"""How long after its deadline a job counts as failed even if Flower reports nothing."""
ERRORS = {
    2: "the client app raised an exception",
    3: "no reply within the deadline",
    5: "the node is gone",
    8: "the client app crashed",
}
log = logging.getLogger("flwr")


@dataclass(frozen=True)
class SentJob:
    """A job that was sent to a node and has not come back."""

    job: Job
    node: Node
    dispatched: float


class Deployment:
    """Decides which update arrives when, on a grid of nodes; the session does everything else."""

    def __init__(
        self, grid: Grid, session: Session, policy: Policy, train_config: ConfigRecord, journal: Journal
    ) -> None:
        """Continue from the journal's last checkpoint, if there is one."""
        self._grid, self._session, self._policy, self._journal = grid, session, policy, journal
        self._train_config = train_config
        self._nodes = Nodes(policy.patience, policy.rest_seconds)
        self._sent: dict[str, SentJob] = {}  # by message id
        self._encoded: tuple[int, ArrayRecord] | None = None  # the last version sent, and its arrays
        self._met = float("-inf")
        self._seen = 0.0
        journal.restore(self._unpack)

    def run(self) -> dict[int, float]:
        """Absorb updates until the run is finished; return the best model's score on each node's data."""
        self._seen = self._now
        if self._session.state.updates == 0 and self._session.best is None:
            self._session.evaluate(self._now)
        while not self._session.is_finished:
            self._refresh_nodes()
            self._give_up_late_jobs()
            self._dispatch()
            replies = self._pull()
            for sent, reply in replies:
                self._absorb(sent, reply)
            if not replies:
                self._wait()
        return self._client_scores()

    @property
    def _now(self) -> float:
        return self._session.seconds

    def _refresh_nodes(self) -> None:
        """Update the list of nodes, once per polling interval."""
        if self._now - self._met < self._policy.meet_seconds:
            return
        self._met = self._now
        came, went = self._nodes.update_present(self._grid.get_node_ids())
        for kind, nodes in (("joined", came), ("left", went)):
            for node in nodes:
                self._session.write(kind, time=self._now, client=node.client, node=node.id)
                log.info("node %s (client %s) %s", node.id, node.client, kind)

    def _wait(self) -> None:
        """Sleep for one polling interval; give up if no node is present for too long."""
        if self._nodes.present or self._sent:
            self._seen = self._now
        elif self._now - self._seen > self._policy.wait_seconds:
            raise RunError(f"no node for {self._policy.wait_seconds:g} s: resume when one is present")
        time.sleep(self._policy.poll_seconds)

    def _give_up_late_jobs(self) -> None:
        """Count jobs as failed that are long past their deadline, although Flower has not reported it."""
        if self._policy.deadline is None:
            return
        latest = self._now - self._policy.deadline - GRACE_SECONDS
        late = [message_id for message_id, sent in self._sent.items() if sent.dispatched < latest]
        for message_id in late:
            sent = self._take_landed(message_id)
            self._note_refusal(sent, self._session.refuse(sent.job, "failed", ERRORS[3], **self._facts(sent)))

    def _dispatch(self) -> None:
        """Give a job to every node that can take one; all are sent in one push."""
        if self._session.is_finished or (self._session.method.synchronous and self._sent):
            return
        going: list[SentJob] = []
        while (node := self._next_node()) is not None:
            going.append(SentJob(self._session.job(node.client), node, self._now))
            node.in_flight += 1
        if going:
            message_ids = self._grid.push_messages([self._message(sent) for sent in going])
            self._sent.update(zip(message_ids, going, strict=True))

    def _next_node(self) -> Node | None:
        """Return the node for the next job, chosen among those with the fewest jobs."""
        depth = 1 if self._session.method.synchronous else self._policy.queue_depth
        free = self._nodes.free(self._now, depth)
        busy = sum(node.in_flight > 0 for node in self._nodes.known.values())
        if self._policy.concurrency is not None and busy >= self._policy.concurrency:
            free = [node for node in free if node.in_flight > 0]
        if not free:
            return None
        fewest = min(node.in_flight for node in free)
        waiting = [node for node in free if node.in_flight == fewest]
        return waiting[self._session.choose([node.client for node in waiting])]

    def _message(self, sent: SentJob) -> Message:
        job, session = sent.job, self._session
        if self._encoded is None or self._encoded[0] != job.version:
            self._encoded = job.version, model_record(job.theta, job.statistics)
        request = TrainingRequest(
            job, session.method.embedding, session.method.outgoing, session.training, session.run.seed
        )
        return Message(
            content=job_content(request, self._encoded[1], self._train_config),
            message_type=MessageType.TRAIN,
            dst_node_id=sent.node.id,
            group_id=str(job.version),
            ttl=self._policy.deadline,
        )

    def _pull(self) -> list[tuple[SentJob, Message]]:
        """Return the replies that have arrived, in the order in which their jobs were sent."""
        if not self._sent:
            return []
        replies = self._grid.pull_messages(list(self._sent))
        landed = [(self._take_landed(reply.metadata.reply_to_message_id), reply) for reply in replies]
        return sorted(landed, key=lambda pair: pair[0].job.number)

    def _take_landed(self, message_id: str) -> SentJob:
        sent = self._sent.pop(message_id)
        sent.node.in_flight -= 1
        return sent

    def _absorb(self, sent: SentJob, reply: Message) -> None:
        """Absorb a reply, give its node the next job, then evaluate and write a checkpoint."""
        session, job, node, where = self._session, sent.job, sent.node, self._facts(sent)
        if session.is_finished:
            return
        try:
            if reply.has_error():
                record = session.refuse(job, "failed", _describe_error(reply.error), **where)
            else:
                report = read_reply(reply.content)
                weight = self._nodes.weight(node, report.examples)
                record = session.accept(job, report.parcel, weight, **where, partition=report.partition)
        except Rejected as problem:
            record = session.refuse(job, "rejected", str(problem), **where)
        if record["kind"] != "update":
            self._note_refusal(sent, record)
            return
        node.examples, node.partition = report.examples, report.partition
        self._nodes.record_success(node)
        log.info(
            "update %s/%s: client %s, staleness %s, loss %.4f",
            *(record["update"], session.run.updates, node.client, record["staleness"], record["loss"]),
        )
        self._dispatch()
        session.evaluate_if_due(self._now)
        self._journal.checkpoint(self._pack())

    def _note_refusal(self, sent: SentJob, record: Record) -> None:
        """Count a refused job as its node's failure; after too many the node rests."""
        node, kind = sent.node, record["kind"]
        log.warning("client %s %s: %s", node.client, kind, record["reason"])
        if seconds := self._nodes.record_failure(node, self._now):
            self._session.write("resting", time=self._now, client=node.client, seconds=seconds)
            log.warning("client %s rests for %g s", node.client, seconds)

    def _facts(self, sent: SentJob) -> dict[str, Any]:
        return {"time": self._now, "node": sent.node.id, "dispatched": sent.dispatched}

    def _client_scores(self) -> dict[int, float]:
        """Ask every node to evaluate the best model on its data; return the scores that arrive."""
        if not self._policy.evaluate_clients:
            return {}
        best = self._session.best
        theta, statistics = self._session.state.returned() if best is None else (best.theta, best.statistics)
        content = RecordDict({ARRAYS: model_record(theta, statistics), CONFIG: self._train_config})
        asked = [
            Message(content=content, message_type=MessageType.EVALUATE, dst_node_id=node.id)
            for node in self._nodes.present.values()
        ]
        log.info("asking %s nodes how the model does on their data, after their last jobs", len(asked))
        replies = self._grid.send_and_receive(
            asked, timeout=self._policy.deadline or self._policy.wait_seconds
        )
        return dict(_scores(replies, self._nodes, next(iter(self._session.metrics), None)))

    def _pack(self) -> dict[str, Any]:
        """Return everything that the rest of the run depends on, except jobs in flight: those are resent."""
        known = self._nodes.known.values()
        return {
            **self._session.pack(),
            "nodes": [[node.id, node.client, node.examples, node.partition] for node in known],
        }

    def _unpack(self, packed: Mapping[str, Any]) -> None:
        self._session.unpack(packed)
        self._nodes.known = {entry[0]: Node(*entry) for entry in packed["nodes"]}


def _describe_error(error: Error) -> str:
    """Return one of Flower's errors as one line; its reason may be a whole traceback."""
    lines = [line.strip() for line in (error.reason or "").splitlines() if line.strip()]
    known = ERRORS.get(error.code, f"error {error.code}")
    return f"{known}: {lines[-1][:200]}" if lines else known


def _scores(replies: Iterable[Message], nodes: Nodes, metric: str | None) -> Iterable[tuple[int, float]]:
    for reply in replies:
        if reply.has_error() or METRICS not in reply.content.metric_records:
            continue
        scores = reply.content.metric_records[METRICS]
        value = scores.get(metric) if metric is not None else next(iter(scores.values()), None)
        if isinstance(value, (int, float)) and isfinite(value):
            yield nodes.known[reply.metadata.src_node_id].client, float(value)
