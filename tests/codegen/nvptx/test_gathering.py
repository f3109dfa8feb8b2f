"""Hopper kernels that gather rows of A: threads copy the rows, and TMA loads B."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import codegen
from codegen.call.alignment import alignment_of_factors
from codegen.call.views import TensorView
from codegen.toolchain import assemble
from coordgraph import Gemm
from coordgraph.control.asynchronous import ArriveBarrier, CopyBox, FenceShared, InitBarrier
from coordgraph.control.lowered import WaitCopies
from coordgraph.control.operations import Operation, Scope
from passes import DataParallel, Pass, Pipeline, StreamK
from passes.lowering import LowerToHopper
from passes.lowering.sm_90a.gathering import GATHERERS
from passes.lowering.sm_90a.ring import FULL
from tests.support.ptxas import HAS_WHEEL, assert_clean
from tests.support.sampling import quick_cases

LOWERINGS: tuple[tuple[Pass | Pipeline, tuple[int, int, int], dict[str, Any]], ...] = (
    (DataParallel(persistent=True), (128, 256, 64), {}),
    (DataParallel(persistent=True), (256, 256, 64), {"cluster_m": 2}),
    (DataParallel(persistent=True), (128, 256, 64), {"cluster_n": 2, "consumers": "pingpong"}),
    (DataParallel(persistent=True, scheduler="dynamic"), (128, 128, 64), {}),
    (StreamK(owner="last"), (88, 128, 64), {}),
    (StreamK(), (128, 176, 128), {"stages": 2}),
    (Pipeline.parse("heterogeneous-tiles{small_m=64}"), (128, 128, 64), {}),
)
"""The kernels under test, which gather rows of A: schedule, tile, options of `LowerToHopper`."""


@quick_cases(3)
@pytest.mark.parametrize("case", range(len(LOWERINGS)))
def test_hopper_gathers_by_two_warps(case: int):
    """A stage's full barrier counts arrivals of TMA and of all gathering threads; no data race."""
    schedule, tile, options = LOWERINGS[case]
    grouped = case % 2 == 1
    gemm = Gemm("bf16", transpose_b=True, grouped=grouped, gathered_rows=True)
    lowered = LowerToHopper(**options)(schedule(gemm.graph(tile)))
    assert {op.tensor for op in lowered.control.of_kind(CopyBox)} >= {"B"}
    assert not [op for op in lowered.control.of_kind(CopyBox) if op.tensor == "A"]
    full = {op.arrivals for op in lowered.control.of_kind(InitBarrier) if op.barrier == FULL}
    assert full == {1 + 32 * GATHERERS}
    assert not lowered.check().refuted
    lowering = LowerToHopper(**options)
    kernel = codegen.compile(schedule(gemm.graph(tile)), "sm_90a", lowering=lowering)
    if HAS_WHEEL:
        assert_clean(assemble(kernel.ptx, "sm_90a"))


@pytest.mark.parametrize(("case", "again"), [(0, 0), (4, 0), (5, 8)])
def test_row_indices_are_read_once_for_a_tile(case: int, again: int):
    """A thread with at most 16 rows reads no row index between waiting for a stage and copying."""
    schedule, tile, options = LOWERINGS[case]
    gemm = Gemm("bf16", transpose_b=True, gathered_rows=True)
    lowering = LowerToHopper(**options)
    ptx = codegen.compile(schedule(gemm.graph(tile)), "sm_90a", lowering=lowering).ptx
    copies = [line for line in range(len(ptx)) if ptx.startswith("cp.async.cg", line)]
    begin = ptx.rindex("mbarrier.try_wait", 0, copies[0])
    assert ptx[begin : copies[-1]].count("ld.global") == again


@pytest.mark.parametrize("left_out", [WaitCopies, FenceShared, ArriveBarrier])
def test_gathered_rows_are_checked_for_races(left_out: type[Operation]):
    """The check `memory order` refutes gathering without a wait for copies, a fence or a signal."""
    schedule, tile, _ = LOWERINGS[0]
    gemm = Gemm("bf16", transpose_b=True, gathered_rows=True)
    lowered = LowerToHopper()(schedule(gemm.graph(tile)))

    def drop(op: Operation, inside: bool = False) -> Operation | tuple[()]:
        inside = inside or (isinstance(op, Scope) and op.name == "gatherers")
        if inside and isinstance(op, left_out):
            return ()
        bodies = {
            name: tuple(new for x in getattr(op, name) if (new := drop(x, inside)))
            for name in op.BODIES
        }
        return replace(op, **bodies)

    with lowered.edit("a fault") as e:
        root = lowered.control.root
        e.kernel(*(new for op in root.body if (new := drop(op))), workgroup=root.workgroup)
    found = e.graph.check()
    assert [verdict.name for verdict in found.refuted] == ["memory order"]


@pytest.mark.parametrize(("k", "pitch", "family"), [(64, 64, 16), (60, 64, 1), (64, 68, 8)])
def test_rows_that_are_gathered_by_chunks_are_whole_chunks(k: int, pitch: int, family: int):
    """Gathered rows of A count as aligned only if they are whole chunks of 16 bytes.

    A chunk past the end of a row would bring elements of the gap between rows, such as NaN.
    """
    gemm = Gemm("bf16", gathered_rows=True)
    a = TensorView(0, (8, k), (pitch, 1), "bf16")
    b = TensorView(0, (k, 64), (64, 1), "bf16")
    assert alignment_of_factors(gemm, {"A": a, "B": b}) == family
