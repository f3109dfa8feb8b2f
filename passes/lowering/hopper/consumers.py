"""The consumers' share of the control graph: what becomes of each operation on tiles."""

from __future__ import annotations

from dataclasses import replace

from sympy import And, Gt, Lt

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
    Body,
    Epilogue,
    For,
    If,
    InitAccumulator,
    Operation,
    ReceivePartial,
    SendPartial,
    SetCoordinate,
    StoreTile,
    accumulates,
)
from coordgraph.coordinates.graph import CoordinateEditor
from coordgraph.integers import equal, index_symbol
from passes.lowering.control import Accumulator, at, unrolled
from passes.lowering.hopper.boxes import BoxedOperand
from passes.lowering.hopper.division import Division
from passes.lowering.hopper.partials import Fixup
from passes.lowering.hopper.ring import EMPTY, FULL, PHASE, STEP
from passes.lowering.hopper.scatter import scatter
from passes.lowering.hopper.stores import BoxedStore
from passes.lowering.hopper.turns import Turns
from passes.lowering.hopper.warpgroups import ClusterSum, add_accumulator
from passes.scatter import SHARE

__all__ = ["Consumer"]

PAIR = 2
"""Accumulators next to each other along the right operand's columns."""


class Consumer:
    """Lowers the schedule for the warpgroups that multiply.

    Args:
        c: the coordinates being built.
        graph: the scheduled graph.
        division: of a macro tile.
        operands: A and B.
        stages: of the ring.
        store: D's way through shared memory, or None to store it from registers.
        vector: elements of C and D that may be moved at once.
        reads_c: the epilogue adds C where a launch gives it.
    """

    def __init__(
        self,
        c: CoordinateEditor,
        graph: KernelGraph,
        division: Division,
        operands: tuple[BoxedOperand, BoxedOperand],
        stages: int,
        store: BoxedStore | None,
        vector: int,
        reads_c: bool,
    ) -> None:
        self.c, self.division, self.stages, self.store = c, division, stages, store
        self.reads_c = reads_c
        self.accumulator = add_accumulator(c, division)
        self.sum = ClusterSum(c, division) if division.split > 1 else None
        partials = any(t.name == "partials" for t in graph.tensors)
        scattered = SHARE in c
        self.fixup = Fixup(c, division, operands, stages) if partials and not scattered else None
        self.turns = Turns(c, division) if division.turns > 1 else None
        # A pair of accumulators lies along D's rows only where A is the left operand.
        self.width = 1 if division.swapped else min(vector, PAIR)
        self.scatter = scatter(c, division, self._epilogue, self.width) if scattered else None
        left, right = reversed(operands) if division.swapped else operands
        self.begin = {
            **left.descriptor(c, (*division.warpgroups(division.left), "acc.m")),
            **right.descriptor(c, (*division.warpgroups(division.right), "acc.p")),
        }
        n = division.columns
        self.multiply = MultiplyShared(
            left.shared,
            right.shared,
            "acc",
            ("acc.m", "acc.p"),
            f"wgmma.m64n{n}k16.{graph.gemm.dtype}",
            n // 2,
            left.strides(c),
            right.strides(c),
            (left.row_bytes(c), right.row_bytes(c)),
            transpose_a=not left.along_k,
            transpose_b=not right.along_k,
        )

    def all(self, body: Body) -> Body:
        """The consumers' share of a whole body."""
        if self.scatter:
            body = self.scatter.lower(body, self._of_sum)
        lowered = tuple(new for op in body for new in rewrite(op, self._lower))
        if self.turns:
            lowered = self.turns.share_out(lowered)
        for counting in filter(None, (self.turns, self.sum)):
            lowered = (counting.counted(lowered),)
        return lowered

    def receive(self, slots: For) -> Body:
        """The producer's share of receiving partials."""
        assert self.fixup is not None
        return self._of_sum(self.fixup.load(slots))

    def initial(self) -> Body:
        """What one workitem does before all others begin."""
        return tuple(op for part in (self.turns, self.sum) if part for op in part.initial())

    def end(self) -> Body:
        """Shared memory is let go only when the copy engine has read it."""
        if self.store is None:
            return ()
        return (If(equal(self.division.thread, 0), (WaitStores(0),)),)

    def _lower(self, op: Operation) -> Operation | Body:
        match op:
            case InitAccumulator():
                return ()  # the first multiplication of a tile overwrites
            case For() if accumulates(op):
                return self._accumulate(op)
            case For(body=(ReceivePartial(),)) if self.fixup:
                return self._of_sum(self.fixup.add_up(op, self._free))
            case SendPartial() if self.fixup:
                return self._of_sum(self.fixup.send(op.turn))
            case Epilogue():
                return self._of_sum(self._epilogue(self.accumulator, op.tensor))
            case StoreTile() if self.store:
                return self._of_sum(self.store.store(self.c))
            case StoreTile():
                return self._of_sum((self.accumulator.store(op.tensor, self.width),))
            case _:
                return op

    def _epilogue(self, accumulator: Accumulator, tensor: str) -> Body:
        if not self.reads_c:
            return (accumulator.scale("alpha"),)
        return accumulator.epilogue(tensor, self.width)

    def _of_sum(self, body: Body) -> Body:
        """What is done with the whole sum over k."""
        return self.sum.by_first(body) if self.sum else body

    def _accumulate(self, loop: For) -> Body:
        """Multiply as stages fill; free a stage once the multiplications on it have ended."""
        first = And(equal(loop.symbol, 0), equal(index_symbol("fragment.k"), 0))
        multiply = replace(self.multiply, fresh=first)
        body = (
            WaitBarrier(FULL, PHASE),
            FenceMultiplies(),
            unrolled(self.c, ("fragment.k", "acc.m", "acc.p"), at(self.begin, multiply)),
            CommitMultiplies(),
            WaitMultiplies(1),
            If(Gt(loop.symbol, 0), (self._free(),)),
            Advance(STEP),
        )
        end = (WaitMultiplies(0), self._free())
        return (replace(loop, body=body), *end, *(self.sum.add_up() if self.sum else ()))

    def _free(self) -> Operation:
        """Each warpgroup gives back the stage of the step before, to everybody who fills it."""
        sharers = self.division.workgroups // self.division.split
        thread = self.division.thread
        step = index_symbol(STEP) + (self.stages - 1)  # the same stage, and never negative
        arrive = ArriveBarrier(EMPTY, thread if sharers > 1 else None)
        return If(Lt(thread, sharers), (SetCoordinate(STEP, step, (arrive,)),))
