"""Examples, taken out in batches by index. A client's share is an index array, never a copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate


@runtime_checkable
class Data(Protocol):
    """Examples that can be counted and taken out in batches."""

    def __len__(self) -> int:
        """Return the number of examples."""
        ...

    def batch(self, indices: Tensor) -> tuple[Any, Any]:
        """Return the inputs and targets of these examples, as the model and the loss take them."""
        ...


class TensorData:
    """Examples that are rows of two tensors, all of them or those that ``indices`` names.

    ``prepare`` turns the stored inputs of a batch into those of the model, so that images can stay bytes.
    It is a function of a module where data goes to other processes.
    """

    def __init__(
        self,
        inputs: Tensor,
        targets: Tensor,
        indices: Tensor | None = None,
        prepare: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        if len(inputs) != len(targets):
            raise ValueError(f"{len(inputs)} inputs but {len(targets)} targets")
        self._inputs = inputs
        self._targets = targets
        self._indices = indices
        self._prepare = prepare

    def __len__(self) -> int:
        return len(self._inputs) if self._indices is None else len(self._indices)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return rows of both tensors, the inputs prepared."""
        rows = indices if self._indices is None else self._indices[indices]
        inputs = self._inputs[rows]
        return inputs if self._prepare is None else self._prepare(inputs), self._targets[rows]


class DatasetData:
    """Any map-style torch ``Dataset`` of (input, target) pairs."""

    def __init__(self, dataset: Dataset[Any]) -> None:
        self._dataset = cast(Any, dataset)

    def __len__(self) -> int:
        return len(self._dataset)

    def batch(self, indices: Tensor) -> tuple[Any, Any]:
        """Return the collated examples."""
        numbers = indices.tolist()
        fetch = getattr(self._dataset, "__getitems__", None)
        items = fetch(numbers) if fetch else [self._dataset[number] for number in numbers]
        inputs, targets = default_collate(items)
        return inputs, targets


def as_data(examples: Any) -> Data:
    """Return what the user brought, (inputs, targets) tensors or a torch ``Dataset``, as ``Data``."""
    if isinstance(examples, Data):
        return examples
    if isinstance(examples, tuple) and len(examples) == 2:
        inputs, targets = (torch.as_tensor(part) for part in examples)
        return TensorData(inputs, targets)
    if hasattr(examples, "__getitem__") and hasattr(examples, "__len__"):
        return DatasetData(examples)
    raise ValueError(
        f"client data must be (inputs, targets), a torch Dataset or Data, not {type(examples).__name__}"
    )
