"""Groups along k give right results on the CPU target, and invalid calls are refused."""

from __future__ import annotations

from functools import cache
from itertools import pairwise, product
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
from tests.support.sampling import chosen, quick_cases

TILE = (12, 24, 16)
SCHEDULES = (
    "data-parallel",
    "data-parallel{persistent=true}",
    "stream-k",
    "stream-k{owner=last}",
    "stream-k{owner=last,reduction=tree}",
    "stream-k{owner=last,reduction=turnstile}",
    "stream-k{owner=last,reduction=atomic}",
    "stream-k{least=3,reduction=scatter}",
    "rasterize{width=2},stream-k{reduction=turnstile}",
)
LAYOUTS = ("nn", "nt", "tn", "tt")
QUICK = (
    ("data-parallel", "nn", "bf16"),
    ("stream-k{owner=last,reduction=tree}", "tn", "f32"),
    ("stream-k{least=3,reduction=scatter}", "tt", "f32"),
    ("rasterize{width=2},stream-k{reduction=turnstile}", "nt", "bf16"),
)
DTYPES = ("f32", "bf16")
NAN, INF = float("nan"), float("inf")


@cache
def kernel(name: str = "stream-k", dtype: str = "f32", layout: str = "nn", **gemm: Any) -> Any:
    turned = {"transpose_a": layout[0] == "t", "transpose_b": layout[1] == "t"}
    graph = Gemm(dtype, grouped=True, group_axis="k", **turned, **gemm).graph(TILE)
    return codegen.compile(Pipeline.parse(name)(graph), "cpu")


def draw(random: np.random.Generator, dtype: str, *shape: int) -> np.ndarray:
    return random.standard_normal(shape).astype(numpy_dtype(dtype))


def stored(matrix: np.ndarray, side: str) -> np.ndarray:
    """A matrix as the kernel's layout stores it: row-major, or as its transpose."""
    return guarded(matrix.T if side == "t" else matrix)


class Groups:
    """A problem grouped along k with NaN before and after the groups, and the expected D."""

    def __init__(
        self, dtype: str, m: int, n: int, sizes: list[int], first: int = 0, spare: int = 0
    ) -> None:
        random = np.random.default_rng((m, n, len(sizes)))
        self.dtype, self.offsets = dtype, np.cumsum([first, *sizes]).astype(np.int32)
        k = max(1, int(self.offsets[-1]) + spare)
        self.a, self.b = draw(random, dtype, m, k), draw(random, dtype, k, n)
        self.c = draw(random, dtype, len(sizes), m, n)
        for outside in (slice(0, first), slice(int(self.offsets[-1]), k)):
            self.a[:, outside], self.b[outside] = NAN, INF

    def run(self, made: Any, alpha: float = 1.0, beta: float = 0.0, **options: Any) -> np.ndarray:
        """Run the kernel on a D that is filled with NaN, and return D."""
        turned = (made.graph.gemm.transpose_a, made.graph.gemm.transpose_b)
        a, b = (stored(x, "nt"[turn]) for x, turn in zip((self.a, self.b), turned, strict=True))
        out = guarded(np.full(self.c.shape, NAN, self.c.dtype))
        if "workgroups" not in made.graph.parameters:
            options.pop("workgroups", None)
        c = self.c if beta else None
        options = {"offsets": self.offsets, "threads": 2, **options}
        assert made(a, b, c, out=out, alpha=alpha, beta=beta, **options) is out
        assert untouched(out)
        return out

    def check(self, d: np.ndarray, alpha: float = 1.0, beta: float = 0.0) -> None:
        """Compare every group with float64; a group with k = 0 is zeros, or beta·C."""
        a, b, c, d = (x.astype(np.float64) for x in (self.a, self.b, self.c, d))
        for group, (begin, end) in enumerate(pairwise(map(int, self.offsets))):
            left, right = a[:, begin:end], b[begin:end]
            wanted = alpha * (left @ right) + beta * c[group]
            size = abs(alpha) * (abs(left) @ abs(right)) + abs(beta * c[group])
            allowed = SUMS[self.dtype] * size + 1.01 * OUTPUTS[self.dtype] * abs(wanted)
            assert (abs(d[group] - wanted) <= allowed).all(), group
            if begin == end and not beta:
                assert not d[group].any()


group_sizes = st.lists(st.integers(0, 3 * TILE[2] + 1), min_size=1, max_size=6)


