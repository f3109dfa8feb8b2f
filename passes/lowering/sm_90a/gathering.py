"""Gathered rows of A: two warps of the producer's warpgroup copy them to the ring of stages.

TMA loads boxes of adjacent rows, so it cannot load rows whose indices a table lists. Two warps
beside the producer warp, the *gatherers*, copy these rows by `cp.async`, 16 bytes at a time, to the
swizzled addresses to which TMA would copy them. The gatherers execute the same loops over tiles as
the producer, which loads B by TMA.

A stage is full when TMA has written B, and every thread of the gatherers has written its part of A.
wgmma reads shared memory through the async proxy, and `cp.async` writes it through the generic
proxy. So a thread waits until its copies for a stage are complete, executes a proxy fence, and only
then arrives at the stage's mbarrier (PTX ISA, "Async proxy"). It arrives a few steps late, so that
the copies of several stages are in flight at the same time.

A thread copies parts of the same rows for every k tile of a macro tile. So a thread that has at
most `MOST_ROWS` rows reads their indices from the table once, before the loop over k tiles, and
keeps them in registers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from sympy import Integer, Le

from coordgraph import KernelGraph
from coordgraph.control.asynchronous import (
    Advance,
    ArriveBarrier,
    Counter,
    ExpectBytes,
    FenceShared,
    WaitBarrier,
)
from coordgraph.control.graph import rewrite
from coordgraph.control.lowered import CommitCopies, CopyElements, WaitCopies
from coordgraph.control.operations import (
    Body,
    Epilogue,
    For,
    If,
    Locate,
    Operation,
    Scope,
    SetCoordinate,
)
from coordgraph.coordinates.dimensions import Linear
from coordgraph.coordinates.edges import Gather
from coordgraph.coordinates.graph import CoordinateEditor
from coordgraph.integers import floor_mod, index_symbol
from passes.lowering.sm_80.staging import Operand
from passes.lowering.sm_90a.division import LANES, WARP, WARPS, Division
from passes.lowering.sm_90a.refusals import table_of_rows
from passes.lowering.sm_90a.ring import EMPTY, FULL, PHASE, STEP
from passes.lowering.sm_90a.roles import part
from passes.lowering.sm_90a.ticket_ring import TicketRing
from passes.lowering.sm_90a.turns import PHASES, moves

__all__ = ["GATHERERS", "THREAD", "Gatherers"]

GATHERERS = 2
"""Number of warps that gather rows: the last ones of the producer's warpgroup."""
THREAD = "gather.thread"
"""The coordinate that numbers the threads of the gatherers."""
MOST_LATE = 3
"""Largest number of steps of the ring by which a thread of the gatherers signals a stage late; the
copies of one more stage than this are in flight."""
MOST_ROWS = 16
"""Largest number of row indices that a thread of the gatherers keeps in registers. A thread with
more rows reads their indices from the table for each k tile."""


