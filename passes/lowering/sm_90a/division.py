"""`Division`: divides a macro tile over the workgroups of a cluster and over consumer warpgroups.

One wgmma instruction multiplies 64 rows of a *left* operand by up to 256 columns of a *right*
operand. Usually A is the left operand, and the result is a block of D. If m is small, B is the left
operand, and the result is a block of D's transpose (`D^T = B^T·A^T`). If a cluster divides the tile
in m, its workgroups share B by multicast; if it divides n, they share A; if it divides both, the
workgroups of a row of the cluster share A, and the workgroups of a column share B. If a cluster
divides k, its workgroups add up their products. Consumer warpgroups divide a workgroup's part of
the tile (cooperative), or alternate between tiles, each computing a whole part (ping-pong).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any

from sympy import Expr, Integer, Lt
from sympy.logic.boolalg import Boolean

from coordgraph.control.lowered import Barrier
from coordgraph.coordinates.dimensions import (
    Cluster,
    Lane,
    Linear,
    Warp,
    Warpgroup,
    WarpNumber,
    Workitem,
)
from coordgraph.coordinates.edges import Flatten, Tile
from coordgraph.coordinates.graph import CoordinateEditor
from coordgraph.elements import WARPGROUP_MMA, DType, MatrixInstruction, dtype
from coordgraph.gemm import GemmProblem
from coordgraph.integers import equal, floor_div, floor_mod, index_symbol
from coordgraph.tilings import Tiling
from passes.lowering.row_reductions import RowLayout, exchange_bytes

__all__ = [
    "HELPER_REGISTERS",
    "MMA_COLUMNS",
    "MMA_M",
    "MOST_ALONE_BY_ELEMENTS",
    "MOST_COLUMNS",
    "PRODUCER_REGISTERS",
    "RANK",
    "WARP",
    "WARPGROUP",
    "Division",
    "K",
    "M",
    "N",
    "halved_columns",
    "most_alone",
    "swapped",
    "whole_rows",
]

M, N, K = 0, 1, 2
"""Indices of m, n and k in the tuple of a tile's or a cluster's extents."""

CLUSTER = ("cluster.m", "cluster.n", "cluster.k")
"""Coordinates of a workgroup in its cluster, along m, n and k."""
RANK = "cluster.rank"
"""The coordinate that is a workgroup's rank in its cluster (PTX: %cluster_ctarank)."""
MMA_M = 64
"""Number of rows of the left operand of one wgmma instruction."""
MOST_PIECES = 64
"""Largest number of wgmma instructions that may divide the columns of a block of 64 rows. The
accumulators of 64 instructions, of 8 columns or more, do not fit in the registers of a thread."""
MMA_COLUMNS, MOST_COLUMNS = 8, 256
"""The number of columns of one wgmma instruction is a multiple of MMA_COLUMNS, and at most
MOST_COLUMNS."""
WARPGROUP, LANES = 128, 32
"""WARPGROUP: number of threads of a warpgroup. LANES: number of threads of a warp."""
WARPS = WARPGROUP // LANES
"""Number of warps of a warpgroup: 4."""
ACC_PART = "acc.part"
"""The register coordinate that numbers the sums from which the epilogue computes an element of D,
unless single columns for different sums alternate in B."""
WARP = "warp.number"
"""The coordinate that is a warp's number in its workgroup."""
REGISTERS = 65536
"""Number of 32-bit registers of a streaming multiprocessor."""
PRODUCER_REGISTERS = 40
"""Number of registers of a thread in the producer's warpgroup. A launch of 384 threads has 168 for
each, and 3·168 = 40 + 2·232. If warpgroups asked for more in total, setmaxnreg would block."""
HELPER_REGISTERS = 72
"""Number of registers of a thread in the producer's warpgroup, if its other warps write tensor maps
or gather rows, or if one consumer warpgroup leaves enough: some producers need more than 40."""
MOST_REGISTERS = 240
"""Largest number of registers that setmaxnreg requests for a consumer thread."""
MOST_ALONE, MOST_ALONE_ADDING, MOST_ALONE_BY_ELEMENTS = 176, 144, 64
"""Largest numbers of accumulator registers of a thread with which one warpgroup alone multiplies a
workgroup's part of a tile; two warpgroups divide a larger part. MOST_ALONE: nothing is added to the
products. MOST_ALONE_ADDING: partial sums of other workgroups are added, or C in pairs of 16-bit
elements. MOST_ALONE_BY_ELEMENTS: C is read one element at a time or in elements of 4 bytes."""
TEAM_BARRIER, FIRST_BARRIER = Integer(1), 2
"""Numbers of named barriers (PTX: bar.sync). TEAM_BARRIER: the barrier of all consumer warpgroups
that divide a tile. FIRST_BARRIER + w: the barrier of warpgroup w alone. Barrier 0, which is not
listed here, is the barrier of the whole workgroup."""


