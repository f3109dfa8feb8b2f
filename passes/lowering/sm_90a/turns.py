"""Ping-pong consumers: each work unit of a workgroup is executed by one of its warpgroups in turn.

A *work unit* is an accumulation loop and what follows it, for an output tile or for a segment of
one. A counter numbers the work units of a workgroup. Two coordinates follow from that number: the
warpgroup that executes the work unit, and the phase parity of the mbarrier that orders main loops:
round, warpgroup --Flatten--> item; turn, phase --Flatten--> round. While one warpgroup executes its
epilogue, another one uses the tensor cores (CUTLASS: `KernelTmaWarpSpecializedPingpong`).

Every warpgroup loops over all work units. For the work units of other warpgroups, a warpgroup only
advances the step counter of the ring, because one producer fills the ring with the k tiles and
partial sums of all work units in order.

Main loops run one after another, for two reasons. Two main loops that shared the tensor cores would
end at about the same time, and then both epilogues would run while the tensor cores are idle. And a
warpgroup that waited for a stage more than one round of the ring ahead would mistake an older phase
for the awaited one, since both phases have the same parity. A main loop begins after the warpgroup
of the previous work unit has passed its last step of the ring, so the stages of all earlier steps
have been filled.

Ping-pong consumers deadlock only if cooperative ones would. For work unit i, let M(i) be the main
loop, R(i) the receipt of partial sums, and E(i) what follows: sending a partial, the epilogue, the
store. M(i) waits for M(i - 1) and R(i - 1) at the mbarrier, and for E(i - 2), which the same
warpgroup executes; R(i) waits for M(i), and E(i) for R(i). M and R free the stages of the ring in
order; the producer waits for free stages and for the partials that R receives. Cooperative
consumers execute M(0), R(0), E(0), M(1) and so on in sequence, so each of these waits is met by an
earlier operation of that sequence. Waits for other workgroups are the same for ping-pong and
cooperative consumers. So a cycle of waits with ping-pong consumers would be a cycle with
cooperative ones, and the launcher must guarantee the same residency for both (see
`coordgraph.progress`).

As with cooperative consumers, each workgroup has one workspace slot and one flag. A workgroup sends
the partial sums of at most one work unit, and only the warpgroup that executes the work unit writes
the slot and raises the flag; in a tree reduction, that warpgroup has added the received partial
sums before. The sending and the receiving warpgroup may have different numbers in their workgroups,
so the address of an element in a slot depends on the thread's number in its warpgroup.
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
from coordgraph.integers import ceil_div, equal, floor_mod, index_symbol
from passes.lowering.sm_90a.division import LANES, WARP, WARPS, Division
from passes.lowering.sm_90a.ring import STEP

__all__ = ["ITEM", "ORDER", "PHASES", "Turns", "moves", "multiplies"]

ITEM, WARPGROUP, PHASE = "item.number", "item.warpgroup", "item.phase"
"""ITEM: the coordinate that numbers the work units of a workgroup (a work unit is an output tile or
a segment of one). WARPGROUP: the coordinate of the warpgroup that executes a work unit. PHASE: the
coordinate of the phase parity (0 or 1) of the mbarriers ORDER."""
ORDER = "barrier.order"
"""The mbarriers that order the main loops of ping-pong warpgroups, one for each warpgroup."""
PHASES = 2
"""Number of phases of an mbarrier that a wait can distinguish: 2, because a wait tests the parity
of a phase."""


class Turns:
    """Ping-pong: assigns work units (tiles or segments) to warpgroups, and orders their main loops.

    Args:
        c: the coordinate graph under construction.
        division: how a macro tile is divided among warpgroups; `division.turns` is the number of
            warpgroups, each of which executes every `turns`-th work unit.
    """

    def __init__(self, c: CoordinateEditor, division: Division) -> None:
        self.division = division
        c.add(Linear(ITEM, note="running number of a work unit"))
        c.add(Linear("item.round", note="work units of each warpgroup before"))
        c.add(Linear("item.turn"))
        c.add(Linear(PHASE, Integer(PHASES), note="parity of a barrier"))
        c.add(Linear(WARPGROUP, Integer(division.turns), note="who has the work unit"))
        c.connect(Flatten(("item.round", WARPGROUP), ITEM))
        c.connect(Flatten(("item.turn", PHASE), "item.round"))
        c.add(Shared(ORDER, Integer(division.turns), note="mbarriers"))
        c.connect(PassThrough(ORDER, WARPGROUP))
        known = {name: index_symbol(name) for name in (ITEM, WARP)}
        who, here = c.finish().reverse(known, [WARPGROUP, "warpgroup"])
        self.mine = equal(who, here)
        """Condition: the current warpgroup executes the current work unit (tile or segment)."""

    def initial(self) -> Body:
        """Initialise the mbarriers that order main loops; one thread does so at the start."""
        return tuple(
            SetCoordinate(WARPGROUP, Integer(number), (InitBarrier(ORDER, WARPS),))
            for number in range(self.division.turns)
        )

    def counted(self, body: Body) -> Operation:
        """Wrap `body` in a `Counter` that numbers work units (output tiles or segments) from 0."""
        return Counter(ITEM, body)

    def assign(self, body: Body) -> Body:
        """Put each work unit in `body` under a condition, so that only one warpgroup executes it.

        A work unit is the main loop and what follows it, for an output tile or a segment. All other
        warpgroups only count the steps of the ring that the work unit takes.

        Raises:
            PassError: a body contains two main loops, so the end of the first work unit is unknown.
        """
        inside = tuple(self._within(op) for op in body)
        loops = [place for place, op in enumerate(inside) if multiplies(op)]
        if not loops:
            return inside
        if len(loops) > 1:
            raise PassError(
                f"{len(loops)} accumulation loops follow each other in one body, but "
                "consumers=pingpong allows only one; put each into a loop or branch of its own, "
                "or use consumers=cooperative"
            )
        (place,) = loops
        named = tuple(op for op in inside[:place] if isinstance(op, Assign))
        item = tuple(op for op in inside if op not in named)
        place -= len(named)
        ordered = (*item[:place], self._wait(), *item[place:])
        others = tuple(step for op in item for step in _ring_steps(op))
        return (*named, If(self.mine, self._with_signal(ordered), others), Advance(ITEM))

    def _within(self, op: Operation) -> Operation:
        """A copy of `op` in which each work unit (tile or segment) is assigned to a warpgroup."""
        bodies = {name: self.assign(getattr(op, name)) for name in op.BODIES}
        return replace(op, **bodies)

    def _wait(self) -> Operation:
        """Wait until the previous work unit's warpgroup has passed its last step of the ring.

        A work unit is the main loop and what follows it, for an output tile or a segment. The first
        work unit does not wait.
        """
        # `before` is the number of the previous work unit (tile or segment) plus one full period of
        # warpgroups and phases, so that it is never negative. The first work unit waits for the
        # phase before the first phase of a new mbarrier, which counts as complete.
        before = index_symbol(ITEM) + (PHASES * self.division.turns - 1)
        return SetCoordinate(ITEM, before, (WaitBarrier(ORDER, PHASE),))

    def _with_signal(self, body: Body) -> Body:
        """Insert the signal that this warpgroup has passed the last ring step of a tile or segment.

        The signal follows the last operation that advances the ring. If that is the main loop, its
        last wgmma instructions may still be in flight. One lane of each warp arrives, so that the
        other warpgroup goes on only after all warps of this warpgroup have come here. If only one
        warp arrived, the other warpgroup could complete a further phase before a slow warp has
        tested the phase that it awaits, and that warp would wait for ever (CUTLASS:
        `OrderedSequenceBarrier`, at which all threads arrive).
        """
        first = equal(floor_mod(self.division.thread, Integer(LANES)), 0)
        signal = If(first, (ArriveBarrier(ORDER),))
        last = max((n for n, op in enumerate(body) if moves(op)), default=-1)
        if last < 0:
            return (signal, *body)
        op = body[last]
        if isinstance(op, For):
            return (*body[: last + 1], signal, *body[last + 1 :])
        branches = {name: self._with_signal(getattr(op, name)) for name in op.BODIES}
        return (*body[:last], replace(op, **branches), *body[last + 1 :])


def moves(op: Operation) -> bool:
    """Whether `op` is, or contains, an operation that advances the ring of k tiles."""
    return any(isinstance(inner, Advance) and inner.dim == STEP for inner in op.walk())


def multiplies(op: Operation) -> bool:
    """Whether `op` is a main loop: a loop whose body issues wgmma instructions."""
    return isinstance(op, For) and any(isinstance(x, FenceMultiplies) for x in op.body)


def _ring_steps(op: Operation) -> Body:
    """Advance the ring's step counter as `op` does, in warpgroups that do not execute `op`."""
    if isinstance(op, Assign) or (isinstance(op, Advance) and op.dim == STEP):
        return (op,)
    if not moves(op):
        return ()
    bodies = {
        name: tuple(step for inner in getattr(op, name) for step in _ring_steps(inner))
        for name in op.BODIES
    }
    only = [step.by for step in bodies["body"] if isinstance(step, Advance)]
    if isinstance(op, For) and op.step.is_Integer and len(only) == len(bodies["body"]):
        return (Advance(STEP, sum(only) * ceil_div(op.stop - op.start, op.step)),)
    return (replace(op, **bodies),)
