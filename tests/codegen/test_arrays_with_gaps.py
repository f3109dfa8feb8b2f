"""`codegen.matmul` of arrays with gaps between rows and matrices, and of column-major arrays.

Gaps of inputs hold NaN, so a result without NaN has not read them. Gaps of `out` hold a number that
no product has, and must keep it.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import codegen
from codegen.call import build, matmul
from coordgraph import Gemm, LaunchError, VerifyError
from coordgraph import epilogue as ep
from passes import DataParallel
from tests.support.sampling import covering, quick_cases

pytestmark = pytest.mark.usefixtures("forgotten")

KEPT = -77.0
"""The number in the gaps of `out`."""
ORDERS = ("lmn", "mln", "lnm", "nlm")
"""Orders of a batch's axes in memory: the last axis is contiguous; l is the matrix's number."""


def spread(
    values: np.ndarray, order: str = "lmn", gaps: tuple[int, ...] = (2, 1, 3), fill: Any = np.nan
) -> tuple[np.ndarray, np.ndarray]:
    """Copy an array to memory with gaps; return (all memory, the view that equals `values`).

    Args:
        values: a batch of matrices, or one matrix.
        order: the order of the axes in memory, outermost first.
        gaps: number of elements at the end of each axis in memory that are not in the view.
        fill: the value of the gaps.
    """
    batch = values.reshape((1,) * (3 - values.ndim) + values.shape)
    axes = ["lmn".index(axis) for axis in order]
    extents = [batch.shape[axis] + gap for axis, gap in zip(axes, gaps, strict=True)]
    memory = np.full(extents, fill, values.dtype)
    part = memory[tuple(slice(batch.shape[axis]) for axis in axes)]
    view = part.transpose([axes.index(i) for i in range(3)])
    view[...] = batch
    return memory, view if values.ndim == 3 else view[0]


def whole(*shape: int) -> np.ndarray:
    """An array of small integers, whose products are exact."""
    return np.random.default_rng(shape).integers(-4, 5, shape).astype(np.float32)


extent, gap = st.integers(0, 9), st.integers(0, 3)
layout = st.tuples(st.sampled_from(ORDERS), st.tuples(gap, gap, gap))


@pytest.mark.slow
@given(
    *(st.integers(0, 4), extent, extent, extent),
    *(layout for _ in "ABCD"),
    *(st.sampled_from(["matrices", "batch", "one A", "one B"]), st.booleans()),
)
@settings(max_examples=150, deadline=None)
def test_results_are_those_of_numpy(
    l: int,  # noqa: E741
    m: int,
    n: int,
    k: int,
    of_a: Any,
    of_b: Any,
    of_c: Any,
    of_d: Any,
    how: str,
    adds: bool,
):
    a, b = (
        whole(*shape) if how in ("matrices", one) else whole(l, *shape)
        for one, shape in (("one A", (m, k)), ("one B", (k, n)))
    )
    want = a @ b
    c, out = whole(*want.shape) if adds else None, np.zeros_like(want)
    if c is not None:
        want = want + 2 * c
        _, c = spread(c, *of_c)
    (_, a), (_, b) = spread(a, *of_a), spread(b, *of_b)
    memory, out = spread(out, *of_d, fill=KEPT)
    for _ in range(2):
        out[...] = 1000
        assert codegen.matmul(a, b, c, out, beta=2.0 if adds else 0.0) is out
        assert np.array_equal(out, want)
    out[...] = KEPT
    assert (memory == KEPT).all()
    if c is None:
        assert np.array_equal(codegen.matmul(a, b), want)


@pytest.mark.parametrize("target", ["cpu", "interpreter"])
def test_kernels_with_transposed_operands(target: str):
    a, b, c = whole(20, 30), whole(30, 24), whole(20, 24)
    gemm = Gemm("f32", transposed_operands=("C",), leading_dimensions=("C",))
    kernel = codegen.compile(DataParallel()(gemm.graph((16, 16, 8))), target)
    _, turned = spread(c.T)
    assert np.array_equal(kernel(a, b, turned, beta=2.0), a @ b + 2 * c)
    with pytest.raises(LaunchError, match="c is 20x24, but 24x20 is needed"):
        kernel(a, b, c, beta=1.0)


@quick_cases(1)
@pytest.mark.parametrize("target", ["cpu", "interpreter"])
@pytest.mark.parametrize("turned", [False, True])
def test_kernels_with_leading_dimensions(target: str, turned: bool):
    """The rows of a matrix may have gaps only if the kernel has a leading dimension for it."""
    flags: Any = {"transpose_a": turned, "transpose_b": turned}
    a, b, c = whole(20, 30), whole(30, 24), whole(20, 24)
    want = a @ b + c
    (_, a), (_, b), (_, c) = (spread(x.T if turned and x is not c else x) for x in (a, b, c))
    for given_ones in ("AC", "ABCD"):
        gemm = Gemm("f32", leading_dimensions=tuple(given_ones), **flags)
        kernel = codegen.compile(DataParallel()(gemm.graph((16, 16, 8))), target)
        right = b if "B" in given_ones else np.ascontiguousarray(b)
        assert np.array_equal(kernel(a, right, c, beta=1.0), want)
        memory, out = spread(np.zeros_like(want), fill=KEPT)
        if "D" not in given_ones:
            with pytest.raises(LaunchError, match="out is not contiguous row-major"):
                kernel(a, right, c, out, beta=1.0)
            continue
        assert np.array_equal(kernel(a, right, c, out, beta=1.0), want)
        out[...] = KEPT
        assert (memory == KEPT).all()


def test_rows_may_be_one_row():
    """Rows and matrices that are repeated with a stride of 0 are read in place."""
    row = whole(1, 12)
    a, b = np.broadcast_to(row, (7, 12)), whole(12, 5)
    assert np.array_equal(codegen.matmul(a, b), a @ b)
    assert np.array_equal(codegen.matmul(b.T, a.T), b.T @ a.T)


@pytest.mark.parametrize("which", ["a", "out"])
def test_rows_more_than_2_to_the_31_elements_apart(which: str):
    """Element offsets have 64 bits.

    The test's memory is virtual: only the pages of a few rows are touched.
    """
    step, kind = 2**31 + 64, {"a": np.int8, "out": np.int32}[which]
    try:
        memory = np.zeros(2 * step + 64, kind) if which == "a" else np.zeros(step + 64, kind)
    except MemoryError:
        pytest.skip("there is no virtual memory for two rows")
    rows = 3 if which == "a" else 2
    size = memory.itemsize
    far = np.lib.stride_tricks.as_strided(memory, (rows, 16), (step * size, size))
    a, b = whole(rows, 16).astype(np.int8), whole(16, 16).astype(np.int8)
    want = a.astype(np.int32) @ b.astype(np.int32)
    if which == "a":
        far[...] = a
        assert np.array_equal(codegen.matmul(far, b), want)
    else:
        codegen.matmul(a, b, out=far)
        assert np.array_equal(far, want)


@ep.epilogue(residual="lmn", bias="n")
def add_both(acc: Any, residual: Any, bias: Any) -> Any:
    return acc + residual + bias


@quick_cases(1)
@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize("order", ["lmn", "mln", "lnm", "nlm"])
def test_operands_of_an_epilogue(batch: tuple[int, ...], order: str):
    a, b = whole(*batch, 17, 11), whole(*batch, 11, 14)
    residual, bias = whole(*batch, 17, 14), whole(14)
    want = a @ b + residual + bias
    _, strided = spread(residual, order)
    operands: dict[str, Any] = {"bias": bias, "epilogue": add_both}
    assert np.array_equal(codegen.matmul(a, b, residual=strided, **operands), want)
    memory, out = spread(np.zeros_like(want), order, fill=KEPT)
    assert np.array_equal(codegen.matmul(a, b, residual=residual, out=out, **operands), want)
    out[...] = KEPT
    assert (memory == KEPT).all()
    # The residual may be D itself.
    out[...] = residual
    assert np.array_equal(codegen.matmul(a, b, residual=out, out=out, **operands), want)


@ep.epilogue(residual="lmn", bias="n", weights="m", each="l", scale="")
def add_all(acc: Any, residual: Any, bias: Any, weights: Any, each: Any, scale: Any) -> Any:
    return acc * scale + residual * weights + bias * each


@quick_cases(1)
@pytest.mark.parametrize("order", ORDERS[1:3])
@pytest.mark.parametrize("order_of_d", ORDERS[1:3])
def test_rows_and_columns_of_operands_are_exchanged_with_d(order: str, order_of_d: str):
    """A column-major D is computed as its transpose; operands with axis m then have axis n."""
    a, b, c = whole(3, 17, 11), whole(3, 11, 14), whole(3, 17, 14)
    bias, weights, each = whole(14), whole(17), whole(3)
    want = 2 * (a @ b) + c * weights[:, None] + bias * each[:, None, None]
    _, residual = spread(c, order)
    memory, out = spread(np.zeros_like(want), order_of_d, fill=KEPT)
    operands: dict[str, Any] = {"bias": bias, "weights": weights, "each": each, "scale": 2.0}
    for _ in range(2):
        codegen.matmul(a, b, out=out, residual=residual, epilogue=add_all, **operands)
        assert np.array_equal(out, want)
    out[...] = KEPT
    assert (memory == KEPT).all()
    for wrong in (bias, c[:, :, :3], c[:, 0]):
        for d in (out, None):
            with pytest.raises(LaunchError, match="residual has "):
                codegen.matmul(a, b, out=d, residual=wrong, epilogue=add_all, **operands)


def test_gaps_between_matrices_of_an_operand():
    a, b, residual, bias = whole(3, 5, 4), whole(3, 4, 6), whole(6, 5, 6)[::2], whole(6)
    found = codegen.matmul(a, b, residual=residual, bias=bias, epilogue=add_both)
    assert np.array_equal(found, a @ b + residual + bias)


GROUPS = (np.array([0, 3, 3, 10], np.int32), np.array([1, 1, 8, 9], np.int32))


@quick_cases(1)
@pytest.mark.parametrize(
    ("offsets", "order", "gaps", "turned"),
    covering(3, GROUPS, ORDERS[:2], ((0, 0, 0), (2, 1, 3), (0, 2, 0)), (False, True)),
)
def test_groups(offsets: np.ndarray, order: str, gaps: tuple[int, ...], turned: bool):
    """Matrices of grouped products may have gaps; B may be one matrix for all groups."""
    ends = [*pairwise(offsets)]
    a, b = whole(10, 11), whole(3, 11, 6)
    parts = [a[begin:end] @ b[group] for group, (begin, end) in enumerate(ends)]
    (_, a), (_, b) = spread(a, "lmn", gaps), spread(b, "lnm" if turned else order, gaps)
    memory, out = spread(np.zeros((10, 6), np.float32), "lmn", gaps, KEPT)
    _, c = spread(whole(10, 6), "lmn", gaps[::-1])
    codegen.grouped_matmul(a, b, offsets, c=c, beta=2.0, out=out)
    rows = slice(offsets[0], offsets[-1])
    assert np.array_equal(out[rows], np.concatenate(parts) + 2 * c[rows])
    out[rows] = KEPT
    out[: offsets[0]] = out[offsets[-1] :] = KEPT
    assert (memory == KEPT).all()
    same = np.broadcast_to(b[0], b.shape)
    found = codegen.grouped_matmul(a, same, offsets)
    assert np.array_equal(found[rows], a[rows] @ b[0])

    a, b = whole(7, 10), whole(10, 6)
    want = np.stack([a[:, begin:end] @ b[begin:end] for begin, end in ends])
    (_, a), (_, b) = spread(a, "lnm" if turned else "lmn", gaps), spread(b, "lmn", gaps)
    memory, out = spread(np.zeros_like(want), order, gaps, KEPT)
    codegen.grouped_matmul(a, b, offsets, group_axis="k", out=out)
    assert np.array_equal(out, want)
    out[...] = KEPT
    assert (memory == KEPT).all()


def test_one_kernel_takes_every_layout():
    """Calls with and without gaps in A and `out` need two kernels, which repeated calls reuse."""
    a, b = whole(20, 30), whole(30, 24)
    _, gapped = spread(a)
    outs = [np.zeros((20, 24), np.float32), spread(np.zeros((20, 24), np.float32))[1]]
    for left in (a, gapped):
        for out in outs:
            codegen.matmul(left, b, out=out)
    assert len(build._kernels) == 2
    for left in (a, gapped):
        for out in outs:
            out[...] = 0
            codegen.matmul(left, b, out=out)
            assert np.array_equal(out, a @ b)
    assert len(build._kernels) == 2


def test_a_batch_whose_rows_are_at_one_distance_is_one_product():
    """A batch with one B is computed as one product, also if the rows of A have gaps."""
    a, b = whole(4, 6, 13)[..., :9], whole(9, 7)
    assert np.array_equal(codegen.matmul(a, b), a @ b)
    assert not any(gemm.batched for _, gemm, *_ in build._kernels)
    matmul.forget()
    assert np.array_equal(codegen.matmul(a[:, ::2], b), (a @ b)[:, ::2])
    assert not any(gemm.batched for _, gemm, *_ in build._kernels)
    matmul.forget()
    assert np.array_equal(codegen.matmul(a[:, :4], b), (a @ b)[:, :4])
    assert all(gemm.batched for _, gemm, *_ in build._kernels)


def test_shapes_of_c_and_of_a_column_major_out_are_checked():
    a, b, out = whole(6, 12), whole(12, 4), np.zeros((4, 6), np.float32).T
    for c in (whole(6), whole(4, 6), whole(2, 6, 4)):
        with pytest.raises(LaunchError, match=r"^c (is|has shape) "):
            codegen.matmul(a, b, c, out, beta=1.0)
    with pytest.raises(LaunchError, match=r"^out is 4x6, but 6x4 is needed"):
        codegen.matmul(a, b, out=out.T)


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "columns": (
        lambda: codegen.matmul(whole(6, 12)[::2, ::2], whole(6, 4)),
        r"a is not contiguous along its rows \(strides \(24, 2\)\); pass a contiguous copy$",
    ),
    "reversed": (
        lambda: codegen.matmul(whole(6, 12)[::-1], whole(12, 4)),
        r"a has negative strides \(-12, 1\); pass a contiguous copy$",
    ),
    "rows of out": (
        lambda: codegen.matmul(
            whole(6, 12),
            whole(12, 4),
            out=np.lib.stride_tricks.as_strided(np.zeros(40, np.float32), (6, 4), (8, 4)),
        ),
        r"the rows of out overlap in memory \(strides \(2, 1\)\)",
    ),
    "matrices of out": (
        lambda: codegen.matmul(
            whole(2, 6, 12),
            whole(2, 12, 4),
            out=np.lib.stride_tricks.as_strided(np.zeros(80, np.float32), (2, 6, 4), (8, 16, 4)),
        ),
        r"the matrices of out overlap in memory \(strides \(2, 4, 1\)\)",
    ),
    "groups": (
        lambda: codegen.grouped_matmul(
            whole(6, 12)[:, ::2], whole(2, 6, 4), np.array([0, 3, 6], np.int32)
        ),
        "a is not contiguous along its rows .*; pass a contiguous copy$",
    ),
}


@quick_cases(3)
@pytest.mark.parametrize("name", WRONG)
def test_what_is_refused(name: str):
    call, words = WRONG[name]
    with pytest.raises(LaunchError, match=words):
        call()


@quick_cases(3)
@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"leading_dimensions": "AB"}, "must be names of tensors"),
        ({"leading_dimensions": ("A", "E")}, "has 'E', .*; choose from A, B, C, D"),
        (
            {"leading_dimensions": ("A",), "grouped": True, "group_axis": "mnk"},
            "cannot be used with grouped=True and group_axis=mnk",
        ),
        ({"leading_dimensions": ("bias",), "epilogue": add_both}, "has 'bias', but only matrices"),
        ({"transposed_operands": ("A",)}, "transposed_operands has 'A', .*; choose from C"),
        ({"transposed_operands": (1,)}, "must be names of tensors"),
        (
            {"transposed_operands": ("C",), "grouped": True},
            "transposed_operands=.* cannot be used with grouped=True and group_axis=m;",
        ),
    ],
)
def test_problems_that_have_no_such_layouts(fields: dict[str, Any], words: str):
    with pytest.raises(VerifyError, match=words):
        Gemm(**fields)


def test_an_operand_must_not_have_the_name_of_a_leading_dimension():
    @ep.epilogue(ld_residual="", residual="mn")
    def scaled(acc: Any, ld_residual: Any, residual: Any) -> Any:
        return acc * ld_residual + residual

    assert Gemm(epilogue=scaled)
    with pytest.raises(VerifyError, match="'ld_residual' has the name of a kernel parameter"):
        Gemm(epilogue=scaled, leading_dimensions=("residual",))


def test_the_names_of_tensors_are_sorted():
    assert Gemm(leading_dimensions=("D", "A", "A")).leading_dimensions == ("A", "D")
