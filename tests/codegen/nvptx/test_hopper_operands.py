"""On Hopper, TMA boxes bring elements of A and B to where wgmma's descriptors point.

`tests.codegen.nvptx.isa` models how TMA and the tensor core lay out elements; the addresses that
they get come from the lowered graph.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from coordgraph.control.asynchronous import (
    ArriveBarrier,
    CopyBox,
    ExpectBytes,
    InitBarrier,
    MultiplyShared,
)
from coordgraph.control.operations import If, Inside, Locate
from coordgraph.elements import DType, dtype
from tests.codegen.nvptx import isa
from tests.codegen.nvptx.configurations import Configuration, boxed
from tests.codegen.nvptx.hopper import LAUNCH, NOTHING, ORIGIN, Lowered, lowered, mesh
from tests.codegen.nvptx.isa import Array
from tests.support.sampling import chosen, quick_cases

CONFIGURATIONS = (
    boxed((128, 256, 64), layout="nn"),
    boxed((256, 128, 64), layout="tn"),
    boxed((256, 256, 64), (2, 1, 1), "tt"),
    boxed((256, 256, 64), (1, 2, 1), "nn"),
    boxed((256, 512, 128), (1, 4, 1), "tn"),
    boxed((1024, 128, 64), (8, 1, 1), "tt"),
    boxed((128, 128, 64), (2, 2, 1), "nn"),
    boxed((256, 256, 64), (2, 4, 1), "nt"),
    boxed((512, 160, 64), (4, 2, 1), "tn"),
    boxed((512, 160, 64), (4, 2, 1), "nt"),
    boxed((1024, 144, 64), (8, 1, 1), "tt"),
    boxed((16, 512, 64), (1, 4, 1), "nn"),
    boxed((160, 256, 64), (2, 4, 1), "tn"),
    boxed((128, 144, 64), layout="nn"),
    boxed((128, 160, 64), layout="tn"),
    boxed((128, 384, 64), layout="nt"),
    boxed((128, 320, 64), layout="nn"),
    boxed((192, 160, 64), layout="nn"),
    boxed((512, 64, 64), layout="nn"),
    boxed((16, 128, 64), layout="tn"),
    boxed((96, 128, 64), layout="tt"),
    boxed((512, 160, 64), (4, 1, 1), "nt"),
    boxed((256, 192, 64), (2, 1, 1), "tn"),
    boxed((192, 64, 64), layout="tn"),
    boxed((192, 256, 64), layout="tn"),
    boxed((64, 64, 64), layout="tt"),
    boxed((64, 48, 64), layout="tt"),
    boxed((48, 192, 64), layout="nn"),
    boxed((64, 128, 64), layout="tn"),
    boxed((48, 256, 128), layout="nn"),
    boxed((32, 512, 64), (1, 2, 1), "nn"),
    boxed((16, 128, 128), (1, 1, 2), "nn"),
    boxed((64, 64, 512), (1, 1, 8), "tn"),
    boxed((64, 256, 64), layout="nt", consumers="pingpong"),
    boxed((256, 128, 64), (2, 1, 1), "nn", consumers="pingpong"),
    boxed((64, 320, 64), layout="tn", consumers="pingpong"),
    boxed((128, 256, 128), types=("i8", "bf16")),
    boxed((256, 128, 128), (2, 1, 1), types=("u8", "bf16")),
    boxed((16, 128, 256), (1, 1, 2), types=("i8", "i32")),
    boxed((48, 256, 256), types=("u8", "f16")),
    boxed((64, 256, 128), types=("i8", "f16"), consumers="pingpong"),
    boxed((256, 176, 64), (2, 2, 1), "nn"),
)
ODD = (
    boxed((128, 72, 64), layout="nn"),
    boxed((64, 88, 64), layout="tn"),
    boxed((256, 120, 64), layout="nn"),
    boxed((128, 88, 64), layout="nt"),
    boxed((40, 128, 64), layout="tt"),
    boxed((128, 208, 64), (1, 2, 1), "nn", consumers="pingpong"),
)
"""Tiles with an odd multiple of 8 columns: their last TMA box, of 16, 32 or 64 columns, also holds
columns that are not in the tile."""
every_configuration = pytest.mark.parametrize(
    "configuration", chosen(CONFIGURATIONS, (*CONFIGURATIONS, *ODD)), ids=str
)
AXES = {"A": (0, 2), "B": (2, 1)}
"""The axes of each tensor, as numbers: 0 is m, 1 is n, 2 is k."""


def loaded(this: Lowered, tensor: str, along: int) -> int:
    """The number of elements along an axis in the TMA boxes of A or B that one workgroup loads.

    The extent along a contiguous axis m or n is rounded up to a multiple of 16, the smallest box.
    """
    turned = this.configuration.layout["AB".index(tensor)] == "t"
    across_k = turned if tensor == "A" else not turned
    part = this.part[along]
    return part + (-part % 16 if across_k and along != 2 else 0)


def stage_elements(this: Lowered, tensor: str) -> int:
    """The number of elements in the TMA boxes of a tensor's tile that one workgroup loads."""
    rows, columns = (loaded(this, tensor, along) for along in AXES[tensor])
    return rows * columns


