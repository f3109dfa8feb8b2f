"""int8 products equal 64-bit sums modulo 2^32, in the interpreter and on the CPU."""

from __future__ import annotations

from itertools import product as all_of
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import codegen
import coordgraph as cg
from codegen import lists
from codegen.call.arrangement import Arrangement
from codegen.call.views import numpy_view
from coordgraph import LaunchError
from passes import DataParallel, HybridStreamK, SplitK, StreamK, TwoTileStreamK
from tests.support.sampling import chosen, cover, quick_cases

TYPES = {"i8": np.int8, "u8": np.uint8}
OUTPUTS: dict[str, Any] = {
    "i32": np.int32,
    "f32": np.float32,
    "bf16": ml_dtypes.bfloat16,
    "f16": np.float16,
    "f64": np.float64,
}
SCHEDULES = (
    DataParallel(),
    DataParallel(persistent=True, workgroups=3),
    StreamK(workgroups=5),
    StreamK(workgroups=5, reduction="tree"),
    StreamK(workgroups=5, owner="last", reduction="turnstile"),
    StreamK(workgroups=5, owner="last", reduction="atomic"),
    StreamK(workgroups=5, reduction="scatter"),
    TwoTileStreamK(workgroups=3),
    HybridStreamK(workgroups=3, owner="last"),
    SplitK(splits=3),
)
every_type = pytest.mark.parametrize("dtype", TYPES)
targets = pytest.mark.parametrize("target", ["interpreter", "cpu"])


def product(a: Any, b: Any) -> Any:
    """A·B with sums modulo 2^32, as signed 32-bit integers."""
    return (a.astype(np.int64) @ b.astype(np.int64)).astype(np.int32)


def whole(dtype: str, *shape: int, seed: int = 0) -> Any:
    """Random integers, uniformly distributed over all values of a type."""
    kind = TYPES[dtype]
    info, random = np.iinfo(kind), np.random.default_rng((seed, *shape))
    return random.integers(info.min, info.max, shape, endpoint=True).astype(kind)


@st.composite
def problems(draw: st.DrawFn) -> tuple[str, Any, Any]:
    """(element type, A, B), drawn by Hypothesis.

    Few sizes are multiples of the tile; many elements are extreme values of the type.
    """
    dtype = draw(st.sampled_from(sorted(TYPES)))
    info = np.iinfo(TYPES[dtype])
    element = st.one_of(
        st.sampled_from((info.min, info.max, 0, 1)), st.integers(info.min, info.max)
    )
    m, n, k = (draw(st.integers(1, most)) for most in (21, 21, 40))
    a = draw(arrays(TYPES[dtype], (m, k), elements=element))
    b = draw(arrays(TYPES[dtype], (k, n), elements=element))
    return dtype, a, b


@settings(max_examples=5, deadline=None)
@given(problem=problems(), schedule=st.sampled_from(SCHEDULES))
def test_sums_are_exact(problem: tuple[str, Any, Any], schedule: Any):
    dtype, a, b = problem
    graph = schedule(cg.Gemm(dtype).graph((8, 16, 8)))
    want = product(a, b)
    for target in ("interpreter", "cpu"):
        assert np.array_equal(codegen.compile(graph, target)(a, b), want)


@quick_cases(1)
@targets
@every_type
def test_the_largest_sums_wrap_around(dtype: str, target: str):
    """Sums wrap modulo 2^32.

    From k = 2^17 on, sums of products of the types' extreme values exceed 31 bits.
    """
    info = np.iinfo(TYPES[dtype])
    extreme = info.min if info.min else info.max
    a = np.full((1, 140_000), extreme, TYPES[dtype])
    kernel = codegen.compile(StreamK(workgroups=3)(cg.Gemm(dtype).graph((8, 8, 4096))), target)
    assert np.array_equal(kernel(a, a.T.copy()), product(a, a.T))
    assert int(extreme) ** 2 * a.size > np.iinfo(np.int32).max


@quick_cases(1)
@pytest.mark.parametrize(
    ("target", "dtype", "out"), cover(0, all_of(["interpreter", "cpu"], TYPES, OUTPUTS))
)
def test_sums_are_rounded_where_d_is_a_float(dtype: str, target: str, out: str):
    a, b = whole(dtype, 23, 70), whole(dtype, 70, 19)
    graph = StreamK(workgroups=4)(cg.Gemm(dtype, out_dtype=out).graph((16, 16, 16)))
    with np.errstate(over="ignore"):  # converting sums above 65504 to f16 gives infinity
        found = codegen.compile(graph, target)(a, b)
        assert found.dtype == OUTPUTS[out]
        assert np.array_equal(found, product(a, b).astype(OUTPUTS[out]))


