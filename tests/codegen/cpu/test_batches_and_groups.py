"""Batches and groups on the CPU target: results against float64, and calls that are refused."""

from __future__ import annotations

from functools import cache
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import codegen
from coordgraph import Gemm, LaunchError
from coordgraph.interpreter.arguments import numpy_dtype
from passes import Pipeline
from tests.codegen.cpu.kernels import OUTPUTS, SUMS, guarded, untouched
from tests.passes.schedules import schedule
from tests.support.sampling import chosen, quick_cases

TILE = (12, 24, 16)
GROUPED = (
    "data-parallel{persistent=true}",
    "stream-k",
    "stream-k{owner=last,reduction=tree}",
    "stream-k{owner=last,reduction=turnstile}",
    "stream-k{owner=last,reduction=atomic}",
    "two-tile-stream-k",
    "hybrid-stream-k{owner=last}",
    "two-tile-stream-k{owner=last,first=dp,waves=contiguous,least=6}",
)

QUICK = (
    ("data-parallel{persistent=true}", False, "bf16"),
    ("stream-k{owner=last,reduction=turnstile}", True, "f32"),
    ("stream-k{owner=last,reduction=atomic}", True, "f64"),
    ("hybrid-stream-k{owner=last}", False, "f32"),
)


@cache
def kernel(name: str, dtype: str = "f32", *steps: str, **gemm: Any) -> Any:
    graph = Gemm(dtype, **gemm).graph(TILE)
    for step in steps:
        graph = Pipeline.parse(step)(graph)
    return codegen.compile(schedule(name)(graph), "cpu")