@quick_cases(1)
@pytest.mark.parametrize(
    ("name", "layout", "dtype"), chosen(QUICK, product(SCHEDULES, LAYOUTS, DTYPES))
)
def test_groups(name: str, layout: str, dtype: str):
    made = kernel(name, dtype, layout)

    @given(
        group_sizes,
        st.integers(0, 3),
        st.integers(0, 3),
        st.integers(1, 30),
        st.integers(1, 50),
        st.integers(1, 20),
    )
    @settings(max_examples=10)
    @example([0], 0, 0, 5, 5, 3)
    @example([0, 0, 0], 2, 3, 13, 30, 2)
    @example([16, 32, 0, 1, 15, 17], 1, 1, 24, 48, 4)
    @example([100], 0, 0, 12, 24, 20)
    def on(sizes: list[int], first: int, spare: int, m: int, n: int, workgroups: int):
        problem = Groups(dtype, m, n, sizes, first, spare)
        problem.check(problem.run(made, workgroups=workgroups))
        problem.check(problem.run(made, -0.5, 2.0, workgroups=workgroups), -0.5, 2.0)

    on()


@pytest.mark.parametrize(("layout", "dtype"), chosen((("nt", "f32"),), product(LAYOUTS, DTYPES)))
def test_every_layout(layout: str, dtype: str):
    """Every layout works; NaN in the elements before and after a group does not change its
    result.
    """
    made, problem = kernel("stream-k{owner=last}", dtype, layout), Groups(dtype, 25, 50, [7] * 5)
    problem.a[:, 7:14], problem.b[21:28] = INF, NAN
    d = problem.run(made, workgroups=4)
    bad = [1, 3]
    assert all(not np.isfinite(d[group].astype(np.float64)).any() for group in bad)
    for group in set(range(5)) - set(bad):
        own = slice(7 * group, 7 * group + 7)
        left, right = (x.astype(np.float64) for x in (problem.a[:, own], problem.b[own]))
        error = abs(d[group].astype(np.float64) - left @ right)
        assert (error <= 1e-2 * (abs(left) @ abs(right))).all()


@pytest.mark.slow
def test_other_types():
    """Groups along k give right results for f16 inputs with f32 sums and D, and for f64."""
    mixed = kernel("stream-k", "f16", "tn", out_dtype="f32")
    random, offsets = np.random.default_rng(0), np.array([0, 5, 5, 40], np.int32)
    a, b = draw(random, "f16", 40, 20), draw(random, "f16", 40, 30)
    d = mixed(a, b, offsets=offsets)
    assert (d.shape, d.dtype) == ((3, 20, 30), np.float32)
    for group, (begin, end) in enumerate(pairwise(map(int, offsets))):
        wanted = a[begin:end].astype(np.float64).T @ b[begin:end].astype(np.float64)
        np.testing.assert_allclose(d[group], wanted, rtol=1e-5, atol=1e-5)
    problem = Groups("f64", 13, 25, [3, 0, 40])
    problem.check(problem.run(kernel("stream-k{owner=last}", "f64")))


def test_other_groups_need_no_other_kernel():
    """A compiled kernel accepts any number of groups, more or fewer than in its first call."""
    made, problem = kernel("stream-k{owner=last}"), Groups("f32", 20, 30, [64])
    for offsets in (
        [0, 16, 32, 48, 64],
        [0, 0, 64, 64, 64],
        [0, 1, 2, 3, 5],
        [7, 7, 9],
        [0, 64],
        [64, 64],
        list(range(65)),
    ):
        problem.offsets = np.array(offsets, np.int32)
        problem.c = np.ones((len(offsets) - 1, 20, 30), np.float32)
        problem.check(problem.run(made))
        problem.check(problem.run(made, 2.0, 3.0), 2.0, 3.0)


