"""Partials: pieces of a product in memory, for the workgroup that finishes the tile.

A workgroup stores its piece as it lies in registers, 16 bytes at a time. It comes back through the
ring of stages, like tiles of A and B: the producer waits for flags and lets TMA bring
the piece in runs as long as a stage is, while consumers add up what has come. Where pieces are
added in memory the sum of all comes so, and consumers leave zeros behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod
from typing import Any

from sympy import Integer, Lt

from coordgraph.control.asynchronous import (
    Advance,
    CopyRun,
    ExpectBytes,
    FenceMemory,
    FenceShared,
    WaitBarrier,
)
from coordgraph.control.lowered import (
    AccumulateFragment,
    Barrier,
    ClearFlag,
    FillElements,
    RaiseFlag,
    SignalFlag,
    WaitFlag,
)
from coordgraph.control.operations import (
    AccumulatePartial,
    Body,
    CollectPartial,
    For,
    If,
    Operation,
    ReceivePartial,
    SendPartial,
    SetCoordinate,
)
from coordgraph.coordinates.dimensions import Linear, Register, Shared, Unroll
from coordgraph.coordinates.edges import PassThrough, Split, Tile
from coordgraph.coordinates.graph import CoordinateEditor
from coordgraph.integers import floor_mod, index_symbol
from passes.kit.fixup import SLOT
from passes.lowering.control import at
from passes.lowering.sm_90a.division import LANES, Division
from passes.lowering.sm_90a.ring import EMPTY, FULL, PHASE, STEP
from passes.lowering.sm_90a.warpgroups import VECTOR, Pieces

__all__ = ["Fixup", "steps_of", "tie_memory"]

FIRST, SHARED = "fixup.first", "fixup.shared"
REGISTERS_OF_A_READ = 16
"""What ptxas keeps for each access of 16 bytes of a step: the next step's come beside the sums."""


