"""Blocking for vector registers: divides a tile into blocks for the loops of a CPU core.

An output tile is divided into register blocks of a few rows and a few vectors of columns. A block
has whole vectors, so the last block may extend past the end of the tile; the elements past the end
are padding, which exists in buffers only, not in tensors. Tiles of A and B are copied to buffers in
the order in which blocks read their elements (packing):

    A.index.0, D.index.0 --Tile--> block.m, block.row        A.index.1, B.index.0 --> block.k
    B.index.1, D.index.1 --Tile--> block.n, block.column --Tile--> block.vector, block.lane

If the epilogue has several sums, each vector of a row holds one of them for the same columns of D:

    B.index.1, D.index.1 --Tile--> block.n, block.lane       part --> block.vector

If a kernel has tiles of several shapes, each shape has its own blocks, and buffers of all shapes
use the same memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from sympy import Integer

from coordgraph.control.lowered import LoadFragment, MultiplyFragments, StoreFragment
from coordgraph.control.operations import Body, For, Operation
from coordgraph.coordinates.dimensions import ForLoop, Lane, Linear, Register, Shared
from coordgraph.coordinates.edges import PassThrough, Tile
from coordgraph.coordinates.graph import CoordinateEditor
from coordgraph.gemm import PART, GemmProblem
from coordgraph.tilings import Tiling
from passes.lowering.control import at, tie_operands, unrolled
from passes.lowering.parts import tie_sums

__all__ = ["ACCUMULATOR", "Block", "choose_block"]

ACCUMULATOR = "acc.shared"
"""The coordinate of the buffer that holds the sums of an output tile, which have the accumulator's
element type."""
VECTORS = 2
"""Number of vector registers in a row of a register block: each broadcast element of A multiplies 2
vectors of B."""


@dataclass(frozen=True)
class Block:
    """A register block: `rows` x `vectors` vector registers of `lanes` accumulators each.

    Args:
        rows: number of rows of the block.
        vectors: number of vector registers in a row of the block.
        lanes: elements of a vector register.
        sums: number of sums from which the epilogue computes one element of D. If it is more than
            1, `vectors` is equal to it, and each vector of a row holds one sum.
    """

    rows: int
    vectors: int
    lanes: int
    sums: int = 1

    @property
    def columns(self) -> int:
        """Number of columns of D in the register block.

        In each row of the block, a column has `sums` accumulators.
        """
        return self.vectors * self.lanes // self.sums

    @property
    def inside(self) -> tuple[str, ...]:
        """The coordinates that number a register block's accumulators in a row, outermost first."""
        return ("block.vector", "block.lane") if self.sums > 1 else ("block.column",)

    def elements(self, m: int, n: int, k: int) -> int:
        """Number of elements in all buffers of one workgroup.

        Args:
            m, n: extents of the tile of D in elements.
            k: extent of the tiles of A and B along k in elements.
        """
        height, width = _whole(m, self.rows), _whole(n, self.columns) * self.sums
        return height * width + (height + width) * k

    def add(self, c: CoordinateEditor, gemm: GemmProblem, t: Tiling) -> None:
        """Add the coordinates of register blocks, and the edges to tiles and to buffers.

        Args:
            c: the coordinate graph under construction.
            gemm: the matrix product: element types, extents, layouts and epilogue.
            t: the tiles to divide into register blocks.
        """
        m, n, k = t.shape
        own = t.own
        height, width = _whole(m, self.rows), _whole(n, self.columns)
        down, across = Integer(height // self.rows), Integer(width // self.columns)
        c.add(Linear(own("block.m"), down, note="register blocks down the tile"))
        c.add(Register(own("block.row"), Integer(self.rows)))
        c.add(Linear(own("block.n"), across, note="register blocks across it"))
        if self.sums == 1:
            c.add(Linear(own("block.column"), Integer(self.columns)))
        c.add(Register(own("block.vector"), Integer(self.vectors)))
        c.add(Lane(own("block.lane"), Integer(self.lanes), note="element of a vector"))
        c.add(ForLoop(own("block.k"), Integer(k), name="block K"))
        rows, columns = (own("block.m"), own("block.row")), (own("block.n"), own(self.inside[-1]))
        for tensor in ("A", "D"):
            c.connect(Tile((t.index(tensor, 0),), rows))
        for tensor in ("B", "D"):
            c.connect(Tile((t.index(tensor, 1),), columns))
        tie_operands(c, gemm, t)
        c.connect(PassThrough((t.index("A", 1),), (own("block.k"),)))
        c.connect(PassThrough((t.index("B", 0),), (own("block.k"),)))
        if self.sums == 1:
            c.connect(Tile((own("block.column"),), (own("block.vector"), own("block.lane"))))
        else:
            c.connect(PassThrough((PART,), (own("block.vector"),)))
            tie_sums(c, own("block.vector"))
        width *= self.sums
        sizes = {"A.shared": height * k, "B.shared": width * k, ACCUMULATOR: height * width}
        for name, size in sizes.items():
            tensor = name[0] if name != ACCUMULATOR else ""
            home = name if own(name) != name else ""
            c.add(Shared(own(name), Integer(size), tensor=tensor, within=home))
        # The buffer of A has the same order of elements as A in memory: row by row, or column by
        # column if A is transposed.
        last = ("block.k", "block.row") if gemm.transpose_a else ("block.row", "block.k")
        for name, order in (
            ("A.shared", ("block.m", *last)),
            ("B.shared", ("block.n", "block.k", *self.inside)),
            (ACCUMULATOR, ("block.m", "block.n", "block.row", *self.inside)),
        ):
            c.connect(Tile((own(name),), tuple(map(own, order))))

    def accumulators(self, c: CoordinateEditor, t: Tiling, op: Operation) -> Operation:
        """Unrolled loops that execute `op` for every accumulator register of a register block."""
        registers = (t.own("block.row"), t.own("block.vector"))
        return unrolled(c, registers, at({t.own("block.lane"): 0}, op))

    def multiply(self, c: CoordinateEditor, t: Tiling, depth: For, instruction: str) -> Body:
        """Operations that add A·B to a register block of D, whose sums stay in registers.

        Args:
            c: the coordinate graph under construction.
            t: the tiles that are divided into register blocks.
            depth: the loop over k in the tile.
            instruction: the name of the multiply-add instruction.
        """
        row, vector, lane = map(t.own, ("block.row", "block.vector", "block.lane"))
        registers, width, acc, total = (row, vector), self.lanes, t.accumulator, t.own(ACCUMULATOR)
        load = LoadFragment(acc, total, registers, width)
        store = StoreFragment(acc, total, registers, width)
        vectors = LoadFragment("B", t.own("B.shared"), (vector,), width)
        element = LoadFragment("A", t.own("A.shared"), (row,), width, "broadcast")
        multiply = MultiplyFragments("A", "B", acc, (row,), (vector,), registers, instruction)
        step = (
            unrolled(c, (vector,), at({lane: 0}, vectors)),
            unrolled(c, (row,), element, unrolled(c, (vector,), multiply)),
        )
        return (
            self.accumulators(c, t, load),
            depth.with_body(*step),
            self.accumulators(c, t, store),
        )


def choose_block(m: int, n: int, lanes: int, registers: int, sums: int = 1) -> Block:
    """Choose the register block for an output tile of m x n elements.

    A candidate has at least half as many rows as fit in the registers. Of the candidates that pad
    the tile with the fewest rows, the one with the most rows is chosen.

    Args:
        m, n: extents of the output tile in elements.
        lanes: elements of a vector register.
        registers: number of vector registers.
        sums: number of sums from which the epilogue computes one element of D.
    """
    lanes = min(lanes, 1 << (n - 1).bit_length())
    vectors = min(VECTORS, -(-n // lanes)) if sums == 1 else sums
    most = max(1, (registers - vectors - 1) // vectors)
    heights = range(min(m, max(1, most // 2)), min(m, most) + 1)
    rows = min(heights, key=lambda height: (_whole(m, height), -height))
    return Block(rows, vectors, lanes, sums)


def _whole(size: int, part: int) -> int:
    """`size` rounded up to a multiple of `part`."""
    return -(-size // part) * part
