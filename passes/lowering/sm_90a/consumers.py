"""Lowers the operations that consumer warpgroups execute: main loops, fix-ups and epilogues."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sympy import And, Expr, Gt, Lt
from sympy.core.basic import Basic

from coordgraph import KernelGraph
from coordgraph.control.asynchronous import (
    Advance,
    ArriveBarrier,
    CommitMultiplies,
    FenceMultiplies,
    MultiplyShared,
    WaitBarrier,
    WaitMultiplies,
    WaitStores,
)
from coordgraph.control.graph import rewrite
from coordgraph.control.operations import (
    AccumulatePartial,
    Body,
    CollectPartial,
    Epilogue,
    For,
    If,
    InitAccumulator,
    Locate,
    Operation,
    ReceivePartial,
    SendPartial,
    SetCoordinate,
    StoreTile,
    accumulates,
)
from coordgraph.coordinates.graph import CoordinateEditor
from coordgraph.integers import equal, index_symbol, symbols_of
from passes.kit.reduce_scatter import SHARE
from passes.kit.tile_work import main_loops
from passes.lowering.control import Accumulator, at, multiplied, unrolled
from passes.lowering.row_reductions import RowReductions
from passes.lowering.sm_90a.operand_boxes import OperandBoxes, loaded_by_boxes
from passes.lowering.sm_90a.partials import Fixup
from passes.lowering.sm_90a.ring import EMPTY, FULL, PHASE, STEP
from passes.lowering.sm_90a.shares import scatter
from passes.lowering.sm_90a.tails import Tails
from passes.lowering.sm_90a.ticket_ring import TicketRing
from passes.lowering.sm_90a.tiles import DividedTile
from passes.lowering.sm_90a.turns import Turns, multiplies
from passes.lowering.sm_90a.warpgroups import ClusterSum, add_accumulator

__all__ = ["Consumer"]


class Consumer:
    """Lowers a schedule's operations on tiles for the consumer warpgroups.

    Args:
        c: the coordinate graph under construction.
        graph: the scheduled graph.
        tiles: for each shape of macro tiles, their TMA boxes and how they are divided.
        stages: number of stages of the ring of k tiles in shared memory.
        vector: number of elements of C and of D that one access of a thread moves: 2 or 1.
        reads_c: whether the epilogue adds C if a launch passes it.
        boxes: whether TMA may load operands of the epilogue; if False, threads load them.
        located: the coordinates that the scheduled graph computes for every output tile, such as
            its group's number.
        tickets: lowers the dynamic loop, if the graph has one.
    """

    def __init__(
        self,
        c: CoordinateEditor,
        graph: KernelGraph,
        tiles: Sequence[DividedTile],
        stages: int,
        vector: int,
        reads_c: bool,
        boxes: bool,
        located: tuple[str, ...],
        tickets: TicketRing,
    ) -> None:
        self.c, self.stages, self.tickets = c, stages, tickets
        self.division = tiles[0].division  # tiles of all shapes use equally many warpgroups
        self.stores = tiles[0].store is not None
        self.parts = {
            t.name: _TileLowering(c, graph, t, stages, vector, reads_c, boxes, located)
            for t in tiles
        }
        sums = [part.sum for part in self.parts.values() if part.sum]
        self.sum = sums[0] if sums else None
        self.turns = Turns(c, self.division) if self.division.turns > 1 else None

    def all(self, body: Body) -> Body:
        """Lower the operations `body` of the scheduled graph to operations of the consumers."""
        for part in self.parts.values():
            if part.scatter:
                body = part.scatter.lower(body, part.of_sum)
        lowered = tuple(new for op in body for new in rewrite(op, self._lower))
        if self.turns:
            # A ticket is the number of the next output tile; a work unit is a main loop and what
            # follows. All warpgroups read every ticket, but only one executes a work unit. So the
            # operations that read the ticket are kept out of the work unit.
            lowered = self.turns.assign(self.tickets.apart(lowered, "consumers"))
        lowered = self.tickets.followed(lowered)
        for counting in filter(None, (self.turns, self.sum)):
            lowered = (counting.counted(lowered),)
        return lowered

    def receive(self, slots: For) -> Body:
        """The producer's operations that load partial sums; `slots` loops over workspace slots."""
        (receive,) = slots.body
        assert isinstance(receive, ReceivePartial | CollectPartial)
        part = self.parts[receive.accumulator]
        assert part.fixup is not None
        return part.of_sum(part.fixup.load(slots))

    def load_operands(self, op: Epilogue) -> Body:
        """The producer's operations that load operands of an epilogue."""
        boxes = self.parts[op.accumulator].boxes
        return boxes.load(op) if boxes else ()

    def initial(self) -> Body:
        """Initialise the consumers' mbarriers; one thread does so at the start of the kernel."""
        return tuple(op for part in (self.turns, self.sum) if part for op in part.initial())

    def end(self) -> Body:
        """Wait before the kernel ends until TMA has read all of D from shared memory.

        The exit of a workgroup frees its shared memory.
        """
        if not self.stores:
            return ()
        return (If(equal(self.division.thread, 0), (WaitStores(0),)),)

    def _lower(self, op: Operation) -> Operation | Body:
        """Lower one operation on tiles; return any other operation unchanged."""
        match op:
            case InitAccumulator():
                # The first wgmma of a tile overwrites its accumulator, so zeroing is superfluous.
                # But ptxas may keep the last share of a reduce-scatter in the accumulator registers
                # until that wgmma, and then serialises wgmma (warning C7515), unless it is zeroed.
                part = self.parts[op.accumulator]
                return part.accumulator.zero() if part.scatter and part.located else ()
            case For() if accumulates(op):
                return self._accumulate(op, self.parts[multiplied(op).accumulator])
            case For(body=(ReceivePartial(accumulator=name) | CollectPartial(accumulator=name),)):
                part = self.parts[name]
                assert part.fixup is not None
                return part.of_sum(part.fixup.add_up(op, self._free))
            case Locate():
                return _defer_lookups(op)
            case SendPartial() | AccumulatePartial():
                part = self.parts[op.accumulator]
                assert part.fixup is not None
                return part.of_sum(part.fixup.send(op))
            case Epilogue():
                part = self.parts[op.accumulator]
                if part.boxes:
                    body = part.boxes.apply(
                        part.accumulator, op, part.width, self._free, part.absent
                    )
                    return part.rows.around(op, body)
                return part.of_sum(part.rows.around(op, part.epilogue(part.accumulator, op)))
            case StoreTile():
                part = self.parts[op.accumulator]
                if part.store:
                    return part.of_sum(part.store.store(self.c))
                return part.of_sum(
                    (part.accumulator.store_output(part.gemm, op.tensor, part.width),)
                )
            case _:
                return op

    def _accumulate(self, loop: For, part: _TileLowering) -> Body:
        """The main loop: wait for a full stage, multiply its tiles by wgmma, free the stage."""
        own, accumulator = part.own, part.multiply.accumulator
        first = And(equal(loop.symbol, 0), equal(index_symbol(own("fragment.k")), 0))
        multiply = replace(part.multiply, fresh=first)
        every = (own("fragment.k"), own("acc.m"), own("acc.p"))
        body = (
            WaitBarrier(FULL, PHASE),
            *part.tails.clear(loop),
            FenceMultiplies(accumulator),
            unrolled(self.c, every, at(part.begin, multiply)),
            CommitMultiplies(),
            WaitMultiplies(1, accumulator),
            If(Gt(loop.symbol, 0), (self._free(),)),
            Advance(STEP),
        )
        end = (WaitMultiplies(0, accumulator), self._free())
        return (replace(loop, body=body), *end, *(part.sum.add_up() if part.sum else ()))

    def _free(self) -> Operation:
        """Signal to all workgroups of the cluster that the stage of the previous step is free.

        If a cluster divides both m and n, workgroups in other rows and columns of the cluster load
        nothing into the stage, but they get the signal, too. The reason is a workgroup whose boxes
        are all outside A and B, so that it waits for no data. If it did not wait for the signals of
        all other workgroups, it could signal the next round of the ring before they signal this
        one.
        """
        sharers = self.division.workgroups // self.division.split
        thread = self.division.thread
        # The stage of the previous step is (step - 1) mod stages. `stages - 1` is added instead of
        # -1, so that step 0 gives no negative number.
        step = index_symbol(STEP) + (self.stages - 1)
        arrive = ArriveBarrier(EMPTY, thread if sharers > 1 else None)
        return If(Lt(thread, sharers), (SetCoordinate(STEP, step, (arrive,)),))


