"""The accumulator of a warpgroup, and how pieces of it travel to other workgroups.

An m64nN result lies in a warpgroup as PTX ISA, "Register Fragments and Shared Memory Matrix
Layouts" of wgmma, says: warp w has rows 16w to 16w + 15, in each lane pairs of columns.
"""

from __future__ import annotations

from sympy import Expr, Gt, Integer, Lt

from coordgraph.control.asynchronous import (
    Advance,
    ArriveBarrier,
    Counter,
    InitBarrier,
    WaitBarrier,
)
from coordgraph.control.lowered import (
    AccumulateFragment,
    ReduceFragment,
    StoreFragment,
)
from coordgraph.control.operations import Body, For, If, Operation, SetCoordinate
from coordgraph.coordinates.dimensions import Lane, Linear, Register, Shared
from coordgraph.coordinates.edges import Flatten, PassThrough, Tile
from coordgraph.coordinates.graph import CoordinateEditor
from coordgraph.elements import CHUNK_BYTES
from coordgraph.gemm import GemmProblem
from coordgraph.integers import equal, index_symbol
from passes.lowering.control import Accumulator, at, tie_operands, unrolled
from passes.lowering.multiplying import REGISTER_BYTES
from passes.lowering.sm_90a.division import RANK, Division

__all__ = ["VECTOR", "ClusterSum", "Pieces", "add_accumulator"]

VECTOR = CHUNK_BYTES // REGISTER_BYTES
"""Registers that one access of a partial moves: 16 bytes."""


