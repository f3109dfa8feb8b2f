"""The lowering to sm_90a: the lowered graphs, and the graphs and tiles that it refuses."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import prod

import numpy as np
import pytest

import coordgraph as cg
from codegen.targets.nvptx.program import CudaProgram
from coordgraph import Gemm
from coordgraph.control import asynchronous
from coordgraph.control.asynchronous import (
    AllowNextLaunch,
    AwaitEarlierLaunch,
    ClusterBarrier,
    CopyBox,
    InitBarrier,
    MultiplyShared,
    PrefetchMap,
    PublishBarriers,
    SetRegisters,
    StoreBox,
    WaitBarrier,
)
from coordgraph.control.graph import ControlGraph
from coordgraph.control.lowered import Barrier, StoreFragment
from coordgraph.control.operations import If, Kernel, Operation, ReceivePartial
from coordgraph.errors import PassError
from passes import DataParallel, Pass, StreamK, TwoTileStreamK
from passes.lowering import LowerToHopper
from tests.codegen.nvptx.configurations import (
    HOPPER_SHAPES,
    LARGE_SHAPES,
    LARGE_TURN_SHAPES,
    LAYOUTS,
    TURN_SHAPES,
    Configuration,
    boxed,
)
from tests.codegen.nvptx.hopper import lowered
from tests.support.mermaid import parse as parse_mermaid
from tests.support.sampling import cover, quick_cases

SHAPES = [
    *(boxed(*shape) for shape in (*HOPPER_SHAPES, *LARGE_SHAPES)),
    *(boxed(*shape, consumers="pingpong") for shape in (*TURN_SHAPES, *LARGE_TURN_SHAPES)),
]
every_shape = pytest.mark.parametrize("configuration", SHAPES, ids=str)
MULTICAST = boxed((256, 256, 64), (2, 1, 1), schedule=StreamK(owner="last"))
SPLIT = boxed((64, 64, 512), (1, 1, 8), schedule=StreamK(owner="last"))
SWAPPED = boxed((48, 128, 128), schedule=TwoTileStreamK(first="dp"))


def test_the_ring_never_drains():
    """Stage and phase are computed from one count of k tiles, which continues through all loops of
    a schedule. So the producer fills stages for the next loop during the previous one.
    """
    this = lowered(boxed((128, 256, 64), schedule=TwoTileStreamK(workgroups=132)))
    stages = this.size("stage")
    waits = this.nodes(WaitBarrier)
    # Two roles, each with four waits: in a Stream-K loop, in a data-parallel loop, and in a loop
    # over partial sums, whose shorter last step is separate code.
    assert len(waits) == 8
    for node in waits:
        for step in range(3 * stages):
            at = {"ring.step": np.array(step)}
            assert this.place(node, "stage", at) == step % stages
            assert this.place(node, "ring.phase", at) == step // stages % 2


def test_roles_share_the_schedule_but_not_the_work():
    this = lowered(MULTICAST)
    assert this.nodes(CopyBox)
    (roles,) = (op for op in this.graph.control.root.body if isinstance(op, If) and op.orelse)
    made = [op for root in roles.orelse for op in root.walk()]
    used = [op for root in roles.body for op in root.walk()]
    consumed = MultiplyShared | StoreFragment | ReceivePartial | StoreBox
    assert not any(isinstance(op, consumed) for op in made)
    assert not any(isinstance(op, CopyBox) for op in used)


@quick_cases(5)
@every_shape
def test_registers_go_from_the_producer_to_the_consumers(configuration: Configuration):
    """The producer gives registers to the consumers by setmaxnreg.

    The counts are multiples of 8 from 24 to 256, and the total stays the same (PTX ISA,
    "setmaxnreg").
    """
    this = lowered(configuration)
    grown, shrunk = this.operations(SetRegisters)
    assert (grown.grow, shrunk.grow) == (True, False)
    assert all(24 <= op.count <= 256 and op.count % 8 == 0 for op in (grown, shrunk))
    consumers = 128 * this.consumers
    assert this.size("workitem") == consumers + 128
    threads = consumers + 128  # threads get equally many registers, a multiple of 8
    assert grown.count * consumers + shrunk.count * 128 <= 65536 // threads // 8 * 8 * threads
    # A consumer needs 16 registers more than its accumulators: for addresses and other values.
    assert grown.count >= this.registers + 16


@quick_cases(11)
@every_shape
def test_shared_memory_is_all_there_and_used(configuration: Configuration):
    """Stage ring, staging slots and partial sums fit in 227 KiB of shared memory.

    The ring has at least four stages if four stages leave 64 KiB for the rest.
    """
    this = lowered(configuration)
    program = configuration.program
    assert program.shared_bytes <= 227 * 1024
    stage = 2 * (this.part[0] + this.part[1]) * this.part[2]
    assert this.size("stage") >= min(4, (227 * 1024 - 64 * 1024) // stage)
    assert program.cluster == this.ranks


@pytest.mark.parametrize("configuration", [MULTICAST, SPLIT, SWAPPED], ids=str)
def test_nothing_reads_memory_before_earlier_launches_have_ended(configuration: Configuration):
    """Reads of global memory come after the cluster's barrier setup and griddepcontrol.wait."""
    this = lowered(configuration)
    body = this.graph.control.root.body
    kinds = [type(op) for op in body]
    meet = ClusterBarrier if this.ranks > 1 else Barrier
    assert kinds[:5] == [If, meet, AllowNextLaunch, AwaitEarlierLaunch, If]
    first = [op for op in body[0].walk() if not op.BODIES]
    last = first.index(PublishBarriers())
    assert {type(op) for op in first[:last]} == {InitBarrier}
    assert [op.tensor for op in first[last + 1 :] if isinstance(op, PrefetchMap)] == ["A", "B", "D"]
    # Other workgroups of the cluster may still write to the shared memory of a workgroup that is
    # done.
    assert kinds[5:] == ([ClusterBarrier] if this.ranks > 1 else [])


