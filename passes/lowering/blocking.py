"""Blocking for vector registers: how a processor core walks a tile, as coordinates.

The output tile is parted into register blocks of a few rows and a few vectors of columns. Blocks
have whole vectors only, so they may reach past the tile; what lies there is padding in buffers,
never in tensors. Operands are packed so that a block reads its operands front to back:

    A.index.0, D.index.0 --Tile--> block.m, block.row        A.index.1, B.index.0 --> block.k
    B.index.1, D.index.1 --Tile--> block.n, block.column --Tile--> block.vector, block.lane
"""

from __future__ import annotations

from dataclasses import dataclass

from sympy import Integer

from coordgraph import Gemm
from coordgraph.control.lowered import LoadFragment, MultiplyFragments, StoreFragment
from coordgraph.control.operations import Body, For, Operation
from coordgraph.coordinates.dimensions import ForLoop, Lane, Linear, Register, Shared
from coordgraph.coordinates.edges import PassThrough, Tile
from coordgraph.coordinates.graph import CoordinateEditor
from passes.lowering.control import at, unrolled

__all__ = ["ACCUMULATOR", "Block", "choose_block"]

ACCUMULATOR = "acc.shared"
"""The buffer of the output tile, in the accumulator's type."""
VECTORS = 2
"""Vectors of columns in a block: each broadcast element of A is used that often."""


@dataclass(frozen=True)
class Block:
    """A register block: `rows` x `vectors` accumulators of `lanes` elements."""

    rows: int
    vectors: int
    lanes: int

    @property
    def columns(self) -> int:
        """Its width in elements."""
        return self.vectors * self.lanes

    def elements(self, m: int, n: int, k: int) -> int:
        """Elements of all buffers of one workgroup."""
        height, width = _whole(m, self.rows), _whole(n, self.columns)
        return height * width + (height + width) * k

    def add(self, c: CoordinateEditor, gemm: Gemm) -> None:
        """Tie the tile positions to blocks, and blocks to the buffers."""
        m, n, k = (c[name].fixed_size for name in ("D.index.0", "D.index.1", "A.index.1"))
        height, width = _whole(m, self.rows), _whole(n, self.columns)
        c.add(Linear("block.m", Integer(height // self.rows), note="register blocks down the tile"))
        c.add(Register("block.row", Integer(self.rows)))
        c.add(Linear("block.n", Integer(width // self.columns), note="register blocks across it"))
        c.add(Linear("block.column", Integer(self.columns)))
        c.add(Register("block.vector", Integer(self.vectors)))
        c.add(Lane("block.lane", Integer(self.lanes), note="element of a vector"))
        c.add(ForLoop("block.k", Integer(k), name="block K"))
        rows, columns = ("block.m", "block.row"), ("block.n", "block.column")
        for tensor in ("A", "D"):
            c.connect(Tile((f"{tensor}.index.0",), rows))
        for tensor in ("B", "D"):
            c.connect(Tile((f"{tensor}.index.1",), columns))
        for axis in (0, 1):
            c.connect(PassThrough((f"C.index.{axis}",), (f"D.index.{axis}",)))
        c.connect(PassThrough(("A.index.1",), ("block.k",)))
        c.connect(PassThrough(("B.index.0",), ("block.k",)))
        c.connect(Tile(("block.column",), ("block.vector", "block.lane")))
        c.add(Shared("A.shared", Integer(height * k), tensor="A"))
        c.add(Shared("B.shared", Integer(width * k), tensor="B"))
        c.add(Shared(ACCUMULATOR, Integer(height * width)))
        # A keeps the order of its elements in memory: rows, or columns where it is transposed.
        last = ("block.k", "block.row") if gemm.transpose_a else ("block.row", "block.k")
        c.connect(Tile(("A.shared",), ("block.m", *last)))
        c.connect(Tile(("B.shared",), ("block.n", "block.k", "block.column")))
        c.connect(Tile((ACCUMULATOR,), ("block.m", "block.n", "block.row", "block.column")))

    def accumulators(self, c: CoordinateEditor, op: Operation) -> Operation:
        """`op` on every accumulator of a block."""
        return unrolled(c, ("block.row", "block.vector"), at({"block.lane": 0}, op))

    def multiply(self, c: CoordinateEditor, depth: For, instruction: str) -> Body:
        """One block of the product: accumulators stay in registers over the loop `depth`."""
        registers, width = ("block.row", "block.vector"), self.lanes
        load = LoadFragment("acc", ACCUMULATOR, registers, width)
        store = StoreFragment("acc", ACCUMULATOR, registers, width)
        vectors = LoadFragment("B", "B.shared", ("block.vector",), width)
        element = LoadFragment("A", "A.shared", ("block.row",), width, "broadcast")
        multiply = MultiplyFragments(
            "A", "B", "acc", ("block.row",), ("block.vector",), registers, instruction
        )
        step = (
            unrolled(c, ("block.vector",), at({"block.lane": 0}, vectors)),
            unrolled(c, ("block.row",), element, unrolled(c, ("block.vector",), multiply)),
        )
        return (
            self.accumulators(c, load),
            depth.with_body(*step),
            self.accumulators(c, store),
        )


def choose_block(m: int, n: int, lanes: int, registers: int) -> Block:
    """A block for an output tile of m x n and so many vector registers of `lanes` elements.

    Blocks as high as the registers allow, down to half of that, are compared: the one that pads
    fewest rows wins, the higher one where they are equal.
    """
    lanes = min(lanes, 1 << (n - 1).bit_length())
    vectors = min(VECTORS, -(-n // lanes))
    most = max(1, (registers - vectors - 1) // vectors)
    heights = range(min(m, max(1, most // 2)), min(m, most) + 1)
    rows = min(heights, key=lambda height: (_whole(m, height), -height))
    return Block(rows, vectors, lanes)


def _whole(size: int, part: int) -> int:
    return -(-size // part) * part
