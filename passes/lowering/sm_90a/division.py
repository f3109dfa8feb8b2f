"""Division: a macro tile over the workgroups of a cluster, then over consumer warpgroups.

A warpgroup's matrix instruction multiplies 64 rows of a *left* operand by up to 256 columns of a
*right* one. Left is A, right is B, and the product a piece of D; where m is small it is the other
way round, and the product is a piece of D's transpose (`D^T = B^T·A^T`). A cluster divides the tile
in m or n, and then shares an operand; or in k, and then adds up products. Consumer warpgroups
divide a workgroup's part (cooperative), or take turns with whole ones (ping-pong).
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
from coordgraph.integers import equal, floor_div, floor_mod, index_symbol
from coordgraph.tilings import Tiling

__all__ = [
    "DESCRIBER_REGISTERS",
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
    "most_alone",
    "swapped",
]

M, N, K = 0, 1, 2

CLUSTER = ("cluster.m", "cluster.n", "cluster.k")
RANK = "cluster.rank"
MMA_M = 64
"""Rows of the left operand in one instruction."""
MMA_COLUMNS, MOST_COLUMNS = 16, 256
"""Columns of the right operand: what D's stores take at once, and what an instruction takes."""
WARPGROUP, LANES = 128, 32
WARPS = WARPGROUP // LANES
WARP = "warp.number"
REGISTERS = 65536
PRODUCER_REGISTERS = 40
"""A launch of 384 workitems has 168 for each; 40 and twice 232 are what that comes to, and more
would never be given."""
DESCRIBER_REGISTERS = 64
"""The same where a warp beside the producer writes maps."""
MOST_REGISTERS = 240
"""What setmaxnreg gives at most, together with a producer."""
MOST_ALONE, MOST_ALONE_ADDING, MOST_ALONE_BY_ELEMENTS = 176, 144, 64
"""Registers of a thread with which one warpgroup is to do without a second: where it only
multiplies, where it adds sums of others or pairs of C, and where C comes one by one."""
TEAM_BARRIER, FIRST_BARRIER = Integer(1), 2
"""Barriers of warpgroups that divide a product, and of the first single one; 0 is everybody's."""


def swapped(rows: Any, columns: Any, turns: Any) -> Any:
    """Whether B is the left operand of a workgroup's part: where it has too few rows of A.

    One warpgroup alone has the wider instructions unswapped; two need two blocks of rows, for which
    64 rows do not suffice. Numbers, or arrays of them.
    """
    few = (turns == 1) & (rows < 2 * MMA_M) & (columns >= 2 * MMA_M) & (columns % MMA_M == 0)
    return few | (rows % MMA_M != 0)


def most_alone(sums: Any, c_bytes: Any, by_elements: Any) -> Any:
    """Accumulators of a workitem up to which one warpgroup multiplies alone.

    Numbers, or arrays of them.

    Args:
        sums: those of other workgroups are added: pieces of a tile, or of a cluster that divides k.
        c_bytes: of an element of C where it is added, else 0.
        by_elements: C would come one by one, not in pairs.
    """
    adds = sums | (c_bytes > 0)
    narrow = (c_bytes > 0) & (by_elements | (c_bytes > 2))
    less = (MOST_ALONE - MOST_ALONE_ADDING) * adds
    return MOST_ALONE - less - (MOST_ALONE_ADDING - MOST_ALONE_BY_ELEMENTS) * narrow


def registers_of(consumers: Any, producer: Any = PRODUCER_REGISTERS) -> Any:
    """What the producer leaves a thread of so many warpgroups, a multiple of 8 for setmaxnreg.

    There is no more to give than the launch has: a multiple of 8 for each thread. Numbers, or
    arrays of them.
    """
    threads = (consumers + 1) * WARPGROUP
    launched = REGISTERS // threads // 8 * 8 * threads
    left = (launched - producer * WARPGROUP) // (consumers * WARPGROUP) // 8 * 8
    return left - (left - MOST_REGISTERS) * (left > MOST_REGISTERS)


