"""Tests, without a GPU, of epilogues for GPUs: operand indices, PTX, registers, errors."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import pytest

import codegen
from codegen.targets.nvptx import CudaKernel
from coordgraph import CodegenError, Gemm
from coordgraph import epilogue as ep
from coordgraph.control.lowered import ApplyFragment
from coordgraph.control.resolve import resolve
from passes import Pipeline
from passes.lowering import LowerToHopper
from tests.support.epilogues import EPILOGUES, Case
from tests.support.ptxas import assert_clean
from tests.support.sampling import chosen, cover, quick_cases

BIAS = EPILOGUES[0].function
SCHEDULES = (
    ("data-parallel{persistent=true}", (128, 128, 64), {}),
    ("two-tile-stream-k{workgroups=132}", (128, 256, 64), {}),
    ("stream-k{workgroups=132,reduction=scatter}", (128, 128, 64), {}),
    ("stream-k{workgroups=132,reduction=atomic}", (128, 128, 64), {"transpose_b": True}),
    ("split-k{splits=3}", (64, 128, 64), {}),
    ("heterogeneous-tiles", (128, 128, 64), {}),
    ("data-parallel{persistent=true}", (128, 128, 64), {"batched": True}),
    ("data-parallel{persistent=true}", (128, 128, 64), {"grouped": True}),
    (
        "stream-k{workgroups=132}",
        (128, 128, 64),
        {"grouped": True, "group_axis": "k", "transpose_a": True},
    ),
)
every_case = pytest.mark.parametrize("case", EPILOGUES, ids=str)


def compiled(
    function: ep.EpilogueFunction,
    target: str,
    schedule: str = "data-parallel{persistent=true}",
    tile: tuple[int, int, int] = (128, 128, 64),
    lowering: LowerToHopper | None = None,
    **options: Any,
) -> CudaKernel:
    graph = Pipeline.parse(schedule)(Gemm(epilogue=function, **options).graph(tile))
    kernel = codegen.compile(graph, target, lowering=lowering)
    assert isinstance(kernel, CudaKernel)
    return kernel


@quick_cases(2)
@pytest.mark.parametrize(
    ("target", "schedule", "tile", "options", "case"),
    cover(
        0,
        [
            (target, *schedule, case)
            for target in ("sm_80", "sm_90a")
            for schedule in SCHEDULES
            for case in EPILOGUES
        ],
        lambda case: (case[0], str(case[1:4]), (case[0], str(case[4]))),
    ),
    ids=str,
)
def test_operands_are_read_where_d_is_written(
    target: str, schedule: str, tile: tuple[int, int, int], options: dict[str, Any], case: Case
):
    """Where an epilogue is applied, an operand's index along each of its axes equals that of D."""
    graph = compiled(case.function, target, schedule, tile, **options).lowered
    nodes = [n for root in resolve(graph.control.root.body, graph.scope()) for n in root.walk()]
    applied = [n for n in nodes if isinstance(n.op, ApplyFragment)]
    assert applied
    for node in applied:
        op = node.op
        assert isinstance(op, ApplyFragment)
        for tensor in op.sources:
            for i, axis in enumerate(graph.gemm.axes[tensor]):
                (here,) = node.scope.reverse(f"{tensor}.{i}").values
                (there,) = node.scope.reverse(f"D.{'mn'.index(axis)}").values
                assert here == there, (tensor, axis)
            if not graph.gemm.axes[tensor]:  # an operand without axes has one element per product
                (here,) = node.scope.reverse(tensor).values
                assert here == node.scope.reverse(graph.gemm.leading).values[0]


PLACES = (
    ("two-tile-stream-k{workgroups=132}", (128, 256, 64), "cooperative"),
    ("data-parallel{persistent=true}", (128, 256, 64), "cooperative"),
    ("data-parallel{persistent=true}", (128, 128, 64), "pingpong"),
    ("stream-k{workgroups=132,reduction=scatter}", (128, 128, 64), "cooperative"),
    ("data-parallel{persistent=true}", (64, 128, 64), "cooperative"),
)


@quick_cases(1)
@pytest.mark.parametrize(("schedule", "tile", "consumers"), chosen(PLACES[2:4], PLACES))
def test_bias_gelu_residual_on_hopper_spills_nothing(
    schedule: str, tile: tuple[int, int, int], consumers: str
):
    lowering = LowerToHopper(consumers=consumers)
    kernel = compiled(BIAS, "sm_90a", schedule, tile, lowering)
    program, report = kernel.program().assembled()
    assert_clean(report)
    assert "tanh.approx.f32" in program.ptx


@quick_cases(1)
@pytest.mark.parametrize(
    ("target", "case"), cover(0, product(["sm_80", "sm_90a"], EPILOGUES)), ids=str
)
def test_every_epilogue_assembles(target: str, case: Case):
    _, report = compiled(case.function, target).program().assembled()
    assert_clean(report)


@pytest.mark.slow
def test_what_an_operand_lacks_is_loaded_once():
    """A broadcast operand is loaded once for all elements of D that share its value.

    A bias is loaded once for both rows of a register pair, a row factor once for all columns.
    """

    @ep.epilogue(bias=ep.operand("n", "f32"))
    def add_bias(acc: Any, bias: Any) -> Any:
        return acc + bias

    @ep.epilogue(row=ep.operand("m", "f32"))
    def scale_rows(acc: Any, row: Any) -> Any:
        return acc * row

    def loads(function: ep.EpilogueFunction) -> int:
        # In kernels with ping-pong warpgroups, TMA loads no epilogue operands.
        lowering = LowerToHopper(consumers="pingpong")
        ptx = compiled(function, "sm_90a", "data-parallel", lowering=lowering).ptx
        return len(re.findall(r"ld\.global(?!\.nc\.v4)", ptx))

    plain = loads(ep.ALPHA_BETA)
    # A thread has accumulators in 2 x 16 blocks of 64 rows and 8 columns. In each block they lie
    # in two rows, 8 apart; the thread loads the bias once for both rows.
    assert loads(add_bias) - plain == 2 * 16
    assert loads(scale_rows) - plain == 2 * 2


def test_an_operand_that_is_not_given_is_not_read():
    text = compiled(EPILOGUES[2].function, "sm_80").ptx
    assert "read_gate" not in text  # PTX numbers parameters, so their names do not appear in it
    kernel = compiled(ep.ALPHA_BETA, "sm_90a")
    assert not any(op.sources for op in kernel.lowered.control.of_kind(ApplyFragment))


@pytest.mark.slow
def test_results_of_16_bits_may_be_approximate_and_others_not():
    for out, fast in (("bf16", True), ("f32", False)):
        ptx = compiled(BIAS, "sm_80", dtype="bf16", out_dtype=out).ptx
        assert ("tanh.approx.f32" in ptx) is fast


def test_no_f64_on_a_gpu():
    @ep.epilogue(x=ep.operand("n", "f64"))
    def wide(acc: Any, x: Any) -> Any:
        return acc + ep.cast(x, to="f32")

    for target in ("sm_80", "sm_90a"):
        with pytest.raises(CodegenError, match="f64"):
            compiled(wide, target).ptx  # noqa: B018 - it is made here
