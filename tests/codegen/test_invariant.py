"""`matmul(invariant=True)` on the CPU: a row of D has the same bits for every m; refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import codegen
from codegen.call import build
from codegen.call.choose import plans
from codegen.call.invariance import check_invariant
from codegen.call.matmul import chosen
from codegen.call.request import PlanRequest
from codegen.call.views import TensorView
from coordgraph import CodegenError, Gemm, LaunchError
from passes.choosing import Plan
from passes.choosing.order_in_graph import why_not
from tests.support.sampling import quick_cases

K, N = 300, 40
H200: dict[str, Any] = {"target": "sm_90a", "device": "NVIDIA H200", "processors": 132}


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


A, B = normal(140, K), normal(K, N, seed=1)


def same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    return np.array_equal(one.view(np.uint32), other.view(np.uint32))


def test_bits_of_a_row_do_not_depend_on_m():
    whole = codegen.matmul(A, B, invariant=True)
    for m in range(1, len(A) + 1):
        assert same_bits(codegen.matmul(A[:m], B, invariant=True), whole[:m]), m


TILES = st.tuples(*(st.sampled_from([8, 16, 24, 64]),) * 2)
GRIDS = st.sampled_from(["", "{persistent=true} on 1", "{persistent=true} on 3"])


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(tile=TILES, grid=GRIDS, first=st.integers(0, 100), m=st.integers(1, 40))
def test_bits_do_not_depend_on_the_tile_the_grid_or_the_rows_around(
    tile: tuple[int, int], grid: str, first: int, m: int
):
    plan = f"{tile[0]}x{tile[1]}x64 data-parallel{grid}"
    found = codegen.matmul(A[first : first + m], B, invariant=True, plan=plan)
    assert same_bits(found, codegen.matmul(A, B, invariant=True)[first : first + m])


def test_an_order_that_is_not_pinned_changes_bits():
    """The operands are such that another order of additions gives other bits.

    The test shows that comparisons of bits, which other tests of this file make, can fail.
    """
    whole = codegen.matmul(A, B, invariant=True)
    split = codegen.matmul(A, B, plan="64x16x64 split-k{splits=3}")
    np.testing.assert_allclose(split, whole, rtol=1e-4, atol=1e-4)
    assert not same_bits(split, whole)


def test_one_number_of_segments_gives_one_result_for_every_tile_and_m():
    split = codegen.matmul(A, B, plan="64x16x64 split-k{splits=3}")
    for tile in ("8x40", "24x8", "128x16"):
        for m in (1, 5, 64, 139):
            plan = f"{tile}x64 split-k{{splits=3}}"
            assert same_bits(codegen.matmul(A[:m], B, plan=plan), split[:m])


def test_batches_have_the_bits_of_single_products():
    batch = normal(3, 20, K, seed=2)
    factors = normal(3, K, N, seed=3)
    found = codegen.matmul(batch, factors, invariant=True)
    for number in range(3):
        alone = codegen.matmul(batch[number], factors[number], invariant=True)
        assert same_bits(found[number], alone)
    joined = codegen.matmul(batch, B, invariant=True)
    assert same_bits(joined[2], codegen.matmul(batch[2], B, invariant=True))


@quick_cases(1)
@pytest.mark.parametrize("offsets", [[0, 140], [0, 1, 1, 90, 140], [0, 70, 140]])
def test_bits_of_a_row_do_not_depend_on_its_group(offsets: list[int]):
    starts = np.array(offsets, np.int32)
    factors = np.stack([B] * (len(offsets) - 1))
    found = codegen.grouped_matmul(A, factors, starts, invariant=True)
    assert same_bits(found, codegen.matmul(A, B, invariant=True))


def test_an_epilogue_and_c_keep_the_bits():
    c = normal(140, N, seed=4)
    whole = codegen.matmul(A, B, c, None, 0.5, -1.5, invariant=True)
    for m in (1, 33, 128):
        found = codegen.matmul(A[:m], B, c[:m], None, 0.5, -1.5, invariant=True)
        assert same_bits(found, whole[:m])


def test_vectors_and_further_axes_pass_the_option_on():
    whole = codegen.matmul(A, B, invariant=True)
    assert same_bits(codegen.matmul(A[7], B, invariant=True), whole[7])
    cube = A[:24].reshape(2, 3, 4, K)
    assert same_bits(codegen.matmul(cube, B, invariant=True).reshape(24, N), whole[:24])


@pytest.mark.parametrize(
    ("plan", "part"),
    [
        ("64x16x64 stream-k on 5", "it is not batch invariant"),
        ("64x16x64 split-k", "1 segment of k"),
        ("64x16x64 split-k{splits=5,reduction=atomic}", "added atomically"),
        ("64x16x128 data-parallel", "do not end at 320"),
    ],
)
def test_plans_with_another_order_are_refused(plan: str, part: str):
    with pytest.raises(CodegenError, match="cannot be used with invariant=True") as found:
        codegen.matmul(A, B, invariant=True, plan=plan)
    assert part in str(found.value)


def test_what_cannot_be_invariant_is_refused():
    with pytest.raises(LaunchError, match="invariant=True excludes"):
        codegen.matmul(A, B, invariant=True, tune=True)
    with pytest.raises(LaunchError, match="invariant"):
        codegen.matmul(A, B, invariant="yes")  # type: ignore[arg-type]
    offsets = np.array([0, 100, K], np.int32)
    with pytest.raises(LaunchError, match="every group has its own k"):
        codegen.grouped_matmul(A, B, offsets, group_axis="k", invariant=True)
    assert chosen(A, B, invariant=True) == Plan.parse("256x64x64 data-parallel")


def test_sums_of_integers_are_exact_in_every_order():
    a, b = (np.random.default_rng(5).integers(-9, 9, s, np.int8) for s in ((50, K), (K, N)))
    whole = codegen.matmul(a, b, invariant=True)
    assert np.array_equal(whole, a.astype(np.int32) @ b.astype(np.int32))
    plan = "64x16x64 stream-k on 5"
    assert np.array_equal(codegen.matmul(a, b, invariant=True, plan=plan), whole)
    offsets = np.array([0, 100, K], np.int32)
    codegen.grouped_matmul(a, b, offsets, group_axis="k", invariant=True)


def gpu_request(m: int, n: int = 512, k: int = 7168, **options: Any) -> PlanRequest:
    gemm = Gemm("bf16", m=m, n=n, k=k, transpose_b=True)
    return PlanRequest(gemm, **{**H200, "invariant": True, **options})


@quick_cases(1)
@pytest.mark.parametrize("m", [1, 8192])
@pytest.mark.parametrize("shape", [(512, 7168), (4096, 4096)])
def test_all_plans_for_a_gpu_add_in_the_pinned_order(m: int, shape: tuple[int, int]):
    request = gpu_request(m, *shape)
    assert request.order == gpu_request(33, *shape, processors=108).order
    found = [*plans(request)]
    assert len(found) > 4
    assert request.order is not None
    assert all(why_not(request.order, plan, request.gemm) is None for plan in found)
    # The last plan is used if the device refuses all others, so it must suit wgmma, too.
    assert found[-1] == request.simple_plan
    assert found[-1].why_not(request.gemm) is None


def test_a_plan_without_a_model_adds_whole_sums():
    request = gpu_request(16, target="sm_80", device="NVIDIA A100", processors=108)
    assert request.order is not None
    assert (request.order.instructions, request.order.segments) == ("mma.sync", 1)
    assert [str(plan) for plan in plans(request)] == ["64x64x32 data-parallel"]
    # With invariant=False, the k of this product is divided among workgroups.
    usual = gpu_request(16, target="sm_80", device="A100", processors=108, invariant=False)
    assert "stream-k" in str(usual.simple_plan)
    unaligned = gpu_request(16, k=7161, alignment=2)
    assert unaligned.order is not None
    assert unaligned.order.instructions == "mma.sync"


def test_kernels_have_the_pinned_instructions_only(monkeypatch: pytest.MonkeyPatch):
    """A kernel whose tensors TMA cannot read must not fall back to mma.sync."""
    found: list[object] = []

    def compile_plan(*_: Any, instructions: str | None, **__: Any) -> Any:
        found.append(instructions)
        raise CodegenError("not compiled")

    monkeypatch.setattr(build, "compile_plan", compile_plan)
    build.forget()
    for options in ({}, {"invariant": False}, {"alignment": 2, "k": 7161}):
        with pytest.raises(CodegenError, match="not compiled"):
            build.kernel_of(Plan.parse("64x64x64 data-parallel"), gpu_request(16, **options))
    build.forget()
    assert found == ["wgmma", None, "mma.sync"]


def views(pointer: int = 0, matrices: int = 1, stride: int | None = None) -> dict[str, TensorView]:
    """Fake bf16 arrays: A of 16 x 7168, or a batch of such matrices, and B given as 512 x 7168."""
    size = 16 * 7168
    shape, strides = (16, 7168), (7168, 1)
    if matrices > 1:
        shape, strides = (matrices, *shape), (size if stride is None else stride, *strides)
    return {
        "A": TensorView(pointer, shape, strides, "bf16", 0),
        "B": TensorView(0, (512, 7168), (7168, 1), "bf16", 0),
    }


def test_addresses_and_distances_must_not_decide_the_instructions():
    check_invariant(gpu_request(16), views())
    with pytest.raises(LaunchError, match="is only a multiple of 2 bytes"):
        check_invariant(gpu_request(16, alignment=2), views(pointer=2))
    with pytest.raises(LaunchError, match="pass a contiguous copy of a"):
        check_invariant(gpu_request(16, alignment=1), views(matrices=2, stride=0))
    # Rows of 7161 elements are no multiple of 16 bytes, so TMA is not used at any address.
    odd = {
        "A": TensorView(2, (16, 7161), (7161, 1), "bf16", 0),
        "B": TensorView(0, (512, 7161), (7161, 1), "bf16", 0),
    }
    check_invariant(gpu_request(16, k=7161, alignment=2), odd)


def test_a_transposed_a_is_refused_on_a_gpu():
    gemm = Gemm("bf16", m=16, n=512, k=7168, transpose_a=True)
    request = PlanRequest(gemm, **H200, invariant=True)
    turned = {**views(), "A": TensorView(0, (7168, 16), (16, 1), "bf16", 0)}
    with pytest.raises(LaunchError, match="m decides the alignment of its rows"):
        check_invariant(request, turned)
    check_invariant(PlanRequest(gemm, "cpu", invariant=True), turned)


def test_explain_names_the_order():
    found = codegen.explain(16, 512, 7168, transpose_b=True, device="H200", invariant=True)
    assert any(line.startswith("order    2 segments of k") for line in found.heading)
    assert "split-k" in str(found.best.plan)
    usual = codegen.explain(16, 512, 7168, transpose_b=True, device="H200")
    assert not any(line.startswith("order") for line in usual.heading)
