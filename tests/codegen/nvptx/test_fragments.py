"""Matrix fragments in registers follow the PTX ISA's tables, from the tile's copy to the mma.

The tables are "Matrix Fragments for mma.m16n8k16 with floating point type" and "ldmatrix"; they are
written here independently of the lowering.
"""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from coordgraph.control.lowered import LoadFragment
from coordgraph.integers import index_symbol
from tests.codegen.nvptx.lowering import Lowered
from tests.support.sampling import quick_cases

LAYOUTS = ("nn", "tn", "nt", "tt")
TILES = ((128, 128, 32), (64, 96, 48), (16, 16, 16), (32, 256, 64))
every_layout = pytest.mark.parametrize("layout", LAYOUTS)
every_tile = pytest.mark.parametrize("tile", TILES, ids=str)

Place = tuple[int, int]


def isa_a(lane: int, i: int) -> Place:
    """Row and column of element a_i (i in 0..7) of mma.m16n8k16, from the PTX ISA."""
    group, thread = lane >> 2, lane % 4
    row = group if i in (0, 1, 4, 5) else group + 8
    column = thread * 2 + (i & 1) + (0 if i < 4 else 8)
    return row, column


def isa_b(lane: int, i: int) -> Place:
    """Row (k) and column (n) of element b_i (i in 0..3) of mma.m16n8k16, from the PTX ISA."""
    group, thread = lane >> 2, lane % 4
    return thread * 2 + (i & 1) + (0 if i < 2 else 8), group


def isa_accumulator(lane: int, i: int) -> Place:
    """Row and column of element c_i (i in 0..3) of mma.m16n8k16, from the PTX ISA."""
    group, thread = lane >> 2, lane % 4
    return (group if i < 2 else group + 8), thread * 2 + (i & 1)


def ldmatrix(register: int, half: int, lane: int, *, trans: bool) -> Place:
    """Where ldmatrix reads the element that it loads into a 16-bit half of a lane's register.

    Returns (the lane whose address selects the element's row, the number of the element in the
    row).


    Lanes 8j to 8j + 7 hold the row addresses of matrix j, which fills register j. Lane T receives
    elements 2·(T % 4) and 2·(T % 4) + 1 of row T // 4. With `trans`, rows and elements change
    roles.
    """
    row, column = lane // 4, 2 * (lane % 4) + half
    if trans:
        row, column = column, row
    return 8 * register + row, column


@cache
def lowered(tile: tuple[int, int, int], layout: str) -> Lowered:
    return Lowered(tile, layout)


@every_tile
def test_the_accumulator_is_where_mma_leaves_it(tile: tuple[int, int, int]):
    this = lowered(tile, "nn")
    names = ("workitem", "fragment.m", "fragment.n", "acc.eighth", "acc.half", "acc.pair")
    found = this.graph.coordinates.reverse(names, ["D.index.0", "D.index.1"])
    place = this.function(this.nodes[0], *found, names=names)
    seen: Counter[Place] = Counter()
    for workitem, m, n, eighth, half, pair in this.each(*names):
        row, column = place(workitem, m, n, eighth, half, pair)
        # One instruction writes 16 x 8 elements; its registers are numbered by half first, then by
        # pair.
        assert (row % 16, column % 8) == isa_accumulator(workitem % 32, 2 * half + pair)
        assert (row // 16 % this.size("fragment.m"), column // 8 % 2) == (m, eighth)
        seen[row, column] += 1
    height, width = this.extents("D")
    assert len(seen) == height * width
    assert set(seen.values()) == {1}


def shared_memory(this: Lowered, tensor: str) -> dict[int, Place]:
    """For each address in stage 0, the (row, column) in the tensor's tile that is copied there.

    All threads' copies for k tile 0 are included. Addresses are counted in elements.
    """
    node, axes = this.copy(tensor), (f"{tensor}.index.0", f"{tensor}.index.1")
    names = ("workitem", f"{tensor}.copy.pass", "ahead")
    source = this.function(node, *axes, names=names)
    place = node.scope.reverse(f"{tensor}.shared")
    target = this.function(node, place.values[0], names=names)
    exists = this.function(node, place.guard, names=names)
    along = this.graph.coordinates[f"{tensor}.copy.element"].fixed_size
    contiguous = 0 if this.layout["AB".index(tensor)] == "t" else 1
    memory: dict[int, Place] = {}
    for workitem, step in this.each("workitem", f"{tensor}.copy.pass"):
        if not exists(workitem, step, 0)[0]:
            continue
        first, at = source(workitem, step, 0), target(workitem, step, 0)[0]
        for element in range(along):
            assert at + element not in memory
            memory[at + element] = (
                first[0] + (element if contiguous == 0 else 0),
                first[1] + (element if contiguous == 1 else 0),
            )
    return memory


@quick_cases(7)
@every_layout
@every_tile
@pytest.mark.parametrize("tensor", ["A", "B"])
def test_operands_arrive_where_mma_wants_them(tile: tuple[int, int, int], layout: str, tensor: str):
    this = lowered(tile, layout)
    memory, node = shared_memory(this, tensor), this.load(tensor)
    fragment = {"A": "fragment.m", "B": "fragment.n"}[tensor]
    address = this.function(
        node, f"{tensor}.shared", names=("workitem", "k_tile", "fragment.k", fragment)
    )
    assert isinstance(node.op, LoadFragment)
    trans = node.op.form.endswith(".trans")
    assert trans == (layout["AB".index(tensor)] == ("t" if tensor == "A" else "n"))
    seen: set[Place] = set()
    for workitem, k, part in this.each("workitem", "fragment.k", fragment):
        lane, warp = workitem % 32, workitem - workitem % 32
        for register in range(4):
            for half in range(2):
                sender, element = ldmatrix(register, half, lane, trans=trans)
                at = address(warp + sender, 0, k, part)[0]
                assert at % 8 == 0, "rows of ldmatrix are aligned to 16 bytes"
                row, column = memory[at + element]
                i = 2 * register + half
                # One ldmatrix.x4 of B feeds two mma instructions: registers 0 and
                # 1, then 2 and 3.
                if tensor == "A":
                    wanted = isa_a(lane, i)
                else:
                    deep, across = isa_b(lane, i % 4)
                    wanted = deep, across + 8 * (i // 4)
                assert (row % 16, column % 16) == wanted
                deep, across = (column, row) if tensor == "A" else (row, column)
                assert (deep // 16, across // 16 % this.size(fragment)) == (k, part)
                seen.add((row, column))
    height, width = this.extents(tensor)
    assert len(seen) == height * width


@every_layout
def test_the_rest_of_a_row_follows_its_first_element(layout: str):
    """16 bytes that are contiguous in shared memory are contiguous in the tile, too.

    A thread copies 16 bytes at a time, and ldmatrix reads them as a row.
    """
    this = lowered((128, 128, 32), layout)
    for tensor in "AB":
        names = ("workitem", "fragment.k", f"fragment.{'m' if tensor == 'A' else 'n'}", "stage")
        element = f"{tensor}.load.element"
        known = {name: index_symbol(name) for name in (*names, element)}
        found = this.graph.coordinates.reverse(known, [f"{tensor}.shared"])
        place = this.function(this.nodes[0], *found, names=(*names, element))
        for workitem in range(this.threads):
            first = place(workitem, 1, 0, 2, 0)[0]
            assert [place(workitem, 1, 0, 2, e)[0] - first for e in range(8)] == list(range(8))
