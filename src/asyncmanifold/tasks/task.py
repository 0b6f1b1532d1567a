"""A task: the model to train, the clients' data, and the metrics."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from asyncmanifold.errors import InputError
from asyncmanifold.metrics import Accuracy, Metric
from asyncmanifold.seeding import Purpose, derive, torch_seed
from asyncmanifold.tasks.data import Data, all_data, as_data, sizes_of
from asyncmanifold.vectors import FlatModel


class TaskSettings(Protocol):
    """A task's settings: a frozen dataclass that builds it."""

    def build(self, seed: int) -> Task:
        """Return the task; the same seed gives the same clients and the same initial model."""
        ...


@dataclass(frozen=True)
class Task:
    """A model, a loss, each client's examples, and a test set.

    Examples are (inputs, targets) tensors, a torch ``Dataset``, or anything with the two methods of ``Data``.

    Arguments:
        model: a module, or a function that makes one, which is called with the run's seed set.
        loss: takes outputs and targets, returns a scalar tensor.
        clients: training examples of each client; for very many clients, ``Shares`` of the same examples.
        test: examples that the global model is evaluated on.
        validation: held-out examples of each client, for fairness and tuning.
        metrics: how outputs are scored, higher is better. The first is the one that is reported.

    >>> import torch
    >>> from asyncmanifold import Task
    >>> clients = [(torch.randn(size, 4), torch.randint(3, (size,))) for size in (10, 40, 90)]
    >>> Task(torch.nn.Linear(4, 3), torch.nn.functional.cross_entropy, clients, test=clients[0]).metric
    'accuracy'
    """

    model: nn.Module | Callable[[], nn.Module]
    loss: Callable[[Any, Any], Tensor]
    clients: Sequence[Any]
    test: Any
    validation: Sequence[Any] | None = None
    metrics: Mapping[str, Callable[[], Metric]] = field(default_factory=lambda: {"accuracy": Accuracy})

    def __post_init__(self) -> None:
        if not self.clients:
            raise InputError("Task(clients=…) must have at least one client")
        object.__setattr__(self, "clients", all_data(self.clients))
        object.__setattr__(self, "test", as_data(self.test))
        if empty := [client for client, size in enumerate(sizes_of(self.clients)) if size == 0]:
            raise InputError(f"client {_list_numbers(empty)} has no training data")
        if len(self.test) == 0:
            raise InputError("Task(test=…) has no examples")
        if self.validation is not None:
            object.__setattr__(self, "validation", all_data(self.validation))
            if len(self.validation) != len(self.clients):
                raise InputError(f"{len(self.validation)} validation sets for {len(self.clients)} clients")
        if not self.metrics:
            raise InputError("Task(metrics=…) must name at least one metric")

    @property
    def metric(self) -> str:
        """The name of the metric that is reported."""
        return next(iter(self.metrics))

    def build_model(self, seed: int) -> nn.Module:
        """Return a fresh module with its initial weights."""
        if isinstance(self.model, nn.Module):
            return copy.deepcopy(self.model)
        with torch_seed(derive(seed, Purpose.MODEL)):
            return self.model()

    def evaluate(self, model: FlatModel, data: Data, batch_size: int = 512) -> dict[str, float]:
        """Return every metric and the mean loss of a model on some examples."""
        metrics = {name: make() for name, make in self.metrics.items()}
        total = 0.0
        model.module.eval()
        with torch.no_grad():
            for indices in torch.split(torch.arange(len(data)), batch_size):
                inputs, targets = data.batch(indices)
                outputs = model.module(inputs)
                total += self.loss(outputs, targets).item() * len(indices)
                for metric in metrics.values():
                    metric.update(outputs, targets)
        values = {name: float(metric.compute()) for name, metric in metrics.items()}
        return values | {"loss": total / len(data)}


def _list_numbers(numbers: list[int], most: int = 5) -> str:
    shown = ", ".join(str(number) for number in numbers[:most])
    return shown if len(numbers) <= most else f"{shown} and {len(numbers) - most} more"