def test_offsets_are_read_at_every_call():
    """A kernel reads the group offsets at every call: the caller may change them in place."""
    made, problem = kernel("stream-k"), Groups("f32", 20, 30, [10, 20, 30])
    for end in (10, 35, 60, 0):
        problem.offsets[1:3] = (end // 2, end)
        problem.check(problem.run(made))


def test_numbers_for_sizes():
    made = kernel("stream-k{reduction=turnstile}", m=20, n=30, k=64)
    problem = Groups("f32", 20, 30, [3, 0, 60], spare=1)
    problem.check(problem.run(made))
    other = Groups("f32", 20, 30, [3])
    with pytest.raises(LaunchError, match="this kernel is for k = 64, but the tensors have k = 3"):
        other.run(made)


@pytest.mark.parametrize(
    ("name", "layout"),
    chosen([(SCHEDULES[2], "nt"), (SCHEDULES[1], "tn")], product(SCHEDULES[1:4], LAYOUTS)),
)
def test_no_k_at_all(name: str, layout: str):
    """With k = 0 for all groups D is zeros, or beta·C, whatever alpha is."""
    made, c = kernel(name, "f32", layout), np.arange(3 * 13 * 7, dtype=np.float32).reshape(3, 13, 7)
    a = np.zeros((0, 13) if layout[0] == "t" else (13, 0), np.float32)
    b = np.zeros((7, 0) if layout[1] == "t" else (0, 7), np.float32)
    offsets, out = np.zeros(4, np.int32), np.full((3, 13, 7), NAN, np.float32)
    d = made(a, b, offsets=offsets)
    assert d.shape == (3, 13, 7)
    assert not d.any()
    made(a, b, c, out=out, alpha=NAN, beta=2.0, offsets=offsets)
    assert np.array_equal(out, 2 * c)


def call(**changes: Any) -> Any:
    arguments: dict[str, Any] = {
        "a": np.zeros((9, 20), np.float32),
        "b": np.zeros((20, 5), np.float32),
        "offsets": np.array([0, 4, 9, 20], np.int32),
    }
    return kernel("stream-k")(**{**arguments, **changes})


def test_the_call_that_is_changed_is_right():
    assert call(c=np.zeros((3, 9, 5), np.float32), beta=1.0).shape == (3, 9, 5)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"offsets": None}, "offsets are missing; pass where each group begins"),
        ({"offsets": np.array([0, 4, 9, 21], np.int32)}, r"offsets\[3\] = 21 is larger than 20"),
        ({"offsets": np.array([0, 9, 4, 20], np.int32)}, "entries must be non-decreasing"),
        ({"offsets": np.array([-1, 4, 9, 20], np.int32)}, "is negative"),
        ({"offsets": np.array([0, 4, 9, 20], np.int64)}, "offsets holds int64, but must hold i32"),
        (
            {"offsets": np.array([0, 4, 9, 20], np.float32)},
            "offsets holds f32, but the kernel takes",
        ),
        ({"offsets": np.zeros((2, 2), np.int32)}, "offsets has shape 2x2; a vector is needed"),
        ({"offsets": np.array(4, np.int32)}, "offsets has shape a scalar; a vector is needed"),
        ({"offsets": np.zeros(8, np.int32)[::2]}, "offsets is not contiguous"),
        ({"offsets": np.array([], np.int32)}, "offsets is empty"),
        ({"offsets": np.zeros(513, np.int32)}, "groups = 512 is outside 1..511"),
        ({"a": np.zeros((3, 9, 20), np.float32)}, "a has shape 3x9x20; a matrix is needed"),
        ({"b": np.zeros((3, 20, 5), np.float32)}, "b has shape 3x20x5; a matrix is needed"),
        ({"b": np.zeros((19, 5), np.float32)}, "k would be 20 and 19"),
        ({"a": np.zeros((20, 9), np.float32).T}, "or its transpose to a kernel of .*transpose_a"),
        (
            {"c": np.zeros((9, 5), np.float32), "beta": 1.0},
            "c has shape 9x5; groups x m x n is needed",
        ),
        ({"c": np.zeros((2, 9, 5), np.float32), "beta": 1.0}, "c is 2x9x5, but 3x9x5 is needed"),
        ({"beta": 1.0}, "needs c"),
        ({"out": np.zeros((9, 5), np.float32)}, "out has shape 9x5; groups x m x n is needed"),
        ({"out": np.zeros((4, 9, 5), np.float32)}, "out is 4x9x5, but 3x9x5 is needed"),
        ({"out": np.zeros((6, 9, 5), np.float32)[::2]}, "out is not contiguous"),
        ({"out": np.zeros((3, 9, 5), np.float64)}, "out holds f64"),
    ],
)
def test_refusals(changes: dict[str, Any], why: str):
    with pytest.raises(LaunchError, match=why):
        call(**changes)


def test_no_overlap():
    memory = np.zeros(1000, np.float32)
    a, out = memory[:180].reshape(9, 20), memory[100:235].reshape(3, 9, 5)
    with pytest.raises(LaunchError, match="'out' overlaps a"):
        call(a=a, out=out)
    held = np.zeros((3, 9, 5), np.float32)
    assert call(c=held, out=held, beta=1.0) is held


def test_groups_along_m_take_other_shapes():
    """B is one matrix for each group along m, but a single matrix for all groups along k."""
    rows = codegen.compile(Pipeline.parse("stream-k")(Gemm("f32", grouped=True).graph(TILE)), "cpu")
    a, b = np.zeros((9, 20), np.float32), np.zeros((20, 5), np.float32)
    with pytest.raises(LaunchError, match="b has shape 20x5; groups x k x n is needed"):
        rows(a, b, offsets=np.array([0, 4, 9], np.int32))
