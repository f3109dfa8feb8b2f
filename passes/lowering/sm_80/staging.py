"""Staging of tiles of A and B in shared memory, as edges of the coordinate graph.

Edges map the position in a tile (`A.index.0`, `A.index.1`) to three things: the copy from global
memory (`copy.pass`, thread, element of a vector), the address in shared memory, and the fragments
that matrix instructions read. A row in shared memory is a sequence of 16-byte chunks. The number of
a chunk is xored with the number of its row (swizzle), so that the i-th chunks of eight adjacent
rows are in different banks.

If a kernel has tiles of several shapes, each shape has coordinates of its own, and all shapes share
one ring of stages. A stage has room for the largest tile.
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
"""Number of 16-byte chunks that together cover each of the 32 banks of shared memory once: 8."""
MOST_UNROLLED_COPIES = 8
"""Largest number of copies of A (or of B) that a thread makes in unrolled code, for one k tile.
More copies remain a loop, because their addresses would take too many registers."""


@dataclass(frozen=True)
class Operand:
    """The tiles of A or of B: their axes, element type and buffers in shared memory.

    Args:
        tensor: `A` or `B`.
        row_axis: the axis of the tensor (0 or 1) that is strided in memory.
        column_axis: the axis of the tensor (0 or 1) that is contiguous in memory.
        tiling: the tiles of A, B and D of one shape, and their dimensions.
        kind: the type of the elements. `kind.chunk` elements are 16 bytes: a row of an 8x8 matrix
            of ldmatrix, and the most that one copy moves.
    """

    tensor: str
    row_axis: int
    column_axis: int
    tiling: Tiling
    kind: DType

    @property
    def row(self) -> str:
        """The coordinate of the row in a tile: the position along the strided axis."""
        return self.tiling.index(self.tensor, self.row_axis)

    @property
    def column(self) -> str:
        """The coordinate of the column in a tile: the position along the contiguous axis."""
        return self.tiling.index(self.tensor, self.column_axis)

    @property
    def shared(self) -> str:
        """The coordinate of the shared memory that holds the operand's tiles."""
        return self._own("shared")

    def _own(self, name: str) -> str:
        """The full name of a coordinate of this operand, such as `A.copy.pass` for `copy.pass`."""
        return self.tiling.own(f"{self.tensor}.{name}")

    @property
    def _home(self) -> str:
        """The dimension of shared memory that this operand's shared memory aliases; '' if none.

        If a kernel has tiles of several shapes, the shared memory of the second and later shapes
        aliases that of the first shape.
        """
        first = f"{self.tensor}.shared"
        return "" if self.shared == first else first

    def elements(self, c: CoordinateEditor) -> int:
        """Number of elements of one tile of the operand."""
        return c[self.row].fixed_size * c[self.column].fixed_size

    def add_memory(self, c: CoordinateEditor, stages: int, room: int) -> None:
        """Add the operand's shared memory: `stages` stages of `room` elements each."""
        size = Integer((stages - 1) * room + self.elements(c))
        c.add(Shared(self.shared, size, tensor=self.tensor, within=self._home))

    def ring(self, c: CoordinateEditor, room: int, inside: tuple[str, ...]) -> None:
        """Add the edges from the operand's shared memory to the stage and the position in the tile.

        Args:
            c: the coordinate graph under construction.
            room: number of elements that a stage has room for. A smaller tile leaves a part of the
                stage unused.
            inside: the coordinates of the position inside a tile, the outermost first.
        """
        elements = self.elements(c)
        if elements == room:
            c.connect(Tile(self.shared, ("stage", *inside)))
            return
        part = c.add(Linear(f"{self.shared}.inside", Integer(elements), note="in a stage"))
        c.connect(Split(self.shared, ("stage", part.id), (Integer(room), Integer(1))))
        c.connect(Tile(part.id, inside))

    def stage(self, c: CoordinateEditor, stages: int, room: int) -> None:
        """Add the edges from positions in a tile to shared memory, whose rows are swizzled.

        Args:
            c: the coordinate graph under construction.
            stages: number of stages of the ring of k tiles in shared memory.
            room: number of elements of this tensor for which each stage has room: those of the
                largest tile.
        """
        rows, columns = c[self.row].fixed_size, c[self.column].fixed_size
        chunks = columns // self.kind.chunk
        # A 16-byte chunk covers a group of 4 banks. If a row has `chunks` chunks, and g =
        # gcd(chunks, BANK_ROW), the chunks of one chunk column are in BANK_ROW / g different bank
        # groups before these repeat. So the swizzle changes after every BANK_ROW / g rows, and
        # exchanges chunks within groups of g.
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

    def copy(
        self,
        c: CoordinateEditor,
        workitems: int,
        vector: int,
        thread: str = "workitem",
        *,
        grouped: bool = False,
        most: int = MOST_UNROLLED_COPIES,
    ) -> Operation:
        """Add the edges from positions in a tile to the threads that copy the tile.

        Args:
            c: the coordinate graph under construction.
            workitems: number of threads that copy a tile.
            vector: number of elements that one copy moves.
            thread: the coordinate that numbers these threads.
            grouped: what to do if a thread makes more than `most` copies: True for a loop over
                groups of unrolled copies, False for a loop over single copies.
            most: the largest number of copies of one thread that are all unrolled.

        Returns:
            The operation that copies one tile.
        """
        own, rows, columns = self._own, c[self.row].fixed_size, c[self.column].fixed_size
        vectors = rows * columns // vector
        passes = -(-vectors // workitems)
        groups = -(-passes // MOST_UNROLLED_COPIES) if grouped and passes > most else 1
        number = c.add(Linear(own("copy.column"), Integer(columns // vector)))
        element = c.add(Register(own("copy.element"), Integer(vector)))
        linear = c.add(Linear(own("copy.vector"), Integer(vectors)))
        step = c.add(Unroll(own("copy.pass"), Integer(-(-passes // groups))))
        group = (c.add(Linear(own("copy.group"), Integer(groups))).id,) if groups > 1 else ()
        c.connect(Tile(self.column, (number.id, element.id)))
        c.connect(Flatten((self.row, number.id), linear.id))
        c.connect(Tile(linear.id, (*group, step.id, thread)))
        op = CopyElements(self.tensor, self.shared, vector, asynchronous=True)
        one, passes = at({element.id: 0}, op), c[step.id].fixed_size
        unroll = passes <= most
        copies = For(step.id, Integer(0), Integer(passes), body=(one,), unroll=unroll)
        for outer in group:
            copies = For(outer, Integer(0), Integer(groups), body=(copies,))
        return copies
