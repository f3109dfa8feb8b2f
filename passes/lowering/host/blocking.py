"""Blocking for vector registers: how a processor core walks a tile, as coordinates.

The output tile is parted into register blocks of a few rows and a few vectors of columns. Blocks
have whole vectors only, so they may reach past the tile; what lies there is padding in buffers,
never in tensors. Operands are packed so that a block reads its operands front to back:

    A.index.0, D.index.0 --Tile--> block.m, block.row        A.index.1, B.index.0 --> block.k
    B.index.1, D.index.1 --Tile--> block.n, block.column --Tile--> block.vector, block.lane

Tiles of each shape have blocks of their own; their buffers share one place.
"""

from __future__ import annotations

from dataclasses import dataclass

from sympy import Integer

from coordgraph.control.lowered import LoadFragment, MultiplyFragments, StoreFragment
from coordgraph.control.operations import Body, For, Operation
from coordgraph.coordinates.dimensions import ForLoop, Lane, Linear, Register, Shared
from coordgraph.coordinates.edges import PassThrough, Tile
from coordgraph.coordinates.graph import CoordinateEditor
from coordgraph.gemm import GemmProblem
from coordgraph.tilings import Tiling
from passes.lowering.control import at, tie_operands, unrolled

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

    def add(self, c: CoordinateEditor, gemm: GemmProblem, t: Tiling) -> None:
        """Tie the tile positions of a tiling to blocks, and blocks to the buffers."""
        m, n, k = t.shape
        own = t.own
        height, width = _whole(m, self.rows), _whole(n, self.columns)
        down, across = Integer(height // self.rows), Integer(width // self.columns)
        c.add(Linear(own("block.m"), down, note="register blocks down the tile"))
        c.add(Register(own("block.row"), Integer(self.rows)))
        c.add(Linear(own("block.n"), across, note="register blocks across it"))
        c.add(Linear(own("block.column"), Integer(self.columns)))
        c.add(Register(own("block.vector"), Integer(self.vectors)))
        c.add(Lane(own("block.lane"), Integer(self.lanes), note="element of a vector"))
        c.add(ForLoop(own("block.k"), Integer(k), name="block K"))
        rows, columns = (own("block.m"), own("block.row")), (own("block.n"), own("block.column"))
        for tensor in ("A", "D"):
            c.connect(Tile((t.index(tensor, 0),), rows))
        for tensor in ("B", "D"):
            c.connect(Tile((t.index(tensor, 1),), columns))
        tie_operands(c, gemm, t)
        c.connect(PassThrough((t.index("A", 1),), (own("block.k"),)))
        c.connect(PassThrough((t.index("B", 0),), (own("block.k"),)))
        c.connect(Tile((own("block.column"),), (own("block.vector"), own("block.lane"))))
        sizes = {"A.shared": height * k, "B.shared": width * k, ACCUMULATOR: height * width}
        for name, size in sizes.items():
            tensor = name[0] if name != ACCUMULATOR else ""
            home = name if own(name) != name else ""
            c.add(Shared(own(name), Integer(size), tensor=tensor, within=home))
        # A keeps the order of its elements in memory: rows, or columns where it is transposed.
        last = ("block.k", "block.row") if gemm.transpose_a else ("block.row", "block.k")
        for name, order in (
            ("A.shared", ("block.m", *last)),
            ("B.shared", ("block.n", "block.k", "block.column")),
            (ACCUMULATOR, ("block.m", "block.n", "block.row", "block.column")),
        ):
            c.connect(Tile((own(name),), tuple(map(own, order))))

    def accumulators(self, c: CoordinateEditor, t: Tiling, op: Operation) -> Operation:
        """`op` on every accumulator of a block."""
        registers = (t.own("block.row"), t.own("block.vector"))
        return unrolled(c, registers, at({t.own("block.lane"): 0}, op))

    def multiply(self, c: CoordinateEditor, t: Tiling, depth: For, instruction: str) -> Body:
        """One block of the product: accumulators stay in registers over the loop `depth`."""
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