def name(this: Lowered, tensor: str, first: Array, second: Array) -> Array:
    """A number for the element (first, second) of a tensor's tile, or of the 8 rows and columns
    after it; no two elements share one.
    """
    return first * (this.configuration.tile[AXES[tensor][1]] + 8) + second


def element(this: Lowered) -> DType:
    """The element type of A and B."""
    return dtype(this.configuration.types[0])


def stage(this: Lowered) -> int:
    return LAUNCH["ring.step"] % this.size("stage")


def boxes(this: Lowered, tensor: str) -> int:
    """The number of TMA boxes, along m or n, into which a workgroup's part of a tile is divided."""
    return this.size(f"{tensor}.boxes")


def receivers(this: Lowered, tensor: str, rank: int) -> list[int]:
    """Ranks in the cluster of the workgroups that share `rank`'s rows of A, or columns of B."""
    ranks = np.arange(this.ranks)
    part = this.first(ranks, "AB".index(tensor))
    return [int(r) for r in ranks[part == part[rank]]]


def bring(this: Lowered, tensor: str) -> tuple[Array, Array]:
    """Simulate all TMA loads of A or of B in one pipeline step of a cluster.

    Returns two arrays: for each workgroup of the cluster, the numbers (given by `name`) of the
    elements in its stage; and how often each element was read by a workgroup that needs it.
    """
    size = stage_elements(this, tensor)
    memory = np.full((this.ranks, size), NOTHING)
    tile = [this.configuration.tile[along] for along in AXES[tensor]]
    read = np.zeros((tile[0] + 8) * (tile[1] + 8), int)
    axis = "AB".index(tensor)
    contiguous = int(this.configuration.layout["AB".index(tensor)] == "n")
    (node,) = this.nodes(CopyBox, tensor=tensor)
    op = node.op
    assert isinstance(op, CopyBox)
    assert op.source == (f"{tensor}.{contiguous}", f"{tensor}.{1 - contiguous}")
    (wide, high), size_of_one = op.box, element(this).bytes
    assert wide * size_of_one in (32, 64, 128), "a row of a TMA box is as long as a swizzle span"
    assert high <= 256, "a TMA box has at most 256 rows"
    row, column = np.arange(high)[:, None], np.arange(wide)[None, :]
    steps = [f"{tensor}.box", f"{tensor}.box.layer"]
    for rank, *numbers in product(range(this.ranks), *(range(this.size(s)) for s in steps)):
        at = dict(zip(["cluster.rank", *steps], map(np.asarray, (rank, *numbers)), strict=True))
        for located in this.nodes(Locate, dims=(f"{tensor}.boxes",)):
            at[f"{tensor}.boxes"] = this.values(located.values[0], at)
        start = [this.place(node, dim, at) for dim in op.source]
        origin = [ORIGIN[axis] * t for axis, t in zip(AXES[tensor], tile, strict=True)]
        found = {
            contiguous: start[0] - origin[contiguous] + column,
            1 - contiguous: start[1] - origin[1 - contiguous] + row,
        }
        names = name(this, tensor, found[0], found[1])
        beyond = found[axis] - this.first(np.array(rank), axis) >= this.part[axis]
        np.add.at(read, names[np.broadcast_to(~beyond, names.shape)], 1)
        first = this.place(node, f"{tensor}.shared", at) * size_of_one
        assert first % 128 == 0, "TMA boxes are aligned to 128 bytes"
        bytes_ = isa.swizzled(first + size_of_one * (row * wide + column), size_of_one * wide)
        places = bytes_ // size_of_one - stage(this) * size
        for receiver in receivers(this, tensor, rank) if op.receivers else [rank]:
            assert (memory[receiver, places] == NOTHING).all()
            memory[receiver, places] = names
    return memory, read