def steps_of(sums: Any, registers: Any, room: Any, workitems: Any) -> Any:
    """In how many steps a partial comes: as few as registers and stages have room for.

    Numbers, or arrays of them; where there is room for none, one access a step.

    Args:
        sums: accumulators of a workitem, and `registers` that it has in all.
        room: elements of a partial that fit in a stage.
        workitems: that have the partial together.
    """
    fit, spare = room // (workitems * VECTOR), (registers - sums) // REGISTERS_OF_A_READ
    most = fit - (fit - spare) * (fit > spare)
    most = most + (1 - most) * (most < 1)
    return -(-sums // (most * VECTOR))


class Fixup(Pieces):
    """How partials go to memory and come back.

    partials --Tile--> slot, rank, vector, workitem, element; vector --Tile--> step, place; in
    shared memory step becomes the ring's stage.

    Args:
        c: the coordinates being built.
        division: of a macro tile.
        rooms: elements of a stage of A and of B, by the name of their shared memory.
        stages: of the ring.
    """

    def __init__(
        self,
        c: CoordinateEditor,
        division: Division,
        rooms: Mapping[str, int],
        stages: int,
    ) -> None:
        super().__init__(c, division)
        tie_memory(self)
        c.add(Linear(FIRST, note="first of the slots that are waited for side by side"))
        home = max(rooms, key=lambda name: rooms[name])
        self.sums = division.sums
        room = rooms[home] * division.kind.bytes // self.sums.bytes
        vectors, vector = c[self.vector].fixed_size, division.workitems * VECTOR
        of_each = division.accumulators, division.registers
        steps = steps_of(*of_each, room, division.workitems)
        self.vectors, self.run = vectors, -(-vectors // steps)
        """Accesses of a workitem to a partial, and those of them in one stage, at most."""
        c.add(Unroll("fixup.step", Integer(steps)))
        c.add(Register("fixup.place", Integer(self.run)))
        c.connect(Tile(self.vector, ("fixup.step", "fixup.place")))
        # The stages of the larger operand: what of each is not needed is left free.
        size = Integer((stages - 1) * room + self.run * vector)
        c.add(Shared(SHARED, size, element=self.sums.name, within=home))
        c.add(Linear("fixup.inside", Integer(self.run * vector), note="in a stage"))
        c.connect(Split(SHARED, ("stage", "fixup.inside"), (Integer(room), Integer(1))))
        c.connect(Tile("fixup.inside", ("fixup.place", self.workitem, self.element)))

    def send(self, op: SendPartial | AccumulatePartial) -> Body:
        """Store, or add to what others add to, then let one workitem publish.

        A barrier orders what all have done before its release.
        """
        if isinstance(op, AccumulatePartial):
            return (self.add_to("partials"), self.barrier, self.leader(RaiseFlag("flags")))
        return (self.store("partials"), self.barrier, self.leader(SignalFlag("flags", op.turn)))

    def load(self, slots: For) -> Body:
        """The producer's share of receiving a range of slots.

        The flags are waited for side by side, one by each lane, and lowered at once: nobody sends
        to a slot again before its receiver does, whose consumers by then have all of the piece. To
        one that pieces are added to nobody sends again in this launch.
        """
        (receive,) = slots.body
        assert isinstance(receive, ReceivePartial | CollectPartial)
        if isinstance(receive, CollectPartial):
            wait = WaitFlag("flags", senders=receive.senders)
        else:
            wait = WaitFlag("flags", receive.turn)
        first, lane = index_symbol(FIRST), floor_mod(index_symbol("workitem"), LANES)
        mine = SetCoordinate(SLOT, first + lane, (wait, ClearFlag("flags")))
        some = If(Lt(lane, slots.stop - first), (mine,))
        warp = Barrier(self.division.own_barrier.identifier, LANES)
        place = {"fixup.place": 0, self.workitem: 0, self.element: 0}

        def step(vectors: int) -> Body:
            size = vectors * self.division.workitems * VECTOR
            return (
                WaitBarrier(EMPTY, PHASE, before=True),
                ExpectBytes(FULL, Integer(size * self.sums.bytes)),
                at(place, CopyRun("partials", SHARED, FULL, size)),
                Advance(STEP),
            )

        return (
            For(FIRST, slots.start, slots.stop, Integer(LANES), (some,)),
            warp,  # what one lane has acquired, the lane that copies must see
            FenceMemory(),
            slots.with_body(*self._in_steps(step)),
        )

    def _in_steps(self, step: Callable[[int], Body]) -> Body:
        """Steps of `run` accesses of each workitem, and a last one of those that are left."""
        whole, left = divmod(self.vectors, self.run)
        steps = For("fixup.step", Integer(0), Integer(whole), body=step(self.run), unroll=True)
        return (steps, at({"fixup.step": whole}, *step(left))) if left else (steps,)

    def add_up(self, slots: For, free: Callable[[], Operation]) -> Body:
        """The consumers' share: add as stages fill; `free` gives back the stage of the last step.

        A stage is free when the whole warpgroup has read it, by plain loads: without the fence
        TMA was seen to overwrite what had not been read (PTX ISA, "Async proxy"). What has
        come of a sum was read in memory, where zeros for the next launch may take its place.
        """
        (receive,) = slots.body
        registers = ("fixup.step", "fixup.place")
        read = AccumulateFragment(self.accumulator, SHARED, registers, VECTOR)
        clear = (FillElements("partials", VECTOR),) * isinstance(receive, CollectPartial)

        def step(vectors: int) -> Body:
            def each(op: Operation) -> Operation:
                body = at({self.element: 0}, op)
                return For("fixup.place", Integer(0), Integer(vectors), body=(body,), unroll=True)

            return (
                WaitBarrier(FULL, PHASE),
                *map(each, (read, *clear)),
                FenceShared(),
                self.division.own_barrier,
                Advance(STEP),
                free(),
            )

        return (slots.with_body(*self._in_steps(step)),)


def tie_memory(pieces: Pieces) -> None:
    """Partials and flags as they lie in memory, in place of rows and columns of a tile."""
    c, different = pieces.c, pieces.division.different
    before = c.finish()
    for edge in (*before.edges_below("partials"), *before.edges_below("flags")):
        c.disconnect(edge)
    slot, slots = (SLOT, *different), c[SLOT].size
    assert slots is not None
    c.replace(replace(c["flags"], size=slots * prod(c[name].fixed_size for name in different)))
    c.connect(Tile("partials", (*slot, *pieces.place)))
    c.connect(Tile("flags", slot) if different else PassThrough("flags", SLOT))
