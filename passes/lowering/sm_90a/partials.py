"""Partial sums of a tile in global memory, for the workgroup that finishes the tile (fix-up).

A workgroup stores its partial sums in the order of registers, with 16 bytes per access. The
workgroup that finishes the tile loads them through the ring of stages, like tiles of A and B: the
producer waits for flags and loads, by TMA, runs of elements that fit a stage; the consumers add
them to the accumulator. If workgroups add their partial sums in memory atomically, the finishing
workgroup loads the sum the same way, and its consumers zero the memory for the next launch.
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
"""FIRST: the coordinate of a loop in whose iterations a warp polls the flags of 32 slots at the
same time; its index is the number of the first of these slots.
SHARED: the coordinate of the shared memory to which partial sums are loaded."""
REGISTERS_OF_A_READ = 16
"""Number of registers that ptxas uses for each 16-byte read of partial sums in a step of the ring;
ptxas moves the reads of the next step ahead of the additions."""


def steps_of(sums: Any, registers: Any, room: Any, workitems: Any) -> Any:
    """The number of steps of the ring in which a workgroup's partial sums of a tile are loaded.

    The result is the smallest number for which the elements of a step fit in a stage and in the
    spare registers. Without spare registers, a thread reads 16 bytes a step.

    Args:
        sums: number of accumulator registers of a thread.
        registers: number of registers of a thread, accumulators included.
        room: number of partial sums that fit in a stage.
        workitems: number of threads that hold the accumulator.

    Each argument is a number, or an array of numbers.
    """
    fit, spare = room // (workitems * VECTOR), (registers - sums) // REGISTERS_OF_A_READ
    most = fit - (fit - spare) * (fit > spare)
    most = most + (1 - most) * (most < 1)
    return -(-sums // (most * VECTOR))


class Fixup(Pieces):
    """Operations that store partial sums to global memory, load them and add them.

    The edges are partials --Tile--> slot, rank, vector, workitem, element and
    vector --Tile--> step, place. A step is the run of vectors that one stage of the ring holds; in
    shared memory, the stage replaces the step.

    Args:
        c: the coordinate graph under construction.
        division: how a macro tile is divided over workgroups and warpgroups.
        rooms: number of elements of A and of B that a stage has room for, by the coordinate of the
            shared memory.
        stages: number of stages of the ring of k tiles in shared memory.
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
        """vectors: number of 16-byte accesses in which a thread reads its partial sums of a tile.
        run: number of these accesses in one step of the ring, whose data fits in one stage.
        """
        c.add(Unroll("fixup.step", Integer(steps)))
        c.add(Register("fixup.place", Integer(self.run)))
        c.connect(Tile(self.vector, ("fixup.step", "fixup.place")))
        # Partial sums alias the stages of A or of B, whichever are larger.
        size = Integer((stages - 1) * room + self.run * vector)
        c.add(Shared(SHARED, size, element=self.sums.name, within=home))
        c.add(Linear("fixup.inside", Integer(self.run * vector), note="in a stage"))
        c.connect(Split(SHARED, ("stage", "fixup.inside"), (Integer(room), Integer(1))))
        c.connect(Tile("fixup.inside", ("fixup.place", self.workitem, self.element)))

    def send(self, op: SendPartial | AccumulatePartial) -> Body:
        """Store the accumulator in a workspace slot, or add it atomically, then raise the flag.

        One thread raises the flag; the barrier orders the stores of all threads before the release
        by that thread.
        """
        if isinstance(op, AccumulatePartial):
            return (self.add_to("partials"), self.barrier, self.leader(RaiseFlag("flags")))
        return (self.store("partials"), self.barrier, self.leader(SignalFlag("flags", op.turn)))

    def load(self, slots: For) -> Body:
        """The producer's part of receiving partial sums: wait for flags, load the slots by TMA.

        Each lane of the producer warp polls the flag of a different slot, and clears the flag as
        soon as it is raised. Clearing at once is safe: a slot is written again only after this
        workgroup has sent its own partial sums, and by then this workgroup's consumers have read
        the whole slot. A slot to which workgroups add atomically is not written again in this
        launch.

        Args:
            slots: the loop over the slots that are received.
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
            # this barrier orders the acquires of all lanes before the copies, which one lane issues
            warp,
            FenceMemory(),
            slots.with_body(*self._in_steps(step)),
        )

    def _in_steps(self, step: Callable[[int], Body]) -> Body:
        """Operations that execute all steps of the ring in which one workspace slot is loaded.

        Args:
            step: a function that makes the operations of a step from the number of 16-byte accesses
                of each thread; the last step may have fewer.
        """
        whole, left = divmod(self.vectors, self.run)
        steps = For("fixup.step", Integer(0), Integer(whole), body=step(self.run), unroll=True)
        return (steps, at({"fixup.step": whole}, *step(left))) if left else (steps,)

    def add_up(self, slots: For, free: Callable[[], Operation]) -> Body:
        """The consumers' part of receiving partial sums: add each stage that TMA has filled.

        A stage is free when all threads of a warpgroup have read it. Threads read the stage by
        ordinary loads, so a proxy fence must order these loads before TMA's next write (PTX ISA,
        "Async proxy"); without the fence, TMA was observed to overwrite elements that had not been
        read. A slot to which workgroups add atomically is zeroed for the next launch once TMA has
        read it.

        Args:
            slots: the loop over the slots that are received.
            free: a function that makes the operation that frees the stage of the previous step.
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
    """Add the edges from partial sums and flags to workspace slots and registers.

    The new edges, which order a slot by registers and threads, replace the edges of the scheduled
    graph, which order a slot by the rows and columns of a tile.
    """
    c, different = pieces.c, pieces.division.different
    before = c.finish()
    for edge in (*before.edges_below("partials"), *before.edges_below("flags")):
        c.disconnect(edge)
    slot, slots = (SLOT, *different), c[SLOT].size
    assert slots is not None
    c.replace(replace(c["flags"], size=slots * prod(c[name].fixed_size for name in different)))
    c.connect(Tile("partials", (*slot, *pieces.place)))
    c.connect(Tile("flags", slot) if different else PassThrough("flags", SLOT))
