"""Dynamic tile schedulers on sm_90a: producers take tile numbers (tickets) from a counter.

The kernels are simulated with warps in random orders.
"""

from __future__ import annotations

import re
from functools import cache
from itertools import product

import pytest

from codegen.architectures import Variant
from codegen.targets.nvptx.program import CudaProgram, Vectors
from coordgraph import Gemm, KernelGraph
from coordgraph.control.asynchronous import InitBarrier, WaitBarrier
from coordgraph.control.operations import If
from coordgraph.control.tickets import FetchTicket, PassTicket, ReadTicket
from coordgraph.integers import index_symbol
from passes import DataParallel
from passes.lowering import LowerToHopper
from tests.codegen.nvptx.test_hopper_turns import PROBLEMS, lowered, play
from tests.support.ptxas import assert_clean
from tests.support.sampling import quick_cases

DYNAMIC = "data-parallel{persistent=true,scheduler=dynamic}"
CLUSTERS = ((1, 1), (2, 1), (1, 2), (2, 2))
CONSUMERS = ("cooperative", "pingpong")


@quick_cases(2)
@pytest.mark.parametrize(
    ("consumers", "cluster", "problem", "seed"),
    [*product(CONSUMERS, CLUSTERS, PROBLEMS, range(2))],
)
def test_every_tile_is_computed_once(
    consumers: str, cluster: tuple[int, int], problem: str, seed: int
):
    """In whatever order producers take tickets, each tile is stored once; the counter ends at 0."""
    machine = play(lowered(DYNAMIC, cluster, consumers), PROBLEMS[problem], seed)
    assert machine.ticket == 0


@pytest.mark.slow
def test_which_workgroup_computes_a_tile_differs_from_run_to_run():
    def owners(schedule: str, seed: int) -> list[int]:
        machine = play(lowered(schedule, (1, 1), "cooperative"), (5, 2, 1, 2), seed)
        return [number for number, _, _ in machine.epilogues]

    counts = {owners(DYNAMIC, seed).count(0) for seed in range(12)}
    assert len(counts) > 1
    assert {owners("data-parallel{persistent=true}", seed).count(0) for seed in range(2)} == {5}


@pytest.mark.parametrize("cluster", [(1, 1), (2, 1)])
def test_one_producer_takes_a_ticket_for_each_tile(cluster: tuple[int, int]):
    control = lowered(DYNAMIC, cluster, "cooperative").control
    assert len(control.of_kind(FetchTicket)) == len(control.of_kind(PassTicket)) == 1
    assert len(control.of_kind(ReadTicket)) == 2  # one by the producer, one by the consumers
    ranks = cluster[0] * cluster[1]
    arrivals = {op.barrier: op.arrivals for op in control.of_kind(InitBarrier)}
    # The four warps of the consumer warpgroup and the producer warp read the next tile's number.
    assert (arrivals["ticket.full"], arrivals["ticket.empty"]) == (1, (4 + 1) * ranks)


@pytest.mark.parametrize("cluster", [(1, 1), (2, 1)])
def test_no_lane_waits_alone(cluster: tuple[int, int]):
    """All lanes of a warp wait for the next tile's number in shared memory.

    After a wait of one lane, ptxas computes the coordinates of boxes lane by lane, and the producer
    needs twice as many instructions for a box.
    """
    control = lowered(DYNAMIC, cluster, "cooperative").control
    workitem = index_symbol("workitem")
    alone = [op for op in control.of_kind(If) if workitem in op.condition.free_symbols]
    waits = [x for op in alone for x in op.walk() if isinstance(x, WaitBarrier)]
    assert not [op for op in waits if op.barrier.startswith("ticket.")]
    assert len([op for op in control.of_kind(WaitBarrier) if op.barrier == "ticket.empty"]) == 1


@cache
def program(consumers: str, cluster_m: int) -> CudaProgram:
    problem: KernelGraph = Gemm("bf16", transpose_b=True).graph((128, 128, 64))
    graph = DataParallel(persistent=True, scheduler="dynamic")(problem)
    lowering = LowerToHopper(consumers=consumers, cluster_m=cluster_m)
    variant = Variant(Vectors(0, 0, 8), "wgmma", False)
    return CudaProgram(graph, "sm_90a", *variant, lowering=lowering)


@quick_cases(1)
@pytest.mark.usefixtures("ptxas")
@pytest.mark.parametrize(("consumers", "cluster_m"), [*product(CONSUMERS, (1, 2))])
def test_kernels_assemble_without_spills(consumers: str, cluster_m: int):
    assert_clean(program(consumers, cluster_m).report())


def test_the_ticket_is_one_atomic_increment():
    ptx = program("cooperative", 1).ptx
    assert len(re.findall(r"atom\.\S*\.inc\.u32", ptx)) == 1
    assert ptx.index("griddepcontrol.wait") < ptx.index("atom.relaxed.gpu.global.inc.u32")


@pytest.mark.slow
def test_words_of_other_workgroups_of_the_cluster_are_written():
    ptx = program("cooperative", 2).ptx
    assert len(re.findall(r"st\.shared::cluster\.u32", ptx)) == 2
    assert "mbarrier.arrive.release.cluster.shared::cluster.b64" in ptx
