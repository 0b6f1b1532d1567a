"""The client's side: functions that turn a server's message into a reply."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
from flwr.app import Context, Message, MetricRecord, RecordDict
from torch import nn

from asyncmanifold.arithmetic import is_portable
from asyncmanifold.client.training import Loss, Trainer, Untrainable
from asyncmanifold.devices import find_device, repeatable
from asyncmanifold.errors import InputError
from asyncmanifold.flower.codec import (
    METRICS,
    Sender,
    TrainingRequest,
    read_job,
    read_model,
    refusal_content,
    reply_content,
)
from asyncmanifold.flower.identity import Identity
from asyncmanifold.flower.nodes import printable_name
from asyncmanifold.privacy.node_budget import BudgetRefusal, NodeBudget
from asyncmanifold.server.outgoing import Parcel, pack_failure, pack_update
from asyncmanifold.server.protocol import Failure
from asyncmanifold.tasks.data import Data
from asyncmanifold.tasks.own_data import as_data
from asyncmanifold.tasks.task import Task
from asyncmanifold.threads import torch_threads
from asyncmanifold.vectors import FlatModel


def train_reply(
    message: Message,
    context: Context,
    model: nn.Module,
    loss: Loss,
    data: Any,
    *,
    threads: int | None = None,
    task: str = "",
    device: str | None = None,
) -> Message:
    """Train ``model`` on ``data`` as a server's message says, and return the reply.

    A server with another version of asyncmanifold, another model or another task is refused. So is a job that
    exceeds the node's own privacy budget (``privacy-epsilon`` and others in its config: docs/privacy.md).

    Arguments:
        message: the server's message.
        context: the node's context.
        model: modified in place; its weights are replaced by the message's.
        loss: takes outputs and targets, returns a scalar tensor.
        data: examples in any form that ``Task`` takes.
        threads: torch threads; by default what the node was started with (``--node-config 'threads=4'``),
            else one, which makes a job repeatable to the last bit.
        task: the app's own name for its task, which the server must have too.
        device: where the node trains, such as ``"cuda:1"`` or ``"cpu"``; by default what the node was
            started with (``--node-config 'device="cuda:1"'``), else ``"auto"``: a GPU if torch finds one.

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
    identity = Identity.of(model, request.embedding, task)
    if difference := identity.difference(request.server, "this node", "the server"):
        raise InputError(difference)
    sender = Sender(identity, printable_name(context.node_config.get("name")))
    budget = NodeBudget.find(context.node_config, os.environ)
    try:
        if budget is not None:
            budget.check_job(request.outgoing)
        place = device_of(context, device, model)
        parcel = _train(request, model, loss, examples, threads_of(context, threads), place)
        if budget is not None:
            budget.spend(request.outgoing)
    except BudgetRefusal as refusal:
        return Message(refusal_content(str(refusal), sender), reply_to=message)
    return Message(reply_content(parcel, len(examples), partition_of(context), sender), reply_to=message)


def _train(
    request: TrainingRequest, model: nn.Module, loss: Loss, examples: Data, threads: int, place: torch.device
) -> Parcel:
    """Return the parcel of a job; a job that cannot be trained raises, unless that is private too."""
    with torch_threads(threads), repeatable(place):
        trainer = Trainer(model, loss, request.embedding, request.training, request.seed, place)
        try:
            update = trainer.train(request.job, examples)
        except Untrainable as problem:
            empty = torch.empty(request.embedding.points, trainer.size)
            outcome = pack_failure(problem, request.job, request.outgoing, request.seed, empty)
            if isinstance(outcome, Failure):
                raise
            return outcome
    return pack_update(update, request.job, request.outgoing, request.seed)


def evaluate_reply(
    message: Message,
    context: Context,
    model: nn.Module,
    loss: Loss,
    data: Any,
    *,
    metrics: Mapping[str, Any] | None = None,
    threads: int | None = None,
    device: str | None = None,
) -> Message:
    """Evaluate the server's model on ``data``, and return the reply.

    Arguments are those of ``train_reply``, and:

    Arguments:
        metrics: how outputs are scored, as in ``Task``.

    >>> from flwr.clientapp import ClientApp
    >>> from torch import nn
    >>> from asyncmanifold.flower import evaluate_reply
    >>> app = ClientApp()
    >>> @app.evaluate()
    ... def evaluate(message, context):
    ...     data = load_my_part(context.node_config["partition-id"])  # the node's own
    ...     return evaluate_reply(message, context, nn.Linear(4, 3), nn.functional.cross_entropy, data)
    """
    if NodeBudget.find(context.node_config, os.environ) is not None:
        raise InputError("this node has a privacy budget, which scores on its data are not part of")
    task = Task(model, loss, clients=[data], test=data, metrics=metrics)
    place = device_of(context, device, model)
    flat = FlatModel(model, place)
    flat.load(*read_model(message.content))
    with torch_threads(threads_of(context, threads)), repeatable(place):
        scores = task.evaluate(flat, task.test)
    record: dict[str, Any] = {**scores, "num-examples": len(task.test)}
    return Message(RecordDict({METRICS: MetricRecord(record)}), reply_to=message)


def device_of(context: Context, device: str | None, model: nn.Module) -> torch.device:
    """Return the device of a node: as given, or as the node was started with, else the best there is.

    Portable arithmetic, and parameters on manifolds, need the CPU.
    """
    needs_cpu = is_portable() or any(hasattr(parameter, "manifold") for parameter in model.parameters())
    return find_device(device or str(context.node_config.get("device", "cpu" if needs_cpu else "auto")))


def threads_of(context: Context, threads: int | None) -> int:
    """Return a node's number of torch threads: as given, or as the node was started with, else one."""
    wanted = context.node_config.get("threads", 1) if threads is None else threads
    if isinstance(wanted, bool) or not isinstance(wanted, int) or wanted < 1:
        raise InputError(f"threads={wanted!r} must be a whole number, at least 1")
    return wanted


def partition_of(context: Context) -> int | None:
    """Return the node's part of a partitioned dataset, if the node was started with ``partition-id``."""
    partition = context.node_config.get("partition-id")
    return partition if isinstance(partition, int) else None
