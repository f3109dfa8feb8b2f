"""The accumulator of consumer warpgroups, and operations that exchange it between workgroups.

The result of a wgmma m64nN is spread over the registers of a warpgroup: warp w has rows 16w to
16w + 15, and each lane has pairs of adjacent columns (PTX ISA, "Register Fragments and Shared
Memory Matrix Layouts" of wgmma).
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
from passes.lowering.parts import tie_sums
from passes.lowering.sm_90a.division import ACC_PART, RANK, Division

__all__ = ["VECTOR", "ClusterSum", "Pieces", "add_accumulator"]

VECTOR = CHUNK_BYTES // REGISTER_BYTES
"""Number of accumulator registers that one 16-byte access to a partial sum moves: 4."""


def add_accumulator(c: CoordinateEditor, gemm: GemmProblem, division: Division) -> Accumulator:
    """Add the edges from positions in tiles of D to warpgroups, lanes and registers.

    If an element of D has several sums, each sum is computed from columns of B of its own. If
    single columns for different sums alternate in memory, the sums of an element are in adjacent
    registers, which `acc.pair` numbers. Otherwise `acc.part` divides the columns of each wgmma
    instruction among the sums, so that each TMA box has columns for one sum only.

    Returns:
        The accumulator, whose vectors are pairs of elements in adjacent columns of the wgmma
        result.
    """
    tiling, own = division.tiling, division.tiling.own
    block, piece, eight = own("acc.m"), own("acc.p"), own("acc.n")
    half, pair, row, quad = (own(f"acc.{name}") for name in ("half", "pair", "row", "quad"))
    c.add(Register(block, Integer(division.blocks), note="blocks of 64 rows"))
    c.add(Register(piece, Integer(division.pieces), note="instructions side by side"))
    part = "" if gemm.sums == 1 else pair if gemm.part_width == 1 else own(ACC_PART)
    split = (part,) if part not in ("", pair) else ()
    if split:
        c.add(Register(part, Integer(gemm.sums), note="which sum of an element"))
    eighths = division.columns // 8 // (gemm.sums if split else 1)
    c.add(Register(eight, Integer(eighths), note="columns of 8"))
    c.add(Register(half, Integer(2)))
    c.add(Register(pair, Integer(2)))
    c.add(Lane(row, Integer(8)))
    c.add(Lane(quad, Integer(4)))
    left, right = division.left, division.right
    rows = (*division.warpgroups(left), block, "warp", half, row)
    columns = (*division.warpgroups(right), piece, eight, quad, pair)
    c.connect(Tile(division.own("D", left), rows))
    c.connect(Tile(division.own("D", right), tuple(dim for dim in columns if dim != part)))
    c.connect(Flatten((row, quad), "lane"))
    tie_operands(c, gemm, tiling)
    tie_sums(c, part, pair)
    registers = (block, piece, *split, eight, half)
    in_rows = division.row_layout.rows
    return Accumulator(c, registers, pair, tiling.accumulator, division.barrier, part, in_rows)


class Pieces:
    """Operations that exchange an accumulator between workgroups, in accesses of 16 bytes.

    Elements are stored in the order of registers, not by rows and columns of a tile, because a
    thread's elements are read only by the thread of the same number in another workgroup.

    Args:
        c: the coordinate graph under construction.
        division: how a macro tile is divided over workgroups and warpgroups.
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
        """An unrolled loop that executes `op` for every four accumulator registers (16 bytes)."""
        return unrolled(self.c, (self.vector,), at({self.element: 0}, op))

    def leader(self, op: Operation) -> Operation:
        """An operation by which only the first thread that holds the accumulator executes `op`."""
        return If(equal(self.division.member, 0), (op,))

    def add(self, source: str) -> Operation:
        """Add to the accumulator the partial sums in `source`, stored by another workgroup."""
        return self.each(AccumulateFragment(self.accumulator, source, (self.vector,), VECTOR))

    def add_to(self, destination: str) -> Operation:
        """Add the accumulator to the partial sums in `destination`, element by element atomically.

        Several workgroups add to the same elements.
        """
        registers, form = (self.vector,), "vector" if self.division.sums.is_float else "scalar"
        return self.each(ReduceFragment(self.accumulator, destination, registers, VECTOR, form))

    def store(self, destination: str, rank: Expr | None = None) -> Operation:
        """Store the accumulator in `destination`, for another workgroup.

        Args:
            destination: a tensor in global memory, or a coordinate of shared memory.
            rank: the cluster rank of the workgroup whose shared memory is written; None if
                `destination` is a tensor.
        """
        return self.each(
            StoreFragment(self.accumulator, destination, (self.vector,), VECTOR, rank=rank),
        )


class ClusterSum(Pieces):
    """Adds up the products of a cluster that divides k, in rank order, in the workgroup of rank 0.

    The other workgroups store their products in the shared memory of the workgroup of rank 0:
    sums --Tile--> sender, vector, workitem, element. One mbarrier signals that all products are
    stored, and another mbarrier that the workgroup of rank 0 has read them. Sums are numbered, and
    an edge of the coordinate graph derives the phase of both mbarriers from the number. Tiles of
    all shapes share the mbarriers and the memory.

    Args:
        c: the coordinate graph under construction.
        division: how a macro tile is divided over workgroups and warpgroups.
    """

    NUMBER, PHASE = "sum.number", "sum.phase"
    """NUMBER: the coordinate that numbers, from 0, the sums over the cluster that a workgroup takes
    part in. PHASE: the coordinate of the phase parity (0 or 1) of the mbarriers STORED and READ."""
    SUMS, STORED, READ, SENDER = "sum.shared", "sum.stored", "sum.read", "sum.sender"
    """Names of dimensions. SUMS: the shared memory to which the cluster's other workgroups store
    their partial sums. STORED, READ: the mbarriers that complete when all partial sums are stored,
    and when all are read. SENDER: numbers the workgroups that store partial sums."""

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
        """Add the mbarriers STORED and READ to the coordinate graph."""
        for name in (self.STORED, self.READ):
            c.add(Shared(name, Integer(1), note="mbarrier"))
            c.add(Linear(f"{name}.first", Integer(1)))
            c.connect(PassThrough(name, f"{name}.first"))

    @staticmethod
    def bytes(division: Division) -> int:
        """Bytes of shared memory that the products of the workgroups of rank 1 and above take."""
        elements = (division.split - 1) * division.workitems * division.accumulators
        return elements * division.sums.bytes

    def initial(self) -> Body:
        """Initialise the mbarriers STORED and READ; one thread of each workgroup executes this."""
        return tuple(
            SetCoordinate(f"{name}.first", Integer(0), (InitBarrier(name, arrivals),))
            for name, arrivals in ((self.STORED, self.senders), (self.READ, 1))
        )

    def counted(self, body: Body) -> Operation:
        """Wrap `body` in a `Counter` of the sums over a cluster that a CTA takes part in."""
        return Counter(self.NUMBER, body)

    def add_up(self) -> Body:
        """Add the products of a cluster's workgroups; the workgroup of rank 0 gets the sum."""
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
        """Operations by which only the workgroup of rank 0, which has the sum, executes `body`."""
        return (If(equal(index_symbol(RANK), 0), body),)
