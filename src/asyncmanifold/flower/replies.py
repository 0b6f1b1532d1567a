"""The client's side: functions that turn a server's message into a reply."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flwr.app import Context, Message, MetricRecord, RecordDict
from torch import nn

from asyncmanifold.client.training import Loss, Trainer
from asyncmanifold.flower.codec import METRICS, read_job, read_model, reply_content
from asyncmanifold.metrics import Accuracy, Metric
from asyncmanifold.server.outgoing import pack_update
from asyncmanifold.tasks.data import as_data
from asyncmanifold.tasks.task import Task
from asyncmanifold.threads import torch_threads
from asyncmanifold.vectors import FlatModel


def train_reply(
    message: Message, context: Context, model: nn.Module, loss: Loss, data: Any, *, threads: int = 1
) -> Message:
    """Train ``model`` on ``data`` as a server's message says, and return the reply.

    Arguments:
        message: the server's message.
        context: the node's context.
        model: modified in place; its weights are replaced by the message's.
        loss: takes outputs and targets, returns a scalar tensor.
        data: (inputs, targets) tensors, a torch ``Dataset``, or anything with the two methods of ``Data``.
        threads: torch threads; with one, a job is repeatable to the last bit.

    >>> from flwr.clientapp import ClientApp
    >>> from torch import nn
    >>> from asyncmanifold.flower import train_reply
    >>> app = ClientApp()
    >>> @app.train()
    ... def train(message, context):
    ...     data = load_my_part(context.node_config["partition-id"])  # the node's own
    ...     return train_reply(message, context, nn.Linear(4, 3), nn.functional.cross_entropy, data)
    """
    request, examples = read_job(message), as_data(data)
    with torch_threads(threads):
        trainer = Trainer(model, loss, request.embedding, request.training, request.seed)
        update = trainer.train(request.job, examples)
    parcel = pack_update(update, request.job, request.outgoing, request.seed)
    return Message(reply_content(parcel, len(examples), partition_of(context)), reply_to=message)


def evaluate_reply(
    message: Message,
    context: Context,
    model: nn.Module,
    loss: Loss,
    data: Any,
    *,
    metrics: Mapping[str, Callable[[], Metric]] | None = None,
    threads: int = 1,
) -> Message:
    """Evaluate the server's model on ``data``, and return the reply.

    Arguments are those of ``train_reply``, and:

    Arguments:
        metrics: how outputs are scored; accuracy by default.

    >>> from flwr.clientapp import ClientApp
    >>> from torch import nn
    >>> from asyncmanifold.flower import evaluate_reply
    >>> app = ClientApp()
    >>> @app.evaluate()
    ... def evaluate(message, context):
    ...     data = load_my_part(context.node_config["partition-id"])  # the node's own
    ...     return evaluate_reply(message, context, nn.Linear(4, 3), nn.functional.cross_entropy, data)
    """
    task = Task(model, loss, clients=[data], test=data, metrics=metrics or {"accuracy": Accuracy})
    flat = FlatModel(model)
    flat.load(*read_model(message.content))
    with torch_threads(threads):
        scores = task.evaluate(flat, task.test)
    record: dict[str, Any] = {**scores, "num-examples": len(task.test)}
    return Message(RecordDict({METRICS: MetricRecord(record)}), reply_to=message)


def partition_of(context: Context) -> int | None:
    """Return the node's part of a partitioned dataset, if the node was started with ``partition-id``."""
    partition = context.node_config.get("partition-id")
    return partition if isinstance(partition, int) else None
