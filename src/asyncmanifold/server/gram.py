"""The two passes of a server update: form the Gram matrix, then apply coefficients.

Both walk over the vectors in blocks that fit into the processor's cache, so each vector is read from memory
once per pass. The drift d = Θ^τ − Θ^t is never stored. A compiled loop multiplies long vectors where it can
(``inner_products.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from asyncmanifold.geometry.bezier import Floats
from asyncmanifold.server.inner_products import inner_products

BLOCK = 131_072
"""Numbers per block: few enough for the cache, many enough that calls cost little (docs/performance.md)."""

Visit = Callable[[int, Tensor], object]
"""Is called with a block's number and the block as soon as it is written, while the cache holds it; it may
change the block."""


def gram_matrix(offsets: Tensor, theta: Tensor, base: Tensor) -> Floats:
    """Return all inner products of (v_1 … v_n, d), with d = theta − base, as an (n + 1)² matrix.

    Products are formed in float32 within a block and summed in float64 over blocks.
    """
    drift_base = None if base is theta else base
    products = inner_products(offsets, theta, drift_base) if theta.numel() > BLOCK else None
    if products is None:
        products = _products(offsets, theta, drift_base)
    gram = np.zeros((len(offsets) + 1, len(offsets) + 1))
    gram[: len(products), : len(products)] = products + np.triu(products, 1).T
    return gram


def _products(offsets: Tensor, theta: Tensor, base: Tensor | None) -> Floats:
    """Return what ``inner_products`` does, block by block with torch."""
    rows = [blocks(row) for row in offsets.unbind()]
    before = None if base is None else blocks(base)
    count = len(rows) + (base is not None)
    products = np.zeros((count, count))
    for number, now in enumerate(blocks(theta)):
        vectors = [row[number] for row in rows]
        if before is not None:
            vectors.append(torch.sub(now, before[number]))
        for i in range(count):
            for j in range(i, count):
                products[i, j] += torch.dot(vectors[i], vectors[j]).item()
    return products


def combine(
    start: Tensor | None,
    offsets: Tensor,
    theta: Tensor,
    base: Tensor,
    coefficients: Floats,
    out: Tensor | None = None,
    visits: Sequence[Visit] = (),
) -> Tensor:
    """Return start + Σ_k c_k v_k + c_d (theta − base); it is written to ``out`` if given.

    ``start`` is Θ itself or, for a buffer, the sum of the steps that it holds; None is 0. ``visits`` are made
    to every block.
    """
    *weights, drift_weight = (float(c) for c in coefficients)
    result = torch.empty_like(theta) if out is None else out
    drifts = base is not theta and drift_weight != 0.0
    pieces = zip(*map(blocks, (result, theta, base)), strict=True)
    origins = None if start is None else blocks(start)
    rows = [blocks(row) for row in offsets.unbind()]
    for number, (target, now, before) in enumerate(pieces):
        source = None if origins is None else origins[number]
        if drifts and start is theta:
            source = torch.lerp(now, before, -drift_weight, out=target)
        elif drifts:
            source = target.zero_() if source is None else target.copy_(source)
            source.add_(now, alpha=drift_weight).sub_(before, alpha=drift_weight)
        for weight, row in zip(weights, rows, strict=True):
            if weight == 0.0:
                continue
            if source is None:
                source = torch.mul(row[number], weight, out=target)
            else:
                source = torch.add(source, row[number], alpha=weight, out=target)
        if source is None:
            target.zero_()
        elif source is not target:
            target.copy_(source)
        for visit in visits:
            visit(number, target)
    return result


def blocks(vector: Tensor) -> Sequence[Tensor]:
    """Return a vector as views of blocks that fit into the processor's cache."""
    return (vector,) if vector.numel() <= BLOCK else torch.split(vector, BLOCK)
