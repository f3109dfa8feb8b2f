"""Accumulators are stored to D correctly: by stmatrix and TMA boxes, or directly from registers.

`tests.codegen.nvptx.isa` models stmatrix and TMA.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import gcd

import numpy as np
import pytest

from codegen.targets.nvptx.program import Vectors
from coordgraph.control.asynchronous import FenceShared, MultiplyShared, StoreBox, WaitStores
from coordgraph.control.lowered import ApplyFragment, Barrier, StoreFragment
from coordgraph.control.operations import Operation
from coordgraph.control.resolve import Node
from tests.codegen.nvptx import isa
from tests.codegen.nvptx.configurations import Configuration, boxed
from tests.codegen.nvptx.hopper import NOTHING, ORIGIN, Lowered, lowered, mesh
from tests.codegen.nvptx.isa import Array
from tests.support.sampling import chosen, quick_cases

CONFIGURATIONS = (
    boxed((256, 256, 64), (2, 1, 1)),
    boxed((256, 256, 64), (1, 2, 1)),
    boxed((256, 128, 64)),
    boxed((256, 160, 64), (2, 1, 1)),
    boxed((256, 208, 64), (2, 1, 1)),
    boxed((128, 144, 64)),
    boxed((512, 144, 64), (2, 1, 1)),
    boxed((128, 288, 64)),
    boxed((128, 48, 64)),
    boxed((192, 256, 64)),
    boxed((192, 64, 64)),
    boxed((64, 48, 64)),
    boxed((64, 64, 64)),
    boxed((64, 256, 64)),
    boxed((48, 128, 64)),
    boxed((32, 512, 64), (1, 2, 1), "nn"),
    boxed((16, 128, 128), (1, 1, 2)),
    boxed((64, 64, 512), (1, 1, 8)),
    boxed((64, 256, 64), consumers="pingpong"),
    boxed((256, 96, 64), (2, 1, 1), consumers="pingpong"),
    boxed((48, 128, 64), consumers="pingpong"),
    boxed((128, 88, 64)),
    boxed((24, 256, 64), layout="nn"),
)
ODD = (
    boxed((64, 40, 64), layout="nn"),
    boxed((256, 120, 64), layout="nn"),
    boxed((256, 144, 64), (2, 2, 1)),
    boxed((64, 264, 64)),
    boxed((40, 128, 64), layout="tt"),
    boxed((64, 88, 128), (1, 1, 2)),
    boxed((256, 72, 64), (2, 1, 1), consumers="pingpong"),
)
"""Configurations in which an extent of a CTA's part of D is an odd multiple of 8."""
every_configuration = pytest.mark.parametrize(
    "configuration", chosen(CONFIGURATIONS, (*CONFIGURATIONS, *ODD)), ids=str
)
narrow = pytest.mark.parametrize(
    "configuration",
    [
        *(replace(c, vectors=Vectors(d=v)) for c in CONFIGURATIONS[:-1] for v in (2, 1)),
        boxed((128, 192, 64), types=("bf16", "f32")),
        boxed((64, 128, 64), types=("f16", "f32"), vector=1),
    ],
    ids=str,
)


