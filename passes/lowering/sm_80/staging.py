"""Staging: how a tensor's tile travels through shared memory, as coordinates.

The tile position (`A.index.0`, `A.index.1`) has three ways down: to the copy that brings it in
(pass, workitem, element of a vector), to its place in shared memory, and to the fragments that
matrix instructions read. Shared memory holds rows of 16-byte chunks whose number is swizzled with
the row, so that eight rows of one chunk column lie in different banks.

Tiles of each shape have ways of their own; in shared memory they take turns in one ring of stages,
each as large as the largest tile.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from sympy import Integer

from coordgraph.control.lowered import CopyElements
from coordgraph.control.operations import For, Operation
from coordgraph.coordinates.dimensions import Linear, Register, Shared, Unroll
from coordgraph.coordinates.edges import Flatten, Split, Swizzle, Tile
from coordgraph.coordinates.graph import CoordinateEditor
from coordgraph.elements import CHUNK_BYTES, ROW_BYTES, DType
from coordgraph.tilings import Tiling
from passes.lowering.control import at

__all__ = ["BANK_ROW", "Operand"]

BANK_ROW = ROW_BYTES // CHUNK_BYTES
"""Chunks in one row of all 32 banks."""
MOST_UNROLLED_COPIES = 8
"""Copies of an operand and a step that are written out; more of them hold too many addresses."""


@dataclass(frozen=True)
class Operand:
    """A or B: `rows` and `columns` are its axes, columns contiguous in memory.

    `tiling` says which tiles of it, `kind` what its elements are: a chunk has 16 bytes of them, the
    unit of ldmatrix rows and of the widest copy.
    """

    tensor: str
    row_axis: int
    column_axis: int
    tiling: Tiling
    kind: DType

    @property
    def row(self) -> str:
        """The tile position across the contiguous axis."""
        return self.tiling.index(self.tensor, self.row_axis)

    @property
    def column(self) -> str:
        """The tile position along the contiguous axis."""
        return self.tiling.index(self.tensor, self.column_axis)

    @property
    def shared(self) -> str:
        """The dimension of its shared memory."""
        return self._own("shared")

    def _own(self, name: str) -> str:
        """A coordinate of its own."""
        return self.tiling.own(f"{self.tensor}.{name}")

    @property
    def _home(self) -> str:
        """Whose place the shared memory is, where it is another's."""
        first = f"{self.tensor}.shared"
        return "" if self.shared == first else first

    def elements(self, c: CoordinateEditor) -> int:
        """Elements in one tile."""
        return c[self.row].fixed_size * c[self.column].fixed_size

    def add_memory(self, c: CoordinateEditor, stages: int, room: int) -> None:
        """Shared memory for `stages` of `room` elements each, where tiles of all shapes lie."""
        size = Integer((stages - 1) * room + self.elements(c))
        c.add(Shared(self.shared, size, tensor=self.tensor, within=self._home))

    def ring(self, c: CoordinateEditor, room: int, inside: tuple[str, ...]) -> None:
        """Tie the place inside a tile to shared memory."""
        elements = self.elements(c)
        if elements == room:
            c.connect(Tile(self.shared, ("stage", *inside)))
            return
        part = c.add(Linear(f"{self.shared}.inside", Integer(elements), note="in a stage"))
        c.connect(Split(self.shared, ("stage", part.id), (Integer(room), Integer(1))))
        c.connect(Tile(part.id, inside))

    def stage(self, c: CoordinateEditor, stages: int, room: int) -> None:
        """Tie the tile position to shared memory: a ring of swizzled tiles.

        Args:
            c: the coordinates being built.
            stages: of the ring.
            room: elements of a stage, which tiles of all shapes fit.
        """
        rows, columns = c[self.row].fixed_size, c[self.column].fixed_size
        chunks = columns // self.kind.chunk
        # One chunk column of consecutive rows meets BANK_ROW / gcd different bank groups and then
        # the first again; that often the swizzle takes the next chunk of a group of gcd chunks.
        shared = gcd(chunks, BANK_ROW)
        own = self._own
        self.add_memory(c, stages, room)
        row = c.add(Linear(own("shared.row"), Integer(rows), note="row in shared memory"))
        chunk = c.add(Linear(own("shared.chunk"), Integer(chunks), note="16-byte chunk"))
        place = c.add(Linear(own("shared.place"), Integer(chunks), note="chunk before swizzle"))
        element = c.add(Linear(own("shared.element"), Integer(self.kind.chunk)))
        self.ring(c, room, (row.id, chunk.id, element.id))
        c.connect(
            Swizzle(
                (row.id, chunk.id),
                (self.row, place.id),
                "xor",
                divisor=BANK_ROW // shared,
                modulus=shared,
            )
        )
        c.connect(Flatten((place.id, element.id), self.column))

    def copy(self, c: CoordinateEditor, workitems: int, vector: int) -> Operation:
        """Tie the tile position to the copying workitems; returns the copy of one tile."""
        own, rows, columns = self._own, c[self.row].fixed_size, c[self.column].fixed_size
        vectors = rows * columns // vector
        passes = -(-vectors // workitems)
        number = c.add(Linear(own("copy.column"), Integer(columns // vector)))
        element = c.add(Register(own("copy.element"), Integer(vector)))
        linear = c.add(Linear(own("copy.vector"), Integer(vectors)))
        step = c.add(Unroll(own("copy.pass"), Integer(passes)))
        c.connect(Tile(self.column, (number.id, element.id)))
        c.connect(Flatten((self.row, number.id), linear.id))
        c.connect(Tile(linear.id, (step.id, "workitem")))
        op = CopyElements(self.tensor, self.shared, vector, asynchronous=True)
        return For(
            step.id,
            Integer(0),
            Integer(passes),
            body=(at({element.id: 0}, op),),
            unroll=passes <= MOST_UNROLLED_COPIES,
        )
