"""`codegen.grouped_matmul`: results against numpy on the CPU, and the plans it chooses for a
GPU.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import codegen
from codegen.call import build, matmul
from codegen.call.arrays import library
from codegen.call.request import SHARED, PlanRequest
from codegen.toolchain import assemble
from coordgraph import CodegenError, Gemm, LaunchError, PassError
from coordgraph import epilogue as ep
from passes.choosing import Plan, rank
from tests.codegen.nvptx.fake_driver import FakeDriver, matrix
from tests.support.ptxas import assert_clean
from tests.support.sampling import quick_cases

pytestmark = pytest.mark.usefixtures("forgotten")

A, B, D, OFFSETS = 1 << 30, 2 << 30, 3 << 30, 5 << 28
BORDERS = np.array([0, 30, 30, 31, 70, 90], np.int32)


def whole(*shape: int) -> np.ndarray:
    """Arrays of small integers, whose products are exact in every type."""
    return np.random.default_rng(shape).integers(-4, 5, shape).astype(np.float32)


def slices(offsets: Any) -> list[slice]:
    return [slice(*ends) for ends in pairwise(map(int, offsets))]


def turned(array: np.ndarray) -> np.ndarray:
    """The transpose of each matrix, stored row-major."""
    return np.ascontiguousarray(array.swapaxes(-1, -2))


sizes = st.lists(st.integers(0, 40), min_size=1, max_size=6)
# Larger extents have more macro tiles, and so more kernels to compile; only the slow run has them.
extents = pytest.mark.parametrize("most", [14, pytest.param(40, marks=pytest.mark.slow)])


@extents
def test_groups_of_rows(most: int):
    extent = st.integers(0, most)
    draws = given(sizes, st.integers(0, 3), extent, extent, st.sampled_from(["", "flag", "view"]))
    settings(max_examples=8, deadline=None)(draws(check_groups_of_rows))()


def check_groups_of_rows(rows: list[int], first: int, n: int, k: int, how: str):
    offsets = np.cumsum([first, *rows]).astype(np.int32)
    a, b = whole(int(offsets[-1]) + 2, k), whole(len(rows), k, n)
    given_b = b if not how else turned(b) if how == "flag" else turned(b).swapaxes(-1, -2)
    out = np.full((len(a), n), 99, np.float32)
    found = codegen.grouped_matmul(a, given_b, offsets, out=out, transpose_b=how == "flag")
    assert found is out
    for group, part in enumerate(slices(offsets)):
        assert np.array_equal(out[part], a[part] @ b[group])
    assert (out[: offsets[0]] == 99).all()
    assert (out[offsets[-1] :] == 99).all()


@extents
def test_groups_of_k(most: int):
    extent = st.integers(0, most)
    draws = given(sizes, extent, extent, st.sampled_from(["", "flag", "view"]), st.booleans())
    settings(max_examples=7, deadline=None)(draws(check_groups_of_k))()


def check_groups_of_k(depths: list[int], m: int, n: int, how_a: str, flag_b: bool):
    offsets = np.cumsum([0, *depths]).astype(np.int32)
    a, b = whole(m, int(offsets[-1])), whole(int(offsets[-1]), n)
    given_a = a if not how_a else turned(a) if how_a == "flag" else turned(a).T
    options: dict[str, Any] = {"transpose_a": how_a == "flag", "transpose_b": flag_b}
    given_b = turned(b) if flag_b else b
    found = codegen.grouped_matmul(given_a, given_b, offsets, group_axis="k", **options)
    assert found.shape == (len(depths), m, n)
    for group, part in enumerate(slices(offsets)):
        assert np.array_equal(found[group], a[:, part] @ b[part])


def test_the_epilogue_of_groups():
    a, b, c = whole(90, 20), whole(5, 20, 24), whole(90, 24)
    want = np.concatenate([a[part] @ b[g] for g, part in enumerate(slices(BORDERS))])
    found = codegen.grouped_matmul(a, b, BORDERS, c=c, alpha=2.0, beta=-3.0)
    assert np.array_equal(found, 2 * want - 3 * c)
    y, d = whole(90, 24), whole(5, 20, 24)
    want = np.stack([a[part].T @ y[part] for part in slices(BORDERS)])
    found = codegen.grouped_matmul(a.T, y, BORDERS, group_axis="k", c=d, beta=1.0)
    assert np.array_equal(found, want + d)


def test_where_groups_begin_is_data(monkeypatch: pytest.MonkeyPatch):
    a, b = whole(90, 20), whole(5, 20, 24)
    codegen.grouped_matmul(a, b, BORDERS)
    monkeypatch.setattr(matmul, "first_launch", None)
    for offsets in ([0, 0, 0, 90, 90, 90], [0, 18, 36, 54, 72, 90]):
        found = codegen.grouped_matmul(a, b, np.array(offsets, np.int32))
        for group, part in enumerate(slices(offsets)):
            assert np.array_equal(found[part], a[part] @ b[group])
    # No call with this layout of B is cached, so `first_launch` is called, which is None here.
    with pytest.raises(TypeError):
        codegen.grouped_matmul(a, turned(b).swapaxes(-1, -2), BORDERS)


def test_a_plan_for_groups_can_be_told():
    a, b = whole(90, 20), whole(5, 20, 24)
    want = codegen.grouped_matmul(a, b, BORDERS)
    for plan in ("16x16x16 stream-k{owner=last} on 3", Plan((32, 16, 16), pipeline=SHARED)):
        assert np.array_equal(codegen.grouped_matmul(a, b, BORDERS, plan=plan), want)
    for pipeline in ("data-parallel", "split-k", "heterogeneous-tiles"):
        with pytest.raises(PassError, match="refuses"):
            codegen.grouped_matmul(a, b, BORDERS, plan=f"16x16x16 {pipeline}")
    with pytest.raises(CodegenError, match="clusters, which kernels for cpu do not have"):
        codegen.grouped_matmul(a, b, BORDERS, plan=f"16x16x16@c2x1 {SHARED}")


@quick_cases(13)
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"group_axis": "mnk"}, "should be 'm' or 'k'; .* see docs/explanation/groups/lists.md"),
        ({"group_axis": "n"}, r"group_axis = 'n' should be 'm' or 'k'$"),
        ({"group_axis": ["m"]}, r"group_axis = \['m'\] should be 'm' or 'k'"),
        ({"a": turned(whole(90, 20)).T}, "a must be row-major; pass a contiguous copy"),
        ({"a": turned(whole(90, 20)), "transpose_a": True}, "a must be row-major"),
        ({"a": whole(90, 21)}, "k would be 21 and 20"),
        ({"b": whole(20, 24)}, "b has shape 20x24; groups x k x n is needed"),
        (
            {"b": whole(4, 20, 24)},
            "offsets has 6 entries, but 5 are needed; give groups [+] 1, where each",
        ),
        ({"b": whole(5, 20, 48)[:, :, ::2]}, "b is not contiguous .*; pass a contiguous copy$"),
        ({"b": whole(10, 20, 24)[::-2]}, "b has negative strides .*; pass a contiguous copy$"),
        ({"b": whole(5, 20, 24).astype(np.float64)}, "b holds f64, .* takes f32; convert it$"),
        ({"out": np.zeros((90, 24), np.int32)}, "out holds i32; matrices hold bf16, f16, f32 or"),
        ({"a": np.zeros((90, 20), np.int32)}, "a holds i32; matrices hold .* e5m2: convert it$"),
        ({"a": np.zeros((90, 20), np.int32), "b": np.zeros((5, 20, 24), np.int32)}, "a holds i32"),
        ({"a": whole(90, 20), "b": np.zeros((5, 20, 24), np.int32)}, "b holds i32; matrices"),
        (
            {"b": turned(whole(5, 21, 24)).swapaxes(-1, -2)},
            "^a is 90x20 and b is 5x21x24: k would be 20 and 21",
        ),
        ({"group_axis": "k"}, "b has shape 5x20x24; a matrix is needed"),
        (
            {"offsets": BORDERS.astype(np.int64)},
            r"offsets holds int64, but must hold i32; convert it by offsets\.to\(torch\.int32\), "
            r"or by offsets\.astype\('int32'\)",
        ),
        ({"offsets": BORDERS[1:]}, "offsets has 5 entries, but 6 are needed; give groups [+] 1"),
        ({"offsets": BORDERS.astype(np.float32)}, "offsets holds f32, but the kernel takes i32"),
        (
            {"offsets": [0, 90]},
            "offsets is a list, not an array; make an i32 array .* numpy.array.*numpy.int32",
        ),
        (
            {"offsets": None},
            "offsets are missing; pass where each group begins, and where the last",
        ),
        (
            {"offsets": BORDERS[::-1].copy()},
            r"offsets\[1\] = 70 is less than offsets\[0\] = 90; entries must be non-decreasing",
        ),
        ({"offsets": 2 * BORDERS}, "offsets"),
        ({"out": whole(80, 24)}, "out is 80x24, but 90x24 is needed"),
        ({"beta": 1.0}, "beta = 1.0 needs c"),
        ({"alpha": "x"}, "alpha = 'x' is not a number"),
        ({"transpose_b": "no"}, "transpose_b = 'no' is neither True nor False"),
        ({"plan": 5}, "plan = 5 is neither a Plan nor its text"),
        ({"stream": 5}, "kernels for the CPU have no streams"),
    ],
)
def test_wrong_calls(change: dict[str, Any], words: str):
    call = {"a": whole(90, 20), "b": whole(5, 20, 24), "offsets": BORDERS} | change
    with pytest.raises(LaunchError, match=words):
        codegen.grouped_matmul(**call)


def on_gpu(at: int, *shape: int, dtype: str = "bf16") -> Any:
    """A row-major array at a fake address."""
    strides = tuple(int(np.prod(shape[axis + 1 :])) for axis in range(len(shape)))
    return matrix(1, 1, at, dtype, shape=shape, strides=strides)


def test_the_plan_is_that_of_groups_of_average_size(fake: FakeDriver):
    borders = on_gpu(OFFSETS, 17, dtype="i32")
    a, b, d = on_gpu(A, 8192, 2048), on_gpu(B, 16, 7168, 2048), on_gpu(D, 8192, 7168)
    for _ in range(2):
        codegen.grouped_matmul(a, b, borders, out=d, transpose_b=True)
    rows = Gemm("bf16", m=8192, n=7168, k=2048, transpose_b=True, grouped=True)
    plan = rank(rows, batches=16)[0].plan
    assert plan.workgroups is not None
    assert fake.launches[0].grid == (plan.workgroups * plan.cluster[0] * plan.cluster[1], 1, 1)
    assert fake.launches[1] == fake.launches[0]
    # Groups along k, with A given as a view of its transpose.
    x, y, g = on_gpu(A, 8192, 4096), on_gpu(B, 8192, 2048), on_gpu(D, 16, 4096, 2048)
    view = library(x).transposed(x)
    codegen.grouped_matmul(view, y, borders, group_axis="k", out=g)
    depths = Gemm("bf16", None, 4096, 2048, 8192, True, grouped=True, group_axis="k")
    plan = rank(depths, batches=16)[0].plan
    assert plan.workgroups is not None
    assert fake.launches[-1].grid == (plan.workgroups * plan.cluster[0] * plan.cluster[1], 1, 1)
    assert all("wgmma" in code for code in fake.loaded)


def test_layouts_without_boxes_take_a_simple_plan(fake: FakeDriver):
    """Layouts that TMA cannot load get a plan without TMA.

    Groups divide the contiguous axis of A (k), so a group may begin at any element; but TMA boxes
    begin at multiples of 16 bytes.
    """
    borders, d = on_gpu(OFFSETS, 17, dtype="i32"), on_gpu(D, 16, 512, 256)
    a, b = on_gpu(A, 512, 8192), on_gpu(B, 8192, 256)
    codegen.grouped_matmul(a, b, borders, group_axis="k", out=d)
    assert "mma.sync" in fake.loaded[-1]
    assert "wgmma" not in fake.loaded[-1]


def test_a_plan_that_spills_gives_way_to_the_next(fake: FakeDriver):
    asked = fake.spill_once()
    a, b, d = on_gpu(A, 8192, 2048), on_gpu(B, 16, 2048, 7168), on_gpu(D, 8192, 7168)
    codegen.grouped_matmul(a, b, on_gpu(OFFSETS, 17, dtype="i32"), out=d)
    assert len(fake.launches) == 1
    assert len(asked) == 2


@quick_cases(1)
@pytest.mark.usefixtures("ptxas")
@pytest.mark.parametrize(
    "problem",
    [
        pytest.param(
            Gemm("bf16", m=8192, n=4096, k=7168, transpose_b=True, grouped=True),
            marks=pytest.mark.slow,
            id="rows",
        ),
        pytest.param(Gemm("bf16", m=1024, n=4096, k=7168, grouped=True), id="few rows"),
        pytest.param(
            Gemm("bf16", None, 4096, 2048, 8192, True, grouped=True, group_axis="k"), id="k"
        ),
    ],
)
def test_chosen_plans_are_assembled(problem: Gemm):
    request = PlanRequest(problem, "sm_90a", "NVIDIA H200", 132, batches=32)
    (kernel,) = build.try_plans(request, None, lambda _, kernel: kernel)
    assert "wgmma" in kernel.ptx
    assert_clean(assemble(kernel.ptx, "sm_90a"))


@pytest.mark.parametrize("target", ["cpu", "sm_80"])
@pytest.mark.parametrize("axis", ["m", "k"])
@pytest.mark.parametrize("size", [(64, 64, 100_000), (1, 1, 1), (9000, 9000, 64)])
def test_groups_take_the_plan_of_a_simple_rule(target: str, axis: str, size: tuple[int, int, int]):
    gemm = Gemm("bf16", None, *size, transpose_a=axis == "k", grouped=True, group_axis=axis)
    found = PlanRequest(gemm, target, processors=108, batches=8)
    (plan,) = found.plans()
    assert plan.graph(found.any_size).level == "scheduled"
    assert axis == "m" or plan.pipeline == SHARED


@ep.epilogue(bias="n", residual="mn")
def bias_relu_residual(acc, bias, residual):
    return ep.relu(acc + bias) + residual


@ep.epilogue(bias="ln", scale="lm")
def scaled_and_shifted(acc, bias, scale):
    return acc * scale + bias


def test_epilogues_of_groups_of_rows():
    a, b, offsets = whole(90, 20), whole(3, 20, 24), np.array([0, 20, 20, 90], np.int32)
    bias, residual = whole(24), whole(90, 24)
    expected = [a[i:j] @ b[g] for g, (i, j) in enumerate(pairwise(offsets))]
    expected = np.maximum(np.concatenate(expected) + bias, 0) + residual
    for _ in range(2):  # the second call finds the kernel that the first one prepared
        d = codegen.grouped_matmul(
            a, b, offsets, epilogue=bias_relu_residual, bias=bias, residual=residual
        )
        assert np.array_equal(d, expected)
    # A bias of another shape is checked anew, although a similar call was prepared before.
    with pytest.raises(
        LaunchError, match=r"bias has the shape \(3,\), but \(n,\) = \(24,\) is needed"
    ):
        codegen.grouped_matmul(
            a, b, offsets, epilogue=bias_relu_residual, bias=bias[:3], residual=residual
        )
    with pytest.raises(LaunchError, match="other is no operand of the epilogue"):
        codegen.grouped_matmul(
            *(a, b, offsets),
            epilogue=bias_relu_residual,
            bias=bias,
            residual=residual,
            other=bias,
        )


def test_epilogues_of_groups_along_k_have_operands_for_each_group():
    a, b, offsets = whole(30, 90), whole(90, 24), np.array([0, 20, 20, 90], np.int32)
    bias, scale = whole(3, 24), whole(3, 30)
    d = codegen.grouped_matmul(
        a, b, offsets, group_axis="k", epilogue=scaled_and_shifted, bias=bias, scale=scale
    )
    for g, (i, j) in enumerate(pairwise(offsets)):
        assert np.array_equal(d[g], (a[:, i:j] @ b[i:j]) * scale[g][:, None] + bias[g])
