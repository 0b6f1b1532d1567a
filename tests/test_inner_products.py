"""The compiled inner products: bit for bit the sums written out in NumPy, and close to torch's."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from asyncmanifold.arithmetic import PORTABLE, compiled_products
from asyncmanifold.server import inner_products as module
from asyncmanifold.server.gram import BLOCK, gram_matrix
from asyncmanifold.server.inner_products import MOST_ROWS, inner_products

LANES, CHUNK = 8, 4096

compiled = pytest.mark.skipif(compiled_products() is None, reason="installed without a C compiler")


def vectors_of(length: int, offsets: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(length)
    theta, base = (torch.randn(length, generator=generator) for _ in range(2))
    return torch.randn(offsets, length, generator=generator), theta, base


def written_out(rows: np.ndarray) -> np.ndarray:
    """Every product on its own: lane by lane in float32 within a chunk, then lane after lane in float64."""
    padded = np.zeros((len(rows), -(-rows.shape[1] // CHUNK) * CHUNK), dtype=np.float32)
    padded[:, : rows.shape[1]] = rows
    found = np.zeros((len(rows), len(rows)))
    for i in range(len(rows)):
        for j in range(i, len(rows)):
            for chunk in (padded[i] * padded[j]).reshape(-1, CHUNK // LANES, LANES):
                lanes = np.zeros(LANES, dtype=np.float32)
                for products in chunk:
                    lanes = lanes + products
                for lane in lanes:
                    found[i, j] += float(lane)
    return found


@compiled
@pytest.mark.parametrize("drifts", [True, False])
@pytest.mark.parametrize("length", [1, 8, 4095, 4096, 12_301])
@pytest.mark.parametrize("rows", range(1, MOST_ROWS + 1))
def test_the_bits_are_those_of_the_sums_written_out(rows, length, drifts):
    """They are then the same on every processor: nothing in them depends on one."""
    offsets, theta, base = vectors_of(length, rows - drifts)
    found = inner_products(offsets, theta, base if drifts else None)
    expected = written_out(np.concatenate([offsets.numpy(), (theta - base).numpy()[None][: int(drifts)]]))
    np.testing.assert_array_equal(found, expected)


def test_by_hand():
    """v = (1, 2, …, 10), θ = 3, base = 1, in 10 places: v·v = 385, v·d = 110, d·d = 40."""
    offsets = torch.arange(1.0, 11.0)[None]
    theta, base = torch.full((10,), 3.0), torch.ones(10)
    expected = np.array([[385.0, 110.0], [0.0, 40.0]])
    if compiled_products() is not None:
        np.testing.assert_array_equal(inner_products(offsets, theta, base), expected)
    np.testing.assert_array_equal(gram_matrix(offsets, theta, base), expected + np.triu(expected, 1).T)


@pytest.mark.parametrize("is_compiled", [pytest.param(True, marks=compiled), False])
@pytest.mark.parametrize("offsets", [1, 2, 4, 5])  # with the drift, the last is more than was compiled
def test_long_vectors_with_and_without_the_compiled_products(offsets, is_compiled, monkeypatch):
    if not is_compiled:
        monkeypatch.setattr(module, "compiled_products", lambda: None)
    v, theta, base = vectors_of(2 * BLOCK + 77, offsets)
    rows = torch.cat([v, (theta - base)[None]]).double()
    expected = (rows @ rows.T).numpy()
    scale = np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
    assert np.abs((gram_matrix(v, theta, base) - expected) / scale).max() < 1e-6
    still = gram_matrix(v, theta, theta)
    assert np.abs((still[:-1, :-1] - expected[:-1, :-1]) / scale[:-1, :-1]).max() < 1e-6
    assert not still[-1].any()
    assert not still[:, -1].any()


@compiled
def test_what_is_not_finite_stays_so():
    v, theta, base = vectors_of(BLOCK + 1, 2)
    v[0, -1] = torch.nan
    gram = gram_matrix(v, theta, base)
    assert np.isnan(gram[0]).all()
    assert np.isfinite(gram[1:, 1:]).all()


@compiled
def test_torch_does_what_the_compiled_products_is_not_made_for():
    v, theta, base = vectors_of(20, 2)
    assert inner_products(v, theta, base) is not None
    assert inner_products(v.double(), theta.double(), base.double()) is None
    assert inner_products(v[:, ::2], theta[::2], base[::2]) is None
    assert inner_products(v.expand(2, 2, 20).reshape(4, 20)[:, :10], theta[:10], base[:10]) is None
    assert inner_products(torch.randn(MOST_ROWS, 20), theta, base) is None
    assert inner_products(v.to("meta"), theta.to("meta"), base.to("meta")) is None


@compiled
def test_portable_arithmetic_leaves_it_alone(tmp_path):
    """Who installs without a C compiler then has the same bits."""
    script = "from asyncmanifold.arithmetic import compiled_products as f; print(f() is None)"
    for environment, answer in ((PORTABLE, "True\n"), ({}, "False\n")):
        found = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
        )
        assert found.stdout == answer