REFUSED: dict[str, tuple[LowerToHopper, dict[str, object], tuple[int, int, int]]] = {
    "architecture=sm_80 has no wgmma; choose sm_90a": (LowerToHopper("sm_80"), {}, (128, 128, 64)),
    "wgmma kernels multiply bf16, f16, i8, u8, e4m3 and e5m2, not f32": (
        LowerToHopper(),
        {"dtype": "f32"},
        (128, 128, 64),
    ),
    "C and D have the type f64; with A and B of bf16, wgmma kernels store one of: bf16, f16, f32": (
        LowerToHopper(),
        {"out_dtype": "f64"},
        (128, 128, 64),
    ),
    "cluster 2x8x1 (m x n x k): the product must be one of 1, 2, 4, 8": (
        LowerToHopper(cluster_m=2, cluster_n=8),
        {},
        (256, 1024, 64),
    ),
    "cluster 2x1x2 (m x n x k): a cluster that divides k divides neither m nor n": (
        LowerToHopper(cluster_m=2, cluster_k=2),
        {},
        (256, 128, 128),
    ),
    "cluster 1x1x3 (m x n x k): the product must be one of": (
        LowerToHopper(cluster_k=3),
        {},
        (64, 64, 192),
    ),
    "cluster 0x1x1 (m x n x k): the product must be one of": (
        LowerToHopper(cluster_m=0),
        {},
        (128, 128, 64),
    ),
    "cluster 16x1x1 (m x n x k): the product must be one of": (
        LowerToHopper(cluster_m=16),
        {},
        (2048, 128, 64),
    ),
    "the tile 129x128x64 cannot be divided by a cluster of 2x1x1": (
        LowerToHopper(cluster_m=2),
        {},
        (129, 128, 64),
    ),
    "tile 96x80x64: a workgroup's part 96x80 must be a multiple of 64 in m or in n": (
        LowerToHopper(),
        {"transpose_b": True},
        (96, 80, 64),
    ),
    "a workgroup's part 128x44 must be a multiple of 8 in m and in n": (
        LowerToHopper(),
        {"transpose_b": True},
        (128, 44, 64),
    ),
    "a workgroup's part 36x128 must be a multiple of 8 in m and in n": (
        LowerToHopper(),
        {},
        (36, 128, 64),
    ),
    "a workgroup's part 192x136 of bf16 needs 204 accumulator registers": (
        LowerToHopper(),
        {"transpose_b": True},
        (192, 136, 64),
    ),
    "part 192x144 of bf16 needs 216 accumulator registers in each thread of its warpgroups": (
        LowerToHopper(),
        {},
        (192, 144, 64),
    ),
    "part 128x272 needs wgmma instructions of 136 columns, which must be a multiple of 16": (
        LowerToHopper(),
        {},
        (128, 272, 64),
    ),
    "a workgroup's part 128x128x32 must be a multiple of 64 in k": (
        LowerToHopper(),
        {},
        (128, 128, 32),
    ),
    "a workgroup's part 64x64x32 must be a multiple of 64 in k": (
        LowerToHopper(cluster_k=4),
        {},
        (64, 64, 128),
    ),
    "part 256x256 of bf16 needs 256 accumulator registers in each thread of its warpgroups": (
        LowerToHopper(),
        {},
        (256, 256, 64),
    ),
    "part 128x256 of f32 needs 128 accumulator registers in each thread of its warpgroups": (
        LowerToHopper(),
        {"out_dtype": "f32"},
        (128, 256, 64),
    ),
    "consumers=tabletennis is unknown; choose cooperative or pingpong": (
        LowerToHopper(consumers="tabletennis"),
        {},
        (128, 128, 64),
    ),
    "cluster 1x1x2: consumers=pingpong cannot add up the products of a cluster that divides k": (
        LowerToHopper(cluster_k=2, consumers="pingpong"),
        {},
        (64, 64, 128),
    ),
    "part 128x256 of bf16 needs 256 accumulator registers in each thread": (
        LowerToHopper(consumers="pingpong"),
        {},
        (128, 256, 64),
    ),
    "1 stages are too few: a ring needs 2": (LowerToHopper(stages=1), {}, (128, 128, 64)),
    "vector=3 must be a power of two, at most 8": (LowerToHopper(vector=3), {}, (128, 128, 64)),
    "vector=-1 must be a power of two, at most 8": (LowerToHopper(vector=-1), {}, (128, 128, 64)),
    "vector=16 must be a power of two, at most 8": (LowerToHopper(vector=16), {}, (128, 128, 64)),
    "0 stages are too few: a ring needs 2": (LowerToHopper(), {}, (128, 256, 512)),
}