def swapped(rows: Any, columns: Any, turns: Any) -> Any:
    """Whether B is the left operand of wgmma, so that the result is a block of D's transpose.

    B is the left operand if `rows` is no multiple of 64. For cooperative warpgroups, B is the left
    operand also if `rows` is less than two blocks of 64, one for each warpgroup, and `columns`
    consists of two or more blocks of 64. Ping-pong warpgroups do not divide rows, and with A as the
    left operand their instructions are wider.

    Args:
        rows, columns: extents in m and n of a workgroup's part of a tile.
        turns: number of consumer warpgroups that alternate between tiles (ping-pong); 1 if they are
            cooperative.

    Each argument is a number, or an array of numbers.
    """
    few = (turns == 1) & (rows < 2 * MMA_M) & (columns >= 2 * MMA_M) & (columns % MMA_M == 0)
    return few | (rows % MMA_M != 0)


def whole_rows(rows: Any, turns: Any) -> Any:
    """Whether a single warp holds each row of a workgroup's part of a tile of any width.

    This is so if A is the left operand of wgmma for every number of columns, and two warpgroups
    never divide the columns. Otherwise several warps may hold parts of a row.

    Args:
        rows: extent in m of a workgroup's part of a tile.
        turns: number of consumer warpgroups that alternate between tiles (ping-pong); 1 if they are
            cooperative.

    Each argument is a number, or an array of numbers.
    """
    return (rows % (2 * MMA_M) == 0) | ((turns > 1) & (rows % MMA_M == 0))


def most_alone(sums: Any, c_bytes: Any, by_elements: Any) -> Any:
    """Largest number of accumulator registers of a thread if one warpgroup multiplies alone.

    Two warpgroups divide a workgroup's part of a tile if one warpgroup would need more registers.

    Args:
        sums: whether partial sums of other workgroups are added, in memory or in a cluster that
            divides k.
        c_bytes: number of bytes of an element of C if the kernel adds C, else 0.
        by_elements: whether C is read one element at a time, not in pairs.

    Each argument is a number, or an array of numbers.
    """
    adds = sums | (c_bytes > 0)
    narrow = (c_bytes > 0) & (by_elements | (c_bytes > 2))
    less = (MOST_ALONE - MOST_ALONE_ADDING) * adds
    return MOST_ALONE - less - (MOST_ALONE_ADDING - MOST_ALONE_BY_ELEMENTS) * narrow


def halved_columns(k_major: bool, element_bytes: int) -> int:
    """The number that must divide wgmma's columns so that each of two warpgroups gets half of them.

    Half of the columns must be a multiple of 8, because a wgmma instruction has a multiple of 8
    columns. It must be a multiple of 16 in two cases: for 8-bit elements, whose instructions have a
    multiple of 16 columns here, and for an operand that is not contiguous along k, because each
    half must begin where a TMA box begins.

    Args:
        k_major: whether the operand whose columns are divided is contiguous along k.
        element_bytes: bytes of an element of A and B.
    """
    return 2 * MMA_COLUMNS if k_major and element_bytes > 1 else 4 * MMA_COLUMNS


