"""Storing D: accumulators to shared memory by stmatrix, from there by TMA.

A warpgroup stores blocks of 64 rows of its accumulator, one box after another, through a few slots
of its own: while TMA empties one, and while the next tile is multiplied, another is
filled. A box may be 64, 32 or 16 elements along D's contiguous axis, in rows of as many bytes whose
16-byte chunks are swizzled so that eight rows never meet in the same banks (PTX ISA, "Swizzling
modes"). Or, where 64 do not divide a block, an odd multiple of 16 elements: few wide boxes take
less time than many narrow ones, but more room. Those are not swizzled, and rows meet in pairs.
Elements outside D are dropped by TMA; a box that must end before D does, the workitems
bring from its slot themselves (see `cuts`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from sympy import And, Integer
from sympy.logic.boolalg import Boolean

from coordgraph.control.asynchronous import CommitStores, FenceShared, StoreBox, WaitStores
from coordgraph.control.lowered import StoreFragment
from coordgraph.control.operations import Body, If, Inside, Operation
from coordgraph.coordinates.dimensions import Lane, Linear, Register, Shared
from coordgraph.coordinates.edges import Flatten, Split, Tile
from coordgraph.coordinates.graph import CoordinateEditor
from coordgraph.elements import CHUNK_BYTES, ROW_BYTES
from coordgraph.integers import equal, index_symbol
from passes.lowering.control import at, unrolled
from passes.lowering.sm_90a.boxes import swizzle
from passes.lowering.sm_90a.cuts import RowCopy, cuts, holds
from passes.lowering.sm_90a.division import MMA_M, RANK, WARP, Division
from passes.lowering.sm_90a.maps import Maps, axis_of

__all__ = [
    "MATRIX_BITS",
    "MOST_ELEMENTS",
    "MOST_SLOTS",
    "STORED_BYTES",
    "STORED_CHUNK",
    "STORED_ROW",
    "BoxedStore",
    "widths",
]

SHARED = "D.shared"
MATRIX_BITS = 16
"""Bits of the elements that stmatrix moves: D's, where it goes this way."""
STORED_BYTES = MATRIX_BITS // 8
STORED_CHUNK, STORED_ROW = CHUNK_BYTES // STORED_BYTES, ROW_BYTES // STORED_BYTES
"""Elements of a 16-byte chunk, and of a row under the widest swizzle."""
MATRICES = 16
"""Rows and columns of an accumulator that one stmatrix.x4 takes."""
MOST_SLOTS = 4
MOST_ELEMENTS = 256
"""Of a box along an axis (CUDA driver API, cuTensorMapEncodeTiled)."""


def widths(columns: Any) -> tuple[Any, Any]:
    """Of boxes that columns, a multiple of 16, are stored in: the widest swizzled, and a wide one.

    The wide one is no wider where 64 columns go in evenly. Numbers, or arrays of whole ones.
    """
    capped = columns | STORED_ROW
    odd = columns // (columns & -columns)
    return capped & -capped, odd * MATRICES * (columns % STORED_ROW > 0)


