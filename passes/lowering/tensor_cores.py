"""`LowerToTensorCores`: a scheduled graph for cp.async, ldmatrix and mma.sync (sm_80 and later)."""

from __future__ import annotations

from dataclasses import dataclass

from coordgraph import KernelGraph
from coordgraph.control.graph import rewrite
from coordgraph.control.operations import (
    AccumulatePartial,
    Body,
    CollectPartial,
    Epilogue,
    For,
    InitAccumulator,
    Operation,
    ReceivePartial,
    SendPartial,
    StoreTile,
    accumulates,
)
from coordgraph.gemm import TENSORS, Gemm
from coordgraph.integers import index_symbol
from coordgraph.tensors import dtype
from coordgraph.tilings import Tiling, Tilings
from passes.base import Pass
from passes.lowering.control import NOTHING, Accumulator, multiplied
from passes.lowering.fragments import LANES, MMA_K, MMA_M, PAIR_N, choose_warps
from passes.lowering.machine import cuda_machine
from passes.lowering.pipeline import add_ring, pipelined
from passes.lowering.scatter import ScatterLowering
from passes.lowering.staging import CHUNK, OUTPUTS, Operand
from passes.lowering.tables import add_tables, table_bytes
from passes.scatter import SHARE

__all__ = ["LowerToTensorCores"]

MOST_STAGES = 4
PAIR = 2
"""Elements of C and D that lie side by side in a thread."""


@dataclass(frozen=True)
class LowerToTensorCores(Pass):
    """Stage tiles through swizzled shared memory in a ring, multiply with mma.sync.m16n8k16.

    Before: `LoadTile`, `MultiplyAccumulate` and `StoreTile` on macro tiles. After: tile positions
    are tied to copies, shared memory, warps, lanes and registers, and the operations are those of
    one workitem.

    Args:
        architecture: `sm_80`, `sm_90a`, …; decides how many stages fit in shared memory.
        vector_a, vector_b: elements that A and B are copied by: 8, 4, 2 or 1. Their contiguous
            extents and addresses must be multiples of it. Where groups part a contiguous axis its
            elements are copied one by one.
        vector_d: the same for C and D: 2 or 1.
        stages: tiles in flight; 0 takes as many as fit, four at most.
    """

    architecture: str = "sm_80"
    vector_a: int = CHUNK
    vector_b: int = CHUNK
    vector_d: int = PAIR
    stages: int = 0

    name = "lower-to-tensor-cores"
    requires = ("scheduled",)
    establishes = ("lowered",)

    def why_not(self, graph: KernelGraph) -> str | None:
        gemm = graph.gemm
        if not graph.tilings:
            return NOTHING
        if gemm.dtype not in ("bf16", "f16"):
            return f"mma.sync multiplies bf16 and f16 here, not {gemm.dtype}; use target='cpu'"
        if gemm.out_dtype not in OUTPUTS:
            return f"C and D may be {', '.join(OUTPUTS)} here, not {gemm.out_dtype}"
        for m, n, k in (tiling.shape for tiling in graph.tilings):
            if m % MMA_M or n % PAIR_N or k % MMA_K:
                return (
                    f"the tile {m}x{n}x{k} must be a multiple of {MMA_M}x{PAIR_N}x{MMA_K}, "
                    "as in Gemm.graph(tile=(128, 128, 32))"
                )
        if why := _no_warps(graph.tilings):
            return why
        for name, most in (("vector_a", CHUNK), ("vector_b", CHUNK), ("vector_d", PAIR)):
            if (vector := getattr(self, name)) not in (1, 2, 4, 8) or vector > most:
                return f"{name}={vector} must be a power of two, at most {most}"
        if self.stages < 0 or self.stages == 1:
            return f"stages={self.stages} is too few: a pipeline needs 2"
        if self._stages(graph) < 2:
            tiles = " and ".join("x".join(map(str, tiling.shape)) for tiling in graph.tilings)
            return f"two stages of the tile {tiles} do not fit {self.architecture}'s shared memory"
        return None

    def _stages(self, graph: KernelGraph) -> int:
        """How many fit; each has room for the largest tile of A and of B."""
        shapes = [tiling.shape for tiling in graph.tilings]
        rows, columns = max(m * k for m, _, k in shapes), max(n * k for _, n, k in shapes)
        room = cuda_machine(self.architecture).shared_bytes - table_bytes(graph)
        fit = room // ((rows + columns) * dtype(graph.gemm.dtype).bytes)
        return min(fit, self.stages or MOST_STAGES)

    def apply(self, graph: KernelGraph) -> KernelGraph:
        grids, gemm, stages = choose_warps(graph.tilings), graph.gemm, self._stages(graph)
        reduction = cuda_machine(self.architecture).reduction
        operands = [_operands(gemm, tiling) for tiling in graph.tilings]
        with graph.edit(str(self)) as e:
            e.level = "lowered"
            c = e.coordinates
            for grid in grids.values():
                grid.add(c)
            add_ring(c, _accumulation_loops(graph), stages)
            parts: dict[str, _Part] = {}
            rooms = [max(x.elements(c) for x in same) for same in zip(*operands, strict=True)]
            for (name, grid), (a, b) in zip(grids.items(), operands, strict=True):
                for operand, room in zip((a, b), rooms, strict=True):
                    operand.stage(c, stages, room)
                copies = (
                    a.copy(c, grid.workitems, _vector(gemm, a, self.vector_a)),
                    b.copy(c, grid.workitems, _vector(gemm, b, self.vector_b)),
                )
                accumulator = grid.add_fragments(c, a, b)
                parts[name] = _Part(accumulator, copies, grid.multiply(c, a, b, gemm.dtype))

            def lower(op: Operation) -> Operation | Body:
                match op:
                    case InitAccumulator():
                        return parts[op.accumulator].accumulator.zero()
                    case For() if accumulates(op):
                        part = parts[multiplied(op).accumulator]
                        return pipelined(c, op, part.copies, part.multiply)
                    case SendPartial() | ReceivePartial() | AccumulatePartial() | CollectPartial():
                        return _exchanged(op, parts[op.accumulator].accumulator, reduction)
                    case Epilogue() | StoreTile():
                        return _after(op, parts[op.accumulator].accumulator, self.vector_d)
                    case _:
                        return op

            tables, body = add_tables(c, graph), graph.control.root.body
            if SHARE in c:
                ((name, grid),) = grids.items()  # tiles that are shared have one shape
                whole, share = parts[name].accumulator, grid.add_shares(c)
                scatter = ScatterLowering(
                    c,
                    share,
                    share.add("partials", PAIR),
                    index_symbol("workitem"),
                    grid.workitems,
                    whole.barrier,
                    whole.store("partials", PAIR),
                    lambda op: _after(op, share, self.vector_d),
                )
                body = scatter.lower(body)
            body = tuple(new for op in body for new in rewrite(op, lower))
            e.kernel(*tables, *body, workgroup=graph.control.root.workgroup)
        return e.graph


