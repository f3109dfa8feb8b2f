"""Storing D: accumulators to shared memory by stmatrix, from there by the copy engine.

A warpgroup stores blocks of 64 rows of its accumulator, one box after another, through a few slots
of its own: while the copy engine empties one, and while the next tile is multiplied, another is
filled. A box is 64, 32 or 16 elements along D's contiguous axis, in rows of as many bytes whose
16-byte chunks are swizzled so that eight rows never meet in the same banks (PTX ISA, "Swizzling
modes"). Elements outside D are dropped by the copy engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd

from sympy import Integer

from coordgraph.control.asynchronous import CommitStores, FenceShared, StoreBox, WaitStores
from coordgraph.control.lowered import StoreFragment
from coordgraph.control.operations import Body, If
from coordgraph.coordinates.dimensions import Lane, Linear, Register, Shared
from coordgraph.coordinates.edges import Flatten, Tile
from coordgraph.coordinates.graph import CoordinateEditor
from coordgraph.integers import equal
from passes.lowering.control import at, unrolled
from passes.lowering.hopper.boxes import WIDEST_BOX, swizzle
from passes.lowering.hopper.division import MMA_M, Division
from passes.lowering.staging import CHUNK

__all__ = ["BoxedStore"]

SHARED = "D.shared"
MATRICES = 16
"""Rows and columns of an accumulator that one stmatrix.x4 takes."""
MOST_SLOTS = 4


@dataclass(frozen=True)
class BoxedStore:
    """The way of a 16-bit D through shared memory; `slots` boxes for each warpgroup.

    `matrix` is the coordinate that tells D's matrices apart, if there are several.
    """

    division: Division
    slots: int
    matrix: tuple[str, ...] = ()

    @classmethod
    def all(cls, division: Division, matrix: tuple[str, ...] = ()) -> Iterator[BoxedStore]:
        """With every number of slots that goes round evenly in the boxes of a tile."""
        one = cls(division, 1, matrix)
        boxes = division.blocks * one.boxes
        return (cls(division, n, matrix) for n in range(1, MOST_SLOTS + 1) if boxes % n == 0)

    @property
    def columns(self) -> int:
        """Elements along D's contiguous axis of a warpgroup's block."""
        return MMA_M if self.division.swapped else self.division.share(1)

    @property
    def box(self) -> int:
        """Elements of a box along D's contiguous axis."""
        return gcd(self.columns, WIDEST_BOX)

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
        return self.division.consumers * self.slots * self.slot_bytes

    @property
    def slot_bytes(self) -> int:
        """Of a box in shared memory, a multiple of the swizzle period."""
        return self.rows * self.box * 2

    def add(self, c: CoordinateEditor) -> None:
        """Tie accumulator blocks to boxes of D, and lanes of stmatrix to rows of shared memory."""
        division, boxes, blocks = self.division, self.boxes, self.division.blocks
        chunks = self.box // CHUNK
        # Unswapped, an instruction's 64 x n are several boxes; swapped, n x 64 are one.
        c.add(Register("store.m", Integer(blocks), note="blocks of 64 rows"))
        c.add(Register("store.box", Integer(boxes), note="boxes of a block"))
        across = division.share(division.right) // boxes // MATRICES
        c.add(Register("store.n", Integer(across), note="columns of 16 in a box"))
        c.add(Lane("store.eighth", Integer(2), note="8x8 matrices across"))
        c.add(Lane("store.half", Integer(2), note="8x8 matrices down"))
        c.add(Lane("store.row", Integer(8), note="row of an 8x8 matrix"))
        c.add(Register("store.element", Integer(CHUNK)))
        c.connect(Flatten(("store.eighth", "store.half", "store.row"), "lane"))
        # Which slot: boxes in their order, round and round.
        c.add(Linear("store.number", Integer(blocks * boxes), note="boxes of a tile"))
        c.add(Linear("store.turn", Integer(blocks * boxes // self.slots)))
        c.add(Linear("store.slot", Integer(self.slots)))
        c.connect(Tile("store.number", ("store.m", "store.box")))
        c.connect(Flatten(("store.turn", "store.slot"), "store.number"))
        # Where in the box: 16-byte chunks, swizzled with their row.
        row = c.add(Linear("store.box.row", Integer(self.rows)))
        column = c.add(Linear("store.box.column", Integer(self.box)))
        down = ("warp", "store.half")
        over = ("store.n", "store.eighth")
        rows, columns = (over, down) if division.swapped else (down, over)
        c.connect(Tile(row.id, (*rows, "store.row")))
        c.connect(Tile(column.id, (*columns, "store.element")))
        size = division.consumers * self.slots * self.rows * self.box
        c.add(Shared(SHARED, Integer(size), tensor="D"))
        c.add(Linear("D.shared.row", Integer(self.rows)))
        c.add(Linear("D.shared.chunk", Integer(chunks), note="16-byte chunk"))
        c.add(Linear("D.shared.place", Integer(chunks), note="before swizzle"))
        c.add(Linear("D.shared.element", Integer(CHUNK)))
        inside = ("store.slot", "D.shared.row", "D.shared.chunk", "D.shared.element")
        warpgroup = ("warpgroup",) if division.consumers > 1 else ()
        c.connect(Tile(SHARED, (*warpgroup, *inside)))
        memory = ("D.shared.row", "D.shared.chunk")
        c.connect(swizzle(memory, (row.id, "D.shared.place"), chunks))
        c.connect(Flatten(("D.shared.place", "D.shared.element"), column.id))
        # Where in D: the first element of a box.
        c.add(Linear("store.first.row", Integer(self.rows), note="first row of a box: 0"))
        c.add(Linear("store.first.column", Integer(self.box), note="first element of a box: 0"))
        rows, columns = ((), ("store.m",)) if division.swapped else (("store.m",), ("store.box",))
        c.connect(Tile("D.own.0", (*division.warpgroups(0), *rows, "store.first.row")))
        c.connect(Tile("D.own.1", (*division.warpgroups(1), *columns, "store.first.column")))

    def store(self, c: CoordinateEditor) -> Body:
        """Every box: wait for its slot, fill it, hand it to the copy engine."""
        barrier = self.division.own_barrier
        one = equal(self.division.thread, 0)
        form = "stmatrix.x4" + (".trans" if self.division.swapped else "")
        registers = ("store.m", "store.box", "store.n")
        fill = StoreFragment("acc", SHARED, registers, MATRICES // 2, form)
        box = (self.box, self.rows, *(1 for _ in self.matrix))
        copy = StoreBox("D", SHARED, ("D.1", "D.0", *self.matrix), box)
        start = {"store.box.row": 0, "store.box.column": 0}
        place = {"store.first.row": 0, "store.first.column": 0}
        box = (
            If(one, (WaitStores(self.slots - 1),)),
            barrier,
            unrolled(c, ("store.n",), at({"store.element": 0}, fill)),
            FenceShared(),
            barrier,
            If(one, (at({**start, **place}, copy), CommitStores())),
        )
        return (unrolled(c, ("store.m", "store.box"), *box),)
