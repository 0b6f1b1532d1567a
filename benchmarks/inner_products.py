"""Ways to form the inner products of an update's vectors, over streaming these vectors; by hand.

Two offsets and the drift of 10 M parameters: in one pass of the compiled loop, which the server has where
there is a C compiler, and in blocks of several sizes. Without a compiler the server has ``torch.dot`` and
``gram.BLOCK``. On a processor that is not Intel's, MKL (``torch.dot``) takes another way;
``MKL_CBWR=COMPATIBLE`` shows something like it anywhere.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy is loaded

from collections.abc import Callable
from functools import partial
from itertools import combinations_with_replacement
from time import perf_counter
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from asyncmanifold.arithmetic import compiled_products
from asyncmanifold.geometry.bezier import Floats
from asyncmanifold.server.inner_products import inner_products

PARAMETERS, REPEATS = 10_000_000, 15
SIZES = (65_536, 131_072, 262_144)

Product = Callable[[list[Tensor]], Floats]
"""Takes a block of each vector; returns all inner products."""


def main() -> None:
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    vectors = [torch.randn(PARAMETERS, generator=generator) for _ in range(4)]
    ways: dict[str, Callable[[], Floats | None]] = {"stream": partial(stream, vectors)}
    if compiled_products() is not None:
        ways["compiled loop"] = partial(compiled, torch.stack(vectors[:2]), *vectors[2:])
    for product in (torch_dot, numpy_dot, matrix_product, product_and_sum):
        for size in SIZES:
            ways[f"{product.__name__}, {size:,}"] = partial(gram, vectors, product, size)
    times: dict[str, list[float]] = {name: [] for name in ways}
    found = {name: way() for name, way in ways.items()}
    for _ in range(REPEATS):
        for name, way in ways.items():
            started = perf_counter()
            way()
            times[name].append(perf_counter() - started)
    floor, reference = min(times["stream"]), found[f"torch_dot, {SIZES[0]:,}"]
    table = Table("way, block", "ms", "over streaming", "difference", title=f"the least of {REPEATS}")
    for name, spent in times.items():
        apart = "" if name == "stream" else f"{difference(found[name], reference):.0e}"
        table.add_row(name, f"{1e3 * min(spent):.1f}", f"{min(spent) / floor:.2f}", apart)
    Console().print(table)


def stream(vectors: list[Tensor]) -> None:
    for vector in vectors:
        vector.sum()


def compiled(offsets: Tensor, theta: Tensor, base: Tensor) -> Floats:
    products = inner_products(offsets, theta, base)
    assert products is not None
    return products


def gram(vectors: list[Tensor], product: Product, size: int) -> Floats:
    """Return the inner products of the first two vectors and of the difference of the others."""
    total = np.zeros((3, 3))
    for one, other, now, before in zip(*(torch.split(vector, size) for vector in vectors), strict=True):
        total += product([one, other, torch.sub(now, before)])
    return total


def torch_dot(block: list[Tensor]) -> Floats:
    return each_pair(block, lambda a, b: torch.dot(a, b).item())


def numpy_dot(block: list[Tensor]) -> Floats:
    return each_pair([vector.numpy() for vector in block], lambda a, b: float(np.dot(a, b)))


def product_and_sum(block: list[Tensor]) -> Floats:
    return each_pair(block, lambda a, b: (a * b).sum().item())


def matrix_product(block: list[Tensor]) -> Floats:
    rows = torch.stack(block)
    return np.triu(torch.mm(rows, rows.T).double().numpy())


def each_pair(rows: list[Any], product: Callable[[Any, Any], float]) -> Floats:
    found = np.zeros((len(rows), len(rows)))
    for i, j in combinations_with_replacement(range(len(rows)), 2):
        found[i, j] = product(rows[i], rows[j])
    return found


def difference(one: Floats | None, other: Floats | None) -> float:
    assert one is not None
    assert other is not None
    return float(np.abs(one - other).max() / np.abs(other).max())


if __name__ == "__main__":
    main()
