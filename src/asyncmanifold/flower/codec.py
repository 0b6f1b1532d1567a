"""Jobs and updates as Flower's records, and back. Arrays travel as raw numbers, never as pickles.

A job goes out as one array record (the model as one vector, its buffers beside it) and one line of JSON
that says what to do with it. An update comes back as one array record and a metric record.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from torch import Tensor

from asyncmanifold.client.training import LocalTraining
from asyncmanifold.errors import InputError
from asyncmanifold.geometry.embeddings import Embedding
from asyncmanifold.server.protocol import Job, Rejected, Update
from asyncmanifold.tables import build, build_part, to_tree
from asyncmanifold.vectors import Buffers

ARRAYS = "asyncmanifold"
"""The array record of a job or an update."""
ORDER = "asyncmanifold.job"
"""The config record that says what to do."""
METRICS = "metrics"
CONFIG = "config"
"""The record of the app's own train config, under Flower's usual name."""


@dataclass(frozen=True)
class Order:
    """What a client needs besides its own model, loss and data."""

    job: Job
    embedding: Embedding
    training: LocalTraining
    seed: int


@dataclass(frozen=True)
class Report:
    """What came back: the update, and what the client says about its data."""

    update: Update
    examples: int
    partition: int | None


def model_record(theta: Tensor, buffers: Buffers) -> ArrayRecord:
    """Return a model as it travels; the same one serves every job that starts from this version."""
    return arrays_of({"theta": theta, **buffers.named("buffers")})


def job_content(order: Order, model: ArrayRecord, config: ConfigRecord) -> RecordDict:
    """Return the content of a message that asks for a job."""
    job = order.job
    what = {
        "number": job.number,
        "client": job.client,
        "version": job.version,
        "point_epochs": job.point_epochs,
        "curve_epochs": job.curve_epochs,
        "seed": order.seed,
        "embedding": to_tree(order.embedding),
        "training": to_tree(order.training),
    }
    return RecordDict({ARRAYS: model, ORDER: ConfigRecord({"json": json.dumps(what)}), CONFIG: config})


def read_job(message: Message) -> Order:
    """Return the job that a message asks for."""
    content = message.content
    if ORDER not in content.config_records:
        raise InputError("this message was not sent by an asyncmanifold server: it has no job")
    what: dict[str, Any] = json.loads(str(content.config_records[ORDER]["json"]))
    theta, buffers = read_model(content)
    job = Job(
        number=what["number"],
        client=what["client"],
        version=what["version"],
        theta=theta,
        buffers=buffers,
        point_epochs=what["point_epochs"],
        curve_epochs=what["curve_epochs"],
    )
    return Order(
        job=job,
        embedding=build_part("embedding", what["embedding"], "job: embedding"),
        training=build(LocalTraining, what["training"], "job: training"),
        seed=what["seed"],
    )


def read_model(content: RecordDict) -> tuple[Tensor, Buffers]:
    """Return the model that a message carries."""
    tensors = _tensors(content.array_records[ARRAYS])
    return tensors["theta"], Buffers.from_named("buffers", tensors)


def update_content(update: Update, examples: int, partition: int | None) -> RecordDict:
    """Return the content of a reply that carries an update."""
    metrics: dict[str, Any] = {
        "num-examples": examples,
        "loss": update.loss,
        "train-seconds": update.seconds,
    }
    if partition is not None:
        metrics["partition-id"] = partition
    arrays = arrays_of({"offsets": update.offsets, **update.buffers.named("buffers")})
    return RecordDict({ARRAYS: arrays, METRICS: MetricRecord(metrics)})


def read_update(content: RecordDict, job: Job) -> Report:
    """Return the update of a reply to ``job``, or raise ``Rejected``: nothing in it is trusted.

    Client and version are the server's own; a reply cannot claim another one's.
    """
    try:
        tensors = _tensors(content.array_records[ARRAYS])
        metrics = content.metric_records[METRICS]
        offsets, buffers = tensors["offsets"], Buffers.from_named("buffers", tensors)
    except Exception as problem:  # whatever a stranger's bytes bring about
        reason = " ".join(str(problem).split()) or type(problem).__name__
        raise Rejected(f"malformed reply: {reason}") from problem
    examples = _number(metrics, "num-examples")
    if examples < 1 or examples != int(examples):
        raise Rejected(f"num-examples is {examples:g}, must be a whole number above 0")
    update = Update(
        client=job.client,
        version=job.version,
        offsets=offsets,
        buffers=buffers,
        loss=_number(metrics, "loss"),
        seconds=_number(metrics, "train-seconds"),
    )
    partition = metrics.get("partition-id")
    return Report(update, int(examples), partition if isinstance(partition, int) else None)


def arrays_of(tensors: Mapping[str, Tensor]) -> ArrayRecord:
    """Return tensors by name, such as a state dict, as Flower's own strategies hand them around."""
    return ArrayRecord({name: Array(tensor.contiguous().numpy()) for name, tensor in tensors.items()})


def _tensors(record: ArrayRecord) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array.numpy()) for name, array in record.items()}


def _number(metrics: MetricRecord, name: str) -> float:
    value = metrics.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value):
        raise Rejected(f"{name} is {value!r}, must be a finite number")
    return float(value)