@pytest.mark.parametrize("reason", REFUSED, ids=lambda reason: reason[-60:])
def test_what_it_refuses(reason: str):
    step, gemm, tile = REFUSED[reason]
    graph = DataParallel()(cg.Gemm(**gemm).graph(tile))  # type: ignore[arg-type]
    assert reason in (step.why_not(graph) or "")
    with pytest.raises(PassError) as caught:
        step(graph)
    assert str(caught.value).startswith(f"{step} refuses: ")


@quick_cases(6)
@pytest.mark.parametrize(
    ("shape", "layout"), cover(0, product([*HOPPER_SHAPES, *LARGE_SHAPES], LAYOUTS)), ids=str
)
def test_it_refuses_nothing_else(
    shape: tuple[tuple[int, int, int], tuple[int, int, int]], layout: str
):
    """Every macro tile in the lists of test shapes is accepted with 16-bit D.

    With 32-bit D, a tile may be refused only because it needs too many accumulator registers.
    """
    assert boxed(*shape, layout).program.why_not() is None
    why = boxed(*shape, layout, types=("bf16", "f32")).program.why_not()
    assert why is None or "accumulator registers in each thread of its warpgroups" in why


def test_swapping_makes_narrow_tiles_fit():
    """Tiles with few rows can be lowered, because the operands of wgmma are swapped.

    The 64 rows of an instruction are then columns of B, and its N columns are rows of A.
    """
    for rows in (16, 32, 48, 64, 80, 96, 112):
        this = lowered(boxed((rows, 128, 64)))
        assert this.swapped
        assert this.operations(MultiplyShared)[0].a == "B.shared"
        assert this.operations(MultiplyShared)[0].instruction.startswith(f"wgmma.m64n{rows}k16")
    for tile in ((128, 128, 64), (64, 64, 64), (128, 16, 64)):
        this = lowered(boxed(tile))
        assert not this.swapped
        assert this.operations(MultiplyShared)[0].a == "A.shared"


