"""Convert jobs and updates to Flower's records, and back. Arrays are sent as raw numbers, never as pickles.

A job is one array record (the model as one vector, and its statistics) and one line of JSON that says what to
do with it. An update is one array record and one metric record.
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

from asyncmanifold.client.settings import LocalTraining
from asyncmanifold.configuration.tables import build, build_part, to_tree
from asyncmanifold.errors import InputError
from asyncmanifold.geometry.embeddings import Embedding
from asyncmanifold.server.outgoing import Outgoing, Parcel
from asyncmanifold.server.protocol import Job, Rejected
from asyncmanifold.vectors import Statistics

ARRAYS = "asyncmanifold"
"""The array record of a job or an update."""
REQUEST = "asyncmanifold.job"
"""The config record of a training request."""
METRICS = "metrics"
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


@dataclass(frozen=True)
class Report:
    """A client's reply: its update, and what it says about its data."""

    parcel: Parcel
    examples: int
    partition: int | None


def model_record(theta: Tensor, statistics: Statistics) -> ArrayRecord:
    """Return a model as a record; one record serves every job that starts from this version."""
    return array_record({"theta": theta, **statistics.named("statistics")})


def job_content(request: TrainingRequest, model: ArrayRecord, config: ConfigRecord) -> RecordDict:
    """Return the content of a message that requests a job."""
    what = {
        "job": request.job.numbers(),
        "seed": request.seed,
        "embedding": to_tree(request.embedding),
        "outgoing": to_tree(request.outgoing),
        "training": to_tree(request.training),
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
    )


def read_model(content: RecordDict) -> tuple[Tensor, Statistics]:
    """Return the model that a message carries."""
    tensors = _tensors(content.array_records[ARRAYS])
    return tensors["theta"], Statistics.from_named("statistics", tensors)


def reply_content(parcel: Parcel, examples: int, partition: int | None) -> RecordDict:
    """Return the content of a reply that carries an update."""
    metrics: dict[str, Any] = {
        "num-examples": examples,
        "loss": parcel.loss,
        "train-seconds": parcel.seconds,
    }
    if partition is not None:
        metrics["partition-id"] = partition
    return RecordDict({ARRAYS: array_record(parcel.tensors), METRICS: MetricRecord(metrics)})


def read_reply(content: RecordDict) -> Report:
    """Return what a reply carries, or raise ``Rejected``: nothing in it is trusted."""
    try:
        tensors = _tensors(content.array_records[ARRAYS])
        metrics = content.metric_records[METRICS]
    except Exception as problem:  # untrusted bytes may raise anything
        reason = " ".join(str(problem).split()) or type(problem).__name__
        raise Rejected(f"malformed reply: {reason}") from problem
    examples = _number(metrics, "num-examples")
    if examples < 1 or examples != int(examples):
        raise Rejected(f"num-examples is {examples:g}, must be a whole number above 0")
    parcel = Parcel(tensors, _number(metrics, "loss"), _number(metrics, "train-seconds"))
    partition = metrics.get("partition-id")
    return Report(parcel, int(examples), partition if isinstance(partition, int) else None)


def array_record(tensors: Mapping[str, Tensor]) -> ArrayRecord:
    """Return named tensors, such as a state dict, as the record that Flower's own strategies use."""
    return ArrayRecord({name: Array(tensor.contiguous().numpy()) for name, tensor in tensors.items()})


def _tensors(record: ArrayRecord) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array.numpy()) for name, array in record.items()}


def _number(metrics: MetricRecord, name: str) -> float:
    value = metrics.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value):
        raise Rejected(f"{name} is {value!r}, must be a finite number")
    return float(value)
