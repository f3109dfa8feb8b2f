"""Boxes: how the copy engine brings a tile to shared memory, and where wgmma finds it.

A box is 64, 32 or 16 elements (128, 64 or 32 bytes) along the contiguous axis, and up to 256 across
it. In shared memory every row of a box is 16-byte chunks, whose number the copy engine and the
matrix unit both exchange with the row's (PTX ISA, "Swizzling modes"): the `Swizzle` edge says so.
What several workgroups of a cluster need, each of them brings a part of, for all.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from sympy import Integer

from coordgraph.control.asynchronous import CopyBox
from coordgraph.control.operations import Operation
from coordgraph.coordinates.dimensions import Linear, Register, Unroll
from coordgraph.coordinates.edges import Flatten, Swizzle, Tile
from coordgraph.coordinates.graph import CoordinateEditor
from passes.lowering.control import at, unrolled
from passes.lowering.hopper.division import MMA_M, Division, M, N
from passes.lowering.hopper.ring import FULL
from passes.lowering.staging import CHUNK, Operand

__all__ = ["GROUP_ROWS", "MMA_K", "WIDEST_BOX", "BoxedOperand", "swizzle"]

WIDEST_BOX, MOST_ROWS = 64, 256
"""Elements of 16 bits in the 128 bytes of the widest swizzle, and the highest box."""
MMA_K = 16
ELEMENT_BYTES = 2
BANKS = 8
"""16-byte chunks in one row of all banks."""
GROUP_ROWS = 8
"""Rows of a core matrix; the widest swizzle repeats after as many."""


@dataclass(frozen=True)
class BoxedOperand(Operand):
    """A or B as the copy engine and wgmma see them: `rows` and `columns` of a workgroup's part.

    `matrix` is the coordinate that tells its matrices apart, if there are several: a box is of one.
    """

    division: Division
    matrix: tuple[str, ...] = ()

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
            return gcd(c[self.column].fixed_size, WIDEST_BOX)
        left = self.division.left == (M if self.tensor == "A" else N)
        return gcd(MMA_M if left else self.division.columns, WIDEST_BOX)

    def stage(self, c: CoordinateEditor, stages: int, room: int) -> None:
        """Tie the tile position to shared memory: a ring of tiles of boxes; see `Operand.stage`."""
        own, rows, columns = self._own, c[self.row].fixed_size, c[self.column].fixed_size
        width = self.box(c)
        chunks = width // CHUNK
        self.add_memory(c, stages, room)
        box = c.add(Linear(own("shared.box"), Integer(columns // width)))
        row = c.add(Linear(own("shared.row"), Integer(rows)))
        chunk = c.add(Linear(own("shared.chunk"), Integer(chunks), note="16-byte chunk"))
        place = c.add(Linear(own("shared.place"), Integer(chunks), note="before swizzle"))
        element = c.add(Linear(own("shared.element"), Integer(CHUNK)))
        self.ring(c, room, (box.id, row.id, chunk.id, element.id))
        c.connect(swizzle((row.id, chunk.id), (self.row, place.id), chunks))
        c.connect(Flatten((box.id, place.id, element.id), self.column))

    def copies(self, c: CoordinateEditor) -> Operation:
        """Tie the tile position to boxes; returns this workgroup's copies of one tile."""
        t, own = self.tensor, self._own
        rows, columns = c[self.row].fixed_size, c[self.column].fixed_size
        for sharer in self._sharers:
            rows //= c[sharer].fixed_size
        width, layers = self.box(c), next(n for n in (1, 2, 4) if rows // n <= MOST_ROWS)
        rows //= layers
        step = c.add(Unroll(own("box"), Integer(columns // width)))
        layer = c.add(Unroll(own("box.layer"), Integer(layers), note="boxes above each other"))
        inside = c.add(Linear(own("box.element"), Integer(width), note="first element of a box: 0"))
        across = c.add(Linear(own("box.row"), Integer(rows), note="first row of a box: 0"))
        c.connect(Tile(self.column, (step.id, inside.id)))
        c.connect(Tile(self.row, (*self._sharers, layer.id, across.id)))
        axes = (f"{t}.{self.column_axis}", f"{t}.{self.row_axis}", *self.matrix)
        box = (width, rows, *(1 for _ in self.matrix))
        copy = CopyBox(t, axes, self.shared, FULL, box, self._sharers)
        return unrolled(c, (step.id, layer.id), at({inside.id: 0, across.id: 0}, copy))

    def descriptor(self, c: CoordinateEditor, parts: tuple[str, ...]) -> dict[str, int]:
        """Tie the tile position to what one instruction multiplies; returns where it begins.

        `parts` are the dimensions of the outer axis above the rows of one instruction.
        """
        own, outer = self._own, self._position(1 - self.k_axis)
        extent = c[outer].fixed_size
        for part in parts:
            extent //= c[part].fixed_size - (part == "warpgroup")  # one of them is the producer
        first = c.add(Register(own("mma.outer"), Integer(extent), note="of an instruction"))
        depth = c.add(Register(own("mma.depth"), Integer(MMA_K), note="of an instruction"))
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
        return self.box(c) * ELEMENT_BYTES


def swizzle(above: tuple[str, str], below: tuple[str, str], chunks: int) -> Swizzle:
    """Row and chunk, exchanged so that eight rows never meet in the same banks."""
    return Swizzle(above, below, "xor", divisor=BANKS // chunks, modulus=chunks)
