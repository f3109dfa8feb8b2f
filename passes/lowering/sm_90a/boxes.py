"""Boxes: how TMA brings a tile to shared memory, and where wgmma finds it.

A box has 128, 64 or 32 bytes along the contiguous axis (64, 32 or 16 elements of 16 bits), and up
to 256 elements across it. In shared memory every row of a box is 16-byte chunks, whose number
TMA and the matrix unit both exchange with the row's (PTX ISA, "Swizzling modes"): the
`Swizzle` edge says so. What several workgroups of a cluster need, each of them brings a part of,
for all.

Where a tile reaches past the end of m or n, TMA fills a box with zeros, which takes
longer than to read rows. So boxes are low, and those that lie outside as a whole are not asked for:
nothing of D that is stored comes of what shared memory holds there.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod
from typing import NamedTuple

from sympy import Expr, Integer, Lt

from coordgraph.control.asynchronous import Advance, CopyBox
from coordgraph.control.operations import If, Inside, Locate, Operation
from coordgraph.coordinates.dimensions import Linear, Register, Unroll
from coordgraph.coordinates.edges import Flatten, Swizzle, Tile
from coordgraph.coordinates.graph import CoordinateEditor
from coordgraph.elements import CHUNK_BYTES, ROW_BYTES
from coordgraph.integers import index_symbol
from passes.lowering.control import at, unrolled
from passes.lowering.sm_80.staging import Operand
from passes.lowering.sm_90a.division import MMA_M, Division, M, N
from passes.lowering.sm_90a.maps import Maps, axis_of
from passes.lowering.sm_90a.ring import FULL

__all__ = ["GROUP_ROWS", "BoxedOperand", "swizzle"]

MOST_ROWS = 256
"""Of the highest box."""
FEW_ROWS, FEW_ROWS_OF_SEVERAL = 32, 64
"""Rows of a box across k: the fewest that TMA brings as fast as many. Where operands
have several matrices or groups of rows, places take more registers than the producer has for so
many boxes."""
BANKS = ROW_BYTES // CHUNK_BYTES
"""16-byte chunks in one row of all banks."""
GROUP_ROWS = 8
"""Rows of a core matrix; the widest swizzle repeats after as many."""


class Coming(NamedTuple):
    """What comes of one operand's tile.

    Attributes:
        counter: a coordinate and what counts in it the boxes that begin inside the tensor, before
            the first k tile; None where the only box always does.
        copies: what this workgroup copies for each k tile.
        bytes: what this workgroup receives, from itself and from others.
    """

    counter: tuple[str, Operation] | None
    copies: Operation
    bytes: Expr


@dataclass(frozen=True)
class BoxedOperand(Operand):
    """A or B as TMA and wgmma see them: `rows` and `columns` of a workgroup's part.

    `matrix` is the coordinate that tells its matrices apart, if there are several: a box is of one.
    `several`: the problem has more than one product. `maps`: of matrices with extents of their own.
    """

    division: Division
    matrix: tuple[str, ...] = ()
    several: bool = False
    maps: Maps = Maps(())  # noqa: RUF009 - frozen

    @property
    def k_axis(self) -> int:
        """Which axis of the tensor is k."""
        return 1 if self.tensor == "A" else 0

    @property
    def along_k(self) -> bool:
        """True where k is contiguous in memory (K-major)."""
        return self.column_axis == self.k_axis

    def _position(self, axis: int) -> str:
        return self.division.own(self.tensor, axis)

    @property
    def row(self) -> str:
        """The tile position across the contiguous axis."""
        return self._position(self.row_axis)

    @property
    def column(self) -> str:
        """The tile position along the contiguous axis."""
        return self._position(self.column_axis)

    @property
    def _sharers(self) -> tuple[str, ...]:
        """The coordinate along which workgroups of the cluster need the same tile, if any."""
        return self.division.ranks(N if self.tensor == "A" else M)

    def box(self, c: CoordinateEditor) -> int:
        """Elements of a box along the contiguous axis; an instruction begins where a box does."""
        if self.along_k:
            return gcd(c[self.column].fixed_size, self.kind.row)
        left = self.division.left == (M if self.tensor == "A" else N)
        return gcd(MMA_M if left else self.division.columns, self.kind.row)

    def stage(self, c: CoordinateEditor, stages: int, room: int) -> None:
        """Tie the tile position to shared memory: a ring of tiles of boxes; see `Operand.stage`."""
        own, rows, columns = self._own, c[self.row].fixed_size, c[self.column].fixed_size
        width = self.box(c)
        chunks = width // self.kind.chunk
        self.add_memory(c, stages, room)
        box = c.add(Linear(own("shared.box"), Integer(columns // width)))
        row = c.add(Linear(own("shared.row"), Integer(rows)))
        chunk = c.add(Linear(own("shared.chunk"), Integer(chunks), note="16-byte chunk"))
        place = c.add(Linear(own("shared.place"), Integer(chunks), note="before swizzle"))
        element = c.add(Linear(own("shared.element"), Integer(self.kind.chunk)))
        self.ring(c, room, (box.id, row.id, chunk.id, element.id))
        c.connect(swizzle((row.id, chunk.id), (self.row, place.id), chunks))
        c.connect(Flatten((box.id, place.id, element.id), self.column))

    def copies(self, c: CoordinateEditor) -> Coming:
        """Tie the tile position to boxes; returns what this workgroup copies for one tile."""
        t, own = self.tensor, self._own
        outer, inner = self._position(1 - self.k_axis), self._position(self.k_axis)
        extent, depth = c[outer].fixed_size, c[inner].fixed_size
        sharers = prod(c[sharer].fixed_size for sharer in self._sharers)
        width, shared = self.box(c), self._sharers
        few = FEW_ROWS_OF_SEVERAL if self.several else FEW_ROWS
        high = _rows(extent // sharers, few) if self.along_k else min(depth // sharers, MOST_ROWS)
        across = high if self.along_k else width
        number = c.add(Linear(own("boxes"), Integer(extent // across), note="across k"))
        first = c.add(Linear(own("boxes.first"), Integer(across), note="first of a box: 0"))
        c.connect(Tile(outer, (number.id, first.id)))
        if self.along_k:
            step = c.add(Unroll(own("box"), Integer(depth // width)))
            layer = c.add(Unroll(own("box.layer"), Integer(extent // sharers // high)))
            begin = c.add(Linear(own("box.element"), Integer(width), note="first of a box: 0"))
            c.connect(Tile(number.id, (*shared, layer.id)))
            c.connect(Tile(inner, (step.id, begin.id)))
        else:
            step = c.add(Unroll(own("box"), Integer(extent // width)))
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
        axis = M if t == "A" else N
        if number.fixed_size == 1 and not self.division.ranks(axis) and not described:
            # The only box begins where the tile does, which is inside.
            return Coming(None, unrolled(c, place, at(start, copy)), Integer(bytes))
        inside = c.add(Linear(own("boxes.inside"), note="boxes that begin inside"))
        counted = Inside((f"{t}.{1 - self.k_axis}",), (Advance(inside.id),))
        begins = Lt(index_symbol(number.id), index_symbol(inside.id))
        wanted = Locate((number.id,), body=(If(begins, (at(start, copy),)),))
        return Coming(
            (inside.id, unrolled(c, (number.id,), at({first.id: 0}, counted))),
            unrolled(c, place, wanted),
            bytes * index_symbol(inside.id),
        )

    def descriptor(self, c: CoordinateEditor, parts: tuple[str, ...]) -> dict[str, int]:
        """Tie the tile position to what one instruction multiplies; returns where it begins.

        `parts` are the dimensions of the outer axis above the rows of one instruction.
        """
        own, outer = self._own, self._position(1 - self.k_axis)
        extent = c[outer].fixed_size
        for part in parts:
            extent //= c[part].fixed_size - (part == "warpgroup")  # one of them is the producer
        first = c.add(Register(own("mma.outer"), Integer(extent), note="of an instruction"))
        deep = Integer(self.division.instruction.depth)
        depth = c.add(Register(own("mma.depth"), deep, note="of an instruction"))
        c.connect(Tile(outer, (*parts, first.id)))
        c.connect(Tile(self._position(self.k_axis), (self.tiling.own("fragment.k"), depth.id)))
        return {first.id: 0, depth.id: 0}

    def strides(self, c: CoordinateEditor) -> tuple[int, int]:
        """Bytes between the descriptor's groups (PTX ISA, "Strides" of wgmma): leading, stride.

        Along k: the leading one is not read, the other is eight rows. Across k: the leading one is
        from a box to the next, the other eight rows of k.
        """
        row = self.row_bytes(c)
        group = GROUP_ROWS * row
        return (16, group) if self.along_k else (c[self.row].fixed_size * row, group)

    def row_bytes(self, c: CoordinateEditor) -> int:
        """Bytes of a row of a box, which name the swizzle."""
        return self.box(c) * self.kind.bytes


def swizzle(above: tuple[str, str], below: tuple[str, str], chunks: int) -> Swizzle:
    """Row and chunk: of 2, 4 or 8 chunks exchanged, so that eight rows never meet in a bank.

    Rows of other lengths TMA leaves as they are.
    """
    if BANKS % chunks:
        return Swizzle(above, below, "xor", modulus=1)
    return Swizzle(above, below, "xor", divisor=BANKS // chunks, modulus=chunks)


def _rows(extent: int, few: int) -> int:
    """Rows of each of the boxes that make up so many: whole core matrices, and `few` or so."""
    fits = [n for n in range(GROUP_ROWS, extent + 1, GROUP_ROWS) if extent % n == 0]
    low = max(n for n in fits if n <= few)
    return low if 2 * low > few or low == extent else min(n for n in fits if n > few)