@dataclass(frozen=True)
class Division:
    """Who multiplies what.

    Args:
        tiling: the macro tiles of a cluster.
        cluster: workgroups of a cluster in m, n and k; all but one of them are 1.
        swapped: B is the left operand.
        alone: accumulators of a workitem up to which one warpgroup multiplies alone; then nobody
            waits for a twin.
        turns: warpgroups that take turns, each with a whole part of a tile of its own; 1 where
            they divide it.
        producer: registers of each thread of the producer's warpgroup.
        kind: the type of A and B.
    """

    tiling: Tiling
    cluster: tuple[int, int, int] = (1, 1, 1)
    swapped: bool = False
    alone: int = 0
    turns: int = 1
    producer: int = PRODUCER_REGISTERS
    kind: DType = field(kw_only=True)

    @property
    def instruction(self) -> MatrixInstruction:
        """How a warpgroup multiplies."""
        found = self.kind.instruction(WARPGROUP_MMA)
        assert found is not None
        return found

    @property
    def sums(self) -> DType:
        """The type of accumulators."""
        return dtype(self.kind.accumulator)

    @property
    def tile(self) -> tuple[int, int, int]:
        """The macro tile of a cluster, in m, n and k."""
        return self.tiling.shape

    @property
    def left(self) -> int:
        """The axis of D along the left operand's rows."""
        return 1 if self.swapped else 0

    @property
    def right(self) -> int:
        """The other axis."""
        return 1 - self.left

    @property
    def workgroups(self) -> int:
        """Workgroups of a cluster."""
        return prod(self.cluster)

    @property
    def split(self) -> int:
        """Workgroups that add their products up."""
        return self.cluster[K]

    def extent(self, axis: int) -> int:
        """Elements of a workgroup's own part of the tile along m, n or k."""
        return self.tile[axis] // self.cluster[axis]

    @property
    def team(self) -> int:
        """Warpgroups that divide a product: one where its registers hold it, else two.

        One also where neither rows nor columns can be halved, and where warpgroups take turns.
        """
        product = self.extent(M) * self.extent(N)
        odd = self.extent(self.left) % (2 * MMA_M) and self.extent(self.right) % (2 * MMA_COLUMNS)
        return 1 if self.turns > 1 or odd or product <= self.alone * WARPGROUP else 2

    @property
    def consumers(self) -> int:
        """Warpgroups that multiply."""
        return self.team * self.turns

    @property
    def _columns_divided(self) -> bool:
        """The warpgroups divide the right operand's columns: there are odd blocks of rows."""
        return self.extent(self.left) % (2 * MMA_M) != 0

    def warpgroups(self, axis: int) -> tuple[str, ...]:
        """The coordinate that says which part along an axis of D a warpgroup has, if any."""
        divided = self.right if self._columns_divided else self.left
        return ("warpgroup",) if axis == divided and self.team > 1 else ()

    def share(self, axis: int) -> int:
        """Elements of a warpgroup's own part along an axis of D."""
        return self.extent(axis) // (self.team if self.warpgroups(axis) else 1)

    @property
    def blocks(self) -> int:
        """Blocks of 64 rows that each of them has."""
        return self.share(self.left) // MMA_M

    @property
    def pieces(self) -> int:
        """Instructions side by side that make up a block: one has at most 256 columns."""
        columns = self.share(self.right)
        fits = (n for n in range(1, columns) if columns % n == 0 and (columns // n) % 8 == 0)
        return next((n for n in fits if columns // n <= MOST_COLUMNS), 1)

    @property
    def columns(self) -> int:
        """Columns of one instruction."""
        return self.share(self.right) // self.pieces

    @property
    def accumulators(self) -> int:
        """Registers of a workitem for its part of the product."""
        return self.blocks * self.share(self.right) // 2

    @property
    def workitems(self) -> int:
        """Threads that hold one product."""
        return self.team * WARPGROUP

    @property
    def threads(self) -> int:
        """Threads of the workgroup: the producer is one more warpgroup."""
        return (self.consumers + 1) * WARPGROUP

    @property
    def registers(self) -> int:
        """Of each thread of a consumer."""
        return int(registers_of(self.consumers, self.producer))

    def add_machine(self, c: CoordinateEditor) -> None:
        """The cluster's rank in m, n and k; the workitem as warpgroup, warp and lane.

        The last warpgroup is the producer. Tiles of all shapes are divided over the same machine.
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
        """Every tile position as a workgroup of the cluster and a position in its own part."""
        places = (("A", 0, M), ("A", 1, K), ("B", 0, K), ("B", 1, N), ("D", 0, M), ("D", 1, N))
        for tensor, axis, along in places:
            own = c.add(Linear(self.own(tensor, axis), Integer(self.extent(along))))
            c.connect(Tile(self.tiling.index(tensor, axis), (*self.ranks(along), own.id)))

    def own(self, tensor: str, axis: int) -> str:
        """The position in a workgroup's own part of a tile, along an axis of a tensor."""
        return self.tiling.own(f"{tensor}.own.{axis}")

    def ranks(self, axis: int) -> tuple[str, ...]:
        """The coordinate that says which part along m, n or k this workgroup has, if any."""
        return (CLUSTER[axis],) if self.cluster[axis] > 1 else ()

    @property
    def different(self) -> tuple[str, ...]:
        """The coordinate that tells apart the workgroups with different parts of D, if any."""
        return (RANK,) if self.workgroups > self.split else ()

    @property
    def consuming(self) -> Boolean:
        """This warp multiplies."""
        return Lt(index_symbol(WARP), self.consumers * WARPS)

    @property
    def producing(self) -> Boolean:
        """This warp, the first of the others, feeds the ring."""
        return equal(index_symbol(WARP), self.consumers * WARPS)

    @property
    def thread(self) -> Expr:
        """The workitem's number in its warpgroup."""
        return floor_mod(index_symbol("workitem"), WARPGROUP)

    @property
    def member(self) -> Expr:
        """The workitem's number among those that hold one product."""
        return index_symbol("workitem") if self.turns == 1 else self.thread

    @property
    def warp_of_team(self) -> str:
        """The same of its warp, a coordinate."""
        return WARP if self.turns == 1 else "warp"

    @property
    def own_barrier(self) -> Barrier:
        """Among the workitems of a warpgroup."""
        warpgroup = floor_div(index_symbol("workitem"), WARPGROUP)
        return Barrier(warpgroup + FIRST_BARRIER, WARPGROUP)

    @property
    def barrier(self) -> Barrier:
        """Among the workitems that hold one product."""
        return Barrier(TEAM_BARRIER, self.workitems) if self.turns == 1 else self.own_barrier