@dataclass(frozen=True)
class BoxedStore:
    """The way of a 16-bit D through shared memory; `slots` boxes for each warpgroup.

    Boxes are as wide as they may be swizzled, or `wide`. Tiles of several shapes share the place:
    `room` are the elements that each warpgroup has in it, and `drained` says that a tile may not
    begin before TMA has read all of the one before, which may have had other slots.
    `matrix` is the coordinate that tells D's matrices apart, if there are several; `located` are
    those that are looked up for every tile; `maps` are of matrices with extents of their own.
    """

    division: Division
    slots: int
    wide: bool = False
    room: int = 0
    drained: bool = False
    matrix: tuple[str, ...] = ()
    located: tuple[str, ...] = ()
    maps: Maps = Maps(())  # noqa: RUF009 - frozen

    @classmethod
    def all(
        cls,
        divisions: Sequence[Division],
        matrix: tuple[str, ...] = (),
        located: tuple[str, ...] = (),
    ) -> Iterator[tuple[BoxedStore, ...]]:
        """For tiles of each shape, with boxes of either width and every number of slots.

        Where they go round evenly in a tile, and all shapes have the same, a tile begins with the
        first and ends with the last one, so whichever shape was stored before, what has waited
        longest is in the next slot. Else a tile waits for all of the one before.
        """
        for wide, most in product((False, True), range(1, MOST_SLOTS + 1)):
            one = [cls(d, 1, wide, matrix=matrix, located=located) for d in divisions]
            first = one[0].fitting(most)
            found = [first, *(store.fitting(most, first.own_room) for store in one[1:])]
            if all(store.slots < most for store in found):
                continue
            room = max(store.own_room for store in found)
            alike = len({(store.slots, store.own_room) for store in found}) == 1
            drained = not alike or any(store.number % store.slots for store in found)
            yield tuple(replace(store, room=room, drained=drained) for store in found)

    def fitting(self, most: int, room: int | None = None) -> BoxedStore:
        """With the largest number of slots, of `most`, that goes round evenly; all if that is one.

        With one slot every box would wait until TMA has read the box before. Those that
        do not go round evenly take no more than `room`, if it is given.
        """
        evenly = max(n for n in range(1, most + 1) if self.number % n == 0)
        if evenly == 1:
            fit = most if room is None else room // (self.rows * self.box)
            evenly = max(1, min(most, self.number, fit))
        return replace(self, slots=evenly)

    @property
    def number(self) -> int:
        """Boxes of a tile."""
        return self.division.blocks * self.boxes

    @property
    def own_room(self) -> int:
        """Elements of a warpgroup's slots."""
        return self.slots * self.rows * self.box

    @property
    def columns(self) -> int:
        """Elements along D's contiguous axis of a warpgroup's block."""
        return MMA_M if self.division.swapped else self.division.share(1)

    @property
    def box(self) -> int:
        """Elements of a box along D's contiguous axis."""
        swizzled, wide = widths(self.columns)
        return wide if self.wide and swizzled < wide <= MOST_ELEMENTS else swizzled

    @property
    def served(self) -> bool:
        """TMA takes such boxes."""
        return max(self.box, self.rows) <= MOST_ELEMENTS

    @property
    def boxes(self) -> int:
        """Boxes of a block."""
        return self.columns // self.box

    @property
    def rows(self) -> int:
        """Elements across it."""
        return self.division.share(0) if self.division.swapped else MMA_M

    @property
    def bytes(self) -> int:
        """Shared memory."""
        return self.division.consumers * self.room * STORED_BYTES

    def add(self, c: CoordinateEditor) -> None:
        """Tie accumulator blocks to boxes of D, and lanes of stmatrix to rows of shared memory."""
        division, boxes, blocks = self.division, self.boxes, self.division.blocks
        own = division.tiling.own
        chunks = self.box // STORED_CHUNK
        # Unswapped, an instruction's 64 x n are several boxes; swapped, n x 64 are one.
        c.add(Register(own("store.m"), Integer(blocks), note="blocks of 64 rows"))
        c.add(Register(own("store.box"), Integer(boxes), note="boxes of a block"))
        across = division.share(division.right) // boxes // MATRICES
        c.add(Register(own("store.n"), Integer(across), note="columns of 16 in a box"))
        c.add(Lane(own("store.eighth"), Integer(2), note="8x8 matrices across"))
        c.add(Lane(own("store.half"), Integer(2), note="8x8 matrices down"))
        c.add(Lane(own("store.row"), Integer(8), note="row of an 8x8 matrix"))
        c.add(Register(own("store.element"), Integer(STORED_CHUNK)))
        lanes = ("store.eighth", "store.half", "store.row")
        c.connect(Flatten(tuple(map(own, lanes)), "lane"))
        # Which slot: boxes in their order, round and round; the last round may end early.
        turns = -(-self.number // self.slots)
        every = Integer(self.number) if self.number % self.slots == 0 else None
        c.add(Linear(own("store.number"), every, note="boxes of a tile"))
        c.add(Linear(own("store.turn"), Integer(turns)))
        c.add(Linear(own("store.slot"), Integer(self.slots)))
        c.connect(Tile(own("store.number"), (own("store.m"), own("store.box"))))
        c.connect(Flatten((own("store.turn"), own("store.slot")), own("store.number")))
        # Where in the box: 16-byte chunks, swizzled with their row.
        row = c.add(Linear(own("store.box.row"), Integer(self.rows)))
        column = c.add(Linear(own("store.box.column"), Integer(self.box)))
        down = ("warp", own("store.half"))
        over = (own("store.n"), own("store.eighth"))
        rows, columns = (over, down) if division.swapped else (down, over)
        c.connect(Tile(row.id, (*rows, own("store.row"))))
        c.connect(Tile(column.id, (*columns, own("store.element"))))
        size = Integer((division.consumers - 1) * self.room + self.own_room)
        home = SHARED if own(SHARED) != SHARED else ""
        c.add(Shared(own(SHARED), size, tensor="D", within=home))
        c.add(Linear(own("D.shared.row"), Integer(self.rows)))
        c.add(Linear(own("D.shared.chunk"), Integer(chunks), note="16-byte chunk"))
        c.add(Linear(own("D.shared.place"), Integer(chunks), note="before swizzle"))
        c.add(Linear(own("D.shared.element"), Integer(STORED_CHUNK)))
        self._place(c)
        memory = (own("D.shared.row"), own("D.shared.chunk"))
        c.connect(swizzle(memory, (row.id, own("D.shared.place")), chunks))
        c.connect(Flatten((own("D.shared.place"), own("D.shared.element")), column.id))
        # Where in D: the first element of a box.
        first = own("store.first.row"), own("store.first.column")
        c.add(Linear(first[0], Integer(self.rows), note="first row of a box: 0"))
        c.add(Linear(first[1], Integer(self.box), note="first element of a box: 0"))
        block, box = (own("store.m"),), (own("store.box"),)
        rows, columns = ((), block) if division.swapped else (block, box)
        for axis, along in enumerate((rows, columns)):
            parts = (*division.warpgroups(axis), *along, first[axis])
            c.connect(Tile(division.own("D", axis), parts))
        if self._cuts(c):
            c.connect(swizzle(memory, self._rows.add(c, *first), chunks))

    @property
    def _rows(self) -> RowCopy:
        return RowCopy(self.division.tiling, self.rows, self.box // STORED_CHUNK, STORED_CHUNK)

    def _cuts(self, c: CoordinateEditor) -> dict[str, tuple[Boolean, ...]]:
        return cuts(c.finish(), self.division.tiling, "D", self.located)

    def _place(self, c: CoordinateEditor) -> None:
        """Where in shared memory: the warpgroup's slots, in each the rows of a box."""
        own, consumers = self.division.tiling.own, self.division.consumers
        shared = own(SHARED)
        names = ("store.slot", "D.shared.row", "D.shared.chunk", "D.shared.element")
        warpgroup, inside = ("warpgroup",) if consumers > 1 else (), tuple(map(own, names))
        if warpgroup and self.own_room < self.room:
            number = c.add(Linear(own("D.shared.warpgroup"), Integer(consumers)))
            part = c.add(Linear(own("D.shared.inside"), Integer(self.own_room)))
            c.connect(Tile(number.id, warpgroup))
            c.connect(Split(shared, (number.id, part.id), (Integer(self.room), Integer(1))))
            warpgroup, shared = (), part.id
        c.connect(Tile(shared, (*warpgroup, *inside)))

    def store(self, c: CoordinateEditor) -> Body:
        """Every box: wait for its slot, fill it, hand it to TMA."""
        barrier = self.division.own_barrier
        one = equal(self.division.thread, 0)
        form = "stmatrix.x4" + (".trans" if self.division.swapped else "")
        tiling = self.division.tiling
        own, shared = tiling.own, tiling.own(SHARED)
        registers = (own("store.m"), own("store.box"), own("store.n"))
        fill = StoreFragment(tiling.accumulator, shared, registers, MATRICES // 2, form)
        box = (self.box, self.rows, *(1 for _ in self.matrix))
        graph, maps = c.finish(), self.maps
        along = (axis_of(graph, axis, "D") for axis in ("D.1", "D.0"))
        copy: Operation = StoreBox("D", shared, (*along, *self.matrix), box, maps.name("D"))
        if maps.name("D"):
            # A matrix without elements is told to have one.
            copy = Inside(("D.0", "D.1"), (maps.place("D", copy),))
        start = {own("store.box.row"): 0, own("store.box.column"): 0}
        place = {own("store.first.row"): 0, own("store.first.column"): 0}
        begins = And(one, *(equal(index_symbol(dim), 0) for dim in registers[:2]))
        box = (
            *((If(begins, (WaitStores(0),)),) if self.drained else ()),
            If(one, (WaitStores(self.slots - 1),)),
            barrier,
            unrolled(c, registers[2:], at({own("store.element"): 0}, fill)),
            FenceShared(),
            barrier,
            *self._handed_over(c, one, at({**start, **place}, copy)),
        )
        return (unrolled(c, registers[:2], *box),)

    def _handed_over(self, c: CoordinateEditor, one: Boolean, copy: Operation) -> Body:
        """Store a full slot by TMA, or by the threads if its box ends inside the tensor.

        When threads store it, an empty bulk group is committed, so that every filled slot has one
        group, and waits for slots can count groups.
        """
        guards = [guard for of_axis in self._cuts(c).values() for guard in of_axis]
        if not guards:
            return (If(one, (copy, CommitStores())),)
        own = self.division.tiling.own
        here = (*self.located, WARP, *((RANK,) if RANK in c else ()))
        known = {dim: index_symbol(dim) for dim in (*here, own("store.m"), own("store.box"))}
        last = {own("store.first.row"): self.rows - 1, own("store.first.column"): self.box - 1}
        graph = c.finish()
        whole = And(*(holds(graph, guard, {**known, **last}) for guard in guards))
        by_rows = self._rows.copy(c, own(SHARED), "D")
        return (If(whole, (If(one, (copy,)),), (by_rows,)), If(one, (CommitStores(),)))
