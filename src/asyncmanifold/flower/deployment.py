"""The loop of a deployment: which nodes are present, which jobs are in flight, and which replies arrive.

Neither sending nor pulling waits for a node, so a server on stock Flower never has to wait for a slow one.
Replies that arrive together are absorbed one at a time, in the order in which their jobs were sent.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import ConfigRecord
from flwr.serverapp import Grid

from asyncmanifold.errors import RunError
from asyncmanifold.flower.deliveries import ERRORS, Reception
from asyncmanifold.flower.deployment_control import DeploymentControl
from asyncmanifold.flower.identity import Identity
from asyncmanifold.flower.job_deadlines import JobDeadlines
from asyncmanifold.flower.job_messages import JobMessages
from asyncmanifold.flower.mailbox import Delivery, open_mailbox
from asyncmanifold.flower.measured_times import MeasuredTimes
from asyncmanifold.flower.nodes import Node, Nodes
from asyncmanifold.flower.policy import Policy
from asyncmanifold.flower.scoring import score_on_nodes
from asyncmanifold.flower.sizes import most_reply_bytes
from asyncmanifold.server.protocol import Failure, Job, Rejected
from asyncmanifold.server.selection import check_choice
from asyncmanifold.session.control import EXCLUDED, STOPPED
from asyncmanifold.session.journal import Journal
from asyncmanifold.session.privacy_account import SPENT
from asyncmanifold.session.session import Session
from asyncmanifold.session.trace import Record

PUBLISH_SECONDS = 0.1
"""How long the replies of one pull are absorbed before those absorbed so far are made durable, and their
nodes get their next jobs: a sync takes as long as many small updates."""


@dataclass(frozen=True)
class SentJob:
    """A job that was sent to a node and has not come back."""

    job: Job
    node: Node
    dispatched: float
    deadline: float | None
    """Seconds after which it has failed."""
    was_free: bool
    """Whether its node had no other job."""


class Deployment:
    """Decides which update arrives when, on a grid of nodes; the session does everything else."""

    def __init__(
        self,
        grid: Grid,
        session: Session,
        policy: Policy,
        train_config: ConfigRecord,
        journal: Journal,
        task: str = "",
    ) -> None:
        """Continue from the journal's last checkpoint, if there is one."""
        self._grid, self._session, self._journal = grid, session, journal
        self._train_config = train_config
        method = session.method
        check_choice(method.selection, policy.concurrency)
        self._nodes = Nodes(policy.patience, policy.rest_seconds)
        self._mailbox = open_mailbox(grid, policy.reply_bytes or most_reply_bytes(method, session.state))
        identity = Identity.of(session.model.module, method.embedding, task)
        self._reception = Reception(session, self._nodes, identity)
        self._sent: dict[str, SentJob] = {}  # by message id, in the order of dispatch
        self._messages = JobMessages(session, identity, train_config)
        self._deadlines = JobDeadlines()
        self._refreshed = float("-inf")
        self._seen = 0.0
        self._published = float("-inf")
        journal.restore_logged(session, self._unpack, self._note)
        self._control = DeploymentControl(
            session, journal.open_desk(), self._nodes, policy, lambda: journal.checkpoint(self._pack())
        )

    def run(self) -> dict[int, float]:
        """Absorb updates until the run is finished; return the best model's score on each node's data."""
        self._seen = self._now
        if self._session.state.updates == 0 and self._session.best is None:
            self._session.evaluate(self._now)
        self._journal.begin(self._session, self._now)
        # The log continues from this checkpoint; and a full disk shows here, before any training.
        self._journal.checkpoint(self._pack())
        try:
            while not self._is_over():
                self._look_for_replies()
        except RunError:
            self._journal.commit()  # what led to it belongs to trace and log
            raise
        self._session.evaluate_last(self._now)
        is_asked = self._policy.evaluate_clients and not self._session.privacy.is_local
        if self._session.ended == STOPPED or not is_asked:
            return {}
        for message_id in self._sent:
            self._mailbox.forget(message_id)
        return score_on_nodes(
            self._grid, self._mailbox, self._session, self._nodes, self._train_config, self._policy
        )

    def _look_for_replies(self) -> None:
        """Absorb what has arrived and send new jobs; without any reply, wait a moment."""
        self._control.attend()
        self._refresh_nodes()
        self._give_up_late_jobs()
        self._dispatch()
        self._end_if_budgets_are_spent()
        deliveries = self._pull()
        for sent, delivery in deliveries:
            self._absorb(sent, delivery)
        self._publish()
        if self._journal.live.is_due:
            jobs = ((sent.node.client, sent.dispatched) for sent in self._sent.values())
            self._journal.live.show(self._now, len(self._sent), jobs)
        if not deliveries:
            self._wait()

    @property
    def _policy(self) -> Policy:
        return self._control.policy

    @property
    def _now(self) -> float:
        return self._session.seconds

    def _is_over(self) -> bool:
        """Return whether all updates are there, or no more may be accepted."""
        return self._session.is_finished or self._session.is_over(self._now)

    def _refresh_nodes(self) -> None:
        """Update the list of nodes, once per polling interval."""
        if self._now - self._refreshed < self._policy.meet_seconds:
            return
        self._refreshed = self._now
        names = {info.node_id: info.name for info in self._grid.get_nodes()}
        came, went = self._nodes.update_present(names)
        for kind, nodes in (("joined", came), ("left", went)):
            for node in nodes:
                self._session.write(kind, time=self._now, **node.facts)

    def _wait(self) -> None:
        """Sleep for one polling interval; give up if no node is present for too long."""
        if self._nodes.present or self._sent or self._session.control.is_paused:
            self._seen = self._now
        elif self._now - self._seen > self._policy.wait_seconds:
            raise RunError(f"no node for {self._policy.wait_seconds:g} s: resume when one is present")
        time.sleep(self._policy.poll_seconds)

    def _give_up_late_jobs(self) -> None:
        """Count jobs as failed whose whole reply is not here at their deadline.

        A reply that has not even been announced is left to Flower for a while, which may know the reason.
        """
        for message_id, is_over in self._deadlines.pop(self._now, self._sent):
            is_uploading = self._mailbox.is_uploading(message_id)
            if not (is_uploading or is_over):
                continue
            self._mailbox.forget(message_id)
            sent = self._take_back(message_id)
            reason = "the upload of the reply did not end within the deadline" if is_uploading else ERRORS[3]
            self._refuse(sent, Failure(reason))

    def _dispatch(self) -> None:
        """Give a job to every node that can take one; all are sent in one push.

        Near the end no node is given a second job: at the end it would only delay the node's last answer.
        """
        session = self._session
        is_between_rounds = not (session.method.synchronous and self._sent)
        if session.is_finished or session.control.is_paused or not is_between_rounds:
            return
        going: list[SentJob] = []
        while True:
            ahead = len(self._sent) + len(going) < session.remaining
            node = self._nodes.next(self._now, session.choose, ahead=ahead)
            if node is None:
                break
            if session.is_spent(node.client):
                self._nodes.take_back(node)
                self._retire(node, SPENT)
                continue
            deadline = self._policy.deadline or node.times.deadline
            is_free = node.in_flight == 1  # this job
            going.append(SentJob(session.job(node.client), node, self._now, deadline, is_free))
        if not going:
            return
        messages = [self._messages.make(sent.job, sent.node.id, sent.deadline) for sent in going]
        message_ids = list(self._grid.push_messages(messages))
        if len(message_ids) != len(going):
            raise RunError(f"the SuperLink took {len(message_ids)} of {len(going)} messages: see its log")
        for message_id, sent in zip(message_ids, going, strict=True):
            if message_id:
                self._sent[message_id] = sent
                self._mailbox.expect(message_id, sent.node.id)
                due = None if sent.deadline is None else sent.dispatched + sent.deadline
                self._deadlines.expect(message_id, due)
            else:
                self._nodes.take_back(sent.node)
                self._refuse(sent, Failure("the SuperLink did not take the message"))

    def _retire(self, node: Node, reason: str) -> None:
        """Send a node no more jobs: its privacy budget is spent, as the server counts or as the node says."""
        self._nodes.retire(node)
        self._session.retire(node.client, reason, self._now, node.facts)

    def _end_if_budgets_are_spent(self) -> None:
        """End the run if too few nodes may still take part; asked once all that has arrived is absorbed."""
        if self._session.privacy.is_over(self._nodes.active, len(self._sent)):
            self._session.end(SPENT)

    def _pull(self) -> list[tuple[SentJob, Delivery]]:
        """Return what has arrived, in the order in which the jobs were sent.

        A job counts as out until its reply is absorbed: no node gets another before that, and no round ends.
        """
        landed = [(self._sent[delivery.message_id], delivery) for delivery in self._mailbox.pull()]
        return sorted(landed, key=lambda pair: pair[0].job.number)

    def _take_back(self, message_id: str) -> SentJob:
        sent = self._sent.pop(message_id)
        self._nodes.take_back(sent.node)
        return sent

    def _absorb(self, sent: SentJob, delivery: Delivery) -> None:
        """Absorb a reply, and evaluate if it is time, while the nodes have their next jobs."""
        session, node = self._session, sent.node
        self._take_back(delivery.message_id)
        if self._is_over():
            return
        if node.is_excluded:
            self._session.refuse(sent.job, "rejected", EXCLUDED, **self._facts(sent))
            return
        try:
            received = self._reception.read(node, delivery)
        except Rejected as problem:
            self._refuse(sent, problem)
            return
        if isinstance(received, Failure):
            self._refuse(sent, received)
            return
        report, weight = received
        claimed = None if session.privacy.is_local else report.examples
        facts = {**self._facts(sent), "examples": claimed, "partition": report.partition}
        facts["clients"] = max(1, len(self._nodes.present))
        record = session.accept(sent.job, report.parcel, weight, **facts)
        if record["kind"] != "update":
            self._note_refusal(sent, record)
            return
        self._nodes.record_success(node, report.examples, report.partition)
        round_trip = self._now - sent.dispatched
        is_known = sent.was_free and not session.privacy.is_local  # else the time in training is withheld
        self._nodes.measure(node, round_trip, record["train_seconds"], was_free=is_known)
        if session.is_evaluation_due or self._now - self._published > PUBLISH_SECONDS:
            self._publish()
        session.evaluate_if_due(self._now)
        if session.must_checkpoint:
            self._journal.checkpoint(self._pack())
            session.must_checkpoint = False

    def _publish(self) -> None:
        """Make all updates absorbed since the last call durable in one sync, then send new jobs."""
        self._journal.commit()
        self._dispatch()
        if self._journal.is_log_long:
            self._journal.checkpoint(self._pack())
        self._published = self._now

    def _refuse(self, sent: SentJob, outcome: Failure | Rejected) -> None:
        """Record a job without an update."""
        if isinstance(outcome, Failure) and outcome.is_final:
            self._session.refuse(sent.job, "failed", outcome.reason, is_final=True, **self._facts(sent))
            self._retire(sent.node, outcome.reason)
            return
        if isinstance(outcome, Failure):
            kind, reason = "failed", outcome.reason
        else:
            kind, reason = "rejected", str(outcome)
        self._note_refusal(sent, self._session.refuse(sent.job, kind, reason, **self._facts(sent)))

    def _note_refusal(self, sent: SentJob, record: Record) -> None:
        """Count a refused job as its node's failure; after too many the node rests."""
        if record["kind"] == "discarded":
            return
        node = sent.node
        if seconds := self._nodes.record_failure(node, self._now):
            self._session.write("resting", time=self._now, **node.facts, seconds=seconds)

    def _facts(self, sent: SentJob) -> dict[str, Any]:
        facts = {name: value for name, value in sent.node.facts.items() if name != "client"}
        return {"time": self._now, **facts, "dispatched": sent.dispatched}

    def _pack(self) -> dict[str, Any]:
        """Return everything that the rest of the run depends on, except jobs in flight: those are resent."""
        known = self._nodes.known.values()
        return {
            **self._session.pack(),
            "nodes": [
                [node.id, node.client, node.examples, node.partition, node.name, node.times.pack()]
                for node in known
            ],
        }

    def _unpack(self, packed: Mapping[str, Any]) -> None:
        self._session.unpack(packed)
        self._nodes.restore(
            Node(number, client, examples, partition, name, times=MeasuredTimes(times))
            for number, client, examples, partition, name, times in packed["nodes"]
        )

    def _note(self, record: Record) -> None:
        """Follow a record since the checkpoint: who joined, and what nodes said about their data."""
        if record["kind"] in ("joined", "update"):
            if (node := self._nodes.known.get(record["node"])) is None:
                node = Node(record["node"], record["client"], name=record.get("name", ""))
                self._nodes.restore([node])
            node.examples = record.get("examples", node.examples)
            node.partition = record.get("partition", node.partition)
