"""`LowerToHopper`: a scheduled graph for TMA, mbarrier rings, warp roles and wgmma (sm_90a)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sympy import And, Gt, Integer, Lt

from coordgraph import KernelGraph
from coordgraph.control.asynchronous import (
    Advance,
    ArriveBarrier,
    CommitMultiplies,
    Counter,
    ExpectBytes,
    FenceMultiplies,
    InitBarrier,
    MultiplyShared,
    PublishBarriers,
    SetRegisters,
    WaitBarrier,
    WaitMultiplies,
)
from coordgraph.control.graph import rewrite
from coordgraph.control.lowered import Barrier
from coordgraph.control.operations import (
    Body,
    Epilogue,
    For,
    If,
    InitAccumulator,
    Operation,
    ReceivePartial,
    Scope,
    SendPartial,
    SetCoordinate,
    StoreTile,
    accumulates,
)
from coordgraph.coordinates.dimensions import Register
from coordgraph.coordinates.graph import CoordinateEditor
from coordgraph.integers import equal, floor_mod, index_symbol
from coordgraph.tensors import dtype
from passes.base import Pass
from passes.lowering.control import Accumulator, at, leader, unrolled
from passes.lowering.hopper.boxes import BOX, MMA_K, BoxedOperand
from passes.lowering.hopper.ring import EMPTY, FULL, PHASE, STEP, add_ring
from passes.lowering.hopper.roles import part
from passes.lowering.hopper.warpgroups import MMA_M, PRODUCER_REGISTERS, Consumers
from passes.lowering.machine import cuda_machine
from passes.lowering.staging import OUTPUTS

__all__ = ["LowerToHopper"]

LEAST_STAGES, MOST_STAGES = 2, 8
MOST_ACCUMULATORS = {2: 128, 4: 96}
"""Registers of a thread, by the bytes of an element of C: its loads need some of their own."""
PAIR = 2
"""Elements that C and D are moved by; their rows must be multiples of it."""
BARRIER_BYTES = 2048
"""Room for the two rows of barriers, each aligned as tiles are."""


@dataclass(frozen=True)
class LowerToHopper(Pass):
    """One producer warpgroup feeds a ring of TMA boxes; two consumer warpgroups multiply them.

    Before: `LoadTile`, `MultiplyAccumulate` and `StoreTile` on macro tiles. After: two roles that
    walk the same schedule, tied by barriers whose stage and phase are coordinates.

    Args:
        architecture: `sm_90a`.
        stages: tiles in flight; 0 takes as many as fit.
    """

    architecture: str = "sm_90a"
    stages: int = 0

    name = "lower-to-hopper"
    requires = ("scheduled",)
    establishes = ("lowered",)

    def why_not(self, graph: KernelGraph) -> str | None:
        gemm = graph.gemm
        if self.architecture != "sm_90a":
            return f"wgmma is there on sm_90a only, not on {self.architecture}"
        if gemm.dtype not in ("bf16", "f16"):
            return f"wgmma multiplies bf16 and f16 here, not {gemm.dtype}"
        if gemm.out_dtype not in OUTPUTS:
            return f"C and D may be {', '.join(OUTPUTS)} here, not {gemm.out_dtype}"
        m, n, k = graph.macro_tile
        if m not in (128, 256) or n % BOX or n > 256 or k != BOX:
            return (
                f"the tile {m}x{n}x{k} must be 128 or 256 in m, 64, 128, 192 or 256 in n, "
                f"and {BOX} in k"
            )
        most = MOST_ACCUMULATORS[dtype(gemm.out_dtype or gemm.dtype).bytes]
        if m * n // (128 * 2) > most:
            return (
                f"the output tile {m}x{n} of {gemm.out_dtype} does not fit the registers of two "
                "warpgroups; make it smaller"
            )
        if self._stages(graph) < LEAST_STAGES:
            return f"stages={self.stages} is too few: a ring needs {LEAST_STAGES}"
        return None

    def _stages(self, graph: KernelGraph) -> int:
        m, n, k = graph.macro_tile
        tile_bytes = (m + n) * k * dtype(graph.gemm.dtype).bytes
        room = cuda_machine(self.architecture).shared_bytes - BARRIER_BYTES
        return min(room // tile_bytes, self.stages or MOST_STAGES)

    def apply(self, graph: KernelGraph) -> KernelGraph:
        gemm, consumers = graph.gemm, Consumers(2)
        a = BoxedOperand("A", *((1, 0) if gemm.transpose_a else (0, 1)))
        b = BoxedOperand("B", *((1, 0) if gemm.transpose_b else (0, 1)))
        element = dtype(gemm.dtype).bytes
        with graph.edit(str(self)) as e:
            e.level = "lowered"
            c = e.coordinates
            tile_bytes = (a.elements(c) + b.elements(c)) * element
            stages = self._stages(graph)
            consumers.add(c)
            add_ring(c, stages)
            a.stage(c, stages)
            b.stage(c, stages)
            accumulator = consumers.add_accumulator(c)
            c.add(Register("fragment.k", Integer(c["A.index.1"].fixed_size // MMA_K)))
            copies = (a.copies(c), b.copies(c))
            multiply = _multiply(c, a, b, gemm.dtype)
            work = _Consumer(c, accumulator, multiply, stages)
            body = graph.control.root.body
            produce = part(body, lambda loop: (_load(loop, copies, tile_bytes),))
            consume = tuple(new for op in body for new in work.lower(op))
            e.kernel(
                *_set_up(stages, consumers.count),
                If(
                    Lt(index_symbol("workitem"), consumers.workitems),
                    (
                        SetRegisters(consumers.registers, grow=True),
                        Counter(STEP, (Scope("consumers", consume),)),
                    ),
                    (
                        SetRegisters(PRODUCER_REGISTERS, grow=False),
                        If(
                            equal(index_symbol("workitem"), consumers.workitems),
                            (Counter(STEP, (Scope("producer", produce),)),),
                        ),
                    ),
                ),
                workgroup=graph.control.root.workgroup,
            )
        return e.graph


def _set_up(stages: int, consumers: int) -> Body:
    """One workitem initialises the barriers; then everybody may wait."""
    init = tuple(
        SetCoordinate("stage", Integer(stage), (InitBarrier(name, count),))
        for stage in range(stages)
        for name, count in ((FULL, 1), (EMPTY, consumers))
    )
    return (leader(*init, PublishBarriers()), Barrier())


def _load(loop: For, copies: Body, tile_bytes: int) -> For:
    """The producer's loop: wait until a stage is free, then fill it."""
    return loop.with_body(  # type: ignore[return-value]
        WaitBarrier(EMPTY, PHASE, before=True),
        ExpectBytes(FULL, tile_bytes),
        *copies,
        Advance(STEP),
    )


