"""Lists of products give right results on the CPU target and in the interpreter.

Results are compared with float64, and invalid calls are refused.
"""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import codegen
from coordgraph import Gemm, LaunchError
from coordgraph.interpreter.arguments import numpy_dtype
from passes import Pipeline
from tests.codegen.cpu.kernels import OUTPUTS, SUMS, guarded, untouched
from tests.support.lists import Sizes, drawn, ends_of, views
from tests.support.sampling import chosen, quick_cases

TILE = (12, 24, 16)
SCHEDULES = (
    "data-parallel{persistent=true}",
    "stream-k",
    "stream-k{owner=last}",
    "stream-k{owner=last,reduction=tree}",
    "stream-k{owner=last,reduction=turnstile}",
    "stream-k{owner=last,reduction=atomic}",
    "stream-k{least=3,reduction=scatter}",
    "two-tile-stream-k{reduction=scatter}",
    "hybrid-stream-k{owner=last,reduction=turnstile}",
    "longest-first,data-parallel{persistent=true}",
    "longest-first,stream-k{owner=last}",
)
LAYOUTS = ("nn", "nt", "tn", "tt")
QUICK = (
    ("data-parallel{persistent=true}", "nn", "bf16"),
    ("stream-k{owner=last,reduction=turnstile}", "tn", "f32"),
    ("two-tile-stream-k{reduction=scatter}", "nt", "bf16"),
    ("longest-first,stream-k{owner=last}", "tt", "f32"),
)
DTYPES = ("f32", "bf16")
TARGETS = ("cpu", "interpreter")
NAN, INF = float("nan"), float("inf")
BEFORE = 7.0
"""The value of D before a launch; elements between the matrices must keep it."""


@cache
def kernel(
    name: str = "stream-k",
    dtype: str = "f32",
    layout: str = "nn",
    target: str = "cpu",
    out_dtype: str | None = None,
) -> Any:
    a, b = (side == "t" for side in layout)
    gemm = Gemm(dtype, out_dtype, transpose_a=a, transpose_b=b, grouped=True, group_axis="mnk")
    return codegen.compile(Pipeline.parse(name)(gemm.graph(TILE)), target)


class List:
    """A list of products with NaN between the matrices, and the expected matrices D."""

    def __init__(self, made: Any, sizes: list[Sizes]) -> None:
        random, gemm = np.random.default_rng(len(sizes)), made.graph.gemm
        self.made, self.sizes, self.offsets = made, sizes, ends_of(sizes)
        self.turned = (gemm.transpose_a, gemm.transpose_b)
        self.dtype = gemm.out_dtype
        given, out = map(numpy_dtype, (gemm.dtype, gemm.out_dtype))
        stored_a = [(k, m) if gemm.transpose_a else (m, k) for m, _, k in sizes]
        stored_b = [(n, k) if gemm.transpose_b else (k, n) for _, n, k in sizes]
        self.pool_a, self.a = views(stored_a, given)
        self.pool_b, self.b = views(stored_b, given)
        self.pool_c, self.c = views([(m, n) for m, n, _ in sizes], out)
        for x in (*self.a, *self.b, *self.c):
            x[...] = random.standard_normal(x.shape)

    def run(self, alpha: float = 1.0, beta: float = 0.0, **options: Any) -> np.ndarray:
        out = guarded(np.full(self.pool_c.size, BEFORE, self.pool_c.dtype))
        a, b = guarded(self.pool_a), guarded(self.pool_b)
        c = self.pool_c if beta else None
        options = {"offsets": self.offsets, **options}
        assert self.made(a, b, c, out=out, alpha=alpha, beta=beta, **options) is out
        assert untouched(out)
        return out

    def check(self, alpha: float = 1.0, beta: float = 0.0, **options: Any) -> None:
        """Compare every product with float64; elements between the matrices must be unchanged."""
        d, products = views([(m, n) for m, n, _ in self.sizes], self.pool_c.dtype)
        inside, masks = views([(m, n) for m, n, _ in self.sizes], np.bool_, fill=False)
        for mask in masks:
            mask[...] = True
        found = self.run(alpha, beta, **options)
        assert (found[~inside] == BEFORE).all()
        d[...] = found
        for product, *operands in zip(products, self.a, self.b, self.c, strict=True):
            x, y, c = (part.astype(np.float64) for part in operands)
            left, right = x.T if self.turned[0] else x, y.T if self.turned[1] else y
            wanted = alpha * (left @ right) + beta * c
            size = abs(alpha) * (abs(left) @ abs(right)) + abs(beta * c)
            allowed = SUMS[self.dtype] * size + 1.01 * OUTPUTS[self.dtype] * abs(wanted)
            assert (abs(product.astype(np.float64) - wanted) <= allowed).all()


