"""A user's examples as ``Data``: tensors, datasets, loaders and dictionaries of tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler, Subset, default_collate

from asyncmanifold.errors import InputError
from asyncmanifold.tasks.data import Data, Shares, TensorData

TARGETS = ("labels", "label", "targets", "target")
"""The entry of a dictionary that holds the targets; the others are the model's keyword arguments."""
ALLOWED = "(inputs, targets), a dictionary of tensors, a torch Dataset or DataLoader, or Data"


def as_data(examples: Any) -> Data:
    """Return a user's examples as ``Data``.

    They may be a pair of tensors, a dictionary of tensors, a map-style ``Dataset``, or a ``DataLoader``, of
    which the dataset and ``collate_fn`` are used: batch size and order are those of local training.
    """
    if isinstance(examples, Data) and not hasattr(examples, "__getitems__"):  # Hugging Face's have batch too
        return examples
    if isinstance(examples, Mapping):
        return NamedTensors(*split_batch(examples))
    if _is_pair(examples):
        return _pair(*examples)
    if hasattr(examples, "dataset") and hasattr(examples, "collate_fn"):
        return _loader(examples)
    if hasattr(examples, "__getitem__") and hasattr(examples, "__len__"):
        return DatasetData(examples)
    raise InputError(f"client data must be {ALLOWED}, not {type(examples).__name__}")


def all_data(clients: Sequence[Any]) -> Sequence[Data]:
    """Return the examples of each client as ``Data``."""
    return clients if isinstance(clients, Shares) else [as_data(examples) for examples in clients]


def split_batch(batch: Any) -> tuple[Any, Any]:
    """Return the inputs and targets of a batch: a pair, or a dictionary with the targets as ``labels``."""
    if isinstance(batch, Mapping):
        name = next((name for name in TARGETS if name in batch), None)
        if name is None or len(batch) < 2:
            raise InputError(
                f"examples that are dictionaries must have inputs and one of {', '.join(TARGETS)}, "
                f"not only {', '.join(map(str, batch)) or 'nothing'}"
            )
        return {key: value for key, value in batch.items() if key != name}, batch[name]
    if isinstance(batch, tuple | list) and len(batch) == 2:
        return batch[0], batch[1]
    raise InputError(
        f"an example must be (input, target) or a dictionary with {TARGETS[0]}, not {_words(batch)}"
    )


@dataclass(frozen=True, eq=False)
class NamedTensors:
    """Examples that are rows of several tensors, which the model takes as keyword arguments."""

    inputs: Mapping[str, Tensor]
    targets: Tensor

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", {name: _tensor(part) for name, part in self.inputs.items()})
        object.__setattr__(self, "targets", _tensor(self.targets))
        for name, part in self.inputs.items():
            if len(part) != len(self.targets):
                raise InputError(f"{len(part)} rows of {name!r} but {len(self.targets)} targets")

    def __len__(self) -> int:
        return len(self.targets)

    def batch(self, indices: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Return rows of all tensors."""
        inputs = {name: part.index_select(0, indices) for name, part in self.inputs.items()}
        return inputs, self.targets.index_select(0, indices)


class DatasetData:
    """Any map-style torch ``Dataset`` of (input, target) pairs or of dictionaries."""

    def __init__(self, dataset: Any, collate: Callable[[list[Any]], Any] = default_collate) -> None:
        self._dataset, self._collate = dataset, collate

    def __len__(self) -> int:
        return len(self._dataset)

    def batch(self, indices: Tensor) -> tuple[Any, Any]:
        """Return the collated examples."""
        numbers = indices.tolist()
        fetch = getattr(self._dataset, "__getitems__", None)
        items = fetch(numbers) if fetch else [self._dataset[number] for number in numbers]
        if self._collate is not default_collate:
            return split_batch(self._collate(items))
        for item in items[:1]:
            split_batch(item)  # a wrong example is named as it is, not as collating would change it
        try:
            return split_batch(default_collate(items))
        except (RuntimeError, TypeError) as error:
            reason = " ".join(str(error).split())
            raise InputError(
                f"examples cannot be joined to a batch: give a DataLoader with a collate_fn ({reason})"
            ) from error


def _is_pair(examples: Any) -> bool:
    """Return whether this is (inputs, targets): any tuple of two, or a list of two tensors or arrays.

    Other lists are datasets, so that a list of two (input, target) examples is what it seems.
    """
    if not isinstance(examples, tuple | list) or len(examples) != 2:
        return False
    arrays = (Tensor, np.ndarray, Mapping)
    return isinstance(examples, tuple) or all(isinstance(part, arrays) for part in examples)


def _pair(inputs: Any, targets: Any) -> Data:
    if isinstance(targets, Mapping):
        if isinstance(inputs, Mapping):
            return DatasetData([inputs, targets])  # two examples, each a dictionary
        raise InputError("client data (inputs, targets): targets must be a tensor, not a dictionary")
    if isinstance(inputs, Mapping):
        return NamedTensors(inputs, targets)
    return TensorData(_tensor(inputs), _tensor(targets))


def _tensor(part: Any) -> Tensor:
    try:
        return torch.as_tensor(part)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"client data must be {ALLOWED}; {_words(part)} is not a tensor: {' '.join(str(error).split())}"
        ) from error


def _loader(loader: Any) -> Data:
    """Return what a ``DataLoader`` reads: its dataset, or its sampler's part of it, joined as it does."""
    dataset: Any = loader.dataset
    sampler: Any = getattr(loader, "sampler", None)
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise InputError(
            f"client data: {type(dataset).__name__} has no length or no [index], must be a map-style Dataset"
        )
    if type(getattr(loader, "batch_sampler", None)) not in (BatchSampler, type(None)):
        raise InputError("client data: a DataLoader with its own batch_sampler cannot be used")
    if hasattr(sampler, "indices"):  # SubsetRandomSampler: a client's share of a common dataset
        dataset = Subset(dataset, [int(index) for index in sampler.indices])
    elif not isinstance(sampler, SequentialSampler | RandomSampler | type(None)):
        raise InputError(f"client data: a DataLoader with a {type(sampler).__name__} cannot be used")
    return DatasetData(dataset, loader.collate_fn)


def _words(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"