@quick_cases(5)
@pytest.mark.parametrize("tensor", ["A", "B"])
@every_configuration
def test_each_element_is_brought_once_to_all_that_need_it(
    configuration: Configuration, tensor: str
):
    this = lowered(configuration)
    memory, read = bring(this, tensor)
    tile = [np.arange(this.configuration.tile[along]) for along in AXES[tensor]]
    assert (read[name(this, tensor, tile[0][:, None], tile[1][None, :])] == 1).all()
    assert read.sum() == tile[0].size * tile[1].size
    for rank in range(this.ranks):
        mine = [
            this.first(np.array(rank), along) + np.arange(this.part[along])
            for along in AXES[tensor]
        ]
        needed = name(this, tensor, mine[0][:, None], mine[1][None, :])
        assert (memory[rank] != NOTHING).all(), "the boxes of a stage leave no gap"
        found = np.sort(memory[rank][np.isin(memory[rank], needed)])
        assert np.array_equal(found, np.sort(needed.ravel()))


@quick_cases(9)
@pytest.mark.parametrize("tensor", ["A", "B"])
@every_configuration
def test_the_graph_knows_where_every_element_lies(configuration: Configuration, tensor: str):
    """The graph gives the address of every element of a stage, not only where boxes and
    operands begin.
    """
    this = lowered(configuration)
    memory, _ = bring(this, tensor)
    first, second = (f"{tensor}.own.{axis}" for axis in (0, 1))
    (place,) = this.graph.coordinates.reverse([first, second, "stage"], [f"{tensor}.shared"])
    rows, columns = (np.arange(this.part[along]) for along in AXES[tensor])
    at = {first: rows[:, None], second: columns[None, :], "stage": np.array(0)}
    own = [this.first(np.array(0), along) for along in AXES[tensor]]
    expected = name(this, tensor, own[0] + at[first], own[1] + at[second])
    assert (memory[0, this.values(place, at)] == expected).all()


def test_every_swizzle_and_height_is_tried():
    boxes = [op.box for c in CONFIGURATIONS for op in lowered(c).operations(CopyBox)]
    assert {wide for wide, _ in boxes} == {16, 32, 64, 128}
    layers = {lowered(c).size(f"{t}.box.layer") for c in CONFIGURATIONS for t in "AB"}
    assert {1, 2, 4} <= layers
    assert {lowered(c).beside for c in CONFIGURATIONS} == {1, 2}
    assert {lowered(c).consumers for c in CONFIGURATIONS} == {1, 2}


@every_configuration
def test_what_an_operand_is_shared_by_follows_the_cluster(configuration: Configuration):
    """TMA loads are multicast to the workgroups of a cluster that share an operand.

    Workgroups side by side along n share rows of A, those along m share columns of B.
    """
    m, n, _ = configuration.cluster
    receivers = {op.tensor: op.receivers for op in lowered(configuration).operations(CopyBox)}
    assert receivers == {
        "A": ("cluster.n",) if n > 1 else (),
        "B": ("cluster.m",) if m > 1 else (),
    }


@quick_cases(10)
@every_configuration
def test_descriptors_point_at_the_operands(configuration: Configuration):
    """Element (i, kk) at a wgmma descriptor is the operand's element in row i at index kk of k."""
    this = lowered(configuration)
    (node,) = this.nodes(MultiplyShared)
    op = node.op
    assert isinstance(op, MultiplyShared)
    kind = element(this)
    depth_of_one = 32 // kind.bytes
    assert op.instruction.endswith({"bf16": "k16.bf16", "i8": "k32.s8", "u8": "k32.u8"}[kind.name])
    assert this.size("fragment.k") * depth_of_one == this.part[2]
    at = mesh(
        cluster_rank=this.ranks,
        workitem=this.consumers,
        acc_m=this.blocks,
        acc_p=this.beside,
        fragment_k=this.size("fragment.k"),
        outer=max(64, this.wide),
        depth=depth_of_one,
    )
    warpgroup, outer, depth = at["workitem"], at["outer"], at["depth"]
    at["workitem"] = 128 * warpgroup
    ends = (
        (op.a, op.a_strides, op.rows[0], op.transpose_a),
        (op.b, op.b_strides, op.rows[1], op.transpose_b),
    )
    # A wgmma instruction multiplies 64 rows of the left operand by N columns of the right operand.
    row, column = this.corner(warpgroup)
    top, left = row + 64 * at["acc.m"], column + this.wide * at["acc.p"]
    wanted = (
        (np.minimum(outer, 63), top, this.left),
        (np.minimum(outer, this.wide - 1), left, 1 - this.left),
    )
    rank = at["cluster.rank"]
    k = this.first(rank, 2) + depth_of_one * at["fragment.k"] + depth
    for (shared, strides, span, transposed), (index, start, axis) in zip(ends, wanted, strict=True):
        tensor = shared[0]
        assert tensor == "AB"[axis]
        memory, _ = bring(this, tensor)
        begin = this.place(node, shared, at) * kind.bytes
        assert (begin % 16 == 0).all()
        offset = isa.operand(index, depth, strides, span, transposed=transposed, size=kind.bytes)
        size = memory.shape[1]
        places = isa.swizzled(begin + offset, span) // kind.bytes - stage(this) * size
        assert ((places >= 0) & (places < size)).all()
        across = this.first(rank, axis) + start + index
        expected = name(this, tensor, *((across, k) if tensor == "A" else (k, across)))
        assert (memory[rank, places] == expected).all()