def add_accumulator(c: CoordinateEditor, gemm: GemmProblem, division: Division) -> Accumulator:
    """Tie tile positions of D and of operands to warpgroups, warps, lanes and registers."""
    tiling, own = division.tiling, division.tiling.own
    block, piece, eight = own("acc.m"), own("acc.p"), own("acc.n")
    half, pair, row, quad = (own(f"acc.{name}") for name in ("half", "pair", "row", "quad"))
    c.add(Register(block, Integer(division.blocks), note="blocks of 64 rows"))
    c.add(Register(piece, Integer(division.pieces), note="instructions side by side"))
    c.add(Register(eight, Integer(division.columns // 8), note="columns of 8"))
    c.add(Register(half, Integer(2)))
    c.add(Register(pair, Integer(2)))
    c.add(Lane(row, Integer(8)))
    c.add(Lane(quad, Integer(4)))
    left, right = division.left, division.right
    rows = (*division.warpgroups(left), block, "warp", half, row)
    columns = (*division.warpgroups(right), piece, eight, quad, pair)
    c.connect(Tile(division.own("D", left), rows))
    c.connect(Tile(division.own("D", right), columns))
    c.connect(Flatten((row, quad), "lane"))
    tie_operands(c, gemm, tiling)
    registers = (block, piece, eight, half)
    return Accumulator(c, registers, pair, tiling.accumulator, division.barrier)


class Pieces:
    """An accumulator as it lies in workitems' registers, in accesses of 16 bytes.

    Nobody but the workitem that has the same place in another workgroup reads what is stored so:
    it need not be a tile of rows and columns.
    """

    def __init__(self, c: CoordinateEditor, division: Division) -> None:
        self.c, self.division = c, division
        self.barrier = division.barrier
        self.accumulator = division.tiling.accumulator
        names = ("piece.vector", "piece.workitem", "piece.element")
        self.place = self.vector, self.workitem, self.element = tuple(
            map(division.tiling.own, names)
        )
        if self.vector not in c:
            c.add(Register(self.vector, Integer(division.accumulators // VECTOR)))
            c.add(Linear(self.workitem, Integer(division.workitems)))
            c.add(Register(self.element, Integer(VECTOR)))
            c.connect(Tile(self.workitem, (division.warp_of_team, "lane")))

    def each(self, op: Operation) -> Operation:
        """`op` on every access."""
        return unrolled(self.c, (self.vector,), at({self.element: 0}, op))

    def leader(self, op: Operation) -> Operation:
        """What one of the workitems does for all that hold the accumulator."""
        return If(equal(self.division.member, 0), (op,))

    def add(self, source: str) -> Operation:
        """Add what another workgroup has stored."""
        return self.each(AccumulateFragment(self.accumulator, source, (self.vector,), VECTOR))

    def add_to(self, destination: str) -> Operation:
        """Add to what others add to."""
        registers, form = (self.vector,), "vector" if self.division.sums.is_float else "scalar"
        return self.each(ReduceFragment(self.accumulator, destination, registers, VECTOR, form))

    def store(self, destination: str, rank: Expr | None = None) -> Operation:
        """Store for another workgroup."""
        return self.each(
            StoreFragment(self.accumulator, destination, (self.vector,), VECTOR, rank=rank),
        )


class ClusterSum(Pieces):
    """Products of a cluster that divides k, added up by its first workgroup, in order of rank.

    The others store theirs in its shared memory: sums --Tile--> sender, vector, workitem, element.
    Two barriers say when all is there and when it has been read; their phase is a coordinate of the
    running number of the sum. Tiles of all shapes share the barriers and the memory.
    """

    NUMBER, PHASE = "sum.number", "sum.phase"
    SUMS, STORED, READ, SENDER = "sum.shared", "sum.stored", "sum.read", "sum.sender"

    def __init__(self, c: CoordinateEditor, division: Division) -> None:
        super().__init__(c, division)
        self.senders = division.split - 1
        self.sums = division.tiling.own(self.SUMS)
        first = self.NUMBER not in c
        if first:
            c.add(Linear(self.NUMBER, note="running number of a sum"))
            c.add(Linear("sum.turn"))
            c.add(Linear(self.PHASE, Integer(2), note="parity of a barrier"))
            c.connect(Flatten(("sum.turn", self.PHASE), self.NUMBER))
            c.add(Linear(self.SENDER, Integer(self.senders)))
        home = self.SUMS if self.sums != self.SUMS else ""
        size = Integer(self.bytes(division) // division.sums.bytes)
        c.add(Shared(self.sums, size, element=division.sums.name, within=home))
        c.connect(Tile(self.sums, (self.SENDER, *self.place)))
        if first:
            self._add_barriers(c)

    def _add_barriers(self, c: CoordinateEditor) -> None:
        for name in (self.STORED, self.READ):
            c.add(Shared(name, Integer(1), note="mbarrier"))
            c.add(Linear(f"{name}.first", Integer(1)))
            c.connect(PassThrough(name, f"{name}.first"))

    @staticmethod
    def bytes(division: Division) -> int:
        """Shared memory."""
        elements = (division.split - 1) * division.workitems * division.accumulators
        return elements * division.sums.bytes

    def initial(self) -> Body:
        """Everybody has both barriers."""
        return tuple(
            SetCoordinate(f"{name}.first", Integer(0), (InitBarrier(name, arrivals),))
            for name, arrivals in ((self.STORED, self.senders), (self.READ, 1))
        )

    def counted(self, body: Body) -> Operation:
        """What contains sums."""
        return Counter(self.NUMBER, body)

    def add_up(self) -> Body:
        """The first workgroup has the sum; the others have passed theirs on."""
        rank, first = index_symbol(RANK), Integer(0)
        thread = self.division.member
        stored, read = f"{self.STORED}.first", f"{self.READ}.first"
        arrive = ArriveBarrier(self.STORED, first, publish=True)
        send = (
            at({read: 0}, WaitBarrier(self.READ, self.PHASE, before=True)),
            SetCoordinate(self.SENDER, rank - 1, (self.store(self.sums, first),)),
            self.barrier,
            at({stored: 0}, self.leader(arrive)),
        )
        every = For(self.SENDER, Integer(0), Integer(self.senders), body=(self.add(self.sums),))
        free = ArriveBarrier(self.READ, thread + 1)
        receive = (
            at({stored: 0}, WaitBarrier(self.STORED, self.PHASE, cluster=True)),
            every,
            self.barrier,
            at({read: 0}, If(Lt(thread, self.senders), (free,))),
        )
        return (If(Gt(rank, 0), send, receive), Advance(self.NUMBER))

    @staticmethod
    def by_first(body: Body) -> Body:
        """What only the workgroup with the sum does."""
        return (If(equal(index_symbol(RANK), 0), body),)
