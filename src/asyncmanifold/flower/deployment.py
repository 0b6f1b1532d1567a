"""The loop of a deployment: who is there, what is in flight, and what comes back.

``grid.push_messages`` and ``grid.pull_messages`` do not block, so that a server of stock Flower need not wait
for anybody. Replies of one pull are absorbed one at a time, in the order in which their jobs were sent.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import isfinite

from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from asyncmanifold.client.training import LocalTraining
from asyncmanifold.errors import RunError
from asyncmanifold.flower.codec import (
    ARRAYS,
    CONFIG,
    METRICS,
    Order,
    arrays_of,
    job_content,
    model_record,
    read_update,
)
from asyncmanifold.flower.nodes import Node, Nodes
from asyncmanifold.flower.policy import Policy
from asyncmanifold.flower.records import Records
from asyncmanifold.server.methods import Method
from asyncmanifold.server.protocol import Job, Rejected, ServerState
from asyncmanifold.server.step import absorb, flush
from asyncmanifold.simulation.engine import Best, better, evaluation
from asyncmanifold.trace import Record
from asyncmanifold.vectors import FlatModel

GRACE_SECONDS = 60.0
"""How long after its deadline a job is given up even if Flower says nothing."""
LEAST_REFUSALS = 100
ERRORS = {
    2: "the client app raised an exception",
    3: "no reply within the deadline",
    5: "the node is gone",
    8: "the client app crashed",
}
log = logging.getLogger("flwr")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a deployment is to do."""

    method: Method
    training: LocalTraining
    policy: Policy
    seed: int
    updates: int
    evaluate_every: int
    train_config: ConfigRecord
    evaluate: Callable[[int, ArrayRecord], MetricRecord | None] | None


@dataclass(frozen=True)
class Flight:
    """A job under way."""

    job: Job
    node: Node
    dispatched: float


class Failed(Exception):  # noqa: N818 - an outcome, not an error
    """A job that gave no update."""