@pytest.mark.parametrize("tensor", ["A", "B"])
@every_configuration
def test_boxes_outside_are_not_waited_for(configuration: Configuration, tensor: str):
    """The mbarrier expects no bytes of boxes that lie outside the tensor, wherever m or n
    ends in a tile.
    """
    this, along = lowered(configuration), AXES[tensor]["AB".index(tensor)]
    count, extent = boxes(this, tensor), configuration.tile[along]
    counted = this.nodes(Inside, dims=(f"{tensor}.{'AB'.index(tensor)}",))
    if count == 1 and configuration.cluster[along] == 1:
        assert not counted, "the only box of a tile begins where the tile does"
        return
    (node,) = counted
    assert node.condition is not None
    ends = np.arange(1, extent + 1)[:, None]
    number = np.arange(count)[None, :]
    begin = ORIGIN[along] * extent
    for rank in range(this.ranks):
        at = {
            "mn"[along]: begin + ends,
            f"{tensor}.boxes": number,
            "cluster.rank": np.asarray(rank),
        }
        found = np.broadcast_to(this.values(node.condition, at), (extent, count))
        first = this.first(np.array(rank), along)
        wide = loaded(this, tensor, along) // count
        assert np.array_equal(found, number * wide + first < ends)


@quick_cases(4)
@every_configuration
def test_a_stage_waits_for_all_bytes_and_all_readers(configuration: Configuration):
    this = lowered(configuration)
    stages, workitems = this.size("stage"), np.arange(128 * this.team)
    made = {
        n: i for n in ("full", "empty") for i in this.nodes(InitBarrier, barrier=f"barrier.{n}")
    }
    arrivals = {role: node.op.arrivals for role, node in made.items()}  # type: ignore[attr-defined]
    for role in arrivals:
        nodes = this.nodes(InitBarrier, barrier=f"barrier.{role}")
        assert [int(this.place(n, f"barrier.{role}", {})) for n in nodes] == list(range(stages))
    # Full barrier: one producer thread arrives, and expects the bytes of all boxes of the stage: of
    # the boxes that it loads itself, and of the boxes that other CTAs multicast.
    (expected,) = (node for node in this.nodes(ExpectBytes))
    inside = {f"{tensor}.boxes.inside": boxes(this, tensor) for tensor in "AB"}
    bytes = this.values(expected.scope.resolve(expected.op.bytes), inside)  # type: ignore[attr-defined]
    size = element(this).bytes
    assert bytes == size * sum(stage_elements(this, tensor) for tensor in "AB")
    assert arrivals["full"] == 1
    # Empty barrier: it is initialised with the number of threads, in all workgroups of a cluster,
    # that arrive at it. A thread arrives to release the stage of the previous step.
    around = [n for n in this.nodes(If) if any(isinstance(x.op, ArriveBarrier) for x in n.walk())]
    for node in this.nodes(ArriveBarrier, barrier="barrier.empty"):
        (branch,) = (n for n in around if n.body and node in [*n.walk()][:3])
        op = node.op
        assert isinstance(op, ArriveBarrier)
        assert branch.condition is not None
        holds = [this.values(branch.condition, {"workitem": np.asarray(w)}) for w in workitems]
        arriving = workitems[np.array(holds, bool)]
        came = np.zeros(this.ranks, int)
        for rank in range(this.ranks):
            if op.rank is None:
                came[rank] += len(arriving)
                continue
            to = this.values(node.scope.resolve(op.rank), {"workitem": arriving})
            np.add.at(came, to, 1)
        assert set(came) == {arrivals["empty"]}
        for step in range(1, 3 * stages):
            at = {"ring.step": np.array(step)}
            assert this.place(node, "barrier.empty", at) == (step - 1) % stages