def registers_of(consumers: Any, producer: Any = PRODUCER_REGISTERS) -> Any:
    """Number of registers that setmaxnreg requests for a consumer thread, at most 240.

    Consumers share equally the registers of the launch that the producer's warpgroup does not keep.
    The result is a multiple of 8, as setmaxnreg needs. A launch gives each thread a multiple of 8
    registers, and setmaxnreg can only redistribute the registers of the launch.

    Args:
        consumers: number of consumer warpgroups of a workgroup.
        producer: registers of a thread in the producer's warpgroup.

    Each argument is a number, or an array of numbers.
    """
    threads = (consumers + 1) * WARPGROUP
    launched = REGISTERS // threads // 8 * 8 * threads
    left = (launched - producer * WARPGROUP) // (consumers * WARPGROUP) // 8 * 8
    return left - (left - MOST_REGISTERS) * (left > MOST_REGISTERS)


@dataclass(frozen=True)
class Division:
    """How a macro tile is divided over the workgroups of a cluster and over their warpgroups.

    Args:
        tiling: the macro tiles of a cluster.
        cluster: numbers of workgroups of a cluster along m, n and k; if k is divided, m and n are
            not divided.
        swapped: whether B is the left operand of wgmma, so that the result is a block of D's
            transpose.
        alone: largest number of accumulator registers of a thread with which a single warpgroup
            multiplies a workgroup's part of a tile. A single warpgroup waits for no other one.
        turns: number of consumer warpgroups that alternate between tiles (ping-pong); 1 if all
            consumer warpgroups divide the workgroup's part of each tile (cooperative).
        producer: registers that a thread in the producer's warpgroup needs at least.
        kind: the type of A and B.
        k_major: whether A, and whether B, is contiguous along k.
    """

    tiling: Tiling
    cluster: tuple[int, int, int] = (1, 1, 1)
    swapped: bool = False
    alone: int = 0
    turns: int = 1
    producer: int = PRODUCER_REGISTERS
    kind: DType = field(kw_only=True)
    k_major: tuple[bool, bool] = field(kw_only=True)

    @property
    def instruction(self) -> MatrixInstruction:
        """The wgmma instruction for the type of A and B."""
        found = self.kind.instruction(WARPGROUP_MMA)
        assert found is not None
        return found

    @property
    def sums(self) -> DType:
        """The element type of accumulators: f32, or i32 for integer A and B."""
        return dtype(self.kind.accumulator)

    @property
    def tile(self) -> tuple[int, int, int]:
        """The extents in elements of the macro tile of a cluster, along m, n and k."""
        return self.tiling.summed

    @property
    def left(self) -> int:
        """The axis of D (0 or 1) along the rows of wgmma's left operand."""
        return 1 if self.swapped else 0

    @property
    def right(self) -> int:
        """The axis of D (0 or 1) along the columns of wgmma's right operand."""
        return 1 - self.left

    @property
    def workgroups(self) -> int:
        """Number of workgroups of a cluster."""
        return prod(self.cluster)

    @property
    def split(self) -> int:
        """Number of workgroups of a cluster that divide k; their products are added up."""
        return self.cluster[K]

    def extent(self, axis: int) -> int:
        """Number of elements of a workgroup's part of the tile along m, n or k (`axis` 0 to 2)."""
        return self.tile[axis] // self.cluster[axis]

    @property
    def team(self) -> int:
        """Number of warpgroups that divide a workgroup's part of a tile: one or two.

        The number is one if the registers of one warpgroup suffice, if neither rows nor columns can
        be halved, or if warpgroups alternate between tiles (ping-pong); else two.
        """
        product = self.extent(M) * self.extent(N)
        odd = self.extent(self.left) % (2 * MMA_M) and self.extent(self.right) % self.halved_columns
        return 1 if self.turns > 1 or odd or product <= self.alone * WARPGROUP else 2

    @property
    def halved_columns(self) -> int:
        """The number that must divide wgmma's columns so that two warpgroups can halve them."""
        return halved_columns(self.k_major[self.right], self.kind.bytes)

    @property
    def consumers(self) -> int:
        """Number of consumer warpgroups of a workgroup; they execute all wgmma instructions."""
        return self.team * self.turns

    @property
    def _columns_divided(self) -> bool:
        """Whether two warpgroups divide the columns, because the number of 64-row blocks is odd."""
        return self.extent(self.left) % (2 * MMA_M) != 0

    def warpgroups(self, axis: int) -> tuple[str, ...]:
        """1-tuple of the warpgroup's coordinate; () if warpgroups do not divide this axis of D.

        Args:
            axis: the axis of D: 0 or 1.
        """
        divided = self.right if self._columns_divided else self.left
        return ("warpgroup",) if axis == divided and self.team > 1 else ()

    def share(self, axis: int) -> int:
        """Number of elements of D, along an axis, that one warpgroup computes."""
        return self.extent(axis) // (self.team if self.warpgroups(axis) else 1)

    @property
    def blocks(self) -> int:
        """Number of blocks of 64 rows of the left operand that a warpgroup multiplies."""
        return self.share(self.left) // MMA_M

    @property
    def pieces(self) -> int:
        """Number of wgmma instructions (of at most 256 columns) that divide a block's columns.

        The result is 1 if the columns would need more than `MOST_PIECES` instructions.
        """
        columns = self.share(self.right)
        most = min(columns, MOST_PIECES + 1)
        fits = (n for n in range(1, most) if columns % n == 0 and (columns // n) % 8 == 0)
        return next((n for n in fits if columns // n <= MOST_COLUMNS), 1)

    @property
    def columns(self) -> int:
        """Number of columns of the right operand in one wgmma instruction (its n)."""
        return self.share(self.right) // self.pieces

    @property
    def accumulators(self) -> int:
        """Number of accumulator registers of a consumer thread."""
        return self.blocks * self.share(self.right) // 2

    @property
    def workitems(self) -> int:
        """Number of threads that hold the product of a workgroup's part of one tile."""
        return self.team * WARPGROUP

    @property
    def threads(self) -> int:
        """Number of threads of a CTA: 128 for each consumer warpgroup, and 128 for the producer."""
        return (self.consumers + 1) * WARPGROUP

    @property
    def registers(self) -> int:
        """Number of registers of a consumer thread, set by setmaxnreg."""
        return int(registers_of(self.consumers, self.producer))

    @property
    def kept(self) -> int:
        """Number of registers of a thread in the producer's warpgroup, set by setmaxnreg."""
        return max(self.producer, HELPER_REGISTERS if self.consumers == 1 else 0)

    @property
    def row_layout(self) -> RowLayout:
        """Where the elements of a row of D are.

        If A is the left operand of wgmma, the four lanes of a quad hold a row, or each warpgroup's
        part of the row if warpgroups divide the columns. If B is the left operand, every warp of a
        warpgroup holds a part of the row.
        """
        own, turn = self.tiling.own, ("warpgroup",) if self.turns > 1 else ()
        across = self.warpgroups(1)
        shape = (self.team,) if across else ()
        row = self.own("D", 0)
        if self.swapped:
            rows, lane = ("acc.p", "acc.n", "acc.pair"), own("acc.row")
            across, shape = (*across, "warp"), (*shape, WARPS)
        else:
            rows, lane = ("acc.m", "acc.half"), own("acc.quad")
        return RowLayout(tuple(map(own, rows)), lane, across, shape, row, turn, self.turns)

    def row_bytes(self, gemm: GemmProblem) -> int:
        """Bytes of shared memory through which warps combine reductions of rows."""
        return exchange_bytes(gemm, self.extent(M), prod(self.row_layout.counts), self.turns)

    def add_machine(self, c: CoordinateEditor) -> None:
        """Add the coordinates of the machine: cluster rank, warpgroup, warp, lane and thread.

        The last warpgroup is the producer's. These coordinates are the same for tiles of every
        shape, so they are added only once.
        """
        c.add(Warpgroup("warpgroup", Integer(self.consumers + 1)))
        c.add(Warp("warp", Integer(WARPS)))
        c.add(Lane("lane", Integer(LANES)))
        c.add(Workitem("workitem", Integer(self.threads)))
        c.add(WarpNumber(WARP, Integer(self.threads // LANES)))
        c.connect(Flatten(("warpgroup", "warp"), WARP))
        c.connect(Flatten((WARP, "lane"), "workitem"))
        if self.workgroups > 1:
            for name, count in zip(CLUSTER, self.cluster, strict=True):
                c.add(Linear(name, Integer(count), note="in the cluster"))
            c.add(Cluster(RANK, Integer(self.workgroups)))
            c.connect(Flatten(CLUSTER, RANK))

    def add(self, c: CoordinateEditor) -> None:
        """Add the edges that divide tiles of A, B and D over the workgroups of a cluster."""
        places = (("A", 0, M), ("A", 1, K), ("B", 0, K), ("B", 1, N), ("D", 0, M), ("D", 1, N))
        for tensor, axis, along in places:
            whole = self.tiling.index(tensor, axis)
            extent = c[whole].fixed_size // self.cluster[along]
            own = c.add(Linear(self.own(tensor, axis), Integer(extent)))
            c.connect(Tile(whole, (*self.ranks(along), own.id)))

    def own(self, tensor: str, axis: int) -> str:
        """The coordinate of the position in a workgroup's part of a tile, along a tensor's axis."""
        return self.tiling.own(f"{tensor}.own.{axis}")

    def ranks(self, axis: int) -> tuple[str, ...]:
        """The coordinate of a CTA in its cluster along an axis, in a 1-tuple.

        The result is () if the cluster does not divide that axis.

        Args:
            axis: 0 for m, 1 for n, 2 for k.
        """
        return (CLUSTER[axis],) if self.cluster[axis] > 1 else ()

    @property
    def different(self) -> tuple[str, ...]:
        """1-tuple of the cluster rank's coordinate; () if the cluster divides neither m nor n."""
        return (RANK,) if self.workgroups > self.split else ()

    @property
    def consuming(self) -> Boolean:
        """The condition that the current warp belongs to a consumer warpgroup."""
        return Lt(index_symbol(WARP), self.consumers * WARPS)

    @property
    def producing(self) -> Boolean:
        """The condition that the warp is the producer: the first warp after the consumer warps."""
        return equal(index_symbol(WARP), self.consumers * WARPS)

    @property
    def thread(self) -> Expr:
        """The thread's number in its warpgroup."""
        return floor_mod(index_symbol("workitem"), WARPGROUP)

    @property
    def member(self) -> Expr:
        """The thread's number among the threads that hold the accumulator of one output tile."""
        return index_symbol("workitem") if self.turns == 1 else self.thread

    @property
    def warp_of_team(self) -> str:
        """The dimension that numbers the warps which together hold the sums of one output tile."""
        return WARP if self.turns == 1 else "warp"

    @property
    def own_barrier(self) -> Barrier:
        """The named barrier among the threads of one warpgroup."""
        warpgroup = floor_div(index_symbol("workitem"), WARPGROUP)
        return Barrier(warpgroup + FIRST_BARRIER, WARPGROUP)

    @property
    def barrier(self) -> Barrier:
        """The named barrier among the threads that hold the accumulator of one output tile."""
        return Barrier(TEAM_BARRIER, self.workitems) if self.turns == 1 else self.own_barrier