class Gatherers:
    """Makes the operations of the warps that gather rows of A; none if A's rows are not gathered.

    Args:
        graph: the scheduled graph.
        division: how a macro tile is divided, which decides the numbers of the warps.
        stages: number of stages of the ring of k tiles in shared memory.
    """

    def __init__(self, graph: KernelGraph, division: Division, stages: int) -> None:
        self.needed = self.needed_by(graph)
        """Whether the rows of A are gathered."""
        table = table_of_rows(graph, "A")
        edges = (edge for edge in graph.coordinates.edges if isinstance(edge, Gather))
        self.rows = tuple(edge.upstream[0] for edge in edges if edge.table == table)
        """The dimensions of A whose indices a table lists; none if A's rows are not gathered."""
        self.division, self.stages, self.late = division, stages, min(MOST_LATE, stages - 2)

    def copies(self, c: CoordinateEditor, tile: Operand) -> Operation:
        """Add the edges from positions in a tile of A to the gatherers' threads.

        Returns:
            The operation by which these threads copy one tile.
        """
        chunk = self.division.kind.chunk
        return tile.copy(c, self.threads, chunk, THREAD, grouped=True, most=MOST_ROWS)

    @staticmethod
    def needed_by(graph: KernelGraph) -> bool:
        """Whether a table lists the indices of A's rows, so that TMA cannot load them."""
        return bool(table_of_rows(graph, "A"))

    @property
    def warps(self) -> int:
        """Number of warps that gather rows; 0 if A's rows are not gathered."""
        return GATHERERS if self.needed else 0

    @property
    def threads(self) -> int:
        """Number of threads that gather rows; each arrives once at the mbarrier of every stage."""
        return self.warps * LANES

    def left(self, tensors: Sequence[str]) -> tuple[str, ...]:
        """Those of `tensors` that the gatherers leave to TMA: all but A."""
        return tuple(name for name in tensors if not (self.needed and name == "A"))

    def add(self, c: CoordinateEditor) -> None:
        """Add the coordinate that numbers the threads of the gatherers."""
        if self.needed:
            c.add(Linear(THREAD, Integer(self.threads), note="thread that gathers rows"))

    def role(
        self,
        body: Body,
        copies_of: Callable[[For], tuple[Operation | None, tuple[str, ...]]],
        receive: Callable[[For], Body],
        operands: Callable[[Epilogue], Body],
        tickets: TicketRing,
    ) -> Body:
        """The operations of the gatherers: the loops over tiles, with copies of gathered rows.

        Args:
            body: the scheduled operations.
            copies_of: a function that returns, for a loop over k tiles, the copies of gathered
                rows of one k tile of A, and the coordinates along k whose index is computed once
                for each k tile.
            receive: a function that returns the producer's operations for a loop over partial sums.
            operands: a function that returns the producer's operations for an epilogue.
            tickets: the tickets of a dynamic loop over tiles.
        """
        if not self.needed:
            return ()
        own = part(
            body,
            lambda loop: self._gather(loop, *copies_of(loop)),
            lambda loop: _signals(receive(loop)),
            lambda op: _signals(operands(op)),
        )
        thread = floor_mod(index_symbol("workitem"), Integer(self.threads))
        first = (self.division.consumers + 1) * WARPS - self.warps
        counted = tickets.counted(Scope("gatherers", tickets.followed(own)))
        role = Counter(STEP, (SetCoordinate(THREAD, thread, (counted,)),))
        return (If(Le(first, index_symbol(WARP)), (role,)),)

    def _gather(self, loop: For, copies: Operation | None, once: tuple[str, ...]) -> Body:
        """Copy the k tiles of A in a loop over k tiles, and signal that their stages are full.

        A thread signals the stage of a step a few steps (at most `MOST_LATE`) after it has begun
        the copies of that step. After the loop, the thread signals the remaining stages.
        """
        late, done = self.late, loop.symbol - loop.start
        assert copies is not None
        steps = loop.with_body(
            WaitBarrier(EMPTY, PHASE, before=True),
            Locate(once, body=(copies,)) if once else copies,
            CommitCopies(),
            If(Le(late, done), (WaitCopies(late), FenceShared(), self._signal(late))),
            Advance(STEP),
        )
        rows = SetCoordinate(loop.dim, loop.start, _once_for_each_row(copies, self.rows))
        rest = range(late, 0, -1)
        count = loop.stop - loop.start
        last = (If(Le(behind, count), (self._signal(behind),)) for behind in rest)
        return (rows, steps, WaitCopies(0), FenceShared(), *last)

    def _signal(self, behind: int) -> Operation:
        """Arrive at the mbarrier of the stage of an earlier step of the ring.

        Args:
            behind: how many steps ago the copies of that stage began.
        """
        # A full period of stages and phases is added, so that the number of the step is never
        # negative; it changes neither the stage nor the phase.
        step = index_symbol(STEP) + (PHASES * self.stages - behind)
        return SetCoordinate(STEP, step, (ArriveBarrier(FULL),))


def _once_for_each_row(copies: Operation, rows: tuple[str, ...]) -> Body:
    """Operations that load the row index of each copy from the table, before the loop over k tiles.

    The result is () if the copies are not all unrolled, because a thread has more than `MOST_ROWS`
    rows: it then loads the indices for each k tile.

    Args:
        copies: the copies of one k tile, in loops.
        rows: the dimensions whose indices the table lists.
    """
    if not all(op.unroll for op in copies.walk() if isinstance(op, For)):
        return ()

    def change(op: Operation) -> Operation | Body:
        if isinstance(op, SetCoordinate):
            return op.body
        return Locate(rows) if isinstance(op, CopyElements) else op

    return rewrite(copies, change)


def _signals(body: Body) -> Body:
    """The gatherers' part of operations by which the producer alone fills stages.

    The gatherers copy nothing to these stages, but the mbarriers of all stages count their
    arrivals. So the gatherers wait until a stage is free, arrive at its mbarrier, and go on to the
    next stage.
    """

    def kept(op: Operation) -> Body:
        if isinstance(op, ExpectBytes):
            return (ArriveBarrier(op.barrier),)
        if isinstance(op, WaitBarrier | Advance):
            return (op,)
        if not moves(op):
            return ()
        bodies = {name: _signals(getattr(op, name)) for name in op.BODIES}
        return (replace(op, **bodies),)

    return tuple(new for op in body for new in kept(op))