@targets
def test_scalars_are_whole_numbers(target: str):
    a, b, c = whole("i8", 9, 30), whole("i8", 30, 11), np.arange(99, dtype=np.int32).reshape(9, 11)
    kernel = codegen.compile(DataParallel()(cg.Gemm("i8").graph((8, 8, 8))), target)
    assert np.array_equal(kernel(a, b, c, alpha=-3, beta=2.0), -3 * product(a, b) + 2 * c)
    refused: tuple[tuple[dict[str, Any], str], ...] = (
        ({"alpha": 0.5}, "alpha = 0.5 scales sums of type i32, so it must be a whole number"),
        ({"c": c, "beta": 2**31}, "beta = 2147483648 .* to 2147483647"),
        ({"alpha": float("nan")}, "alpha = nan"),
        ({"alpha": "x"}, "alpha = 'x' is not a number"),
    )
    for wrong, why in refused:
        with pytest.raises(LaunchError, match=why):
            kernel(a, b, **wrong)
    floats = codegen.compile(DataParallel()(cg.Gemm("i8", out_dtype="f32").graph()), target)
    with pytest.raises(LaunchError, match="would add C, whose type is f32, to sums of type i32"):
        floats(a, b, c.astype(np.float32), beta=1)
    assert np.array_equal(floats(a, b, c.astype(np.float32), beta=0), product(a, b))


@pytest.mark.parametrize("dtype", chosen(["u8"], TYPES))
def test_matmul_takes_int8_arrays(dtype: str):
    a, b = whole(dtype, 3, 37, 50), whole(dtype, 3, 50, 29)
    want = np.stack([product(x, y) for x, y in zip(a, b, strict=True)])
    found = codegen.matmul(a[0], b[0])
    assert found.dtype == np.int32
    assert np.array_equal(found, want[0])
    assert np.array_equal(codegen.matmul(a, b), want)
    assert np.array_equal(codegen.matmul(a[0].T.copy().T, b[0], alpha=5), 5 * want[0])
    out = np.empty((37, 29), np.float32)
    codegen.matmul(a[0], b[0], out=out)
    assert np.array_equal(out, want[0])
    with pytest.raises(LaunchError, match=f"out holds {dtype}; .* or i32 here: convert it"):
        codegen.matmul(a[0], b[0], out=np.empty((37, 29), TYPES[dtype]))
    other = TYPES["u8" if dtype == "i8" else "i8"]
    with pytest.raises(LaunchError, match=f"the kernel takes {dtype}; convert it"):
        codegen.matmul(a[0], b[0].astype(other))


@every_type
def test_no_depth_makes_zeros(dtype: str):
    a, b = np.zeros((3, 0), TYPES[dtype]), np.zeros((0, 4), TYPES[dtype])
    d = codegen.matmul(a, b)
    assert d.dtype == np.int32
    assert np.array_equal(d, np.zeros((3, 4)))


@every_type
def test_groups_of_int8(dtype: str):
    a, b = whole(dtype, 37, 50), whole(dtype, 3, 50, 29)
    offsets = np.array([0, 10, 10, 37], np.int32)
    found = codegen.grouped_matmul(a, b, offsets)
    assert np.array_equal(found, np.concatenate([product(a[:10], b[0]), product(a[10:], b[2])]))


@quick_cases(1)
@targets
def test_lists_of_int8_have_rows_of_16(target: str):
    sizes = [(5, 7, 9), (3, 20, 17), (8, 1, 33)]
    a = [whole("i8", m, k) for m, _, k in sizes]
    b = [whole("i8", k, n) for _, n, k in sizes]
    out = lists.empty([(m, n) for m, n, _ in sizes], np.zeros(0, np.int32))
    gemm = cg.Gemm("i8", grouped=True, group_axis="mnk")
    graph = DataParallel(persistent=True, workgroups=2)(gemm.graph((8, 8, 8)))
    offsets = lists.offsets(sizes, a[0])
    codegen.compile(graph, target)(lists.pack(a), lists.pack(b), out=out, offsets=offsets)
    assert len(lists.pack(a)) == 16 * 5 + 32 * 3 + 48 * 8
    found = lists.unpack(out, [(m, n) for m, n, _ in sizes])
    for d, x, y in zip(found, a, b, strict=True):
        assert np.array_equal(d, product(x, y))


@every_type
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 40, 64), (40, 1, 64), (40, 24, 1), (1, 1, 64)])
def test_vectors_are_read_along_k(m: int, n: int, k: int, dtype: str, turned: bool):
    """Arrays of one row or column are passed in the form that instructions without transposes need.

    That form is m x k for A, and n x k for B.
    """
    a, b = whole(dtype, m, k), whole(dtype, n, k, seed=1)
    want = product(a, b.T)
    b = b if turned else b.T
    views = {"A": numpy_view(a, "a"), "B": numpy_view(b, "b")}
    found = Arrangement.of(views, transpose_a=False, transpose_b=turned).transpose
    assert found == (False, not turned)
    assert np.array_equal(codegen.matmul(a, b, transpose_b=turned), want)
