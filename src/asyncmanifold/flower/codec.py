"""Convert jobs and updates to Flower's records, and back. Arrays are sent as raw numbers, never as pickles.

A job is one array record (the model as one vector, and its statistics) and one line of JSON that says what to
do with it. An update is one array record, one metric record, and who sent it; a reply with any other record
is refused.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from math import isfinite
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from torch import Tensor

from asyncmanifold.arithmetic import is_portable
from asyncmanifold.client.settings import LocalTraining
from asyncmanifold.configuration.tables import build, build_part, to_tree
from asyncmanifold.errors import InputError, one_line
from asyncmanifold.flower.arrays import array_record, read_arrays
from asyncmanifold.flower.identity import Identity
from asyncmanifold.flower.nodes import printable_name
from asyncmanifold.geometry.embeddings import Embedding
from asyncmanifold.server.outgoing import Outgoing, Parcel
from asyncmanifold.server.protocol import Failure, Job, Rejected
from asyncmanifold.vectors import Statistics

ARRAYS = "asyncmanifold"
"""The array record of a job or an update."""
REQUEST = "asyncmanifold.job"
"""The config record of a training request."""
METRICS = "metrics"
SENDER = "asyncmanifold.node"
"""The config record of a reply that says what the node runs, and what it is called."""
REFUSAL = "asyncmanifold.refusal"
"""The config record of a reply without an update: why the node refuses this job, and any other."""
CONFIG = "config"
"""The config record of the app's own train config, under Flower's usual name."""


@dataclass(frozen=True)
class TrainingRequest:
    """A request to train: everything that a client needs besides its own model, loss and data."""

    job: Job
    embedding: Embedding
    outgoing: tuple[Outgoing, ...]
    training: LocalTraining
    seed: int
    server: Identity


@dataclass(frozen=True)
class Report:
    """A client's reply: its update, and what it says about its data."""

    parcel: Parcel
    examples: int
    """1 if the node keeps their number to itself."""
    partition: int | None
    is_portable: bool
    """Whether the node computes portably."""


@dataclass(frozen=True)
class Sender:
    """What a node says about itself."""

    identity: Identity
    name: str


def model_record(theta: Tensor, statistics: Statistics) -> ArrayRecord:
    """Return a model as a record; one record serves every job that starts from this version."""
    return array_record({"theta": theta, **statistics.named("statistics")})


def job_content(request: TrainingRequest, model: ArrayRecord, config: ConfigRecord) -> RecordDict:
    """Return the content of a message that requests a job."""
    if callable(request.training.optimizer):
        raise InputError("a function cannot be sent to nodes: give the optimizer by its name and arguments")
    what = {
        "job": request.job.numbers(),
        "seed": request.seed,
        "embedding": to_tree(request.embedding),
        "outgoing": to_tree(request.outgoing),
        "training": to_tree(request.training),
        "server": vars(request.server),
    }
    return RecordDict({ARRAYS: model, REQUEST: ConfigRecord({"json": json.dumps(what)}), CONFIG: config})


def read_job(message: Message) -> TrainingRequest:
    """Return the training request in a message."""
    content = message.content
    if REQUEST not in content.config_records:
        raise InputError("this message was not sent by an asyncmanifold server: it has no job")
    what: dict[str, Any] = json.loads(str(content.config_records[REQUEST]["json"]))
    theta, statistics = read_model(content)
    return TrainingRequest(
        job=Job(theta=theta, statistics=statistics, **what["job"]),
        embedding=build_part("embedding", what["embedding"], "job: embedding"),
        outgoing=tuple(build_part("outgoing", part, "job: outgoing") for part in what["outgoing"]),
        training=build(LocalTraining, what["training"], "job: training"),
        seed=what["seed"],
        server=Identity(**{"version": "", "task": "", "embedding": "", **what.get("server", {})}),
    )


