"""Fragments of `mma.sync.m16n8` and `ldmatrix` as coordinates (PTX ISA, "Matrix fragments").

Edges of the coordinate graph say which lane holds which row and column of a fragment: a `Tile` of
the position in the macro tile, and a `Flatten` into the lane. No other code has formulas for the
fragment layout. Along k, an instruction multiplies two chunks of 16 bytes: 16 elements of 16 bits
(m16n8k16) or 32 elements of 8 bits (m16n8k32). In bytes, both instructions have the same layout.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from math import prod

from sympy import Integer

from coordgraph.control.lowered import LoadFragment, MultiplyFragments
from coordgraph.control.operations import Body
from coordgraph.coordinates.dimensions import Lane, Register, Warp, Workitem
from coordgraph.coordinates.edges import Flatten, Tile
from coordgraph.coordinates.graph import CoordinateEditor
from coordgraph.elements import WARP_MMA, DType
from coordgraph.gemm import GemmProblem
from coordgraph.tilings import Tiling, Tilings
from passes.kit.reduce_scatter import SHARE, cut_otherwise
from passes.lowering.control import Accumulator, at, tie_operands, unrolled
from passes.lowering.parts import tie_sums
from passes.lowering.row_reductions import RowLayout
from passes.lowering.sm_80.staging import Operand

__all__ = [
    "EIGHTH",
    "LANES",
    "MMA_M",
    "MOST_WARPS",
    "PAIR_N",
    "WarpGrid",
    "choose_warps",
    "depth_of",
    "most_accumulators",
    "order_of_sums",
    "warps_of",
]

MMA_M, LANES = 16, 32
"""MMA_M: number of rows of A in one `mma.sync.m16n8`. LANES: number of threads of a warp."""
PAIR_N = 16
"""Number of columns of B that one `ldmatrix.x4` loads: 16, for two `mma.sync` instructions of 8
columns."""
EIGHTH = 8
"""Number of columns of B in one `mma.sync`. The coordinate `acc.eighth` numbers the two groups of
8 columns that one `ldmatrix.x4` loads."""
REGISTERS = ("fragment.m", "fragment.n", "acc.eighth", "acc.half")
"""Coordinates whose indices select a pair of adjacent accumulator registers of a thread."""
MOST_ACCUMULATORS = 128
"""Largest number of accumulator registers of a thread. A thread has 255 registers in all; fragments
and addresses take the others."""
ODD, MOST_ODD_ACCUMULATORS = 64, 96
"""Tiles whose extent in m or n is no multiple of ODD elements need more registers for addresses.
For such tiles, MOST_ODD_ACCUMULATORS is the largest number of accumulator registers of a thread."""
MOST_WARPS = 8
"""The largest number of warps in a workgroup; they divide an output tile among them."""


@dataclass(frozen=True)
class WarpGrid:
    """A grid of warps that divides an output tile into equal parts.

    Args:
        m: number of warps that divide the tile along m.
        n: number of warps that divide the tile along n.
        tiling: the tiles that the warps divide.
    """

    m: int
    n: int
    tiling: Tiling

    @property
    def workitems(self) -> int:
        """Number of threads of the workgroup."""
        return self.m * self.n * LANES

    def add(self, c: CoordinateEditor) -> None:
        """Add the edge from warp row, warp column and lane to the thread's number (`workitem`)."""
        own = self.tiling.own
        c.add(Warp(own("warp.m"), Integer(self.m)))
        c.add(Warp(own("warp.n"), Integer(self.n)))
        c.add(Lane(own("lane"), Integer(LANES)))
        if "workitem" not in c:
            c.add(Workitem("workitem", Integer(self.workitems)))
        c.connect(Flatten((own("warp.m"), own("warp.n"), own("lane")), "workitem"))

    def add_fragments(
        self, c: CoordinateEditor, gemm: GemmProblem, a: Operand, b: Operand, part: str
    ) -> Accumulator:
        """Add the edges from positions in tiles to registers and lanes: the fragment layouts.

        Args:
            c: the coordinate graph under construction.
            gemm: the matrix product: element types, extents, layouts and epilogue.
            a, b: the tiles of A and B.
            part: the register coordinate that numbers the sums of one element of D; '' if the
                epilogue has one sum.

        Returns:
            The accumulator, whose vectors are pairs of elements in adjacent columns of the product.
        """
        t, own = self.tiling, self.tiling.own
        m, n, k = t.shape
        c.add(Register(own("fragment.m"), Integer(m // (self.m * MMA_M)), note="rows of 16"))
        c.add(Register(own("fragment.n"), Integer(n // (self.n * PAIR_N)), note="columns of 16"))
        depth = depth_of(a.kind)
        c.add(Register(own("fragment.k"), Integer(k // depth), note=f"depths of {depth}"))
        _load_coordinates(c, a, ("warp.m", "fragment.m"), trans=a.row_axis == 1)
        _load_coordinates(c, b, ("warp.n", "fragment.n"), trans=b.row_axis == 0)
        for name, size in (("acc.half", 2), ("acc.pair", 2), ("acc.eighth", 2)):
            c.add(Register(own(name), Integer(size)))
        c.add(Lane(own("acc.row"), Integer(8)))
        c.add(Lane(own("acc.quad"), Integer(4)))
        rows = ("warp.m", "fragment.m", "acc.half", "acc.row")
        columns = ("warp.n", "fragment.n", "acc.eighth", "acc.quad", "acc.pair")
        c.connect(Tile(t.index("D", 0), tuple(map(own, rows))))
        c.connect(Tile(t.index("D", 1), tuple(own(name) for name in columns if name != part)))
        tie_sums(c, part and own(part), own("acc.pair"))
        c.connect(Flatten((own("acc.row"), own("acc.quad")), own("lane")))
        tie_operands(c, gemm, t)
        registers, name = tuple(map(own, REGISTERS)), t.accumulator
        rows = self.row_layout.rows
        return Accumulator(c, registers, own("acc.pair"), name, part=part and own(part), rows=rows)

    @property
    def row_layout(self) -> RowLayout:
        """Which warps, lanes and registers hold the elements of a row of D."""
        own = self.tiling.own
        return RowLayout(
            (own("fragment.m"), own("acc.half")),
            own("acc.quad"),
            (own("warp.n"),),
            (self.n,),
            self.tiling.index("D", 0),
        )

    def add_shares(self, c: CoordinateEditor, part: str) -> Accumulator:
        """Cut a tile into shares for reduce-scatter: a share is one register pair of each thread.

        If an element of D has several sums, all of them are in the same share.

        Returns:
            An `Accumulator` for the registers that hold one share.
        """
        own, name = self.tiling.own, self.tiling.accumulator
        registers = tuple(own(dim) for dim in REGISTERS if dim != part)
        inside = (own(part),) if part in REGISTERS else ()
        cut_otherwise(c, prod(c[dim].fixed_size for dim in registers))
        c.connect(Flatten(registers, SHARE))
        return Accumulator(c, inside, own("acc.pair"), name, part=part and own(part))

    def multiply(self, c: CoordinateEditor, a: Operand, b: Operand) -> Body:
        """Multiply the tiles of A and B in shared memory, by ldmatrix and mma.sync."""
        own, instruction = self.tiling.own, a.kind.instruction(WARP_MMA)
        assert instruction is not None
        forms = {
            "A": "ldmatrix.x4" + (".trans" if a.row_axis == 1 else ""),
            "B": "ldmatrix.x4" + (".trans" if b.row_axis == 0 else ""),
        }
        m, n, k, eighth = map(own, ("fragment.m", "fragment.n", "fragment.k", "acc.eighth"))
        load_a = LoadFragment("A", a.shared, (m,), form=forms["A"])
        load_b = LoadFragment("B", b.shared, (n,), form=forms["B"])
        multiply = MultiplyFragments(
            "A",
            "B",
            self.tiling.accumulator,
            (m,),
            (n, eighth),
            (m, n, eighth),
            f"mma.m16n8k{instruction.depth}.{instruction.kind}",
        )
        return (
            unrolled(
                c,
                (k,),
                unrolled(c, (m,), at({own("A.load.element"): 0}, load_a)),
                unrolled(c, (n,), at({own("B.load.element"): 0}, load_b)),
                unrolled(c, (m, n, eighth), multiply),
            ),
        )


def order_of_sums(gemm: GemmProblem) -> tuple[str, int]:
    """Choose the register coordinate that numbers the sums of one element of D.

    A part of B is the columns from which one sum is computed. If B's rows are contiguous and
    adjacent columns belong to different parts, columns are multiplied in their order in memory.
    Then copies to shared memory can be wide, but a thread stores single elements of D. Otherwise 8
    columns of one part are multiplied before 8 columns of the next part, and a thread stores pairs
    of elements.

    Returns:
        (coordinate, number of columns of one part that are multiplied one after another); ('', 0)
        if the epilogue has one sum.
    """
    if gemm.sums == 1:
        return "", 0
    if gemm.part_width == 1 and not gemm.transpose_b:
        return "acc.pair", 1
    return "acc.eighth", EIGHTH


def depth_of(kind: DType) -> int:
    """Number of elements along k that one `mma.sync` multiplies, for A and B of type `kind`."""
    instruction = kind.instruction(WARP_MMA)
    assert instruction is not None
    return instruction.depth


def _load_coordinates(
    c: CoordinateEditor, operand: Operand, across: tuple[str, str], *, trans: bool
) -> None:
    """Add the edges that say which row of 16 bytes each lane addresses for `ldmatrix.x4`.

    The instruction loads four 8x8 matrices of 16-bit elements. The matrices must have the order in
    which mma.sync expects them in registers: for A by (k half, m half), for B by (n half, k half).

    Args:
        c: the coordinate graph under construction.
        operand: A or B.
        across: the warp and fragment coordinates of the axis that is not k.
        trans: whether the rows in shared memory run along m or n, so that `ldmatrix.trans` must
            load them; if False, rows run along k.
    """
    t, tensor = operand.tiling, operand.tensor
    outer, inner = (0, 1) if tensor == "A" else (1, 0)
    own = t.own
    halves = c.add(Lane(own(f"{tensor}.load.half"), Integer(2), note="8x8 matrices across k"))
    depths = c.add(Lane(own(f"{tensor}.load.depth"), Integer(2), note="8x8 matrices along k"))
    row = c.add(Lane(own(f"{tensor}.load.row"), Integer(8), note="row of an 8x8 matrix"))
    element = c.add(Register(own(f"{tensor}.load.element"), Integer(operand.kind.chunk)))
    rows, columns = (element.id, row.id) if trans else (row.id, element.id)
    c.connect(Tile(t.index(tensor, outer), (*map(own, across), halves.id, rows)))
    c.connect(Tile(t.index(tensor, inner), (own("fragment.k"), depths.id, columns)))
    order = (depths.id, halves.id) if tensor == "A" else (halves.id, depths.id)
    c.connect(Flatten((*order, row.id), own("lane")))


def choose_warps(tilings: Tilings) -> dict[str, WarpGrid]:
    """Choose a grid of warps for the tiles of each shape.

    The largest tile decides the number of warps, at most 8, which all grids have. Among the grids
    with this number of warps, one that reads the fewest bytes of shared memory is chosen.

    Returns:
        The grids by the name of the accumulator. An accumulator whose tile cannot be divided among
        that many warps has no entry.
    """
    largest = max(tilings, key=lambda tiling: tiling.summed[0] * tiling.summed[1])
    first = warps_of(*largest.summed[:2])
    if first is None:
        return {}
    count = first[0] * first[1]
    found = ((t, warps_of(*t.summed[:2], (count,))) for t in tilings)
    return {t.accumulator: WarpGrid(*grid, t) for t, grid in found if grid is not None}


def most_accumulators(m: int, n: int) -> int:
    """Largest number of accumulator registers that a thread may have for an m x n output tile."""
    return MOST_ODD_ACCUMULATORS if m % ODD or n % ODD else MOST_ACCUMULATORS


def warps_of(
    m: int, n: int, counts: Container[int] = range(1, MOST_WARPS + 1)
) -> tuple[int, int] | None:
    """The best grid of warps, in m and n, for an m x n output tile; None if there is none.

    The best grid has about 8 warps, or about 4 for a tile smaller than 128 x 128. Among grids with
    this number of warps, it reads the fewest bytes from shared memory.

    Args:
        m, n: extents of the output tile in elements.
        counts: the allowed numbers of warps in the grid.
    """
    want = MOST_WARPS if m * n >= 128 * 128 else 4
    most = most_accumulators(m, n)
    best: tuple[tuple[float, ...], tuple[int, int]] | None = None
    for rows in (1, 2, 4, 8):
        for columns in (1, 2, 4, 8):
            warps = rows * columns
            if m % (rows * MMA_M) or n % (columns * PAIR_N) or warps not in counts:
                continue
            height, width = m // rows, n // columns
            if height * width // 32 > most:
                continue
            cost = (abs(warps - want), (height + width) / (height * width), columns)
            if best is None or cost < best[0]:
                best = (cost, (rows, columns))
    return best[1] if best else None
