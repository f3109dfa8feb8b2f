"""Dynamic tile schedulers with mma.sync: one thread takes tickets (tile numbers) for all."""

from __future__ import annotations

import re

import pytest

from codegen.targets.nvptx.program import CudaProgram, Vectors
from coordgraph import Gemm, PassError
from coordgraph.control.graph import rewrite
from coordgraph.control.operations import Operation, accumulates
from coordgraph.control.tickets import FetchTicket, PassTicket, ReadTicket
from coordgraph.verification import Outcome
from passes import DataParallel
from passes.lowering import LowerToHopper, LowerToTensorCores
from tests.gpu.dynamic_kernels import SPECS
from tests.gpu.kernels import Spec
from tests.support.ptxas import assert_clean
from tests.support.sampling import quick_cases

DYNAMIC = DataParallel(persistent=True, scheduler="dynamic")


def program(tile: tuple[int, int, int]) -> CudaProgram:
    graph = DYNAMIC(Gemm("bf16").graph(tile))
    return CudaProgram(graph, "sm_80", Vectors(0, 0, 0), "mma.sync")


def test_the_ticket_is_taken_between_main_loop_and_epilogue():
    made = program((64, 64, 32))
    kinds = [op.kind for op in made.lowered.control.operations]
    assert kinds.index("MultiplyFragments") < kinds.index("FetchTicket")
    assert kinds.index("FetchTicket") < kinds.index("ApplyFragment") < kinds.index("PassTicket")
    assert len(re.findall(r"atom\.relaxed\.gpu\.global\.inc\.u32", made.ptx)) == 1


@pytest.mark.slow
@pytest.mark.usefixtures("ptxas")
@pytest.mark.parametrize("tile", [(64, 64, 32), (256, 128, 32)])
def test_kernels_assemble_without_spills(tile: tuple[int, int, int]):
    assert_clean(program(tile).report())


@pytest.mark.slow
@pytest.mark.usefixtures("ptxas")
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_the_kernels_of_the_gpu_tests_assemble(spec: Spec):
    variant = (Vectors(0, 0, 0), "wgmma" if spec.cluster else "mma.sync", True)
    made = CudaProgram(spec.graph, spec.target, *variant, watchdog=True, lowering=spec.lowering)
    assert_clean(made.assembled()[1])


def test_no_data_race_is_found():
    graph = LowerToTensorCores(stages=3)(DYNAMIC(Gemm("bf16").graph((64, 64, 32))))
    for kind in (FetchTicket, PassTicket, ReadTicket):
        assert len(graph.control.of_kind(kind)) == 1
    assert graph.check()["memory order"].outcome is Outcome.HOLDS


@quick_cases(1)
@pytest.mark.parametrize("lowering", [LowerToTensorCores(), LowerToHopper()], ids=str)
def test_a_loop_with_two_main_loops_is_refused(lowering: LowerToTensorCores | LowerToHopper):
    graph = DYNAMIC(Gemm("bf16").graph((64, 64, 64)))

    def twice(op: Operation) -> Operation | tuple[Operation, ...]:
        return (op, op) if accumulates(op) else op

    with graph.edit("two main loops") as e:
        body = (new for op in graph.control.root.body for new in rewrite(op, twice))
        e.kernel(*body, workgroup="workgroup")
    with pytest.raises(PassError, match="has 2 main loops"):
        lowering(e.graph)
