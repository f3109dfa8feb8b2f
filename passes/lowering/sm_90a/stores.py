"""Stores of D: stmatrix writes accumulators to shared memory, and TMA copies them to D.

A warpgroup stores its accumulator in blocks of 64 rows, one TMA box after another, through a few
*slots* of shared memory, each of which holds one box. While TMA reads one slot, and while the next
tile is multiplied, the warpgroup fills another slot. A row of a box is 64, 32 or 16 elements of D's
contiguous axis, and its 16-byte chunks are swizzled so that eight rows do not conflict in banks
(PTX ISA, "Swizzling modes"). If 64 does not divide the elements of a block's row, a row of a box
may also be an odd multiple of 16 elements: few wide boxes take less time than many narrow ones, but
more shared memory. Rows of wide boxes are not swizzled, so accesses to them have two-way bank
conflicts.

If a block's row is an odd multiple of 8 elements, so is the row of a box: usually the whole row,
else 8 elements. Rows of an odd multiple of 8 elements are not swizzled either, but they do not
conflict in banks, because they are an odd number of 16-byte chunks. One stmatrix stores two 8x8
matrices of such a row, not four.

TMA drops elements outside D. A box that extends past the end of a group inside D is copied by the
threads (see `cuts`).
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
from coordgraph.gemm import GemmProblem
from coordgraph.integers import equal, index_symbol
from passes.lowering.control import at, unrolled
from passes.lowering.sm_90a.boxes import swizzle
from passes.lowering.sm_90a.cuts import RowCopy, cuts, holds
from passes.lowering.sm_90a.division import ACC_PART, MMA_M, RANK, WARP, Division
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
"""The coordinate of the shared memory through which TMA stores D: buffers (slots) for one TMA box
each."""
MATRIX_BITS = 16
"""Number of bits of an element that stmatrix stores. TMA stores D only if the elements of D have 16
bits."""
STORED_BYTES = MATRIX_BITS // 8
"""Number of bytes of an element of D that TMA stores: 2."""
STORED_CHUNK, STORED_ROW = CHUNK_BYTES // STORED_BYTES, ROW_BYTES // STORED_BYTES
"""Numbers of elements of D in a 16-byte chunk (8), and in a row of the 128-byte swizzle (64)."""
MATRICES = 16
"""Number of rows, and also of columns, of the accumulator block that one stmatrix.x4 stores (four
8x8 matrices): 16. An stmatrix.x2 stores as many rows, and half of the columns."""
DOWN = 2
"""Number of 8x8 matrices that one stmatrix stores one below the other: 2."""
MOST_SLOTS = 4
"""Largest number of slots of shared memory, for one TMA box each, through which a warpgroup stores
D."""
MOST_OF_SUMS = 160
"""Largest number of accumulator registers of a thread with which D is stored by boxes if the
epilogue computes an element of D from several sums. Twelve kernels with 176 or 192 spilled."""
MOST_ELEMENTS = 256
"""Largest number of elements of a TMA box along an axis (CUDA driver API,
cuTensorMapEncodeTiled)."""


def widths(columns: Any) -> tuple[Any, Any]:
    """(swizzled width, wide width): the candidate widths of a TMA box of D, in elements.

    The swizzled width is the largest of 64, 32, 16 and 8 that divides `columns`; rows of 8 elements
    need no swizzle. The wide width, at which a box is not swizzled, is the largest odd multiple of
    16 that divides `columns`, or `columns` itself if that is an odd multiple of 8; it is 0 if 64
    divides `columns`.

    Args:
        columns: number of columns of a block of D, a multiple of 8: an integer, or an array of
            them.
    """
    capped, least = columns | STORED_ROW, columns | MATRICES
    odd = columns // (columns & -columns)
    return capped & -capped, odd * (least & -least) * (columns % STORED_ROW > 0)


@dataclass(frozen=True)
class BoxedStore:
    """The store of tiles of D, with 16-bit elements, through slots of shared memory by TMA.

    Args:
        division: how a macro tile is divided over workgroups and warpgroups.
        slots: number of slots of shared memory, for one box each, that every warpgroup has.
        wide: whether rows of boxes are wide and not swizzled; else short and swizzled (`widths`).
        room: number of elements of shared memory for each warpgroup's slots: the largest number
            that tiles of any shape need.
        drained: whether the store of a tile first waits until TMA has read all slots, because the
            previous tile may have used slots of another size, or in another order.
        matrix: 1-tuple of the coordinate that numbers the matrices of a batched D; () for a single
            matrix.
        located: the coordinates that the scheduled graph computes for every output tile, such as
            its group's number.
        maps: the tensor maps that the kernel writes itself.
        sums: number of sums from which the epilogue computes an element of D. The registers of a
            wgmma instruction then hold first all columns for the first sum, in whose registers D
            is, and then those for the other sums.
    """

    division: Division
    slots: int
    wide: bool = False
    room: int = 0
    drained: bool = False
    matrix: tuple[str, ...] = ()
    located: tuple[str, ...] = ()
    maps: Maps = Maps(())  # noqa: RUF009 - Maps is frozen
    sums: int = 1

    @classmethod
    def all(
        cls,
        divisions: Sequence[Division],
        matrix: tuple[str, ...] = (),
        located: tuple[str, ...] = (),
        sums: int = 1,
    ) -> Iterator[tuple[BoxedStore, ...]]:
        """Yield all candidate ways to store D: both widths of TMA boxes, any number of slots.

        A slot is a buffer in shared memory for one TMA box of D.

        If the number of slots divides the number of boxes of every tile, and all shapes have equal
        slots, each tile begins with the first slot and ends with the last one. Then the next slot
        to fill is always the one whose TMA store was issued first. Otherwise a tile first waits
        until TMA has read all slots of the previous tile (`drained`).

        Args:
            divisions: how tiles of each shape are divided.
            matrix: 1-tuple of the coordinate that numbers the matrices of a batched D; else ().
            located: the coordinates that the scheduled graph computes for every output tile, such
                as its group's number.
            sums: number of sums from which the epilogue computes an element of D.

        Yields:
            One candidate: a tuple with a store for each of `divisions`.
        """
        for wide, most in product((False, True), range(1, MOST_SLOTS + 1)):
            one = [cls(d, 1, wide, matrix=matrix, located=located, sums=sums) for d in divisions]
            first = one[0].fitting(most)
            found = [first, *(store.fitting(most, first.own_room) for store in one[1:])]
            if all(store.slots < most for store in found):
                continue
            room = max(store.own_room for store in found)
            alike = len({(store.slots, store.own_room) for store in found}) == 1
            drained = not alike or any(store.number % store.slots for store in found)
            yield tuple(replace(store, room=room, drained=drained) for store in found)

    def fitting(self, most: int, room: int | None = None) -> BoxedStore:
        """A copy of this store whose number of slots divides the number of boxes of a tile.

        A slot is a buffer in shared memory for one TMA box of D. The number of slots is the largest
        one up to `most`. If that number would be 1, the store has as many slots as `most` and
        `room` allow instead, because with a single slot every box would wait until TMA has read the
        previous box.

        Args:
            most: largest number of slots.
            room: largest number of elements of shared memory that slots may take if the number of
                slots does not divide the number of boxes; None for no limit.
        """
        evenly = max(n for n in range(1, most + 1) if self.number % n == 0)
        if evenly == 1:
            fit = most if room is None else room // (self.rows * self.box)
            evenly = max(1, min(most, self.number, fit))
        return replace(self, slots=evenly)

    @property
    def number(self) -> int:
        """Number of TMA boxes that a warpgroup stores for one tile."""
        return self.division.blocks * self.boxes

    @property
    def own_room(self) -> int:
        """Elements of shared memory in one warpgroup's slots (buffers for TMA boxes of D)."""
        return self.slots * self.rows * self.box

    @property
    def columns(self) -> int:
        """Number of elements of a row of a warpgroup's block of D, along D's contiguous axis."""
        return MMA_M if self.division.swapped else self.division.share(1) // self.sums

    @property
    def box(self) -> int:
        """Number of elements of a row of a TMA box of D, along D's contiguous axis."""
        swizzled, wide = widths(self.columns)
        return wide if self.wide and swizzled < wide <= MOST_ELEMENTS else swizzled

    @staticmethod
    def fits_sums(division: Division, gemm: GemmProblem) -> bool:
        """Whether boxes can store D with the number of sums of the epilogue.

        With several sums, the registers for one sum must be adjacent in a block of 64 rows: so one
        wgmma instruction computes all of its columns, and single columns for different sums do not
        alternate. With more than `MOST_OF_SUMS` accumulators a thread would spill.
        """
        adjacent = gemm.part_width != 1 and division.pieces == 1 and not division.swapped
        return gemm.sums == 1 or (adjacent and division.accumulators <= MOST_OF_SUMS)

    @property
    def fits_tma(self) -> bool:
        """Whether the extents of a box are at most 256 elements, the limit of TMA."""
        return max(self.box, self.rows) <= MOST_ELEMENTS

    @property
    def boxes(self) -> int:
        """Number of TMA boxes into which a block of 64 rows of the wgmma result is divided."""
        return self.columns // self.box

    @property
    def rows(self) -> int:
        """Number of rows of a TMA box of D."""
        return self.division.share(0) if self.division.swapped else MMA_M

    @property
    def bytes(self) -> int:
        """Bytes of shared memory of all consumer warpgroups' slots (buffers for TMA boxes of D)."""
        return self.division.consumers * self.room * STORED_BYTES

    def add(self, c: CoordinateEditor) -> None:
        """Add the edges from registers of the accumulator, and from lanes, to TMA boxes of D."""
        division, boxes, blocks = self.division, self.boxes, self.division.blocks
        own = division.tiling.own
        chunks = self.box // STORED_CHUNK
        # If A is the left operand, the 64 x n result of wgmma is divided into several boxes of D.
        # If B is the left operand, the transposed result, n x 64, is one box of D.
        c.add(Register(own("store.m"), Integer(blocks), note="blocks of 64 rows"))
        c.add(Register(own("store.box"), Integer(boxes), note="boxes of a block"))
        across = self._across // self._span
        note = f"columns of {self._span} in a box"
        c.add(Register(own("store.n"), Integer(across), note=note))
        c.add(Lane(own("store.eighth"), Integer(2), note="8x8 matrices across"))
        c.add(Lane(own("store.half"), Integer(DOWN), note="8x8 matrices down"))
        c.add(Lane(own("store.row"), Integer(8), note="row of an 8x8 matrix"))
        c.add(Register(own("store.element"), Integer(STORED_CHUNK)))
        lanes = ("store.eighth", "store.half", "store.row")
        c.connect(Flatten(tuple(map(own, lanes)), "lane"))
        # A box is written to the buffer (slot) with the box's number modulo the number of buffers.
        # The number of boxes need not be a multiple of the number of buffers.
        turns = -(-self.number // self.slots)
        every = Integer(self.number) if self.number % self.slots == 0 else None
        c.add(Linear(own("store.number"), every, note="boxes of a tile"))
        c.add(Linear(own("store.turn"), Integer(turns)))
        c.add(Linear(own("store.slot"), Integer(self.slots)))
        c.connect(Tile(own("store.number"), (own("store.m"), own("store.box"))))
        c.connect(Flatten((own("store.turn"), own("store.slot")), own("store.number")))
        # A position in a box is a row and a 16-byte chunk; the swizzle permutes chunks in a row.
        row = c.add(Linear(own("store.box.row"), Integer(self.rows)))
        column = c.add(Linear(own("store.box.column"), Integer(self.box)))
        down = ("warp", own("store.half"))
        # stmatrix.x4 takes an address from each lane, stmatrix.x2 from lanes 0 to 15 only.
        eighth = (own("store.eighth"),) if self._span == MATRICES else ()
        over = (own("store.n"), *eighth)
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
        # The position of a box in D is the position of the box's first element.
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
    def _span(self) -> int:
        """Number of columns of the wgmma result that one stmatrix stores.

        The number is 16, for an stmatrix.x4; or 8, for an stmatrix.x2, if 16 does not divide the
        number of the result's columns in a TMA box.
        """
        return MATRICES if self._across % MATRICES == 0 else STORED_CHUNK

    @property
    def _across(self) -> int:
        """Number of columns of the wgmma result that are in one TMA box."""
        return self.rows if self.division.swapped else self.box

    @property
    def _rows(self) -> RowCopy:
        """The copy of a box by threads, for boxes that extend past the end of a group."""
        return RowCopy(self.division.tiling, self.rows, self.box // STORED_CHUNK, STORED_CHUNK)

    def _cuts(self, c: CoordinateEditor) -> dict[str, tuple[Boolean, ...]]:
        """For each axis of D along which groups end: conditions that are true inside a group."""
        return cuts(c.finish(), self.division.tiling, "D", self.located)

    def _place(self, c: CoordinateEditor) -> None:
        """Add the edges that divide the shared memory from which TMA stores D.

        Each consumer warpgroup has a part of this memory. A part consists of buffers (slots), one
        for each TMA box in flight. A buffer consists of the rows and 16-byte chunks of its box.
        """
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
        """Store all boxes of a tile: fill a free staging buffer by stmatrix, store it by TMA."""
        barrier = self.division.own_barrier
        one = equal(self.division.thread, 0)
        matrices = DOWN * self._span // STORED_CHUNK
        form = f"stmatrix.x{matrices}" + (".trans" if self.division.swapped else "")
        tiling = self.division.tiling
        own, shared = tiling.own, tiling.own(SHARED)
        registers = (own("store.m"), own("store.box"), own("store.n"))
        part = (own(ACC_PART),) if self.sums > 1 else ()
        held = (registers[0], *part, *registers[1:])
        fill = StoreFragment(tiling.accumulator, shared, held, 2 * matrices, form)
        first = {own("store.element"): 0, **dict.fromkeys(part, 0)}
        box = (self.box, self.rows, *(1 for _ in self.matrix))
        graph, maps = c.finish(), self.maps
        along = (axis_of(graph, axis, "D") for axis in ("D.1", "D.0"))
        copy: Operation = StoreBox("D", shared, (*along, *self.matrix), box, maps.name("D"))
        if maps.name("D"):
            # TMA rejects an extent of 0, so the map of an empty matrix has one element. The
            # operation `Inside` prevents a store to that element.
            copy = Inside(("D.0", "D.1"), (maps.place("D", copy),))
        start = {own("store.box.row"): 0, own("store.box.column"): 0}
        place = {own("store.first.row"): 0, own("store.first.column"): 0}
        begins = And(one, *(equal(index_symbol(dim), 0) for dim in registers[:2]))
        box = (
            *((If(begins, (WaitStores(0),)),) if self.drained else ()),
            If(one, (WaitStores(self.slots - 1),)),
            barrier,
            unrolled(c, registers[2:], at(first, fill)),
            FenceShared(),
            barrier,
            *self._store_slot(c, one, at({**start, **place}, copy)),
        )
        return (unrolled(c, registers[:2], *box),)

    def _store_slot(self, c: CoordinateEditor, one: Boolean, copy: Operation) -> Body:
        """Store a box in shared memory to D: by TMA, or by threads if it crosses a group's end.

        When threads store the box, an empty bulk group is committed. So there is one bulk group for
        every filled buffer (slot), and a wait for a slot counts groups (PTX:
        cp.async.bulk.wait_group).

        Args:
            c: the coordinate graph under construction.
            one: the condition that selects the one thread of a warpgroup that issues TMA stores.
            copy: the TMA store of the box.
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
