"""Tensors as Flower's arrays, and back, with as few copies as Flower's form allows.

The form is NumPy's own file format, as Flower writes it: a short header, then the numbers. Writing is one
copy, reading none.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from numpy.lib import format as npy
from torch import Tensor

STYPE = "numpy.ndarray"
"""What Flower calls this form."""


def array_record(tensors: Mapping[str, Tensor]) -> ArrayRecord:
    """Return named tensors, such as a state dict, as the record that Flower's own strategies use."""
    return ArrayRecord({name: _array(tensor) for name, tensor in tensors.items()})


def read_arrays(record: ArrayRecord) -> dict[str, Tensor]:
    """Return the tensors of a record, which must not be written to; raise anything if it is malformed."""
    return {name: _tensor(array) for name, array in record.items()}


def _array(tensor: Tensor) -> Array:
    numbers = tensor.detach().contiguous().numpy()
    header = io.BytesIO()
    npy.write_array_header_1_0(header, npy.header_data_from_array_1_0(numbers))
    data = b"".join((header.getvalue(), numbers.reshape(-1).view(np.uint8).data))
    return Array(str(numbers.dtype), numbers.shape, STYPE, data)


def _tensor(array: Array) -> Tensor:
    if array.stype != STYPE:
        raise ValueError(f"an array of type {array.stype!r}, must be {STYPE}")
    file = io.BytesIO(array.data)
    if npy.read_magic(file) != (1, 0):
        raise ValueError("an array of another version of NumPy's format, must be 1.0")
    shape, by_columns, dtype = npy.read_array_header_1_0(file)
    start = file.tell()
    count = int(np.prod(shape, dtype=object)) if shape else 1
    if by_columns or dtype.hasobject or any(size < 0 for size in shape):
        raise ValueError(f"an array of {dtype}{', by columns' if by_columns else ''}, must be plain numbers")
    if count * dtype.itemsize != len(array.data) - start:
        raise ValueError(f"an array of shape {shape} with {len(array.data) - start:,} bytes of data")
    if not count:
        return torch.from_numpy(np.empty(shape, dtype))
    with warnings.catch_warnings():  # the memory is the message's own, and nobody writes to an update
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(np.frombuffer(array.data, dtype, offset=start).reshape(shape))