def close(d: np.ndarray, a: np.ndarray, b: np.ndarray, dtype: str) -> bool:
    """Whether D equals A·B computed in float64, within rounding."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    wanted, size = a @ b, abs(a) @ abs(b)
    allowed = SUMS[dtype] * size + 1.01 * OUTPUTS[dtype] * abs(wanted)
    return bool((abs(d.astype(np.float64) - wanted) <= allowed).all())


def draw(random: np.random.Generator, dtype: str, *shape: int) -> np.ndarray:
    return guarded(random.standard_normal(shape).astype(numpy_dtype(dtype)))


@quick_cases(1)
@pytest.mark.parametrize(
    ("name", "transpose_b", "dtype"),
    chosen(QUICK, product(GROUPED, (False, True), ("f32", "bf16", "f64"))),
)
def test_groups(name: str, transpose_b: bool, dtype: str):
    made = kernel(name, dtype, grouped=True, transpose_b=transpose_b)

    @given(
        st.lists(st.integers(0, 40), min_size=1, max_size=7),
        st.integers(0, 3),
        st.integers(1, 50),
        st.integers(1, 40),
        st.integers(1, 7),
    )
    @settings(max_examples=12)
    def on(sizes: list[int], first: int, n: int, k: int, workgroups: int):
        random = np.random.default_rng((n, k))
        offsets = np.cumsum([first, *sizes]).astype(np.int32)
        a = draw(random, dtype, int(offsets[-1]) + 2, k)
        b = draw(random, dtype, len(sizes), *((n, k) if transpose_b else (k, n)))
        out = guarded(np.full((len(a), n), np.nan, numpy_dtype(dtype)))
        made(a, b, out=out, offsets=offsets, workgroups=workgroups, threads=2)
        for group, (begin, end) in enumerate(pairwise(map(int, offsets))):
            right = b[group].T if transpose_b else b[group]
            assert close(out[begin:end], a[begin:end], right, dtype), group
        assert np.isnan(out[:first].astype(np.float64)).all()
        assert np.isnan(out[offsets[-1] :].astype(np.float64)).all()
        assert untouched(out)

    on()


@quick_cases(1)
@pytest.mark.parametrize(
    "name", chosen(["data-parallel", GROUPED[2], GROUPED[5]], ["data-parallel", *GROUPED])
)
def test_batches(name: str):
    made = kernel(name, batched=True, transpose_a=True)

    @given(st.integers(1, 5), st.integers(1, 30), st.integers(1, 40), st.integers(1, 40))
    @settings(max_examples=12)
    def on(batches: int, m: int, n: int, k: int):
        random = np.random.default_rng((m, n, k))
        a, b = draw(random, "f32", batches, k, m), draw(random, "f32", batches, k, n)
        c, out = draw(random, "f32", batches, m, n), guarded(np.zeros((batches, m, n), np.float32))
        made(a, b, c, out=out, alpha=-1.0, beta=1.0, threads=2)
        wanted = c.astype(np.float64) - a.swapaxes(1, 2).astype(np.float64) @ b
        np.testing.assert_allclose(out, wanted, rtol=1e-5, atol=1e-4)
        assert untouched(out)

    on()


def test_batches_with_gaps_and_with_one_matrix_for_all():
    made, random = kernel("stream-k", batched=True), np.random.default_rng(0)
    a, b = draw(random, "f32", 6, 9, 10), draw(random, "f32", 10, 7)
    out = np.full((6, 9, 7), np.nan, np.float32)
    made(a[::2], np.broadcast_to(b, (3, 10, 7)), out=out[1::2])
    assert close(out[1::2], a[::2], b, "f32")
    assert np.isnan(out[::2]).all()


def test_other_groups_need_no_other_kernel():
    made, random = kernel("stream-k", grouped=True), np.random.default_rng(0)
    a, b = draw(random, "f32", 64, 20), draw(random, "f32", 4, 20, 30)
    for offsets in ([0, 16, 32, 48, 64], [0, 0, 64, 64, 64], [0, 1, 2, 3, 5]):
        d = made(a, b, offsets=np.array(offsets, np.int32))
        for group, (begin, end) in enumerate(pairwise(offsets)):
            assert close(d[begin:end], a[begin:end], b[group], "f32")


def call(**changes: Any) -> Any:
    arguments: dict[str, Any] = {
        "a": np.zeros((20, 8), np.float32),
        "b": np.zeros((3, 8, 5), np.float32),
        "offsets": np.array([0, 4, 9, 20], np.int32),
    }
    return kernel("stream-k", grouped=True)(**{**arguments, **changes})


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"offsets": None}, "offsets are missing"),
        ({"offsets": np.array([0, 4, 9], np.int32)}, "offsets has 3 entries, but 4 are needed"),
        ({"offsets": np.array([0, 4, 9, 20], np.int64)}, "offsets holds int64, but must hold i32"),
        ({"offsets": np.array([0, 9, 4, 20], np.int32)}, "entries must be non-decreasing"),
        (
            {"offsets": np.array([0, 4, 9, 20], np.float32)},
            "offsets holds f32, but the kernel takes i32; convert it$",
        ),
        (
            {"offsets": np.zeros(8, np.int32)[::2]},
            r"offsets is not contiguous \(strides \(2,\)\); pass a contiguous copy$",
        ),
        (
            {"a": np.zeros((20, 8), np.int32)},
            "a holds i32, but the kernel takes f32; convert it$",
        ),
        (
            {"c": np.zeros((5, 20), np.float32).T, "beta": 1.0},
            r"c is not contiguous row-major \(strides .*\); pass a contiguous copy$",
        ),
        ({"offsets": np.array([0, 4, 9, 21], np.int32)}, "= 21 is larger than 20"),
        ({"b": np.zeros((8, 5), np.float32)}, "b has shape 8x5; groups x k x n is needed"),
        ({"b": np.zeros((3, 7, 5), np.float32)}, "k would be 8 and 7"),
        ({"b": np.zeros((3, 5, 8), np.float32).swapaxes(1, 2)}, "b is not contiguous"),
        ({"out": np.zeros((9, 5), np.float32)}, "out is 9x5, but 20x5 is needed"),
    ],
)
def test_refusals_of_groups(changes: dict[str, Any], why: str):
    with pytest.raises(LaunchError, match=why):
        call(**changes)


def test_refusals_of_batches():
    made = kernel("stream-k", batched=True)
    a, b = np.zeros((3, 9, 10), np.float32), np.zeros((3, 10, 7), np.float32)
    with pytest.raises(LaunchError, match="offsets is given, but this kernel has no groups"):
        made(a, b, offsets=np.array([0, 1, 2, 3], np.int32))
    with pytest.raises(LaunchError, match="a has shape 9x10; batches x m x k is needed"):
        made(a[0], b)
    with pytest.raises(LaunchError, match="b is 2x10x7, but 3x10x7 is needed"):
        made(a, b[:2])
    with pytest.raises(LaunchError, match="a is not contiguous"):
        made(np.zeros((3, 9, 20), np.float32)[:, :, ::2], b)
    shared = np.lib.stride_tricks.as_strided(np.zeros((9, 7), np.float32), (3, 9, 7), (0, 28, 4))
    with pytest.raises(LaunchError, match="the matrices of out overlap"):
        made(a, b, out=shared)
    square, other = np.zeros((3, 10, 10), np.float32), np.zeros((3, 10, 10), np.float32)
    with pytest.raises(LaunchError, match="'out' overlaps a"):
        made(square, other, out=square)


def test_c_is_out_only_with_the_same_strides():
    made = kernel("stream-k", batched=True)
    random = np.random.default_rng(0)
    a, b, out = (random.standard_normal((3, 20, 20), dtype=np.float32) for _ in "abo")
    # C is one matrix for the whole batch, and also the first matrix of D: D would be written before
    # C is read.
    with pytest.raises(LaunchError, match="'out' overlaps c"):
        made(a, b, np.broadcast_to(out[0], out.shape), out, beta=1.0)
    expected = a @ b + out
    np.testing.assert_allclose(made(a, b, out, out, beta=1.0), expected, atol=1e-3)