TURNS = boxed((128, 128, 64), schedule=StreamK(owner="last"), consumers="pingpong")
WRITTEN = (
    MULTICAST,
    SPLIT,
    SWAPPED,
    TURNS,
    replace(MULTICAST, types=("f16", "f32"), tile=(256, 64, 64)),
)


@pytest.mark.parametrize(
    ("tile", "wide", "beside"),
    [
        ((128, 256, 64), 256, 1),
        ((128, 320, 64), 160, 2),
        ((128, 384, 64), 192, 2),
        # two warpgroups cannot divide 3 blocks of 64 rows, so they divide the tile's columns
        ((192, 256, 64), 128, 1),
        ((64, 48, 64), 48, 1),
    ],
)
def test_instructions_are_as_wide_as_can_be(tile: tuple[int, int, int], wide: int, beside: int):
    this = lowered(boxed(tile))
    assert (this.wide, this.beside) == (wide, beside)


@quick_cases(2)
@pytest.mark.parametrize("configuration", WRITTEN, ids=str)
def test_the_text_reads_back(configuration: Configuration):
    graph = lowered(configuration).graph
    text = graph.text()
    assert cg.parse(text) == graph
    assert cg.parse(text).text() == text
    assert cg.from_json(graph.json()) == graph
    cg.parse(text).verify()


def all_operations() -> list[Operation]:
    """The operations of the kernels `WRITTEN`, and of a kernel for a list of products, which writes
    tensor maps.
    """
    products = Gemm("bf16", grouped=True, group_axis="mnk").graph((128, 128, 64))
    of_list = LowerToHopper()(DataParallel(persistent=True)(products)).control.operations
    return [*(node.op for c in WRITTEN for node in lowered(c).nodes(Operation)), *of_list]


def test_every_operation_is_among_them():
    names = set(asynchronous.__all__)
    found = {op.kind for op in all_operations()}
    assert names - found == set()
    assert {"Barrier", "StoreFragment", "WaitFlag", "ClearFlag"} <= found


def test_every_operation_is_in_the_diagram():
    one = {
        op.kind: op for op in all_operations() if op.kind in asynchronous.__all__ and not op.BODIES
    }
    text = ControlGraph(Kernel(tuple(one.values()))).mermaid()
    parse_mermaid([text])
    for kind in set(asynchronous.__all__) - {"Counter"}:
        assert kind in text


def test_new_coordinates_are_in_the_diagram():
    graph = lowered(SPLIT).graph
    dims = [d.id for d in graph.coordinates if d.id.startswith(("sum.", "piece."))]
    text = graph.mermaid(only=[*dims, "workitem"])
    parse_mermaid([text])
    assert "Shared(f32)" in text
    assert "sum.phase" in text


@pytest.mark.parametrize("schedule", [DataParallel(), StreamK()], ids=str)
def test_options_of_the_program_reach_the_lowering(schedule: Pass):
    made = boxed((256, 128, 64), (2, 1, 1), schedule=schedule, vector=2)
    program = made.program
    assert program.chosen == LowerToHopper(cluster_m=2, vector=2)
    assert program.overlaps
    plain = CudaProgram(made.graph, "sm_90a")
    assert not plain.overlaps
    assert plain.cluster == 1
    assert prod(made.cluster) == program.cluster