def _defer_lookups(op: Locate) -> Body:
    """Change `op` so that coordinates for the epilogue are computed after the last main loop.

    Coordinates for the epilogue are those that only operations after the main loop read. After the
    loop, their computation overlaps with the last wgmma instructions. Before the loop, their
    computation would delay the loop, and the results would take registers. Coordinates that the
    main loop itself reads, such as its bounds, are still computed before the loop.
    """
    loops = [place for place, inner in enumerate(op.body) if multiplies(inner)]
    after = loops[-1] + 1 if loops else 0
    before, behind = op.body[:after], op.body[after:]
    needed = tuple(dim for dim in op.dims if any(_reads(inner, (dim,)) for inner in before))
    if len(needed) == len(op.dims):
        return (op,)
    at_once = tuple(read for read in op.reads if any(_holds(inner, read) for inner in before))
    others = tuple(dim for dim in op.dims if dim not in needed)
    late = tuple(read for read in op.reads if read not in at_once)
    found = replace(op, dims=others, reads=late, body=behind)
    if not needed:
        return (*before, found)
    return (replace(op, dims=needed, reads=at_once, body=(*before, found)),)


def _holds(op: Operation, part: Expr) -> bool:
    """Whether `part` occurs in an expression of `op`, or of an operation in its bodies."""
    values = (value for inner in op.walk() for value in inner.details.values())
    return any(isinstance(value, Basic) and value.has(part) for value in values)


