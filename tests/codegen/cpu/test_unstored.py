"""Epilogues that do not store D, on the CPU target and by `codegen.matmul`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import codegen
from coordgraph import Gemm, LaunchError
from coordgraph import epilogue as ep
from coordgraph.interpreter.arguments import Array
from passes import Pipeline
from tests.support.losses import loss
from tests.support.sampling import covering, quick_cases


@ep.epilogue(residual=ep.operand("mn", optional=True), pre=ep.output(), wide=ep.output("mn", "f64"))
def elsewhere(acc: Any, residual: Any) -> Any:
    return None, acc + residual, ep.cast(acc, to="f64")


@ep.epilogue(amax=ep.output("", reduce="max"))
def largest(gate: Any, up: Any) -> Any:
    return None, ep.abs(gate * up)


M, N, K, TILE = 37, 41, 50, 16
RNG = np.random.default_rng(4)


def whole(*shape: int) -> Array:
    return RNG.integers(-2, 3, shape).astype(np.float32)


A, B = whole(M, K), whole(K, N)
X = (A @ B).astype(np.float64)
GIVEN = {"column": np.arange(N, dtype="i4"), "target": RNG.integers(0, N, M, "i4")}
SCHEDULES = (
    "data-parallel",
    "data-parallel{workgroups=3,persistent=true}",
    "data-parallel{workgroups=3,persistent=true,scheduler=dynamic}",
    "stream-k{workgroups=5}",
    "stream-k{workgroups=5,reduction=scatter}",
    "stream-k{workgroups=5,reduction=tree}",
    "stream-k{workgroups=5,reduction=atomic}",
    "split-k{splits=3,reduction=scatter}",
    "two-tile-stream-k{workgroups=4}",
)


@quick_cases(3)
@pytest.mark.parametrize(("schedule", "target"), covering(2, SCHEDULES, ("cpu", "interpreter")))
def test_kernels_store_the_outputs_alone(schedule: str, target: str):
    graph = Pipeline.parse(schedule)(Gemm("f32", epilogue=loss).graph((TILE, TILE, TILE)))
    kernel = codegen.compile(graph, target)
    total = np.full((M, 3), np.nan, np.float32)
    d, found, picked = kernel(A, B, **GIVEN, total=total)
    assert d is None
    assert found is total
    for part, first in enumerate(range(0, N, TILE)):
        x = X[:, first : first + TILE]
        np.testing.assert_allclose(total[:, part], np.log(np.exp(x).sum(1)), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(picked.sum(1), X[np.arange(M), GIVEN["target"]])
    with pytest.raises(LaunchError, match="'out' is given, but the epilogue loss does not store D"):
        kernel(A, B, out=np.empty((M, N), np.float32), **GIVEN)


def test_heterogeneous_tiles():
    """With tiles of two shapes, an output that is not reduced is stored, and D is not."""
    gemm = Gemm("f32", epilogue=elsewhere)
    graph = Pipeline.parse("heterogeneous-tiles{workgroups=4}")(gemm.graph((TILE, TILE, TILE)))
    d, pre, _ = codegen.compile(graph, "cpu")(A, B)
    assert d is None
    np.testing.assert_array_equal(pre, X)


def test_matmul_returns_none_in_the_place_of_d():
    d, total, picked = codegen.matmul(A, B, epilogue=loss, **GIVEN)
    assert d is None
    np.testing.assert_allclose(total, np.log(np.exp(X).sum(1)), rtol=1e-5)
    np.testing.assert_array_equal(picked, X[np.arange(M), GIVEN["target"]])
    with pytest.raises(LaunchError, match="'out' is given"):
        codegen.matmul(A, B, epilogue=loss, out=np.empty((M, N), np.float32), **GIVEN)


def test_outputs_of_every_element_and_operands():
    residual, columns = whole(M, N), np.empty((N, M), np.float32).T
    reads: tuple[dict[str, Any], ...] = ({}, {"residual": residual})
    writes: tuple[dict[str, Any], ...] = ({}, {"pre": columns})
    for given, wanted in zip(reads, (X, X + residual), strict=True):
        for more in writes:
            d, pre, wide = codegen.matmul(A, B, epilogue=elsewhere, **given, **more)
            assert d is None
            np.testing.assert_array_equal(pre, wanted)
            np.testing.assert_array_equal(wide, X)


def test_batches_and_groups_and_two_sums():
    both = np.stack([A, -A])
    for b in (B, np.stack([B, B + 1])):
        _, _, picked = codegen.matmul(both, b, epilogue=loss, **GIVEN)
        exact = both @ b
        np.testing.assert_array_equal(picked, exact[:, np.arange(M), GIVEN["target"]])
    offsets, b = np.array([0, 10, 10, 30], np.int32), np.stack([B, B + 1, -B])
    d, _, picked = codegen.grouped_matmul(A, b, offsets, epilogue=loss, **GIVEN)
    assert d is None
    sums = np.concatenate([A[:10] @ b[0], A[10:30] @ b[2]])
    np.testing.assert_array_equal(picked[:30], sums[np.arange(30), GIVEN["target"][:30]])
    d, amax = codegen.matmul(A, np.concatenate([B, -B], 1), epilogue=largest)
    assert (d, amax) == (None, (X**2).max())


@pytest.mark.parametrize("shape", [(3, 0, 2), (3, 4, 0), (0, 4, 2)], ids=str)
def test_extents_of_zero(shape: tuple[int, int, int]):
    m, n, k = shape
    column, target = np.arange(n, dtype="i4"), np.zeros(m, "i4")
    a, b = np.ones((m, k), np.float32), np.ones((k, n), np.float32)
    d, total, picked = codegen.matmul(a, b, epilogue=loss, column=column, target=target)
    assert d is None
    np.testing.assert_allclose(total, [np.log(n) if n else -np.inf] * m)
    assert picked.tolist() == [0] * m


def test_measuring_plans_is_refused():
    with pytest.raises(LaunchError, match="tune=True compares D"):
        codegen.matmul(A, B, epilogue=loss, tune=True, **GIVEN)