def owned(this: Lowered, rank: Array, thread: Array, register: Array) -> Array:
    """The element of D's tile that wgmma leaves in a register of a consumer thread."""
    number, inside = register // (this.wide // 2), register % (this.wide // 2)
    block, beside = number // this.beside, number % this.beside
    row, column = isa.accumulator(thread % 128, inside)
    top, left = this.corner(thread // 128)
    row, column = row + top + 64 * block, column + left + this.wide * beside
    m, n = (column, row) if this.swapped else (row, column)
    return this.element(this.first(rank, 0) + m, this.first(rank, 1) + n)


def adders(this: Lowered) -> range:
    """The ranks of the workgroups that hold the sum over k.

    All workgroups of a cluster hold such a sum, or only the first one if the cluster divides k.
    """
    return range(1 if this.configuration.cluster[2] > 1 else this.ranks)


def positions(
    this: Lowered, node: Node, dims: tuple[str, str], at: dict[str, Array]
) -> tuple[Array, Array]:
    """(row, column) in the output tile that an operation accesses, at the indices `at`."""
    rows, columns, _ = this.configuration.tile
    row = this.place(node, dims[0], at) - ORIGIN[0] * rows
    return row, this.place(node, dims[1], at) - ORIGIN[1] * columns


@quick_cases(12)
@every_configuration
def test_accumulators_are_where_wgmma_leaves_them(configuration: Configuration):
    """Every accumulator register holds the element of D that wgmma leaves in it.

    The registers are numbered row-major by the coordinates m, p, n, half and pair.
    """
    this = lowered(configuration)
    at = mesh(
        cluster_rank=this.ranks,
        workitem=128 * this.consumers,
        acc_m=this.blocks,
        acc_p=this.beside,
        acc_n=this.size("acc.n"),
        acc_half=2,
        acc_pair=2,
    )
    coordinates = this.graph.coordinates
    known = [dim for dim in at if dim in coordinates]
    places = coordinates.reverse(known, ["D.index.0", "D.index.1"])
    row, column = (this.values(place, at) for place in places)
    register = np.zeros((), int)
    for dim in ("acc.m", "acc.p", "acc.n", "acc.half", "acc.pair"):
        register = register * this.size(dim) + at[dim]
    wanted = owned(this, at["cluster.rank"], at["workitem"], register)
    assert (this.element(row, column) == wanted).all()
    (multiply,) = this.operations(MultiplyShared)
    assert multiply.registers == ("acc.m", "acc.p")
    assert multiply.count == 4 * this.size("acc.n") == this.wide // 2


def fill(this: Lowered, memory: Array, rank: int, m: int, box: int) -> set[int]:
    """Simulate the stmatrix instructions of one box of every warpgroup; return the addresses they
    write.
    """
    (node,) = this.nodes(StoreFragment, destination="D.shared")
    op = node.op
    assert isinstance(op, StoreFragment)
    across = this.part[0] if this.swapped else box_of(this)
    matrices = 2 if across % 16 else 4
    assert op.form == f"stmatrix.x{matrices}" + (".trans" if this.swapped else "")
    assert (op.registers, op.width) == (("store.m", "store.box", "store.n"), 2 * matrices)
    warps, count = 4 * this.consumers, this.size("store.n")
    at = mesh(warp=warps, store_n=count, lane=32, matrix=matrices, half=2)
    thread = 32 * at["warp"] + at["lane"]
    number = (m * this.size("store.box") + box) * count + at["store.n"]
    register = 2 * (matrices * number + at["matrix"]) + at["half"]
    values = owned(this, np.array(rank), thread, register)
    # Lane 8j + r holds the address of row r of matrix j.
    row, element = isa.stmatrix(at["lane"], at["half"], trans=this.swapped)
    pointing = 32 * at["warp"] + 8 * at["matrix"] + row
    here = {"cluster.rank": rank, "store.m": m, "store.box": box, "store.n": at["store.n"]}
    fixed = {key: np.asarray(value) for key, value in here.items()}
    first = this.place(node, "D.shared", {**fixed, "workitem": pointing})
    assert (first % 8 == 0).all(), "rows of stmatrix are aligned to 16 bytes"
    places = (first + element).ravel()
    assert len(set(places)) == values.size, "no address is written twice"
    memory[places] = values.ravel()
    lanes = this.place(node, "D.shared", {**fixed, "workitem": thread}) // 8 % 8
    banks = np.moveaxis(lanes, 2, -1).reshape(-1, 8)
    meet = max(np.bincount(rows, minlength=8).max() for rows in banks)
    alone = swizzled(this) or box_of(this) % 16
    assert meet == (1 if alone else 2), "at most two rows of a matrix use the same bank"
    return {int(x) for x in places}


def box_of(this: Lowered) -> int:
    """The number of elements in a row of a box of D."""
    (node,) = this.nodes(StoreBox)
    assert isinstance(node.op, StoreBox)
    return node.op.box[0]


def swizzled(this: Lowered) -> bool:
    """Whether a row of a box is as long as the span of a TMA swizzle."""
    return box_of(this) in (16, 32, 64)


def boxes(this: Lowered) -> list[tuple[int, int]]:
    """(block of rows, box in the block) of each box of D, in the order of the boxes' stores."""
    return list(product(range(this.size("store.m")), range(this.size("store.box"))))


def drains(this: Lowered) -> bool:
    """True if a tile waits for all stores of the tile before it.

    A tile must wait if the number of boxes of D in a tile is no multiple of the number of
    shared-memory slots through which boxes are stored.
    """
    return len(boxes(this)) % this.size("store.slot") > 0


@every_configuration
def test_slots_go_round_without_a_break_between_tiles(configuration: Configuration):
    """Staging slots of D in shared memory are reused in order, also from tile to tile.

    A box never overwrites one of the `slots - 1` boxes before it, which TMA may still read.
    """
    this = lowered(configuration)
    memory = np.full(this.size("D.shared"), NOTHING)
    used = [fill(this, memory, 0, m, box) for m, box in boxes(this)]
    slots = this.size("store.slot")
    if not drains(this):
        used *= 2
    for number, places in enumerate(used):
        assert not any(places & before for before in used[max(0, number - slots + 1) : number])
    assert set[int]().union(*used) == set(range(memory.size)), "the slots leave no gap"


@pytest.mark.parametrize(
    ("tile", "wide", "count", "slots"),
    [
        ((256, 160, 64), 80, 2, 2),
        ((256, 176, 64), 176, 1, 1),
        ((256, 208, 64), 208, 1, 1),
        ((256, 224, 64), 112, 2, 1),
        ((256, 144, 64), 144, 2, 2),
        # Boxes of D with more than 16 columns would leave shared memory for three stages only.
        ((512, 144, 64), 16, 18, 3),
        ((256, 288, 64), 32, 9, 2),
        ((256, 120, 64), 120, 2, 2),
        # One box of 264 columns would exceed the limit of TMA too.
        ((64, 264, 64), 8, 33, 3),
        # One stage fewer in the ring makes room for boxes of 56 columns instead of 8.
        ((640, 112, 64), 56, 5, 4),
        # A single box of 272 columns would exceed the 256 elements that TMA allows along an axis.
        ((64, 272, 64), 16, 17, 4),
        # Boxes of 64 columns divide the 320 or 192 columns of the tile evenly.
        ((256, 320, 64), 64, 5, 3),
        ((256, 192, 64), 64, 3, 3),
    ],
)
def test_boxes_are_few_and_wide_where_there_is_room(
    tile: tuple[int, int, int], wide: int, count: int, slots: int
):
    this = lowered(boxed(tile, (2, 1, 1) if tile[0] > 128 else (1, 1, 1)))
    assert (box_of(this), len(boxes(this)), this.size("store.slot")) == (wide, count, slots)


def test_where_boxes_would_be_too_high_registers_are_stored():
    """With swapped operands and 272 rows, boxes of D would be too high for TMA, so registers are
    stored.
    """
    for rows, boxes_of_d in ((272, 0), (256, 1)):
        configuration = replace(boxed((rows, 64, 64)), reads_c=False)
        assert len(lowered(configuration).nodes(StoreBox)) == boxes_of_d


@every_configuration
def test_every_element_is_stored_once_where_it_belongs(configuration: Configuration):
    this = lowered(configuration)
    rows, columns, _ = configuration.tile
    stored = np.zeros(rows * columns, int)
    (node,) = this.nodes(StoreBox)
    op = node.op
    assert isinstance(op, StoreBox)
    assert (op.tensor, op.destination) == ("D", ("D.1", "D.0"))
    wide, high = op.box
    columns_of = 64 if this.swapped else this.beside * this.wide
    unit = gcd(16, columns_of)
    odd = next(n for n in range(columns_of, 0, -unit) if columns_of % n == 0 and n // unit % 2)
    assert wide in (gcd(64, columns_of), odd), "the widest swizzle, or an odd multiple of 16 or 8"
    assert max(op.box) <= 256, "cuTensorMapEncodeTiled allows at most 256"
    assert wide == 64 or columns_of % 64, "64 columns if they divide the tile evenly"
    row, column = np.arange(high)[:, None], np.arange(wide)[None, :]
    for rank, (m, box) in product(adders(this), boxes(this)):
        memory = np.full(this.size("D.shared"), NOTHING)
        fill(this, memory, rank, m, box)
        for warpgroup in range(this.consumers):
            given = {
                "cluster.rank": rank,
                "store.m": m,
                "store.box": box,
                "workitem": 128 * warpgroup,
            }
            at = {key: np.asarray(value) for key, value in given.items()}
            first = this.place(node, "D.shared", at) * 2
            # the PTX ISA requires this alignment of TMA's shared-memory addresses
            begins = 2 * wide * 8 if swizzled(this) else 128
            assert first % begins == 0, "a box is aligned to its swizzle pattern"
            places = isa.swizzled(first + 2 * (row * wide + column), 2 * wide) // 2
            top, left = positions(this, node, ("D.0", "D.1"), at)
            names = this.element(top + row, left + column)
            assert (memory[places] == names).all()
            np.add.at(stored, names.ravel(), 1)
    # With ping-pong each warpgroup stores a tile of its own.
    assert (stored == this.turns).all()


@quick_cases(9)
@every_configuration
def test_a_slot_is_filled_when_it_is_free_and_handed_over_when_it_is_full(
    configuration: Configuration,
):
    """A staging slot of D is filled after TMA has read the slot's old box, and stored when full.

    Order: the storing thread waits, a barrier, the fill, a fence, a barrier.
    """
    this = lowered(configuration)
    (parent,) = (n for n in this.nodes(Operation) if any(c.op == FenceShared() for c in n.body))
    *drained, waiting, before, filling, fence, after, handing = parent.body
    loop = before.op
    assert isinstance(loop, Barrier)
    assert loop.workitems == 128
    assert any(isinstance(n.op, StoreBox) for n in handing.walk())
    assert fence.op == FenceShared()
    assert after.op == loop
    assert any(isinstance(n.op, StoreFragment) for n in filling.walk())
    (wait,) = waiting.body
    assert wait.op == WaitStores(this.size("store.slot") - 1)
    assert [op.op for branch in drained for op in branch.body] == [WaitStores(0)] * drains(this)
    numbers = set[int]()
    for thread in range(128 * this.consumers):
        at = {"workitem": np.array(thread)}
        for branch, (m, box) in product(drained, boxes(this)):
            assert branch.condition is not None
            first = {**at, "store.m": np.array(m), "store.box": np.array(box)}
            of_first = thread % 128 == 0 and m == box == 0
            assert bool(this.values(branch.condition, first)) == of_first
        for branch in (waiting, handing):
            assert branch.condition is not None
            assert bool(this.values(branch.condition, at)) == (thread % 128 == 0)
        numbers.add(int(this.values(before.scope.resolve(loop.identifier), at)))
    assert len(numbers) == this.consumers
    assert not numbers & {0, 1}, "barriers 0 and 1 serve all threads and all consumers"
    # When the kernel ends, TMA has read all staging buffers of D.
    assert WaitStores(0) in this.operations(WaitStores)


@quick_cases(8)
@narrow
@pytest.mark.parametrize("tensor", ["C", "D"])
def test_registers_and_memory_meet_element_by_element(configuration: Configuration, tensor: str):
    """Loads of C and direct stores of D cover each element of the tile once."""
    this = lowered(configuration)
    if tensor == "C":
        (node,) = this.nodes(ApplyFragment, sources=("C",))
    else:
        (node,) = this.nodes(StoreFragment, destination=tensor)
    op = node.op
    assert isinstance(op, ApplyFragment | StoreFragment)
    vector = 1 if this.swapped else min(configuration.vectors.d, 2)
    assert op.width == vector
    pair = {"acc_pair": 2} if vector == 1 else {}
    at = mesh(
        cluster_rank=len(adders(this)),
        workitem=128 * this.consumers,
        acc_m=this.blocks,
        acc_p=this.beside,
        acc_n=this.size("acc.n"),
        acc_half=2,
        **pair,
        element=vector,
    )
    number = np.zeros((), int)
    for dim in op.registers:
        number = number * this.size(dim) + at[dim]
    wanted = owned(this, at["cluster.rank"], at["workitem"], number * vector + at["element"])
    row, column = positions(this, node, (f"{tensor}.0", f"{tensor}.1"), at)
    found = this.element(row, column + at["element"])
    assert (found == wanted).all()
    each = np.repeat(np.arange(wanted.size // this.turns), this.turns)
    assert np.array_equal(np.sort(wanted.ravel()), each)


def test_every_size_of_box_is_tried():
    these = [lowered(c) for c in CONFIGURATIONS]
    assert {box_of(this) for this in these} == {16, 32, 64} | {48, 80, 88, 144, 208}
    assert {this.swapped for this in these} == {False, True}
    assert {this.consumers for this in these} == {1, 2}
    assert {this.size("store.slot") for this in these} >= {1, 2, 3}
