"""Boxes: how the copy engine brings a tile to shared memory, and where wgmma finds it.

A box is 64 elements (128 bytes) along the contiguous axis and all of the tile across it. In shared
memory every row of a box is eight 16-byte chunks, whose number the copy engine and the matrix unit
both exchange with the row's (PTX ISA, "Swizzling modes", 128 bytes): the `Swizzle` edge says so.
What several workgroups of a cluster need, each of them brings a part of, for all.
"""

from __future__ import annotations

from dataclasses import dataclass

from sympy import Integer

from coordgraph.control.asynchronous import CopyBox
from coordgraph.control.operations import Operation
from coordgraph.coordinates.dimensions import Linear, Register, Shared, Unroll
from coordgraph.coordinates.edges import Flatten, Swizzle, Tile
from coordgraph.coordinates.graph import CoordinateEditor
from passes.lowering.control import at, unrolled
from passes.lowering.hopper.division import Division, M, N
from passes.lowering.hopper.ring import FULL
from passes.lowering.staging import CHUNK, Operand

__all__ = ["BOX", "MMA_K", "ROW_BYTES", "BoxedOperand"]

BOX = 64
"""Elements of 16 bits in the 128 bytes of a swizzled row."""
MMA_K = 16
ROW_BYTES = 128
GROUP_ROWS = 8
"""The period of the swizzle."""


@dataclass(frozen=True)
class BoxedOperand(Operand):
    """A or B as the copy engine and wgmma see them: `rows` and `columns` of a workgroup's part."""

    division: Division

    @property
    def k_axis(self) -> int:
        """Which axis of the tensor is k."""
        return 1 if self.tensor == "A" else 0

    @property
    def along_k(self) -> bool:
        """True where k is contiguous in memory (K-major)."""
        return self.column_axis == self.k_axis

    def _position(self, axis: int) -> str:
        return f"{self.tensor}.own.{axis}"

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

    def stage(self, c: CoordinateEditor, stages: int) -> None:
        """Tie the tile position to shared memory: a ring of `stages` tiles of boxes."""
        t, rows, columns = self.tensor, c[self.row].fixed_size, c[self.column].fixed_size
        c.add(Shared(self.shared, Integer(stages * rows * columns), tensor=t))
        box = c.add(Linear(f"{t}.shared.box", Integer(columns // BOX)))
        row = c.add(Linear(f"{t}.shared.row", Integer(rows)))
        chunk = c.add(Linear(f"{t}.shared.chunk", Integer(BOX // CHUNK), note="16-byte chunk"))
        place = c.add(Linear(f"{t}.shared.place", Integer(BOX // CHUNK), note="before swizzle"))
        element = c.add(Linear(f"{t}.shared.element", Integer(CHUNK)))
        c.connect(Tile(self.shared, ("stage", box.id, row.id, chunk.id, element.id)))
        c.connect(Swizzle((row.id, chunk.id), (self.row, place.id), "xor", modulus=GROUP_ROWS))
        c.connect(Flatten((box.id, place.id, element.id), self.column))

    def copies(self, c: CoordinateEditor) -> Operation:
        """Tie the tile position to boxes; returns this workgroup's copies of one tile."""
        t, rows, columns = self.tensor, c[self.row].fixed_size, c[self.column].fixed_size
        for sharer in self._sharers:
            rows //= c[sharer].fixed_size
        step = c.add(Unroll(f"{t}.box", Integer(columns // BOX)))
        inside = c.add(Linear(f"{t}.box.element", Integer(BOX), note="first element of a box: 0"))
        across = c.add(Linear(f"{t}.box.row", Integer(rows), note="first row of a box: 0"))
        c.connect(Tile(self.column, (step.id, inside.id)))
        c.connect(Tile(self.row, (*self._sharers, across.id)))
        axes = (f"{t}.{self.column_axis}", f"{t}.{self.row_axis}")
        copy = CopyBox(t, axes, self.shared, FULL, (BOX, rows), self._sharers)
        return unrolled(c, (step.id,), at({inside.id: 0, across.id: 0}, copy))

    def descriptor(self, c: CoordinateEditor, parts: tuple[str, ...]) -> dict[str, int]:
        """Tie the tile position to what one instruction multiplies; returns where it begins.

        `parts` are the dimensions of the outer axis above the rows of one instruction.
        """
        t, outer = self.tensor, self._position(1 - self.k_axis)
        extent = c[outer].fixed_size
        for part in parts:
            extent //= c[part].fixed_size - (part == "warpgroup")  # one of them is the producer
        first = c.add(Register(f"{t}.mma.outer", Integer(extent), note="of an instruction"))
        depth = c.add(Register(f"{t}.mma.depth", Integer(MMA_K), note="of an instruction"))
        c.connect(Tile(outer, (*parts, first.id)))
        c.connect(Tile(self._position(self.k_axis), ("fragment.k", depth.id)))
        return {first.id: 0, depth.id: 0}

    def strides(self, c: CoordinateEditor) -> tuple[int, int]:
        """Bytes between the descriptor's groups (PTX ISA, "Strides" of wgmma): leading, stride.

        Along k: the leading one is not read, the other is eight rows. Across k: the leading one is
        from a box to the next, the other eight rows of k.
        """
        group = GROUP_ROWS * ROW_BYTES
        return (16, group) if self.along_k else (c[self.row].fixed_size * ROW_BYTES, group)