extents = st.integers(0, 50)
lists = st.lists(st.tuples(extents, extents, extents), min_size=1, max_size=6)
CORNERS: tuple[list[Sizes], ...] = (
    [(1, 1, 1)],
    [(12, 24, 16), (24, 48, 32)],
    [(5, 9, 0), (13, 25, 17), (7, 0, 9), (0, 3, 40)],
    [(0, 30, 40), (9, 0, 17)],
    [(0, 0, 0)],
    [(9, 7, 0), (3, 1, 0)],
    [(1, 1, 200), (60, 3, 5), (2, 90, 3)],
)


@quick_cases(1)
@pytest.mark.parametrize(
    ("name", "layout", "dtype"), chosen(QUICK, itertools.product(SCHEDULES, LAYOUTS, DTYPES))
)
def test_lists(name: str, layout: str, dtype: str):
    made = kernel(name, dtype, layout)

    def on(sizes: list[Sizes], workgroups: int):
        problem = List(made, sizes)
        problem.check(workgroups=workgroups, threads=2)
        problem.check(-0.5, 2.0, workgroups=workgroups, threads=2)

    for sizes in CORNERS:
        on(sizes, 5)
    settings(max_examples=6)(given(lists, st.integers(1, 20))(on))()


@quick_cases(1)
@pytest.mark.parametrize(
    ("name", "layout"),
    chosen(
        [(SCHEDULES[0], "tn"), (SCHEDULES[6], "nt")], itertools.product(SCHEDULES[::3], LAYOUTS)
    ),
)
def test_the_interpreter_as_a_target(name: str, layout: str):
    made = kernel(name, "f32", layout, "interpreter")
    for sizes in CORNERS[:6]:
        problem = List(made, sizes)
        problem.check(workgroups=3)
        problem.check(-0.5, 2.0, workgroups=3)