def _multiply(c: CoordinateEditor, a: BoxedOperand, b: BoxedOperand, kind: str) -> MultiplyShared:
    """The matrix instruction, and where its operands begin."""
    n = c["D.index.1"].fixed_size
    return MultiplyShared(
        a.shared,
        b.shared,
        "acc",
        ("acc.m",),
        f"wgmma.m64n{n}k16.{kind}",
        n // 2,
        a.strides(c),
        b.strides(c),
        transpose_a=not a.along_k,
        transpose_b=not b.along_k,
    )


class _Consumer:
    """The consumers' share of the control graph."""

    def __init__(
        self,
        c: CoordinateEditor,
        accumulator: Accumulator,
        multiply: MultiplyShared,
        stages: int,
    ) -> None:
        self.c, self.accumulator, self.stages = c, accumulator, stages
        self.multiply = multiply
        a = BoxedOperand("A", *((1, 0) if multiply.transpose_a else (0, 1)))
        b = BoxedOperand("B", *((0, 1) if multiply.transpose_b else (1, 0)))
        self.begin = {
            **a.descriptor(c, ("warpgroup", "acc.m"), MMA_M),
            **b.descriptor(c, (), c["D.index.1"].fixed_size),
        }

    def lower(self, op: Operation) -> Body:
        """Rewrite one operation of the schedule and all below it."""
        return rewrite(op, self._lower)

    def _lower(self, op: Operation) -> Operation | Body:
        match op:
            case InitAccumulator():
                return ()  # the first multiplication of a tile overwrites
            case For() if accumulates(op):
                return self._accumulate(op)
            case SendPartial():
                return self.accumulator.send()
            case ReceivePartial():
                return self.accumulator.receive()
            case Epilogue():
                return self.accumulator.epilogue(op.tensor, PAIR)
            case StoreTile():
                return (self.accumulator.store(op.tensor, PAIR),)
            case _:
                return op

    def _accumulate(self, loop: For) -> Body:
        """Multiply as stages fill; free a stage once the multiplications on it have ended."""
        first = And(equal(loop.symbol, 0), equal(index_symbol("fragment.k"), 0))
        multiply = replace(self.multiply, fresh=first)
        body = (
            WaitBarrier(FULL, PHASE),
            FenceMultiplies(),
            unrolled(self.c, ("fragment.k", "acc.m"), at(self.begin, multiply)),
            CommitMultiplies(),
            WaitMultiplies(1),
            If(Gt(loop.symbol, 0), (self._free(),)),
            Advance(STEP),
        )
        return (loop.with_body(*body), WaitMultiplies(0), self._free())

    def _free(self) -> Operation:
        """One workitem of each warpgroup gives back the stage of the step before."""
        step = index_symbol(STEP) + (self.stages - 1)  # the same stage, and never negative
        one = equal(floor_mod(index_symbol("workitem"), 128), 0)
        return If(one, (SetCoordinate(STEP, step, (ArriveBarrier(EMPTY),)),))
