"""Indices of epilogues on the CPU and in the interpreter: each element gets its own position."""

from __future__ import annotations

from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest

import codegen
from coordgraph import Gemm
from coordgraph.interpreter.arguments import Array
from passes import Pipeline
from tests.support.indices import causal, gated, positions, positions_of, unstored
from tests.support.lists import Sizes, ends_of, views
from tests.support.sampling import cover, kinds, quick_cases

SCHEDULES = (
    "data-parallel",
    "data-parallel{persistent=true,workgroups=3}",
    "stream-k{workgroups=5}",
    "stream-k{workgroups=5,owner=last,reduction=turnstile}",
    "stream-k{workgroups=5,reduction=scatter}",
    "stream-k{workgroups=5,reduction=atomic}",
    "split-k{splits=3}",
    "two-tile-stream-k{workgroups=4}",
    "two-tile-stream-k{workgroups=4,reduction=tree}",
    "heterogeneous-tiles{workgroups=3}",
)
TARGETS = ("interpreter", "cpu")
M, N, K = 20, 27, 40
OFFSETS = np.array([0, 9, 9, 20], np.int32)
"""The first row of each of three groups, of which the second is empty, and the end of the last."""


def kernel(target: str, schedule: str, function: Any = positions, **problem: Any) -> Any:
    gemm = Gemm("f32", epilogue=function, **problem)
    return codegen.compile(Pipeline.parse(schedule)(gemm.graph((8, 8, 8))), target)


def whole(*shape: int) -> Array:
    return np.random.default_rng(1).integers(-2, 3, shape).astype(np.float32)


@quick_cases(4)
@pytest.mark.parametrize(
    ("schedule", "target"), cover(0, product(SCHEDULES, TARGETS), kinds), ids=str
)
def test_every_schedule_and_reduction(schedule: str, target: str):
    """Each element gets its own indices, whichever workgroup finishes its tile."""
    a, b = whole(M, K), whole(K, N)
    exact = np.where(np.tri(M, N) > 0, a @ b, -np.inf)
    np.testing.assert_array_equal(kernel(target, schedule, causal)(a, b), exact)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "problem",
    [
        {},
        {"transpose_a": True, "transpose_b": True},
        {"parts": "stacked"},
        {"parts": "interleaved"},
    ],
    ids=str,
)
def test_one_product(target: str, problem: dict[str, Any]):
    """The index along l of a single product is 0; the index along n is D's column, not B's."""
    function = gated if "parts" in problem else positions
    a, b = whole(M, K), whole(K, N * len(function.sums))
    a, b = (x.T if problem.get(f"transpose_{n}") else x for x, n in ((a, "a"), (b, "b")))
    made = kernel(target, "stream-k{workgroups=5}", function, **problem)
    made = made(np.ascontiguousarray(a), np.ascontiguousarray(b))
    np.testing.assert_array_equal(made, positions_of(M, N))


@pytest.mark.parametrize("target", TARGETS)
def test_a_batch(target: str):
    d = kernel(target, "stream-k{workgroups=5}", batched=True)(whole(3, M, K), whole(3, K, N))
    np.testing.assert_array_equal(d, [positions_of(M, N, product) for product in range(3)])


@pytest.mark.parametrize("target", TARGETS)
def test_groups_of_rows(target: str):
    """The row of an element counts from the first row of its own group."""
    made = kernel(target, "stream-k{workgroups=5}", grouped=True)
    d = made(whole(M, K), whole(3, K, N), offsets=OFFSETS)
    parts = [positions_of(end - begin, N, g) for g, (begin, end) in enumerate(pairwise(OFFSETS))]
    np.testing.assert_array_equal(d, np.concatenate(parts))


@pytest.mark.parametrize("target", TARGETS)
def test_groups_of_k(target: str):
    made = kernel(target, "stream-k{workgroups=5}", grouped=True, group_axis="k")
    d = made(whole(M, K), whole(K, N), offsets=np.array([0, 11, 11, 40], np.int32))
    np.testing.assert_array_equal(d, [positions_of(M, N, group) for group in range(3)])


@pytest.mark.parametrize("target", TARGETS)
def test_a_list_of_products(target: str):
    """Rows and columns count from the first of the element's own matrix."""
    sizes: list[Sizes] = [(20, 27, 12), (0, 9, 3), (9, 8, 0), (17, 33, 40)]
    made = kernel(target, "stream-k{workgroups=5}", grouped=True, group_axis="mnk")
    a, _ = views([(m, k) for m, _, k in sizes], fill=1)
    b, _ = views([(k, n) for _, n, k in sizes], fill=1)
    out, parts = views([(m, n) for m, n, _ in sizes])
    made(a, b, out=out, offsets=ends_of(sizes))
    for group, (d, (m, n, _)) in enumerate(zip(parts, sizes, strict=True)):
        np.testing.assert_array_equal(d, positions_of(m, n, group))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("grouped", [False, True])
def test_rows_count_before_they_are_scattered(target: str, grouped: bool):
    """If a table scatters rows, the index is the row of the product, not that of D."""
    targets = np.random.default_rng(2).permutation(M).astype(np.int32)
    options: dict[str, Any] = {"offsets": OFFSETS} if grouped else {}
    made = kernel(target, "stream-k{workgroups=5}", grouped=grouped, scattered_rows=True)
    b = whole(3, K, N) if grouped else whole(K, N)
    d = made(whole(M, K), b, out=np.zeros((M, N), np.float32), targets=targets, **options)
    borders = OFFSETS if grouped else (0, M)
    parts = [positions_of(end - begin, N, g) for g, (begin, end) in enumerate(pairwise(borders))]
    np.testing.assert_array_equal(d[targets], np.concatenate(parts))


@pytest.mark.parametrize("target", TARGETS)
def test_d_that_is_not_stored(target: str):
    made = kernel(target, "stream-k{workgroups=5}", unstored)
    _, first, copy = made(whole(M, K), whole(K, N))
    np.testing.assert_array_equal(first, np.tile(-8 * np.arange(4), (M, 1)))
    np.testing.assert_array_equal(copy, positions_of(M, N))
