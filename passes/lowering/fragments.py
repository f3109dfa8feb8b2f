"""Fragments of `mma.sync.m16n8k16` and `ldmatrix` as coordinates (PTX ISA, "Matrix fragments").

Which lane holds, or points at, which row and column is a `Tile` of the tile position followed by
a `Flatten` into the lane: no formula of it stands anywhere else.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from sympy import Integer

from coordgraph.control.lowered import LoadFragment, MultiplyFragments
from coordgraph.control.operations import Body
from coordgraph.coordinates.dimensions import Lane, Register, Warp, Workitem
from coordgraph.coordinates.edges import Flatten, PassThrough, Tile
from coordgraph.coordinates.graph import CoordinateEditor
from passes.lowering.control import Accumulator, at, unrolled
from passes.lowering.staging import Operand
from passes.scatter import SHARE, cut_otherwise

__all__ = ["MMA_K", "MMA_M", "PAIR_N", "WarpGrid", "choose_warps"]

MMA_M, MMA_K = 16, 16
PAIR_N = 16
"""One ldmatrix.x4 of B feeds two instructions of n = 8."""
REGISTERS = ("fragment.m", "fragment.n", "acc.eighth", "acc.half")
"""What tells the pairs of an accumulator apart."""
MOST_ACCUMULATORS = 128
"""Accumulator registers of a thread that leave room for fragments and addresses in 255."""
ODD, MOST_ODD_ACCUMULATORS = 64, 96
"""The same for tiles that are no multiples of 64: their addresses have less in common."""


@dataclass(frozen=True)
class WarpGrid:
    """Warps in m and n; each has an equal part of the output tile."""

    m: int
    n: int

    @property
    def workitems(self) -> int:
        """Threads of the workgroup."""
        return self.m * self.n * 32

    def add(self, c: CoordinateEditor) -> None:
        """The workitem as warp and lane."""
        c.add(Warp("warp.m", Integer(self.m)))
        c.add(Warp("warp.n", Integer(self.n)))
        c.add(Lane("lane", Integer(32)))
        c.add(Workitem("workitem", Integer(self.workitems)))
        c.connect(Flatten(("warp.m", "warp.n", "lane"), "workitem"))

    def add_fragments(self, c: CoordinateEditor, a: Operand, b: Operand) -> Accumulator:
        """Tie the tile positions of A, B, C and D to registers and lanes."""
        m, n, k = (c[name].fixed_size for name in ("D.index.0", "D.index.1", "A.index.1"))
        c.add(Register("fragment.m", Integer(m // (self.m * MMA_M)), note="rows of 16"))
        c.add(Register("fragment.n", Integer(n // (self.n * PAIR_N)), note="columns of 16"))
        c.add(Register("fragment.k", Integer(k // MMA_K), note="depths of 16"))
        _load_coordinates(c, "A", ("warp.m", "fragment.m"), trans=a.row_axis == 1)
        _load_coordinates(c, "B", ("warp.n", "fragment.n"), trans=b.row_axis == 0)
        for name, size in (("acc.half", 2), ("acc.pair", 2), ("acc.eighth", 2)):
            c.add(Register(name, Integer(size)))
        c.add(Lane("acc.row", Integer(8)))
        c.add(Lane("acc.quad", Integer(4)))
        c.connect(Tile("D.index.0", ("warp.m", "fragment.m", "acc.half", "acc.row")))
        c.connect(Tile("D.index.1", ("warp.n", "fragment.n", "acc.eighth", "acc.quad", "acc.pair")))
        c.connect(Flatten(("acc.row", "acc.quad"), "lane"))
        c.connect(PassThrough("C.index.0", "D.index.0"))
        c.connect(PassThrough("C.index.1", "D.index.1"))
        return Accumulator(c, REGISTERS, "acc.pair")

    @staticmethod
    def add_shares(c: CoordinateEditor) -> Accumulator:
        """Cut a tile into shares of one pair of registers of every workitem."""
        cut_otherwise(c, prod(c[name].fixed_size for name in REGISTERS))
        c.connect(Flatten(REGISTERS, SHARE))
        return Accumulator(c, (), "acc.pair")

    @staticmethod
    def multiply(c: CoordinateEditor, a: Operand, b: Operand, dtype: str) -> Body:
        """One tile's worth of matrix instructions on what shared memory holds."""
        forms = {
            "A": "ldmatrix.x4" + (".trans" if a.row_axis == 1 else ""),
            "B": "ldmatrix.x4" + (".trans" if b.row_axis == 0 else ""),
        }
        k = "fragment.k"
        load_a = LoadFragment("A", "A.shared", ("fragment.m",), form=forms["A"])
        load_b = LoadFragment("B", "B.shared", ("fragment.n",), form=forms["B"])
        multiply = MultiplyFragments(
            "A",
            "B",
            "acc",
            ("fragment.m",),
            ("fragment.n", "acc.eighth"),
            ("fragment.m", "fragment.n", "acc.eighth"),
            f"mma.m16n8k16.{dtype}",
        )
        return (
            unrolled(
                c,
                (k,),
                unrolled(c, ("fragment.m",), at({"A.load.element": 0}, load_a)),
                unrolled(c, ("fragment.n",), at({"B.load.element": 0}, load_b)),
                unrolled(c, ("fragment.m", "fragment.n", "acc.eighth"), multiply),
            ),
        )


def _load_coordinates(
    c: CoordinateEditor, tensor: str, across: tuple[str, str], *, trans: bool
) -> None:
    """Which row of 16 bytes each lane hands to ldmatrix.

    The four 8x8 matrices of an x4 load must arrive in the order in which mma wants its registers:
    A by (k half, m half), B by (n half, k half). `across` are the warp and fragment dimensions of
    the axis that is not k. Without `trans` rows of shared memory run along k; with it, across k.
    """
    outer, inner = (0, 1) if tensor == "A" else (1, 0)
    halves = c.add(Lane(f"{tensor}.load.half", Integer(2), note="8x8 matrices across k"))
    depths = c.add(Lane(f"{tensor}.load.depth", Integer(2), note="8x8 matrices along k"))
    row = c.add(Lane(f"{tensor}.load.row", Integer(8), note="row of an 8x8 matrix"))
    element = c.add(Register(f"{tensor}.load.element", Integer(8)))
    rows, columns = (element.id, row.id) if trans else (row.id, element.id)
    c.connect(Tile(f"{tensor}.index.{outer}", (*across, halves.id, rows)))
    c.connect(Tile(f"{tensor}.index.{inner}", ("fragment.k", depths.id, columns)))
    order = (depths.id, halves.id) if tensor == "A" else (halves.id, depths.id)
    c.connect(Flatten((*order, row.id), "lane"))


def choose_warps(m: int, n: int) -> WarpGrid | None:
    """The grid of at most 8 warps that reads least from shared memory, or None where none fits."""
    want = 8 if m * n >= 128 * 128 else 4
    most = MOST_ODD_ACCUMULATORS if m % ODD or n % ODD else MOST_ACCUMULATORS
    best: tuple[tuple[float, ...], WarpGrid] | None = None
    for rows in (1, 2, 4, 8):
        for columns in (1, 2, 4, 8):
            warps = rows * columns
            if m % (rows * MMA_M) or n % (columns * PAIR_N) or warps > 8:
                continue
            height, width = m // rows, n // columns
            if height * width // 32 > most:
                continue
            cost = (abs(warps - want), (height + width) / (height * width), columns)
            if best is None or cost < best[0]:
                best = (cost, WarpGrid(rows, columns))
    return best[1] if best else None
