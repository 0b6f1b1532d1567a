"""A task: the model to train, the clients' data, and the metrics."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from asyncmanifold.devices import CPU, move
from asyncmanifold.errors import InputError
from asyncmanifold.metrics import Accuracy
from asyncmanifold.scores import Score, as_number, read_scores
from asyncmanifold.seeding import Purpose, derive, torch_seed
from asyncmanifold.tasks.data import Data, Shares, sizes_of
from asyncmanifold.tasks.own_data import DatasetData, all_data, as_data
from asyncmanifold.vectors import FlatModel


class TaskSettings(Protocol):
    """A task's settings: a frozen dataclass that builds it."""

    def build(self, seed: int) -> Task:
        """Return the task; the same seed gives the same clients and the same initial model."""
        ...


@dataclass(frozen=True)
class Task:
    """A model, a loss, each client's examples, and a test set.

    Examples are (inputs, targets) tensors; a torch ``Dataset``; a ``DataLoader``, of which the dataset and
    the ``collate_fn`` are used; a dictionary of tensors with the targets as ``labels``; or anything with the
    two methods of ``Data``. Inputs that are a dictionary are given to the model as keyword arguments.

    Arguments:
        model: a module, or a function that makes one, which is called with the run's seed set.
        loss: takes outputs and targets, returns a scalar tensor.
        clients: training examples of each client; for very many clients, ``Shares`` of the same examples.
        test: examples that the global model is evaluated on.
        validation: held-out examples of each client, for fairness and tuning.
        metrics: how outputs are scored, by name: metrics of torchmetrics, or a ``Score`` of any function. The
            first is the one that is reported; with none it is the loss. The default is the accuracy if
            targets are whole numbers, else none.
        trusted: examples that the server itself has, for gates that compare updates with its own; no
            client's, and none of the test set.

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
    metrics: Mapping[str, Any] | None = None
    trusted: Any | None = None

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
        if self.trusted is not None:
            object.__setattr__(self, "trusted", as_data(self.trusted))
            if len(self.trusted) == 0:
                raise InputError("Task(trusted=…) has no examples")
        for data in (self.test, self.trusted, None if isinstance(self.clients, Shares) else self.clients[0]):
            if isinstance(data, DatasetData):
                data.batch(torch.arange(min(2, len(data))))  # so that wrong examples are refused at once
        metrics = _usual_metrics(self.test) if self.metrics is None else self.metrics
        object.__setattr__(self, "metrics", read_scores(metrics))

    @property
    def scores(self) -> dict[str, Score]:
        """The metrics by name."""
        assert isinstance(self.metrics, dict)
        return self.metrics

    @property
    def metric(self) -> str:
        """The name of the metric that is reported."""
        return next(iter(self.scores), "loss")

    @property
    def metric_names(self) -> list[str]:
        """The names of all metrics, the reported one first."""
        return list(self.scores) or ["loss"]

    @property
    def lower_is_better(self) -> list[str]:
        """The names of those metrics of which less is better."""
        return [name for name, score in self.scores.items() if not score.higher_is_better] + ["loss"]

    def check_target(self, target: float | None) -> None:
        """Raise ``InputError`` for a target that no score can reach, such as 90 where 0.9 is meant."""
        highest = self.scores[self.metric].highest if self.scores else None
        if target is not None and highest is not None and target > highest:
            hint = f" ({target:g} % is {target / 100:g})" if target / 100 <= highest else ""
            raise InputError(
                f"Run(target={target:g}) must be at most {highest:g}, the highest {self.metric}{hint}"
            )

    def build_model(self, seed: int) -> nn.Module:
        """Return a fresh module with its initial weights."""
        if isinstance(self.model, nn.Module):
            return copy.deepcopy(self.model)
        with torch_seed(derive(seed, Purpose.MODEL)):
            return self.model()

    def evaluate(self, model: FlatModel, data: Data, batch_size: int = 512) -> dict[str, float]:
        """Return every metric and the mean loss of a model on some examples."""
        metrics = {name: score.start() for name, score in self.scores.items()}
        total = 0.0
        model.module.eval()
        with torch.no_grad():
            for indices in torch.split(torch.arange(len(data)), batch_size):
                inputs, targets = move(data.batch(indices), model.device)
                outputs = model.outputs(inputs)
                total += self.loss(outputs, targets).item() * len(indices)
                seen = move((outputs, targets), CPU)  # metrics keep their state there
                for metric in metrics.values():
                    metric.update(*seen)
        values = {name: as_number(name, metric.compute()) for name, metric in metrics.items()}
        return values | {"loss": total / len(data)}


def _usual_metrics(test: Data) -> dict[str, Any]:
    """Return the accuracy where targets are whole numbers; else none: the loss is reported."""
    _, targets = test.batch(torch.arange(1))
    is_class = isinstance(targets, Tensor) and not targets.is_floating_point() and not targets.is_complex()
    return {"accuracy": Accuracy} if is_class else {}


def _list_numbers(numbers: list[int], most: int = 5) -> str:
    shown = ", ".join(str(number) for number in numbers[:most])
    return shown if len(numbers) <= most else f"{shown} and {len(numbers) - most} more"