@dataclass(frozen=True)
class _Part:
    """What the operations on tiles of one shape become."""

    accumulator: Accumulator
    copies: Body
    multiply: Body


def _vector(gemm: Gemm, operand: Operand, most: int) -> int:
    """Elements that are copied at once: where groups part a contiguous axis they begin anywhere.

    Where every group has a matrix of its own, rows begin at multiples of a step. What fills them
    up must not be added along k; along m and n it comes to nothing that is stored.
    """
    axis = TENSORS[operand.tensor][operand.column_axis]
    return 1 if gemm.ragged(axis) and (axis == "k" or not gemm.diagonal) else most


def _operands(gemm: Gemm, tiling: Tiling) -> tuple[Operand, Operand]:
    a = Operand("A", *((1, 0) if gemm.transpose_a else (0, 1)), tiling)
    b = Operand("B", *((1, 0) if gemm.transpose_b else (0, 1)), tiling)
    return a, b


def _no_warps(tilings: Tilings) -> str | None:
    """Why the warps of a workgroup cannot divide every tile, or None."""
    grids = choose_warps(tilings)
    for tiling in tilings:
        m, n, _ = tiling.shape
        if not grids:
            return (
                f"the output tile {m}x{n} does not fit the registers of the warps that it can be "
                "parted into; make it smaller, or its extents multiples of 64"
            )
        if tiling.accumulator not in grids:
            warps = next(iter(grids.values())).workitems // LANES
            return (
                f"the output tile {m}x{n} cannot be parted into {warps} warps, which the largest "
                f"tile has, in blocks of {MMA_M}x{PAIR_N}; choose extents that are multiples of 64"
            )
    return None


def _exchanged(
    op: SendPartial | ReceivePartial | AccumulatePartial | CollectPartial,
    accumulator: Accumulator,
    reduction: str,
) -> Body:
    """What brings pieces of a tile together; `reduction` is the machine's form of additions."""
    match op:
        case SendPartial():
            return accumulator.send(op.turn)
        case ReceivePartial():
            return accumulator.receive(op.turn)
        case AccumulatePartial():
            return accumulator.add_to(reduction)
        case CollectPartial():
            return accumulator.collect(op)


def _after(op: Operation, accumulator: Accumulator, width: int) -> Operation | Body:
    """What follows a product, on the registers of an accumulator."""
    match op:
        case Epilogue():
            return accumulator.epilogue(op.tensor, width)
        case StoreTile():
            return (accumulator.store(op.tensor, width),)
        case _:
            return op


def _accumulation_loops(graph: KernelGraph) -> tuple[str, ...]:
    loops = (op.dim for op in graph.control.of_kind(For) if accumulates(op))
    return tuple(dict.fromkeys(loops))