class Deployment:
    """One run on a grid: everything that changes while it goes on."""

    def __init__(self, grid: Grid, model: FlatModel, plan: Plan, records: Records) -> None:
        """Start from ``model``'s weights, or where the records left off."""
        self._grid, self._model, self._plan, self._records = grid, model, plan, records
        self._nodes = Nodes(plan.policy.patience, plan.policy.rest_seconds)
        self._state = ServerState(model.vector.clone(), model.read_buffers())
        self._best: Best | None = None
        self._epochs: dict[int, int] = {}
        self._dispatched = 0
        self._refused = 0
        self._flights: dict[str, Flight] = {}
        self._travelling: tuple[int, ArrayRecord] | None = None
        seconds = self._restore()
        self._started = time.monotonic() - seconds
        self._met = self._seen = float("-inf")

    def run(self) -> Result:
        """Absorb updates until there are enough, ask the nodes for their scores, and return the result."""
        self._seen = self._now
        if self._state.updates == 0 and self._best is None:
            self._evaluate()
        while self._state.updates < self._plan.updates:
            self._meet()
            self._give_up_late_jobs()
            self._dispatch()
            replies = self._pull()
            for flight, reply in replies:
                self._take(flight, reply)
            if not replies:
                self._wait()
        return self._records.conclude(self._model, self._state, self._client_scores())

    @property
    def _now(self) -> float:
        """Seconds of the run so far, over interruptions."""
        return time.monotonic() - self._started

    def _meet(self) -> None:
        """Ask from time to time who is there."""
        if self._now - self._met < self._plan.policy.meet_seconds:
            return
        self._met = self._now
        came, went = self._nodes.meet(self._grid.get_node_ids())
        for kind, nodes in (("joined", came), ("left", went)):
            for node in nodes:
                self._write({"kind": kind, "time": self._now, "client": node.client, "node": node.id})
                log.info("node %s (client %s) %s", node.id, node.client, kind)

    def _wait(self) -> None:
        """Sleep a little; where nobody is there for too long, give up."""
        policy = self._plan.policy
        if self._nodes.present or self._flights:
            self._seen = self._now
        elif self._now - self._seen > policy.wait_seconds:
            raise RunError(f"no node was there for {policy.wait_seconds:g} s: resume when there is one")
        time.sleep(policy.poll_seconds)

    def _give_up_late_jobs(self) -> None:
        """Take a job for failed that is long past its deadline, though Flower has not said so."""
        if self._plan.policy.deadline is None:
            return
        latest = self._now - self._plan.policy.deadline - GRACE_SECONDS
        late = [message_id for message_id, flight in self._flights.items() if flight.dispatched < latest]
        for message_id in late:
            self._refuse(self._land(message_id), "failed", ERRORS[3])

    def _dispatch(self) -> None:
        """Give a job to every node that can take one; all go out in one push."""
        if self._state.updates >= self._plan.updates or (self._plan.method.synchronous and self._flights):
            return
        flights: list[Flight] = []
        while (node := self._next_node()) is not None:
            flights.append(Flight(self._next_job(node), node, self._now))
            node.in_flight += 1
            node.last_job = flights[-1].job.number
        if not flights:
            return
        message_ids = self._grid.push_messages([self._message(flight) for flight in flights])
        for flight, message_id in zip(flights, message_ids, strict=True):
            self._flights[message_id] = flight

    def _next_node(self) -> Node | None:
        policy = self._plan.policy
        depth = 1 if self._plan.method.synchronous else policy.queue_depth
        busy = sum(node.in_flight > 0 for node in self._nodes.known.values())
        has_room = policy.concurrency is None or busy < policy.concurrency
        free = self._nodes.free(self._now, depth)
        return next((node for node in free if has_room or node.in_flight > 0), None)

    def _next_job(self, node: Node) -> Job:
        plan, state = self._plan, self._state
        self._dispatched += 1
        return Job(
            number=self._dispatched - 1,
            client=node.client,
            version=state.version,
            theta=state.theta,
            buffers=state.buffers,
            point_epochs=self._epochs.get(node.client, plan.training.point_epochs),
            curve_epochs=plan.training.curve_epochs if plan.method.embedding.is_curve else 0,
        )

    def _message(self, flight: Flight) -> Message:
        plan, job = self._plan, flight.job
        if self._travelling is None or self._travelling[0] != job.version:
            self._travelling = job.version, model_record(job.theta, job.buffers)
        order = Order(job, plan.method.embedding, plan.training, plan.seed)
        return Message(
            content=job_content(order, self._travelling[1], plan.train_config),
            message_type=MessageType.TRAIN,
            dst_node_id=flight.node.id,
            group_id=str(job.version),
            ttl=plan.policy.deadline,
        )

    def _pull(self) -> list[tuple[Flight, Message]]:
        """Return what has come back, in the order in which it was sent out."""
        if not self._flights:
            return []
        replies = self._grid.pull_messages(list(self._flights))
        landed = [(self._land(reply.metadata.reply_to_message_id), reply) for reply in replies]
        return sorted(landed, key=lambda pair: pair[0].job.number)

    def _land(self, message_id: str) -> Flight:
        flight = self._flights.pop(message_id)
        flight.node.in_flight -= 1
        return flight

    def _take(self, flight: Flight, reply: Message) -> None:
        """Absorb a reply, give its node the next job, then evaluate where that is due."""
        if self._state.updates >= self._plan.updates:
            return
        try:
            record = self._absorb(flight, reply)
        except (Failed, Rejected) as problem:
            self._refuse(flight, "rejected" if isinstance(problem, Rejected) else "failed", str(problem))
            return
        if self._plan.method.synchronous and not self._flights:
            self._state = flush(self._plan.method, self._state, self._model.space)
        self._write(record | {"version": self._state.version, "wall_seconds": self._now})
        self._dispatch()
        updates = self._state.updates
        if updates % self._plan.evaluate_every == 0 or updates == self._plan.updates:
            self._evaluate()
        self._keep()

    def _absorb(self, flight: Flight, reply: Message) -> Record:
        job, node, before = flight.job, flight.node, self._state
        if reply.has_error():
            raise Failed(_words(reply.error))
        report = read_update(reply.content, job)
        weight = self._nodes.weight(node, report.examples)
        space = self._model.space
        self._state, step = absorb(
            self._plan.method, before, report.update, base=job.theta, weight=weight, space=space
        )
        self._refused = 0
        node.examples, node.partition = report.examples, report.partition
        self._nodes.accepted(node)
        if (adaptive := self._plan.method.adaptive_epochs) is not None:
            self._epochs[job.client] = adaptive.next(
                job.point_epochs, step.drift_norm, step.update_norm, before.updates
            )
        log.info(
            "update %s/%s: client %s, staleness %s, loss %.4f",
            *(self._state.updates, self._plan.updates, node.client, step.staleness, report.update.loss),
        )
        return {
            "kind": "update",
            "update": self._state.updates,
            **self._arrival(flight),
            **vars(step),
            "partition": report.partition,
            "epochs": job.point_epochs + job.curve_epochs,
            "loss": report.update.loss,
            "train_seconds": report.update.seconds,
        }

    def _refuse(self, flight: Flight, kind: str, reason: str) -> None:
        """Record a job that changed nothing; a node with too many of them rests."""
        job, node = flight.job, flight.node
        arrival = self._arrival(flight)
        self._write({"kind": kind, **arrival, "base_version": job.version, "reason": reason})
        log.warning("client %s %s: %s", node.client, kind, reason)
        if seconds := self._nodes.failed(node, kind, self._now):
            self._write({"kind": "resting", "time": self._now, "client": node.client, "seconds": seconds})
            log.warning("client %s rests for %g s", node.client, seconds)
        self._refused += 1
        if self._refused >= max(LEAST_REFUSALS, 4 * len(self._nodes.known)):
            raise RunError(f"no update was accepted in {self._refused} replies, the last: {reason}")

    def _arrival(self, flight: Flight) -> Record:
        return {
            "time": self._now,
            "client": flight.node.client,
            "node": flight.node.id,
            "job": flight.job.number,
            "dispatched": flight.dispatched,
        }

    def _evaluate(self) -> None:
        if self._plan.evaluate is None:
            return
        self._model.load(*self._state.returned())
        found = self._plan.evaluate(self._state.updates, arrays_of(self._model.named_tensors()))
        if not found:
            return
        scores = {name: float(value) for name, value in found.items() if isinstance(value, (int, float))}
        self._best = better(self._best, next(iter(scores.values())), self._state)
        self._write(evaluation(self._state, self._now, scores, self._now))
        log.info("evaluation at update %s: %s", self._state.updates, scores)

    def _client_scores(self) -> dict[int, float]:
        """Ask every node how the best model does on its data; return the scores of those that answer."""
        metric = self._records.metric
        if not self._plan.policy.evaluate_clients:
            return {}
        theta, buffers = self._state.returned()
        if self._best is not None:
            theta, buffers = self._best.theta, self._best.buffers
        model = model_record(theta, buffers)
        asked = {
            node.id: Message(
                content=RecordDict({ARRAYS: model, CONFIG: self._plan.train_config}),
                message_type=MessageType.EVALUATE,
                dst_node_id=node.id,
            )
            for node in self._nodes.present.values()
        }
        log.info("asking %s nodes how the model does on their data, after their last jobs", len(asked))
        replies = self._grid.send_and_receive(
            list(asked.values()), timeout=self._plan.policy.deadline or self._plan.policy.wait_seconds
        )
        return dict(_scores(replies, self._nodes, metric))

    def _write(self, record: Record) -> None:
        self._records.write(record)

    def _keep(self) -> None:
        """Put on disk all that the rest of the run depends on, but for jobs in flight: they are sent anew."""
        self._records.checkpoint(
            self._state,
            self._best,
            {
                "dispatched": self._dispatched,
                "epochs": list(self._epochs.items()),
                "nodes": [[n.id, n.client, n.examples, n.partition] for n in self._nodes.known.values()],
                "seconds": self._now,
            },
        )

    def _restore(self) -> float:
        """Go back to the last checkpoint; return the seconds that the run had taken."""
        found = self._records.restore()
        if found is None:
            return 0.0
        self._state, self._best, numbers = found
        self._dispatched = numbers["dispatched"]
        self._epochs = dict(numbers["epochs"])
        for node_id, client, examples, partition in numbers["nodes"]:
            self._nodes.known[node_id] = Node(node_id, client, examples, partition)
        return float(numbers["seconds"])


def _words(error: Error) -> str:
    """Return an error of Flower's in one line; its reason may be a whole traceback."""
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
