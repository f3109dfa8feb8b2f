"""Conversion of bf16 and f16 in memory: round to nearest even, NaN stays NaN."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tests.codegen.cpu.kernels import kernel


def every(kind: type) -> np.ndarray:
    """All 65,536 values of a 16-bit type."""
    return np.arange(2**16, dtype=np.uint16).view(kind)


def same(found: np.ndarray, wanted: np.ndarray) -> None:
    """Assert that two arrays have equal bits; all NaNs count as equal, and so do 0 and -0."""
    with np.errstate(invalid="ignore"):
        before, after = wanted.astype(np.float64), found.astype(np.float64)
    nan = np.isnan(before)
    assert np.array_equal(np.isnan(after), nan)
    free = nan | ((before == 0) & (after == 0))
    assert np.array_equal(found[~free].view(np.uint16), wanted[~free].view(np.uint16))


@pytest.mark.parametrize(("dtype", "kind"), [("bf16", ml_dtypes.bfloat16), ("f16", np.float16)])
def test_every_value_comes_through_unchanged(dtype: str, kind: type):
    a = every(kind).reshape(-1, 1)
    d = kernel("data-parallel", dtype=dtype)(a, np.ones((1, 1), kind))
    same(d, a)


@pytest.mark.parametrize(("dtype", "kind"), [("bf16", ml_dtypes.bfloat16), ("f16", np.float16)])
def test_rounding_is_to_the_nearest_and_to_even(dtype: str, kind: type):
    random = np.random.default_rng(0)
    with np.errstate(over="ignore", invalid="ignore"):
        edges = every(kind).astype(np.float32)
        between = (edges + np.roll(edges, 1)) / 2
        near = np.nextafter(between, np.float32(np.inf)), np.nextafter(between, np.float32(-np.inf))
    bits = random.integers(0, 2**32, 2**16, dtype=np.uint64).astype(np.uint32).view(np.float32)
    a = np.concatenate([between, *near, bits]).reshape(-1, 1)
    d = kernel("data-parallel", dtype="f32", out_dtype=dtype)(a, np.ones((1, 1), np.float32))
    with np.errstate(over="ignore", invalid="ignore"):
        same(d, a.astype(kind))
