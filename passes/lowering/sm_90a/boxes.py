"""TMA boxes of A and B: how TMA loads a tile to shared memory, and where wgmma reads it.

A row of a box has 128, 64 or 32 bytes along the contiguous axis (64, 32 or 16 elements of 16 bits);
a box has up to 256 rows. If the contiguous axis is not k, and the tile has an odd multiple of 8
elements along it, the last box also holds the 8 elements after the tile, which wgmma does not read.
TMA and wgmma both xor the number of a 16-byte chunk with the number of its row (PTX ISA, "Swizzling
modes"); the edge `Swizzle` of the coordinate graph describes that. If several workgroups of a
cluster need the same tile, each workgroup loads a part of the tile and multicasts that part to all
of these workgroups. A part may begin at any row: TMA takes the row's number from bits of the
address in shared memory, not from the position in the box (CUDA Programming Guide, "The Swizzle
Modes").

Where a tile extends past the end of the tensor along m or n, TMA fills the box with zeros, which
takes longer than loading rows. So boxes have few rows, and a box that is entirely outside the
tensor is not loaded: stale elements that remain in shared memory affect only elements of D that are
not stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod
from typing import Any, NamedTuple

from sympy import Expr, Integer, Lt

from coordgraph.control.asynchronous import Advance, CopyBox
from coordgraph.control.operations import If, Inside, Locate, Operation
from coordgraph.coordinates.dimensions import Linear, Register, Unroll
from coordgraph.coordinates.edges import Flatten, PassThrough, Swizzle, Tile
from coordgraph.coordinates.graph import CoordinateEditor
from coordgraph.elements import CHUNK_BYTES, ROW_BYTES
from coordgraph.integers import index_symbol
from passes.lowering.control import at, unrolled
from passes.lowering.sm_80.staging import Operand
from passes.lowering.sm_90a.division import MMA_M, Division, M, N
from passes.lowering.sm_90a.maps import Maps, axis_of
from passes.lowering.sm_90a.ring import FULL

__all__ = [
    "FEW_ROWS",
    "FEW_ROWS_OF_SEVERAL",
    "GROUP_ROWS",
    "LEAST_ROW_BYTES",
    "BoxedOperand",
    "TileLoad",
    "box_rows",
    "few_rows",
    "in_boxes",
    "swizzle",
]

MOST_ROWS = 256
"""Largest number of rows of a TMA box (CUDA driver API, cuTensorMapEncodeTiled)."""
LEAST_ROW_BYTES = 32
"""Number of bytes of a row of the narrowest TMA box that is swizzled."""
FEW_ROWS, FEW_ROWS_OF_SEVERAL = 32, 64
"""Preferred numbers of rows of a TMA box whose rows run along k. FEW_ROWS: the smallest number that
TMA loads at full speed; `few_rows` says when boxes need more. FEW_ROWS_OF_SEVERAL: the number for
batched and grouped problems, whose addresses take so many registers of the producer warp that too
few remain for twice as many boxes of FEW_ROWS; `few_rows` never returns more."""
LOWEST = 24
"""Number of rows of a TMA box if FEW_ROWS does not divide the rows of a tile, but LOWEST does."""
BOX_CYCLES = 60
"""Cycles from one TMA box of a CTA to the next, if boxes are small (measured with tiles of 144x64
and with 7 and 8 boxes for each k tile: 64 and 58; H200, 2026-11-28)."""
MMA_RATE = 32
"""Elements of D for which wgmma multiplies 128 bytes of k (64 elements of 16 bits) in a cycle: an
SM does 2048 multiplications of 16-bit elements in a cycle."""
BANKS = ROW_BYTES // CHUNK_BYTES
"""Number of 16-byte chunks that together cover each of the 32 banks of shared memory once: 8."""
GROUP_ROWS = 8
"""Number of rows of a core matrix of wgmma; the 128-byte swizzle repeats after 8 rows."""


class TileLoad(NamedTuple):
    """The TMA loads of one operand's tile.

    Attributes:
        counter: (coordinate, operation). Before the first k tile, the operation counts the boxes
            of a tile that begin inside the tensor; the coordinate holds the number. None if the
            tile is a single box, which always begins inside the tensor.
        copies: the TMA copies that this workgroup issues for each k tile.
        bytes: number of bytes that this workgroup receives for each k tile, from its own copies and
            from multicasts of other workgroups of the cluster.
    """

    counter: tuple[str, Operation] | None
    copies: Operation
    bytes: Expr


@dataclass(frozen=True)
class BoxedOperand(Operand):
    """A workgroup's part of the tiles of A or B, divided into TMA boxes.

    The fields that are not listed here (the tensor, its axes, tiles and element type) are those of
    `Operand`. `row` and `column` are positions in a workgroup's part of a tile.

    Args:
        division: how a macro tile is divided over the workgroups of a cluster and over warpgroups.
        matrix: the coordinates that number the tensor's matrices, since each TMA box lies in one
            matrix; () for a single matrix.
        several: whether the problem is batched or grouped.
        maps: the tensor maps that the kernel writes itself.
        sums: number of separate ranges in memory that hold the columns of one wgmma instruction:
            one range for each sum of the epilogue, or a single range for all.
        alike: the number of columns of one sum that are adjacent in memory, if such ranges of all
            sums alternate; 0 if all columns of a sum are adjacent.
    """

    division: Division
    matrix: tuple[str, ...] = ()
    several: bool = False
    maps: Maps = Maps(())  # noqa: RUF009 - Maps is frozen
    sums: int = 1
    alike: int = 0

    @property
    def k_axis(self) -> int:
        """The axis of the tensor (0 or 1) that is the k axis of the product."""
        return 1 if self.tensor == "A" else 0

    @property
    def along_k(self) -> bool:
        """Whether k is the axis that is contiguous in memory (K-major)."""
        return self.column_axis == self.k_axis

    def _position(self, axis: int) -> str:
        """The coordinate of the position in this workgroup's part of a tile, along an axis."""
        return self.division.own(self.tensor, axis)

    @property
    def row(self) -> str:
        """The coordinate of the row in a workgroup's part of a tile, along the strided axis."""
        return self._position(self.row_axis)

    @property
    def column(self) -> str:
        """The coordinate of the column in a workgroup's part of a tile, on the contiguous axis."""
        return self._position(self.column_axis)

    @property
    def _sharers(self) -> tuple[str, ...]:
        """1-tuple of the cluster coordinate along which CTAs load the same tile; () if none."""
        return self.division.ranks(N if self.tensor == "A" else M)

    def box(self, c: CoordinateEditor) -> int:
        """Number of elements of a row of a TMA box, along the contiguous axis.

        The width is chosen so that the operand of each wgmma instruction begins where a box begins.
        """
        if self.along_k:
            return gcd(c[self.column].fixed_size, self.kind.row)
        left = self.division.left == (M if self.tensor == "A" else N)
        columns = MMA_M if left else gcd(self.division.columns // self.sums, self.alike)
        return gcd(in_boxes(columns, self.kind.bytes), self.kind.row)

    def _columns(self, c: CoordinateEditor) -> int:
        """Number of elements of a row of all TMA boxes of a tile, side by side."""
        columns = c[self.column].fixed_size
        return columns if self.along_k else in_boxes(columns, self.kind.bytes)

    def elements(self, c: CoordinateEditor) -> int:
        """Number of elements of the boxes of one tile of the operand."""
        return c[self.row].fixed_size * self._columns(c)

    def stage(self, c: CoordinateEditor, stages: int, room: int) -> None:
        """Add the edges from positions in a tile to shared memory, whose stages hold TMA boxes.

        Args:
            c: the coordinate graph under construction.
            stages: number of stages of the ring of k tiles in shared memory.
            room: number of elements of this tensor for which each stage has room: those of the
                largest tile.
        """
        own, rows, columns = self._own, c[self.row].fixed_size, self._columns(c)
        width, column = self.box(c), self.column
        chunks = width // self.kind.chunk
        self.add_memory(c, stages, room)
        box = c.add(Linear(own("shared.box"), Integer(columns // width)))
        row = c.add(Linear(own("shared.row"), Integer(rows)))
        chunk = c.add(Linear(own("shared.chunk"), Integer(chunks), note="16-byte chunk"))
        place = c.add(Linear(own("shared.place"), Integer(chunks), note="before swizzle"))
        element = c.add(Linear(own("shared.element"), Integer(self.kind.chunk)))
        self.ring(c, room, (box.id, row.id, chunk.id, element.id))
        c.connect(swizzle((row.id, chunk.id), (self.row, place.id), chunks))
        if columns > c[column].fixed_size:
            # The boxes are wider than the tile. This coordinate has no size, so that it can be the
            # position in the tile as well as the position in the boxes.
            column = c.add(Linear(own("shared.column"), note="column in the boxes")).id
            c.connect(PassThrough(column, self.column))
        c.connect(Flatten((box.id, place.id, element.id), column))

    def copies(self, c: CoordinateEditor) -> TileLoad:
        """Add the edges from positions in a tile to TMA boxes; return the TMA loads of one tile."""
        t, own = self.tensor, self._own
        outer, inner = self._position(1 - self.k_axis), self._position(self.k_axis)
        extent, depth = c[outer].fixed_size, c[inner].fixed_size
        sharers = prod(c[sharer].fixed_size for sharer in self._sharers)
        width, shared = self.box(c), self._sharers
        few = FEW_ROWS_OF_SEVERAL if self.several else self._few_rows
        alike = extent // sharers
        # The columns of each sum of the epilogue are a range of their own in memory, so a box has
        # columns of one sum only.
        if self.sums > 1:
            alike = gcd(alike, self.division.columns // self.sums, self.alike)
        high = box_rows(alike, few) if self.along_k else min(depth // sharers, MOST_ROWS)
        across = high if self.along_k else width
        number = c.add(Linear(own("boxes"), Integer(-(-extent // across)), note="across k"))
        first = c.add(Linear(own("boxes.first"), Integer(across), note="first of a box: 0"))
        c.connect(Tile(outer, (number.id, first.id)))
        if self.along_k:
            step = c.add(Unroll(own("box"), Integer(depth // width)))
            layer = c.add(Unroll(own("box.layer"), Integer(extent // sharers // high)))
            begin = c.add(Linear(own("box.element"), Integer(width), note="first of a box: 0"))
            c.connect(Tile(number.id, (*shared, layer.id)))
            c.connect(Tile(inner, (step.id, begin.id)))
        else:
            step = c.add(Unroll(own("box"), number.size))
            layer = c.add(Unroll(own("box.layer"), Integer(depth // sharers // high)))
            begin = c.add(Linear(own("box.row"), Integer(high), note="first row of a box: 0"))
            c.connect(Tile(number.id, (step.id,)))
            c.connect(Tile(inner, (*shared, layer.id, begin.id)))
        graph = c.finish()
        along = (axis_of(graph, f"{t}.{axis}", t) for axis in (self.column_axis, self.row_axis))
        box = (width, high, *(1 for _ in self.matrix))
        axes, described = (*along, *self.matrix), self.maps.name(t)
        copy: Operation = CopyBox(t, axes, self.shared, FULL, box, shared, described)
        copy = self.maps.place(t, copy)
        bytes = self.elements(c) * self.kind.bytes // number.fixed_size
        place, start = (step.id, layer.id), {first.id: 0, begin.id: 0}
        if high % GROUP_ROWS:
            # The swizzle repeats after 8 rows, and the box may begin at any of them. TMA needs the
            # address of the row, not of the row's first chunk, which the swizzle moves.
            start[own("shared.chunk")] = 0
        axis = M if t == "A" else N
        if number.fixed_size == 1 and not self.division.ranks(axis) and not described:
            # The tile is a single box, which begins inside the tensor because the tile does.
            return TileLoad(None, unrolled(c, place, at(start, copy)), Integer(bytes))
        inside = c.add(Linear(own("boxes.inside"), note="boxes that begin inside"))
        outer_axis = (f"{t}.{1 - self.k_axis}",)
        counted = Inside(outer_axis, (Advance(inside.id),))
        begins = Lt(index_symbol(number.id), index_symbol(inside.id))
        wanted: Operation = Locate((number.id,), body=(If(begins, (at(start, copy),)),))
        if self.sums > 1:
            # The boxes that begin inside the tensor do not have consecutive numbers: they are the
            # first boxes of each sum. So each box is checked, instead of compared with a count.
            wanted = at(start, Inside(outer_axis, (copy,)))
        return TileLoad(
            (inside.id, unrolled(c, (number.id,), at({first.id: 0}, counted))),
            unrolled(c, place, wanted),
            bytes * index_symbol(inside.id),
        )

    @property
    def _few_rows(self) -> Any:
        """Least number of rows of a TMA box in a product that is neither batched nor grouped."""
        d = self.division
        return few_rows((d.extent(M), d.extent(N)), (d.cluster[N], d.cluster[M]), d.k_major)

    def descriptor(self, c: CoordinateEditor, parts: tuple[str, ...]) -> dict[str, int]:
        """Add the edges from positions in a tile to the operand of one wgmma instruction.

        Args:
            c: the coordinate graph under construction.
            parts: the coordinates that select an instruction along the axis that is not k.

        Returns:
            A dict with the index 0 for each coordinate of a position in the operand: the operand's
            first element.
        """
        own, outer = self._own, self._position(1 - self.k_axis)
        extent = c[outer].fixed_size
        for part in parts:
            # The size of `warpgroup` counts the producer's warpgroup too, which multiplies nothing.
            extent //= c[part].fixed_size - (part == "warpgroup")
        first = c.add(Register(own("mma.outer"), Integer(extent), note="of an instruction"))
        deep = Integer(self.division.instruction.depth)
        depth = c.add(Register(own("mma.depth"), deep, note="of an instruction"))
        c.connect(Tile(outer, (*parts, first.id)))
        c.connect(Tile(self._position(self.k_axis), (self.tiling.own("fragment.k"), depth.id)))
        return {first.id: 0, depth.id: 0}

    def strides(self, c: CoordinateEditor) -> tuple[int, int]:
        """(leading, stride) byte offsets of wgmma's matrix descriptor (PTX ISA, "Strides").

        The stride offset is the number of bytes of eight rows of a box. If k is contiguous, wgmma
        does not read the leading offset; else the leading offset is the number of bytes from one
        box to the next.
        """
        row = self.row_bytes(c)
        group = GROUP_ROWS * row
        return (16, group) if self.along_k else (c[self.row].fixed_size * row, group)

    def row_bytes(self, c: CoordinateEditor) -> int:
        """Number of bytes of a row of a TMA box: 128, 64 or 32, as its swizzle mode says."""
        return self.box(c) * self.kind.bytes


def in_boxes(columns: Any, element_bytes: Any) -> Any:
    """Number of columns of the TMA boxes that hold `columns` columns of A or B.

    Boxes are as wide as a multiple of LEAST_ROW_BYTES, so `columns` is rounded up to that width.

    Args:
        columns: number of elements of a tile along the contiguous axis, which must be m or n.
        element_bytes: number of bytes of an element.

    Each argument is a number, or an array of numbers.
    """
    unit = LEAST_ROW_BYTES // element_bytes
    return -(-columns // unit) * unit


def swizzle(above: tuple[str, str], below: tuple[str, str], chunks: int) -> Swizzle:
    """The edge for TMA's swizzle of rows of `chunks` 16-byte chunks (PTX ISA, "Swizzling modes").

    Rows of 2, 4 or 8 chunks are swizzled, so that the i-th chunks of eight adjacent rows are in
    different banks. Rows of any other length are not swizzled.

    Args:
        above: the coordinates of the row and of the chunk in shared memory.
        below: the coordinates of the row and of the chunk in the tensor.
        chunks: number of 16-byte chunks of a row.
    """
    if BANKS % chunks:
        return Swizzle(above, below, "xor", modulus=1)
    return Swizzle(above, below, "xor", divisor=BANKS // chunks, modulus=chunks)


def few_rows(part: tuple[Any, Any], sharers: tuple[Any, Any], along_k: tuple[Any, Any]) -> Any:
    """Least number of rows that a CTA's TMA boxes should have: a multiple of 8 from 32 to 64.

    TMA takes about `BOX_CYCLES` for a box, however few its rows. The result is the least number
    with which wgmma, and not TMA, determines how long an iteration takes; it exceeds 32 only if the
    CTA's part of a tile is small, such as 144x64.

    Args:
        part: extents of a CTA's part of a tile along m and n, in elements.
        sharers: numbers of CTAs that share the part of A, and the part of B, by multicast.
        along_k: whether A, and whether B, is contiguous along k. The boxes of an operand that is
            not have 64 elements along m or n, whatever the result is.

    Each number is an integer or an array.
    """
    iteration = part[0] * part[1] / MMA_RATE
    rows, wide = 0, 0
    for extent, sharing, along in zip(part, sharers, along_k, strict=True):
        rows = rows + extent / sharing * along
        wide = wide + extent // MMA_M * (1 - along)
    # Count the box heights for which TMA loads the boxes of an iteration more slowly than wgmma
    # multiplies them.
    limits = range(FEW_ROWS, FEW_ROWS_OF_SEVERAL, GROUP_ROWS)
    more = sum(rows * BOX_CYCLES > limit * (iteration - wide * BOX_CYCLES) for limit in limits)
    return FEW_ROWS + GROUP_ROWS * more


def box_rows(extent: int, few: int = FEW_ROWS) -> int:
    """Choose the number of rows of a TMA box, if `extent` rows are divided into equal boxes.

    The result divides `extent`, is a multiple of 8 (whole core matrices), and is the least such
    number that is at least `few`; for `few` = 32, 24 will do. Without such a number the result is
    `extent`: for example, if a cluster of four divides 80 rows, `extent` is 20.
    """
    groups = [n for n in range(GROUP_ROWS, extent + 1, GROUP_ROWS) if extent % n == 0]
    fits = [n for n in groups if n >= few]
    if few == FEW_ROWS and few not in groups and LOWEST in groups:
        return LOWEST
    return min(fits, default=extent)
