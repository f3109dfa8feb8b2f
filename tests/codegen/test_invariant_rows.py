"""`invariant=True` with outputs that reduce rows: their bits do not depend on m either."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import codegen
from codegen.call.choose import plans
from codegen.call.outputs import finished
from codegen.call.request import PlanRequest
from coordgraph import CodegenError, Gemm
from coordgraph import epilogue as ep
from passes.choosing import Plan
from passes.choosing.order_in_graph import why_not
from passes.choosing.row_order import RowOrder
from tests.support.sampling import quick_cases


@ep.epilogue(
    total=ep.output("m", reduce="sum"),
    top=ep.output("m", reduce="max"),
    exponential=ep.output("m", reduce="logsumexp"),
)
def statistics(acc: Any) -> Any:
    return acc, acc * acc, acc, acc


GPUS = {
    "sm_90a": ("NVIDIA H200", 132),
    "sm_80": ("NVIDIA A100", 108),
    "cpu": ("", 0),
}
K, N = 300, 600


def request(target: str, m: int, n: int = 4096, dtype: str = "", **options: Any) -> PlanRequest:
    kind = dtype or ("f32" if target == "cpu" else "bf16")
    gemm = Gemm(kind, m=m, n=n, k=4096, transpose_b=True, epilogue=statistics)
    return PlanRequest(gemm, target, *GPUS[target], invariant=True, **options)


@quick_cases(3)
@pytest.mark.parametrize("n", [4096, 40])
@pytest.mark.parametrize("target", GPUS)
def test_plans_for_every_m_reduce_rows_in_one_order(target: str, n: int):
    first = request(target, 1, n)
    order = first.order
    assert order is not None
    assert order.rows is not None
    for m in (1, 16, 100, 1024, 8192):
        one = request(target, m, n)
        assert one.order == order
        found = [*plans(one)]
        assert found[-1] == one.simple_plan
        assert {plan.tile[1] for plan in found} == {order.rows.columns}
        assert all(why_not(order, plan, one.gemm) is None for plan in found)
    usual = [
        next(replace(request(target, m, n), invariant=False).plans()).tile for m in (1, 1024, 8192)
    ]
    assert target != "sm_90a" or len(set(usual)) > 1  # without the option, m decides the tile


def test_the_order_does_not_depend_on_the_number_of_processors():
    for target in ("sm_80", "sm_90a"):
        orders = {
            replace(request(target, 64), processors=count, batches=batches).order
            for count in (10, 108, 200)
            for batches in (1, 500)
        }
        assert len(orders) == 1


def test_sums_of_integers_whose_rows_are_reduced_have_a_pinned_order():
    """The products of int8 are exact in every order, but not the f32 reductions of rows."""

    @ep.epilogue(total=ep.output("m", "f32", reduce="sum"))
    def scaled(acc: Any) -> Any:
        return acc, ep.cast(acc, to="f32") * 0.1

    gemm = Gemm("i8", m=16, n=4096, k=4096, transpose_b=True, epilogue=scaled)
    found = PlanRequest(gemm, "sm_90a", *GPUS["sm_90a"], invariant=True).order
    assert found is not None
    assert found.rows == RowOrder(128)


@pytest.mark.parametrize(
    ("target", "plan", "reason"),
    [
        ("sm_90a", "128x256x64 data-parallel", "have 256 columns"),
        ("sm_90a", "64x128x64 data-parallel", "warps of a workgroup divide"),
        ("sm_90a", "128x128x64@c2x1 data-parallel", "tile of 64 rows"),
        ("sm_90a", "256x128x64@c1x2 data-parallel", "warps of a workgroup divide"),
        ("sm_80", "16x128x32 data-parallel", "warps of a workgroup divide"),
        ("sm_80", "128x64x32 data-parallel", "have 64 columns"),
        ("cpu", "64x64x64 data-parallel", "choose tiles of 256 columns"),
    ],
)
def test_a_plan_that_reduces_rows_in_another_order_is_refused(target: str, plan: str, reason: str):
    one = request(target, 300)
    with pytest.raises(CodegenError, match="cannot be used with invariant=True") as error:
        next(plans(one, plan))
    assert reason in str(error.value)
    # The same plan may be used if no row is reduced.
    plain = replace(one, gemm=Gemm(one.gemm.dtype, m=300, n=4096, k=4096, transpose_b=True))
    assert str(next(plans(plain, plan))) == plan


def test_plans_whose_warps_hold_whole_rows_are_accepted():
    one = request("sm_90a", 300)
    for text in ("256x128x64 data-parallel", "64x128x64@pingpong data-parallel{persistent=true}"):
        assert next(plans(one, text)) == Plan.parse(text)


def test_bits_of_reductions_do_not_depend_on_m():
    random = np.random.default_rng(0)
    a, b = (random.standard_normal(s, dtype=np.float32) for s in ((140, K), (K, N)))
    whole = codegen.matmul(a, b, invariant=True, epilogue=statistics)
    for m in (1, 2, 3, 17, 64, 139):
        found = codegen.matmul(a[:m], b, invariant=True, epilogue=statistics)
        for one, every in zip(found, whole, strict=True):
            assert np.array_equal(one.view(np.uint32), every[:m].view(np.uint32))
    with pytest.raises(CodegenError, match="choose tiles of 256 columns"):
        codegen.matmul(a, b, invariant=True, epilogue=statistics, plan="64x128x64 data-parallel")


@pytest.mark.parametrize("tiles", [0, 1, 2, 3, 7, 12, 600])
def test_results_of_tiles_are_added_in_pairs(tiles: int):
    """A row's partial results are added column by column, so its sum does not depend on m."""
    parts = np.random.default_rng(tiles).standard_normal((9, tiles), dtype=np.float32)
    d = np.zeros((9, 4), np.float32)
    found = finished(statistics, (d, parts, parts, parts), invariant=True)
    exact = parts.astype(np.float64)
    assert np.allclose(found[1], exact.sum(-1), atol=1e-4)
    if tiles:
        assert np.array_equal(found[2], parts.max(-1))
        assert np.allclose(found[3], np.log(np.exp(exact).sum(-1)), atol=1e-4)
    if tiles == 3:
        assert np.array_equal(found[1], (parts[:, 0] + parts[:, 1]) + parts[:, 2])
