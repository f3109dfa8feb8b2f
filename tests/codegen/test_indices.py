"""`codegen.matmul` with indices in the epilogue: indices are those of the caller's D."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import codegen
from coordgraph import Gemm, LaunchError
from coordgraph import epilogue as ep
from coordgraph.interpreter.arguments import Array
from passes import Pipeline
from tests.support.indices import (
    causal,
    divided,
    dividends,
    gated,
    positions,
    positions_of,
    unstored,
)

M, N, K = 20, 27, 12
OFFSETS = np.array([0, 9, 9, 20], np.int32)


def whole(*shape: int) -> Array:
    return np.random.default_rng(1).integers(-2, 3, shape).astype(np.float32)


def column_major(*shape: int) -> Array:
    """A new array whose last two axes are exchanged in memory."""
    *outer, rows, columns = shape
    return np.zeros((*outer, columns, rows), np.float32).swapaxes(-1, -2)


@pytest.mark.parametrize("divisor", [2, 3, 48, 127, 65537])
def test_i32_are_divided_as_the_error_about_the_operator_advises(divisor: int):
    """Quotients are exact for dividends up to 2^23; `ep.div` itself takes only floats."""
    numbers = dividends(divisor)
    a, b = np.ones((1, 1), np.float32), np.ones((1, len(numbers)), np.float32)
    operands: Any = {"dividend": numbers, "quotient": numbers // divisor}
    assert codegen.matmul(a, b, epilogue=divided(divisor), **operands).all()
    operands["quotient"] = numbers // divisor + 1
    assert not codegen.matmul(a, b, epilogue=divided(divisor), **operands).any()


def test_calls_are_repeated():
    """A repeated call launches a kept kernel, without arguments for indices."""
    a, b = whole(M, K), whole(K, N)
    exact = np.where(np.tri(M, N) > 0, a @ b, -np.inf)
    for _ in range(3):
        np.testing.assert_array_equal(codegen.matmul(a, b, epilogue=causal), exact)


@pytest.mark.parametrize("shapes", [((M, K), (K, N)), ((3, M, K), (3, K, N)), ((3, M, K), (K, N))])
def test_a_column_major_d(shapes: tuple[tuple[int, ...], tuple[int, ...]]):
    """The kernel computes the transpose of D, in which rows and columns are exchanged."""
    a, b = (whole(*shape) for shape in shapes)
    out = column_major(*np.matmul(a, b).shape)
    codegen.matmul(a, b, epilogue=positions, out=out)
    expected = [positions_of(M, N, product) for product in range(3 if a.ndim == 3 else 1)]
    np.testing.assert_array_equal(out.reshape(-1, M, N), expected)


@pytest.mark.parametrize("shape", [(K, N), (1, K, N), (3, K, N)], ids=str)
def test_a_batch_with_one_b_is_not_computed_as_one_product(shape: tuple[int, ...]):
    """In one product with more rows, the rows of all products would be numbered together."""
    d = codegen.matmul(whole(3, M, K), whole(*shape), epilogue=positions)
    np.testing.assert_array_equal(d, [positions_of(M, N, product) for product in range(3)])


def test_groups_of_rows():
    d = codegen.grouped_matmul(whole(M, K), whole(3, K, N), OFFSETS, epilogue=positions)
    parts = [positions_of(end - begin, N, g) for g, (begin, end) in enumerate(pairwise(OFFSETS))]
    np.testing.assert_array_equal(d, np.concatenate(parts))


def test_gathered_and_scattered_rows():
    """The row is that of the product: not the row of the array A, nor that of the array D."""
    order = np.random.default_rng(2).permutation(M).astype(np.int32)
    given: dict[str, Any] = {"rows": order, "targets": order, "out": np.zeros((M, N), np.float32)}
    d = codegen.matmul(whole(M, K), whole(K, N), epilogue=positions, **given)
    np.testing.assert_array_equal(d[order], positions_of(M, N))


def test_a_tuple_of_b():
    """Two matrices B in separate memory; the column is that of D."""
    a, first, second = whole(M, K), whole(K, N), whole(K, N)
    for both in ((first, second), (second, first)):
        d = codegen.matmul(a, both, epilogue=gated)
        np.testing.assert_array_equal(d, positions_of(M, N))


@pytest.mark.parametrize(("m", "n", "k"), [(M, N, 0), (0, N, K), (M, 0, K)])
def test_extents_of_0(m: int, n: int, k: int):
    """The sums are 0 if k is 0, and the epilogue is applied to them."""
    d = codegen.matmul(whole(m, k), whole(k, n), epilogue=positions)
    np.testing.assert_array_equal(d, positions_of(m, n))


def test_a_d_that_is_not_stored():
    d, first, copy = codegen.matmul(whole(M, K), whole(K, N), epilogue=unstored)
    assert d is None
    np.testing.assert_array_equal(first, np.zeros(M))
    np.testing.assert_array_equal(copy, positions_of(M, N))


def test_integer_sums():
    """Indices and sums of 8-bit integers are both i32, so an epilogue adds them without a cast."""

    @ep.epilogue(row=ep.index("m"))
    def shifted(acc: Any, row: Any) -> Any:
        return acc + row

    a, b = (whole(*shape).astype(np.int8) for shape in ((M, K), (K, N)))
    d = codegen.matmul(a, b, epilogue=shifted)
    np.testing.assert_array_equal(d, a.astype(int) @ b + np.arange(M)[:, None])


def test_a_call_refuses_an_array_for_an_index():
    with pytest.raises(LaunchError, match=r"column is an index .* and the kernel computes it"):
        codegen.matmul(whole(M, K), whole(K, N), epilogue=causal, column=np.arange(N))
    graph = Pipeline.parse("data-parallel")(Gemm("f32", epilogue=causal).graph((16, 16, 8)))
    kernel = codegen.compile(graph, "cpu")
    with pytest.raises(LaunchError, match=r"column is an index .* and the kernel computes it"):
        kernel(whole(M, K), whole(K, N), column=np.arange(N))
