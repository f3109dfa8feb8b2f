"""Turns: consumer warpgroups that have whole work items, one after another (ping-pong).

A *work item* is an accumulation loop with what follows it: an output tile, or a segment of one. A
running number counts the work items of a workgroup. Which warpgroup has one, and the parity of the
barrier that says that its steps of the ring are done, are coordinates of that number:
round, warpgroup --Flatten--> item; turn, phase --Flatten--> round. So while one warpgroup brings
its product to memory, the other has the tensor cores (CUTLASS: `KernelTmaWarpSpecializedPingpong`).

Every warpgroup walks all work items. Of those that are not its own it only counts the steps of the
ring, which one producer fills for all of them in order: k tiles, and partials to be added. These
steps take turns, too. Side by side two main loops would both end late, and both epilogues would be
left for the end. And a warpgroup that waited for a stage more than once round the ring ahead would
take an old phase for its own, as it has the same parity. When the steps of the work item before are
behind its warpgroup, every step before the own first one was full.

Nothing waits for ever that would not do so if warpgroups divided the tiles. Call the main loop of
work item i M(i), the partials that it receives R(i), and what follows E(i): what it sends,
epilogue, store. M(i) waits for M(i - 1) and R(i - 1), by the barrier, and for E(i - 2), which the
same warpgroup has to do; R(i) waits for M(i), E(i) for R(i). Stages are freed in M and R, in their
order, and the producer waits for stages and for what R receives. Where warpgroups divide the
tiles, a workgroup does M(0), R(0), E(0), M(1) and so on, one after another: there each of these
waits is met by what came before. What R(i) waits for in other workgroups is the same here and
there. So a circle of waits here would be one there; what the launcher must promise (see
`coordgraph.progress`) is the same as well.

A slot for partials and a flag are still enough for a workgroup. At most one work item of a share is
sent; only the warpgroup that has it writes the slot and raises the flag, and in a tree it has added
what it receives before. Sender and receiver may be different warpgroups of their workgroups, so the
place in a slot is that of the workitem in its warpgroup.
"""

from __future__ import annotations

from dataclasses import replace

from sympy import Integer

from coordgraph import PassError
from coordgraph.control.asynchronous import (
    Advance,
    ArriveBarrier,
    Counter,
    FenceMultiplies,
    InitBarrier,
    WaitBarrier,
)
from coordgraph.control.operations import (
    Assign,
    Body,
    For,
    If,
    Operation,
    SetCoordinate,
)
from coordgraph.coordinates.dimensions import Linear, Shared
from coordgraph.coordinates.edges import Flatten, PassThrough
from coordgraph.coordinates.graph import CoordinateEditor
from coordgraph.integers import ceil_div, equal, index_symbol
from passes.lowering.sm_90a.division import WARP, Division
from passes.lowering.sm_90a.ring import STEP

__all__ = ["ITEM", "ORDER", "Turns", "multiplies"]

ITEM, WARPGROUP, PHASE = "item.number", "item.warpgroup", "item.phase"
ORDER = "barrier.order"
PHASES = 2


class Turns:
    """Shares out the work items of a workgroup, and orders their main loops."""

    def __init__(self, c: CoordinateEditor, division: Division) -> None:
        self.division = division
        c.add(Linear(ITEM, note="running number of a work item"))
        c.add(Linear("item.round", note="work items of each warpgroup before"))
        c.add(Linear("item.turn"))
        c.add(Linear(PHASE, Integer(PHASES), note="parity of a barrier"))
        c.add(Linear(WARPGROUP, Integer(division.turns), note="who has the work item"))
        c.connect(Flatten(("item.round", WARPGROUP), ITEM))
        c.connect(Flatten(("item.turn", PHASE), "item.round"))
        c.add(Shared(ORDER, Integer(division.turns), note="mbarriers"))
        c.connect(PassThrough(ORDER, WARPGROUP))
        known = {name: index_symbol(name) for name in (ITEM, WARP)}
        who, here = c.finish().reverse(known, [WARPGROUP, "warpgroup"])
        self.mine = equal(who, here)
        """This warpgroup has the work item."""

    def initial(self) -> Body:
        """A barrier for the main loops of each warpgroup."""
        return tuple(
            SetCoordinate(WARPGROUP, Integer(number), (InitBarrier(ORDER, 1),))
            for number in range(self.division.turns)
        )

    def counted(self, body: Body) -> Operation:
        """What contains work items."""
        return Counter(ITEM, body)

    def share_out(self, body: Body) -> Body:
        """Each work item in a lowered body for one warpgroup; the others count its steps.

        Raises:
            PassError: two main loops follow each other, so none knows where its item ends.
        """
        inside = tuple(self._within(op) for op in body)
        loops = [place for place, op in enumerate(inside) if multiplies(op)]
        if not loops:
            return inside
        if len(loops) > 1:
            raise PassError("warpgroups take turns with one accumulation loop of a body, not two")
        (place,) = loops
        named = tuple(op for op in inside[:place] if isinstance(op, Assign))
        item = tuple(op for op in inside if op not in named)
        place -= len(named)
        ordered = (*item[:place], self._wait(), *item[place:])
        others = tuple(step for op in item for step in _counted(op))
        return (*named, If(self.mine, self._signalled(ordered), others), Advance(ITEM))

    def _within(self, op: Operation) -> Operation:
        bodies = {name: self.share_out(getattr(op, name)) for name in op.BODIES}
        return replace(op, **bodies)

    def _wait(self) -> Operation:
        """A main loop is behind the steps of the work item before; the first waits for nobody."""
        # The number of the item before, and never negative; of a fresh barrier the phase before the
        # first counts as ended.
        before = index_symbol(ITEM) + (PHASES * self.division.turns - 1)
        return SetCoordinate(ITEM, before, (WaitBarrier(ORDER, PHASE),))

    def _signalled(self, body: Body) -> Body:
        """Say that the steps of a work item are behind this warpgroup: after the last of them.

        Of a main loop at most the last multiplications are under way then.
        """
        signal = If(equal(self.division.thread, 0), (ArriveBarrier(ORDER),))
        last = max((n for n, op in enumerate(body) if _moves(op)), default=-1)
        if last < 0:
            return (signal, *body)
        op = body[last]
        if isinstance(op, For):
            return (*body[: last + 1], signal, *body[last + 1 :])
        branches = {name: self._signalled(getattr(op, name)) for name in op.BODIES}
        return (*body[:last], replace(op, **branches), *body[last + 1 :])


def _moves(op: Operation) -> bool:
    """The ring moves on inside."""
    return any(isinstance(inner, Advance) and inner.dim == STEP for inner in op.walk())


def multiplies(op: Operation) -> bool:
    """A main loop."""
    return isinstance(op, For) and any(isinstance(x, FenceMultiplies) for x in op.body)


def _counted(op: Operation) -> Body:
    """The steps of the ring of an operation, and nothing else of it."""
    if isinstance(op, Assign) or (isinstance(op, Advance) and op.dim == STEP):
        return (op,)
    if not _moves(op):
        return ()
    bodies = {
        name: tuple(step for inner in getattr(op, name) for step in _counted(inner))
        for name in op.BODIES
    }
    only = [step.by for step in bodies["body"] if isinstance(step, Advance)]
    if isinstance(op, For) and op.step.is_Integer and len(only) == len(bodies["body"]):
        return (Advance(STEP, sum(only) * ceil_div(op.stop - op.start, op.step)),)
    return (replace(op, **bodies),)
