"""Flower's client: the local training of the bare loop in a ``ClientApp``."""

from functools import cache
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from problem import BATCH_SIZE, LEARNING_RATE, SIZES, Problem, read_problem
from torch import nn

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    config = message.content["config"]
    problem = _problem(str(config["problem"]), str(config["size"]))
    partition = int(context.node_config["partition-id"])
    inputs, targets = problem.inputs[partition], problem.targets[partition]
    model = problem.model
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    for indices in torch.randperm(len(inputs)).split(BATCH_SIZE):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs[indices]), targets[indices]).backward()
        optimizer.step()
    reply = {
        "arrays": ArrayRecord(model.state_dict()),
        "metrics": MetricRecord({"num-examples": len(inputs)}),
    }
    return Message(content=RecordDict(reply), reply_to=message)


@cache
def _problem(path: str, size: str) -> Problem:
    """Read the problem once a process."""
    torch.set_num_threads(1)
    return read_problem(Path(path), SIZES[size])
