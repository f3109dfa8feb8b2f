"""Dynamic loops on sm_90a: the producer takes tickets, and every warp reads them from a ring.

A ticket is the value of a counter in device memory, and says which output tile is next. The
producer's first lane takes the next ticket a few k tiles before the end of a tile's loads, so that
the latency of the atomic increment overlaps with these loads, and the loads of the next tile begin
at once. The lane stores the ticket in a word of shared memory and arrives at the word's mbarrier
`ticket.full`. Consumer warps read the word after they have stored their tile. The word is written
again when all warps have arrived at its mbarrier `ticket.empty`.

In a cluster, the producer of rank 0 takes the ticket, and stores it in the shared memory of every
workgroup of the cluster; all warps of the cluster arrive at the `ticket.empty` of rank 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sympy import And, Expr, Integer, true
from sympy.logic.boolalg import Boolean

from coordgraph import KernelGraph
from coordgraph.control.asynchronous import Advance, ArriveBarrier, Counter, WaitBarrier
from coordgraph.control.graph import rewrite
from coordgraph.control.operations import Body, For, If, Operation, Scope
from coordgraph.control.tickets import DynamicFor, PassTicket, ReadTicket, TakeTicket
from coordgraph.coordinates.dimensions import Shared, Unroll
from coordgraph.coordinates.edges import PassThrough
from coordgraph.coordinates.graph import CoordinateEditor
from coordgraph.integers import equal, floor_mod, index_symbol, maximum
from passes.kit import depth_is_data
from passes.lowering.control import unrolled
from passes.lowering.sm_90a.division import LANES, RANK, WARPS, Division
from passes.lowering.sm_90a.ring import Ring
from passes.lowering.ticket_exchange import SHARED, TICKET, fetched, taken_by, without_ticket

__all__ = ["TicketRing"]

RING = Ring("ticket", "ticket.stage", "ticket.full", "ticket.empty")
"""The ring of words through which tickets (numbers of output tiles) are passed; each ticket of a
workgroup is one step of the ring."""
SLOTS = 2
"""Number of words of the ring of tickets: the producer may be this many tiles ahead of the
consumers, which matters if tiles have few k tiles."""
RECEIVER = "ticket.receiver"
"""The dimension that numbers the workgroups of a cluster which receive a ticket (tile number)."""
LEAD = 4
"""Number of k tiles that are still to be loaded when the producer takes a ticket. With more k
tiles, the workgroup reserves its next tile earlier, which another workgroup might begin sooner;
with fewer, less of the latency of the increment is hidden."""
WORD_BYTES = 4
FIRST_LANE = equal(floor_mod(index_symbol("workitem"), LANES), 0)
"""The condition that the thread is the first lane of its warp."""


class TicketRing:
    """Lowers the dynamic loop of a graph; does nothing for a graph without one.

    Args:
        graph: the scheduled graph.
        division: how a macro tile is divided over the cluster and its warpgroups.
        helpers: number of warps beside the producer warp that execute the loop, too: they write
            tensor maps or gather rows.
    """

    def __init__(self, graph: KernelGraph, division: Division, *, helpers: int) -> None:
        self.take, self.division = taken_by(graph), division
        self._always = not depth_is_data(graph) if self.take is not None else True
        """Whether every output tile surely has a k tile; True without a dynamic loop."""
        self._readers = division.consumers * WARPS + 1 + helpers
        self._several = division.workgroups > 1

    @staticmethod
    def bytes(graph: KernelGraph) -> int:
        """Bytes of shared memory for tickets (output tile numbers); 0 without a dynamic loop."""
        return SLOTS * WORD_BYTES * (taken_by(graph) is not None)

    def add(self, c: CoordinateEditor) -> None:
        """Add the coordinates, mbarriers and shared memory of the ring that passes tickets."""
        if self.take is None:
            return
        RING.add(c, SLOTS, "running number of a ticket")
        c.add(Shared(SHARED, Integer(SLOTS), element="i32", note="tickets"))
        c.connect(PassThrough(SHARED, RING.stage))
        if self._several:
            c.add(Unroll(RECEIVER, Integer(self.division.workgroups), note="rank that receives"))

    def initial(self, c: CoordinateEditor) -> Body:
        """Initialise the ring's mbarriers; one thread does so at the start of the kernel."""
        if self.take is None:
            return ()
        return RING.initial(c, 1, self._readers * self.division.workgroups)

    def counted(self, body: Operation) -> Operation:
        """Wrap the code of the producer, or of the consumers, in a counter of taken tiles."""
        return body if self.take is None else Counter(RING.step, (body,))

    def fetch(self, loop: For) -> tuple[Body, Body]:
        """The producer's operations that take a ticket: the number of the next output tile.

        Args:
            loop: the loop over k tiles.

        Returns:
            (operations before the loop, operations at the start of each iteration).
        """
        if self.take is None:
            return (), ()
        take = If(self._leads, fetched(self.take))
        if not self._always:
            return (take,), ()
        late = maximum(loop.stop - LEAD, Integer(0))
        return (), (If(equal(loop.symbol, late), (take,)),)

    def produced(self, c: CoordinateEditor, body: Body) -> Body:
        """Lower the dynamic loop in `body`, the producer's code.

        The producer writes each ticket (number of the next output tile) to shared memory, and then
        reads it like other warps.
        """
        if self.take is None:
            return body
        return self._replaced(body, (*self._pass(c), *self._read(self.take)))

    def followed(self, body: Body) -> Body:
        """Lower the dynamic loop in `body`: code of warps that only read the next tile's number."""
        return body if self.take is None else self._replaced(body, self._read(self.take))

    def apart(self, body: Body, role: str) -> Body:
        """Put the body of the dynamic loop, without its `TakeTicket`, into a `Scope`.

        In ping-pong kernels, one warpgroup executes the operations in the scope for each tile, but
        all warpgroups then read the number of the next tile (ticket).

        Args:
            body: the operations with the loop.
            role: the name of the scope.
        """

        def separate(op: Operation) -> Operation:
            if not isinstance(op, DynamicFor):
                return op
            others, take = without_ticket(op)
            return replace(op, body=(Scope(role, others), take))

        return _each(body, separate)

    @property
    def _leads(self) -> Boolean:
        """The condition, in a producer warp, that the thread takes output tiles for its cluster."""
        return And(FIRST_LANE, self._in_charge)

    @property
    def _in_charge(self) -> Boolean:
        """The condition that the workgroup is the one that takes output tiles for its cluster."""
        return equal(index_symbol(RANK), 0) if self._several else true

    def _pass(self, c: CoordinateEditor) -> Body:
        """Store the next tile's number for all workgroups of the cluster, once its word is free.

        All lanes wait, though only the first one stores: after a wait of one lane, ptxas no longer
        knows that the lanes are together again, and computes the coordinates of each box of the
        next tile lane by lane, which takes the producer twice as many instructions.
        """
        rank: Expr | None = index_symbol(RECEIVER) if self._several else None
        store = PassTicket(TICKET, SHARED, rank)
        arrive = ArriveBarrier(RING.full, rank, publish=self._several)
        to_one: Body = (store, arrive)
        to_all = (unrolled(c, (RECEIVER,), *to_one),) if self._several else to_one
        wait = WaitBarrier(RING.empty, RING.phase, before=True, cluster=self._several)
        passed: Body = (wait, If(FIRST_LANE, to_all))
        return (If(self._in_charge, passed),) if self._several else passed

    def _read(self, take: TakeTicket) -> Body:
        """Operations of every warp: read the next tile's number, and free its word in the ring."""
        rank = Integer(0) if self._several else None
        free = ArriveBarrier(RING.empty, rank, publish=self._several)
        return (
            WaitBarrier(RING.full, RING.phase, cluster=self._several),
            ReadTicket(take.dim, SHARED, RING.step, take.first),
            If(FIRST_LANE, (free,)),
            Advance(RING.step),
        )

    @staticmethod
    def _replaced(body: Body, by: Body) -> Body:
        """A copy of `body` in which the operations `by` replace the `TakeTicket`."""

        def change(op: Operation) -> Operation:
            if not isinstance(op, DynamicFor):
                return op
            others, _ = without_ticket(op)
            return replace(op, body=(*others, *by))

        return _each(body, change)


def _each(body: Body, change: Callable[[Operation], Operation]) -> Body:
    return tuple(new for op in body for new in rewrite(op, change))
