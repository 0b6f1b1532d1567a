"""The problem as APPFL wants it: functions that it loads from this file by name."""

import numpy as np
from arguments import parse
from torch import nn
from torch.utils.data import Dataset, TensorDataset

_problem, _ = parse()


def get_model() -> nn.Module:
    problem, _ = parse()  # a client has a module of its own
    return problem.model


def get_data(client: int) -> tuple[Dataset, None]:
    """Return a client's training data, and nothing to validate on."""
    return TensorDataset(_problem.inputs[client], _problem.targets[client]), None


def accuracy(targets: np.ndarray, outputs: np.ndarray) -> float:
    """Return the share of right answers; APPFL's trainer must have a metric for the batches it trained on."""
    return float((outputs.argmax(axis=1) == targets).mean())