def test_neighbours_that_are_no_numbers():
    made = kernel("stream-k{owner=last}", layout="tn")
    problem = List(made, [(13, 30, 40)] * 5)
    for group, bad in ((1, NAN), (3, INF)):
        problem.a[group][...] = bad
    d, products = views([(13, 30)] * 5)
    d[...] = problem.run(workgroups=4)
    for group, product in enumerate(products):
        if group in (1, 3):
            assert not np.isfinite(product).any()
        else:
            wanted = problem.a[group].astype(np.float64).T @ problem.b[group]
            np.testing.assert_allclose(product, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@settings(max_examples=5)
@given(lists.filter(lambda sizes: any(m * n for m, n, _ in sizes)), st.integers(1, 9))
@example([(13, 9, 0), (5, 3, 33)], 3)
def test_other_types(sizes: list[Sizes], workgroups: int):
    """Lists of products give right results for f16 inputs with f32 sums and D, and for f64."""
    for made in (kernel(dtype="f16", layout="tn", out_dtype="f32"), kernel(dtype="f64")):
        List(made, sizes).check(workgroups=workgroups)


def test_other_lists_need_no_other_kernel():
    """A compiled kernel accepts any number of products up to the maximum: more or fewer than in its
    first call, or one.
    """
    made, random = kernel("stream-k{owner=last}"), np.random.default_rng(0)
    for groups in (4, 4, 9, 2, 1, 64):
        List(made, drawn(random, groups, 40)).check()


def test_offsets_are_read_at_every_call():
    """A kernel reads the offsets of a list at every call: the caller may change them in place."""
    made, offsets = kernel(), np.zeros((3, 3), np.int32)
    for sizes in ([(9, 8, 20), (3, 16, 2)], [(12, 8, 1), (0, 16, 21)], [(3, 24, 0), (9, 0, 22)]):
        offsets[...] = ends_of(sizes)
        List(made, sizes).check(offsets=offsets)


@pytest.mark.parametrize("target", TARGETS)
def test_offsets_may_begin_anywhere(target: str):
    """The first offset along an axis may be any number, since extents are differences of offsets.
    """
    problem = List(kernel(target=target), [(13, 9, 20), (0, 3, 1), (2, 30, 33)])
    problem.check(offsets=problem.offsets + np.array([[7], [100], [3]], np.int32))


@pytest.mark.parametrize("target", TARGETS)
def test_vectors_without_elements(target: str):
    """A and B may be empty where k = 0 for all products, and D where m or n is 0."""
    made, nothing = kernel(target=target), np.zeros(0, np.float32)
    offsets, c = ends_of([(3, 9, 0), (1, 2, 0)]), np.arange(56, dtype=np.float32)
    out = np.full(56, BEFORE, np.float32)
    made(nothing, nothing, c, out=out, alpha=NAN, beta=2.0, offsets=offsets)
    inside, masks = views([(3, 9), (1, 2)], np.bool_, fill=False)
    for mask in masks:
        mask[...] = True
    assert np.array_equal(out, np.where(inside, 2 * c, BEFORE))
    only_b = np.full(72, NAN, np.float32)
    out = np.full(56, BEFORE, np.float32)
    made(nothing, only_b, out=out, offsets=ends_of([(3, 9, 0), (0, 8, 9)]))
    assert np.array_equal(out, np.where(inside & (np.arange(56) < 48), 0, BEFORE))
    assert made(nothing, nothing, out=nothing, offsets=ends_of([(0, 4, 9)])) is nothing
    assert made(nothing, nothing, out=out, offsets=np.zeros((3, 1), np.int32)) is out


def call(target: str = "cpu", **changes: Any) -> Any:
    """Call a kernel with two products, (m, n, k) = (3, 9, 5) and (2, 2, 2), and return D.

    `changes` replaces or adds arguments of the call.
    """
    arguments: dict[str, Any] = {
        "a": np.zeros(40, np.float32),
        "b": np.zeros(96, np.float32),
        "out": np.zeros(64, np.float32),
        "offsets": ends_of([(3, 9, 5), (2, 2, 2)]),
    }
    return kernel(target=target)(**{**arguments, **changes})


@pytest.mark.parametrize("target", TARGETS)
def test_the_call_that_is_changed_is_right(target: str):
    assert call(target, c=np.zeros(64, np.float32), beta=1.0).shape == (64,)
    longer = {name: np.zeros(100, np.float32) for name in ("a", "b", "out")}
    assert call(target, **longer) is longer["out"]


RISING = np.array([[0, 3, 5], [0, 9, 11], [0, 5, 7]], np.int32)


def changed(axis: int, *entries: int) -> np.ndarray:
    offsets = RISING.copy()
    offsets[axis] = entries
    return offsets


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"offsets": None}, "offsets are missing; pass where each group begins"),
        ({"offsets": RISING[0]}, r"offsets has the shape 3, but 3 x \(groups \+ 1\) is needed"),
        ({"offsets": RISING[:2]}, r"offsets has the shape 2x3, but 3 x \(groups \+ 1\) is needed"),
        (
            {"offsets": RISING[:, :0]},
            r"offsets has the shape 3x0, but 3 x \(groups \+ 1\) is needed",
        ),
        (
            {"offsets": RISING[None]},
            r"offsets has the shape 1x3x3, but 3 x \(groups \+ 1\) is needed",
        ),
        ({"offsets": np.array(4, np.int32)}, "offsets has the shape a scalar"),
        ({"offsets": RISING.astype(np.int64)}, "offsets holds int64, but must hold i32"),
        ({"offsets": RISING.astype(np.float32)}, "offsets holds f32, but the kernel takes i32"),
        ({"offsets": np.zeros((3, 6), np.int32)[:, ::2]}, "offsets is not contiguous"),
        ({"offsets": np.zeros((3, 66), np.int32)}, "groups = 65 is outside 1..64"),
        ({"offsets": changed(0, 0, 3, 2)}, "entries must be non-decreasing"),
        ({"offsets": changed(1, 0, -1, 2)}, "n_offsets.* entries must be non-decreasing"),
        ({"offsets": changed(0, -1, 3, 5)}, "m_offsets.* is negative"),
        ({"offsets": changed(2, 1, 0, 2)}, "entries must be non-decreasing"),
        ({"offsets": changed(0, 0, 3, 2**31 - 1)}, "is larger than 1073741824"),
        ({"out": None}, "argument 'out' is missing"),
        ({"a": np.zeros((5, 8), np.float32)}, "a has shape 5x8; a vector is needed"),
        ({"b": np.zeros((12, 8), np.float32)}, "b has shape 12x8; a vector is needed"),
        ({"out": np.zeros((8, 8), np.float32)}, "out has shape 8x8; a vector is needed"),
        ({"a": np.zeros(39, np.float32)}, r"a_starts\[2\] = 40 is larger than 39"),
        ({"b": np.zeros(95, np.float32)}, r"b_starts\[2\] = 96 is larger than 95"),
        ({"out": np.zeros(63, np.float32)}, r"d_starts\[2\] = 64 is larger than 63"),
        ({"beta": 1.0}, "needs c"),
        ({"c": np.zeros(63, np.float32), "beta": 1.0}, "c is 63, but 64 is needed"),
        ({"c": np.zeros((8, 8), np.float32), "beta": 1.0}, "c has shape 8x8; a vector is needed"),
        ({"a": np.zeros(80, np.float32)[::2]}, "a is not contiguous"),
        ({"out": np.zeros(128, np.float32)[::2]}, "out is not contiguous"),
        ({"out": np.zeros(64, np.float64)}, "out holds f64"),
    ],
)
def test_refusals(changes: dict[str, Any], why: str, target: str):
    with pytest.raises(LaunchError, match=why):
        call(target, **changes)


def test_no_overlap():
    memory = np.zeros(300, np.float32)
    with pytest.raises(LaunchError, match="'out' overlaps a"):
        call(a=memory[:40], out=memory[39:103])
    held = np.zeros(64, np.float32)
    assert call(c=held, out=held, beta=1.0) is held


def test_kernels_of_other_groups_take_other_offsets():
    graph = Pipeline.parse("stream-k")(Gemm("f32", grouped=True).graph(TILE))
    rows, a, b = codegen.compile(graph, "cpu"), np.zeros((5, 4), np.float32), np.zeros((2, 4, 3))
    with pytest.raises(LaunchError, match="offsets has shape 3x3; a vector is needed"):
        rows(a, b.astype(np.float32), offsets=RISING)