def _reads(op: Operation, dims: tuple[str, ...]) -> bool:
    """Whether an expression of `op`, or of an operation in its bodies, reads an index of `dims`."""
    names = {index_symbol(dim) for dim in dims}
    return any(
        isinstance(value, Basic) and names & symbols_of(value)
        for inner in op.walk()
        for value in inner.details.values()
    )


class _TileLowering:
    """Lowers the operations that consumer warpgroups execute on tiles of one shape."""

    def __init__(
        self,
        c: CoordinateEditor,
        graph: KernelGraph,
        tile: DividedTile,
        stages: int,
        vector: int,
        reads_c: bool,
        boxes: bool,
        located: tuple[str, ...],
    ) -> None:
        division, operands = tile.division, tile.operands
        self.own, self.store, self.reads_c = division.tiling.own, tile.store, reads_c
        self.located, self.gemm = located, graph.gemm
        self.accumulator = add_accumulator(c, graph.gemm, division)
        self.rows = RowReductions(
            c, graph.gemm, division.tiling, division.row_layout, division.barrier
        )
        self.sum = ClusterSum(c, division) if division.split > 1 else None
        control = graph.control
        sends = (*control.of_kind(SendPartial), *control.of_kind(AccumulatePartial))
        partials = any(op.accumulator == tile.name for op in sends)
        scattered = SHARE in c
        self.fixup = Fixup(c, division, tile.rooms, stages) if partials and not scattered else None
        boxed = loaded_by_boxes(graph, division) if tile.store and boxes and not scattered else ()
        self.boxes = OperandBoxes(c, graph, division, tile.rooms, stages, boxed) if boxed else None
        # The two adjacent accumulators of a thread are adjacent in a row of D only if A is the left
        # operand of wgmma.
        self.width = 1 if division.swapped else vector
        self.scatter = (
            scatter(c, self.gemm, division, self.epilogue, self.width, len(main_loops(graph)))
            if scattered
            else None
        )
        left, right = reversed(operands) if division.swapped else operands
        self.begin = {
            **left.descriptor(c, (*division.warpgroups(division.left), self.own("acc.m"))),
            **right.descriptor(c, (*division.warpgroups(division.right), self.own("acc.p"))),
        }
        self.tails = Tails(c, division, operands, located)
        n = division.columns
        self.multiply = MultiplyShared(
            left.shared,
            right.shared,
            tile.name,
            (self.own("acc.m"), self.own("acc.p")),
            f"wgmma.m64n{n}k{division.instruction.depth}.{division.instruction.kind}",
            n // 2,
            left.strides(c),
            right.strides(c),
            (left.row_bytes(c), right.row_bytes(c)),
            transpose_a=not left.along_k,
            transpose_b=not right.along_k,
        )

    def epilogue(self, accumulator: Accumulator, op: Epilogue) -> Body:
        """Lower the epilogue `op`, which is applied to the registers of `accumulator`."""
        return accumulator.epilogue(self.gemm, op, self.width, self.absent)

    @property
    def absent(self) -> tuple[str, ...]:
        """The names of tensors of optional operands that no launch of this kernel passes."""
        return () if self.reads_c else ("C",)

    def of_sum(self, body: Body) -> Body:
        """Operations by which only workgroups that have the whole sum over k execute `body`.

        If a cluster divides k, its workgroup of rank 0 has the whole sum; else every workgroup has
        the whole sum of its own part of the tile.
        """
        return self.sum.by_first(body) if self.sum else body