def read_model(content: RecordDict) -> tuple[Tensor, Statistics]:
    """Return the model that a message carries."""
    tensors = read_arrays(content.array_records[ARRAYS])
    return tensors["theta"], Statistics.from_named("statistics", tensors)


def reply_content(parcel: Parcel, examples: int, partition: int | None, sender: Sender) -> RecordDict:
    """Return the content of a reply that carries an update; a private one says nothing else of its data."""
    metrics: dict[str, Any] = {"portable-arithmetic": int(is_portable())}
    if parcel.loss is not None:
        metrics |= {"num-examples": examples, "loss": parcel.loss, "train-seconds": parcel.seconds}
    if partition is not None:
        metrics["partition-id"] = partition
    who = ConfigRecord({**vars(sender.identity), "name": sender.name})
    return RecordDict({ARRAYS: array_record(parcel.tensors), METRICS: MetricRecord(metrics), SENDER: who})


def refusal_content(reason: str, sender: Sender) -> RecordDict:
    """Return the content of a reply that refuses a job for good."""
    who = ConfigRecord({**vars(sender.identity), "name": sender.name})
    return RecordDict({REFUSAL: ConfigRecord({"reason": reason}), SENDER: who})


def read_refusal(content: RecordDict) -> Failure | None:
    """Return why a node refuses its jobs for good, or None if it does not."""
    try:
        if REFUSAL not in content.config_records:
            return None
        reason = str(content.config_records[REFUSAL].get("reason", ""))
    except Exception as problem:  # untrusted bytes may raise anything
        raise Rejected(f"malformed reply: {one_line(problem)}") from problem
    return Failure("".join(c for c in reason if c.isprintable())[:300] or "no reason given", is_final=True)


def read_sender(content: RecordDict) -> Sender:
    """Return who sent a reply; earlier versions of asyncmanifold do not say."""
    try:
        said = dict(content.config_records.get(SENDER) or {})
        known = {name: str(said.get(name, ""))[:500] for name in ("version", "task", "embedding")}
        return Sender(Identity(**known), printable_name(said.get("name")))
    except Exception as problem:  # untrusted bytes may raise anything
        raise Rejected(f"malformed reply: {one_line(problem)}") from problem


def read_reply(
    content: RecordDict, names: Collection[str] | None = None, *, is_private: bool = False
) -> Report:
    """Return what a reply carries, or raise ``Rejected``: nothing in it is trusted.

    ``names`` are the arrays that it must have, no more and no less; without them any. A private reply says
    neither its loss nor its number of examples.
    """
    try:
        if extra := sorted(set(map(str, content)) - {ARRAYS, METRICS, SENDER}):
            raise Rejected(f"the reply has further records: {', '.join(extra)[:100]}")
        record, metrics = content.array_records[ARRAYS], content.metric_records[METRICS]
        if names is not None and (extra := sorted(set(map(str, record)) - set(names))):
            raise Rejected(f"the reply has further arrays: {', '.join(extra)[:100]}")
        tensors = read_arrays(record)
    except Rejected:
        raise
    except Exception as problem:  # untrusted bytes may raise anything
        raise Rejected(f"malformed reply: {one_line(problem)}") from problem
    place = _partition(metrics)
    portable = metrics.get("portable-arithmetic") == 1
    if is_private:
        return Report(Parcel(tensors, loss=None), 1, place, portable)
    examples = _number(metrics, "num-examples")
    if examples < 1 or examples != int(examples):
        raise Rejected(f"num-examples is {examples:g}, must be a whole number above 0")
    parcel = Parcel(tensors, _number(metrics, "loss"), _number(metrics, "train-seconds"))
    return Report(parcel, int(examples), place, portable)


def _partition(metrics: MetricRecord) -> int | None:
    value = metrics.get("partition-id")
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return value
    raise Rejected(f"partition-id is {value!r:.100}, must be a whole number, at least 0")


def _number(metrics: MetricRecord, name: str) -> float:
    value = metrics.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value):
        raise Rejected(f"{name} is {value!r}, must be a finite number")
    return float(value)
