"""Lists of matrices are packed in a vector at the right offsets, and multiplied correctly."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import codegen
from codegen import lists
from coordgraph import Gemm, LaunchError
from coordgraph.gemm import MOST_TOGETHER
from passes import StreamK

EXTENT = st.integers(0, 20)


@cache
def kernel() -> codegen.Kernel:
    gemm = Gemm("f32", grouped=True, group_axis="mnk", transpose_b=True)
    return codegen.compile(StreamK(workgroups=3)(gemm.graph((8, 16, 8))), "cpu")


def test_rows_begin_at_multiples_of_eight():
    one, other = np.array([[1, 2, 3], [4, 5, 6]], np.float32), np.full((1, 9), 7, np.float32)
    vector = lists.pack([one, other])
    rows = [[1, 2, 3, 0, 0, 0, 0, 0], [4, 5, 6, 0, 0, 0, 0, 0], [7] * 8, [7, *[0] * 7]]
    assert vector.dtype == np.float32
    np.testing.assert_array_equal(vector.reshape(4, 8), rows)


@given(st.lists(st.tuples(EXTENT, EXTENT), min_size=1, max_size=5), st.sampled_from("fd"))
def test_what_is_packed_is_unpacked(shapes: list[tuple[int, int]], kind: str):
    random = np.random.default_rng(len(shapes))
    matrices = [random.standard_normal(shape).astype(kind) for shape in shapes]
    vector = lists.pack([np.asfortranarray(matrix) for matrix in matrices])
    assert vector.shape == lists.empty(shapes, vector).shape
    found = lists.unpack(vector, shapes)
    for matrix, place in zip(matrices, found, strict=True):
        np.testing.assert_array_equal(matrix, place)
        assert not place.size or np.shares_memory(place, vector)


@given(st.lists(st.tuples(EXTENT, EXTENT, EXTENT), min_size=1, max_size=4))
def test_kernels_take_them(sizes: list[tuple[int, int, int]]):
    random = np.random.default_rng(len(sizes))
    a = [random.standard_normal((m, k)).astype(np.float32) for m, _, k in sizes]
    b = [random.standard_normal((n, k)).astype(np.float32) for _, n, k in sizes]
    shapes = [(m, n) for m, n, _ in sizes]
    packed_a, packed_b = lists.pack(a), lists.pack(b)
    out = lists.empty(shapes, packed_a)
    kernel()(packed_a, packed_b, out=out, offsets=lists.offsets(sizes, out))
    for x, y, d in zip(a, b, lists.unpack(out, shapes), strict=True):
        np.testing.assert_allclose(d, x @ y.T, atol=1e-4)


def test_offsets():
    found = lists.offsets([(3, 5, 4), (0, 9, 2)], np.zeros(1))
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, [[0, 3, 3], [0, 5, 14], [0, 4, 6]])


def test_what_is_refused():
    matrix = np.zeros((2, 3))
    for matrices, told in (
        ([], "pass at least one matrix"),
        ([matrix, np.zeros(3)], r"matrices\[1\] has 1 axes"),
        ([matrix, matrix.astype("f")], r"has the type float32, but matrices\[0\] has float64"),
        (
            [matrix, [[1]]],
            "a list is given, which is no array; pass an array of numpy, torch, cupy",
        ),
    ):
        with pytest.raises(LaunchError, match=told):
            lists.pack(matrices)
    with pytest.raises(LaunchError, match="has 15 elements, but the matrices need 16"):
        lists.unpack(np.zeros(15), [(2, 3)])
    with pytest.raises(LaunchError, match="the vector has 2 axes"):
        lists.unpack(np.zeros((4, 4)), [(2, 3)])
    for size, told in (
        ((-1, 2, 3), r"sizes\[0\] = -1 must be at least 0"),
        ((1.5, 2, 3), r"sizes\[0\] = 1.5 is not a whole number"),
        ((1, 2), r"sizes\[0\] = \(1, 2\) has 2 numbers; pass m, n and k"),
    ):
        with pytest.raises(LaunchError, match=told):
            lists.offsets([size], matrix)  # type: ignore[list-item]
    with pytest.raises(LaunchError, match=r"add up to [0-9]+ along m, n or k"):
        lists.offsets([(1, 1, MOST_TOGETHER), (1, 1, 1)], matrix)
