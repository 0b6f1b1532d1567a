"""Examples, read in batches by index. A client's share is an index array, never a copy.

``tasks/own_data.py`` turns whatever else a user has into these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, overload, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from asyncmanifold.errors import InputError


@runtime_checkable
class Data(Protocol):
    """Examples that can be counted and read in batches."""

    def __len__(self) -> int:
        """Return the number of examples."""
        ...

    def batch(self, indices: Tensor) -> tuple[Any, Any]:
        """Return the inputs and targets of these examples, as the model and the loss expect them.

        Inputs that are a dictionary are given to the model as keyword arguments.
        """
        ...


@dataclass(frozen=True, eq=False)
class TensorData:
    """Examples that are rows of two tensors: all rows, or those in ``indices``.

    ``prepare`` converts the stored inputs of a batch into the model's inputs, so that images can stay bytes.
    It must be a module-level function if data goes to other processes, which unpickle it by name.
    """

    inputs: Tensor
    targets: Tensor
    indices: Tensor | None = None
    prepare: Callable[[Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.targets):
            raise InputError(f"{len(self.inputs)} inputs but {len(self.targets)} targets")

    def __len__(self) -> int:
        return len(self.inputs if self.indices is None else self.indices)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return rows of both tensors, with prepared inputs."""
        rows = indices if self.indices is None else self.indices.index_select(0, indices)
        inputs, targets = self.inputs.index_select(0, rows), self.targets.index_select(0, rows)
        return inputs if self.prepare is None else self.prepare(inputs), targets


@dataclass(frozen=True, eq=False)
class Excerpt:
    """At most ``count`` of other examples, spread evenly over them."""

    data: Data
    count: int

    def __len__(self) -> int:
        return min(self.count, len(self.data))

    def batch(self, indices: Tensor) -> tuple[Any, Any]:
        """Return the examples at these places of the excerpt."""
        return self.data.batch(indices * len(self.data) // len(self))


class Shares(Sequence[TensorData]):
    """Every client's share of the same examples: one index array for all, however many clients there are.

    A client's share is made on demand. So a client costs only the indices of its examples and one more
    number, here and in every worker.

    Arguments:
        inputs: the inputs of all examples, one row per example.
        targets: their targets.
        parts: the row numbers of each client.
        prepare: converts the stored inputs of a batch into the model's, as in ``TensorData``.

    >>> import torch
    >>> from asyncmanifold import Shares
    >>> Shares(torch.zeros(6, 2), torch.zeros(6), parts=[[0, 1], [2, 3, 4, 5]]).sizes
    [2, 4]
    """

    def __init__(
        self,
        inputs: Tensor,
        targets: Tensor,
        parts: Sequence[npt.ArrayLike],
        prepare: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        """Join the clients' row numbers to one index array."""
        arrays = [np.asarray(part, dtype=np.int64) for part in parts]
        indices = np.concatenate(arrays) if arrays else np.zeros(0, np.int64)
        if len(indices) and not 0 <= indices.min() <= indices.max() < len(inputs):
            raise InputError(
                f"Shares(parts=…) has indices from {indices.min()} to {indices.max()}, must be in "
                f"[0, {len(inputs)}), the examples"
            )
        self._examples = (inputs, targets)
        self._prepare = prepare
        self._indices = torch.from_numpy(indices)
        self._ends = np.cumsum([0, *map(len, arrays)])

    @property
    def sizes(self) -> list[int]:
        """How many examples each client has."""
        return np.diff(self._ends).tolist()

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, client: int) -> TensorData: ...

    @overload
    def __getitem__(self, client: slice) -> list[TensorData]: ...

    def __getitem__(self, client: int | slice) -> TensorData | list[TensorData]:
        if isinstance(client, slice):
            return [self[each] for each in range(*client.indices(len(self)))]
        number = range(len(self))[client]
        indices = self._indices[self._ends[number] : self._ends[number + 1]]
        return TensorData(*self._examples, indices, self._prepare)


def split_examples(
    inputs: Tensor,
    targets: Tensor,
    parts: Iterable[Sequence[npt.ArrayLike]],
    test: npt.NDArray[np.int64],
    prepare: Callable[[Tensor], Tensor] | None = None,
) -> dict[str, Any]:
    """Return a task's ``clients``, ``validation`` and ``test``.

    ``parts`` has, for each client, the rows held out for validation and the rows to train on.
    """
    validation, train = zip(*parts, strict=True)
    return {
        "clients": Shares(inputs, targets, train, prepare),
        "validation": Shares(inputs, targets, validation, prepare),
        "test": TensorData(inputs, targets, torch.from_numpy(test), prepare),
    }


def sizes_of(clients: Sequence[Data]) -> list[int]:
    """Return how many examples each client has."""
    return clients.sizes if isinstance(clients, Shares) else [len(data) for data in clients]
