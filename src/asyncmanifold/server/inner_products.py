"""Inner products of long vectors in one pass over memory, by ``inner_products.c`` where it was compiled.

torch has no operation for several inner products at once. One after the other, each reads its block again,
out of a cache that is hardly faster than the memory of today's servers (docs/performance.md).
"""

from __future__ import annotations

from ctypes import POINTER, c_double, c_int, c_size_t, c_void_p

import numpy as np
import torch
from torch import Tensor

from asyncmanifold.arithmetic import compiled_products
from asyncmanifold.geometry.bezier import Floats

MOST_ROWS = 5
"""For how many vectors ``inner_products.c`` has a loop."""


def inner_products(offsets: Tensor, theta: Tensor, base: Tensor | None) -> Floats | None:
    """Return all inner products of (v_1 … v_n, theta − base), the upper triangle; without base, of v_1 … v_n.

    They are formed in an order that does not depend on the processor. Returns None where torch has to do it:
    there is no compiled function, or it is not made for such vectors.
    """
    compiled = compiled_products()
    vectors = [offsets, theta, theta if base is None else base]
    rows = len(offsets) + (base is not None)
    if compiled is None or rows > MOST_ROWS or not all(map(_is_plain, vectors)):
        return None
    products = np.zeros((rows, rows))
    starts = (c_void_p * len(offsets))(*(row.data_ptr() for row in offsets))
    drift = (theta.data_ptr(), None if base is None else base.data_ptr())
    compiled.inner_products(
        c_int(rows),
        starts,
        *map(c_void_p, drift),
        c_size_t(theta.numel()),
        products.ctypes.data_as(POINTER(c_double)),
    )
    return products


def _is_plain(vector: Tensor) -> bool:
    """Return whether a vector is float32 numbers in a row, in this machine's memory."""
    return vector.dtype == torch.float32 and vector.device.type == "cpu" and vector.is_contiguous()
