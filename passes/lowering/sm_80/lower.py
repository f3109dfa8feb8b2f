"""`LowerToTensorCores`: lowers a graph to cp.async, ldmatrix and mma.sync (sm_80 and later)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from math import gcd

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
from coordgraph.control.tickets import DynamicFor
from coordgraph.elements import WARP_MMA, dtype
from coordgraph.gemm import TENSORS, GemmProblem
from coordgraph.integers import index_symbol
from coordgraph.tilings import Tiling, Tilings
from passes.base import Pass
from passes.kit.reduce_scatter import SHARE
from passes.kit.tile_work import main_loops
from passes.lowering.architectures import architecture_of
from passes.lowering.control import NOTHING, Accumulator, leader, multiplied, no_epilogue
from passes.lowering.derived_tables import add_tables, table_bytes
from passes.lowering.multiplying import no_instruction
from passes.lowering.parts import ordered_columns, too_many_sums
from passes.lowering.row_reductions import RowReductions, exchange_bytes
from passes.lowering.share_lowering import ScatterLowering
from passes.lowering.sm_80.fragments import (
    EIGHTH,
    LANES,
    MMA_M,
    MOST_WARPS,
    PAIR_N,
    choose_warps,
    depth_of,
    most_accumulators,
    order_of_sums,
    warps_of,
)
from passes.lowering.sm_80.software_pipeline import add_ring, pipelined
from passes.lowering.sm_80.staging import Operand
from passes.lowering.ticket_exchange import (
    fetched,
    no_dynamic_loop,
    passed_by_barrier,
    taken_by,
)

__all__ = ["LowerToTensorCores"]

MOST_STAGES = 4
"""Largest number of stages of the shared-memory ring if the option `stages` is 0."""
ROUND = 64
"""An error message proposes a tile whose extents are multiples of ROUND, or powers of two below
it."""
PAIR = 2
"""Number of adjacent elements of a row of D that a thread holds in a fragment of `mma.sync`."""
SHARED_ALIGN = 1024
"""The alignment of tiles in shared memory, in bytes."""


@dataclass(frozen=True)
class LowerToTensorCores(Pass):
    """Stage tiles through swizzled shared memory in a ring, multiply with mma.sync.m16n8.

    Before: `LoadTile`, `MultiplyAccumulate` and `StoreTile` on macro tiles. After: operations of a
    single workitem (a CUDA thread), and edges of the coordinate graph that map positions in tiles
    to copies, shared memory, warps, lanes and registers.

    Args:
        architecture: name of the architecture, such as `sm_80`; its shared memory limits the number
            of stages.
        vector_a, vector_b: number of elements of A and of B that one copy moves: a power of two, at
            most 16 bytes; 0 means 16 bytes. The tensor's contiguous extent and address must be
            multiples of this number of elements. If groups divide a tensor's contiguous axis, its
            elements are copied one by one.
        vector_d: number of elements of C and of D that one access moves: 2 or 1; 0 means 2.
        stages: number of stages of the ring, each of which holds a tile of A and one of B; 0 means
            as many as fit in shared memory, four at most.
    """

    architecture: str = "sm_80"
    vector_a: int = 0
    vector_b: int = 0
    vector_d: int = 0
    stages: int = 0

    name = "lower-to-tensor-cores"
    requires = ("scheduled",)
    establishes = ("lowered",)

    def why_not(self, graph: KernelGraph) -> str | None:
        gemm = graph.gemm
        if not graph.tilings:
            return NOTHING
        machine = architecture_of(self.architecture)
        if why := no_instruction(gemm, WARP_MMA, machine) or no_epilogue(graph, machine):
            return why
        if why := too_many_sums(gemm):
            return why
        if why := no_dynamic_loop(graph):
            return why
        kind = dtype(gemm.dtype)
        depth = depth_of(kind)
        for m, n, k in (tiling.summed for tiling in graph.tilings):
            if m % MMA_M or n % PAIR_N or k % depth:
                return (
                    f"the tile {m}x{n}x{k} must be a multiple of {MMA_M}x{PAIR_N}x{depth}, "
                    "as in Gemm.graph(tile=(128, 128, 32))"
                )
        if why := _no_warps(graph.tilings):
            return f"{why}{self._tile_that_works(graph)}"
        moves = (("vector_a", kind.chunk), ("vector_b", kind.chunk), ("vector_d", PAIR))
        for name, most in moves:
            vector = getattr(self, name)
            if not 0 <= vector <= most or vector & (vector - 1):
                return f"{name}={vector} must be a power of two, at most {most}; 0 means {most}"
        if self.stages < 0 or self.stages == 1:
            return (
                f"stages={self.stages} is too few: a pipeline needs 2; "
                "stages=0 means as many as fit"
            )
        if self._stages(graph) < 2:
            tiles = " and ".join("x".join(map(str, tiling.summed)) for tiling in graph.tilings)
            return (
                f"two stages of the tile {tiles} do not fit in {self.architecture}'s shared memory"
                f"{self._tile_that_works(graph)}"
            )
        return None

    def _tile_that_works(self, graph: KernelGraph) -> str:
        """The end of an error message: it names the largest accepted tile within the refused one.

        The candidates are made by rounding each extent down to a multiple of 64, or to a power of
        two below 64, and halving it repeatedly. If no candidate is accepted, the text says so. The
        text is '' for a graph with tiles of several shapes.
        """
        kind, shapes = dtype(graph.gemm.dtype), [tiling.summed for tiling in graph.tilings]
        if len(shapes) > 1:
            return ""
        (shape,) = shapes
        m, n, k = (
            _halves(extent, least)
            for extent, least in zip(shape, (MMA_M, PAIR_N, depth_of(kind)), strict=True)
        )
        tiles = sorted(product(m, n, k), key=lambda t: (-t[0] * t[1], -t[2], t[0] > t[1]))
        fit = (t for t in tiles if warps_of(*t[:2]) and self._stages(graph, [t]) >= 2)
        found = next(fit, None)
        if found is None:
            return "; no smaller tile fits either"
        return f"; the tile {'x'.join(map(str, found))} works"

    def _stages(self, graph: KernelGraph, shapes: list[tuple[int, int, int]] | None = None) -> int:
        """Number of stages that fit in shared memory, at most `stages` (4 if `stages` is 0).

        Each stage has room for the largest tile of A and the largest tile of B.

        Args:
            graph: the scheduled graph.
            shapes: extents of the tiles in m, n and k; None means the tile shapes of the graph.
        """
        shapes = shapes or [tiling.summed for tiling in graph.tilings]
        rows, columns = max(m * k for m, _, k in shapes), max(n * k for _, n, k in shapes)
        room = architecture_of(self.architecture).shared_bytes - table_bytes(graph)
        room -= max(_row_bytes(graph, m, n) for m, n, _ in shapes)
        # Shared memory for tickets (numbers of output tiles from a counter) lies before the first
        # tile, which is aligned to SHARED_ALIGN.
        room -= SHARED_ALIGN * (taken_by(graph) is not None)
        fit = room // ((rows + columns) * dtype(graph.gemm.dtype).bytes)
        return min(fit, self.stages or MOST_STAGES)

    def apply(self, graph: KernelGraph) -> KernelGraph:
        grids, gemm, stages = choose_warps(graph.tilings), graph.gemm, self._stages(graph)
        sums = dtype(gemm.accumulator)
        # `red.v4` and `red.v2` exist for floating-point types only (PTX ISA, "red").
        reduction = architecture_of(self.architecture).reduction if sums.is_float else "scalar"
        narrow = self.vector_d or PAIR
        part, inner = order_of_sums(gemm)
        with graph.edit(str(self)) as e:
            e.level = "lowered"
            c = e.coordinates
            tilings = [ordered_columns(c, tiling, inner) for tiling in graph.tilings]
            operands = [_operands(gemm, tiling) for tiling in tilings]
            grids = {t.accumulator: replace(grids[t.accumulator], tiling=t) for t in tilings}
            for grid in grids.values():
                grid.add(c)
            counters = add_ring(c, _accumulation_loops(graph), stages)
            parts: dict[str, _LoweredTile] = {}
            rooms = [max(x.elements(c) for x in same) for same in zip(*operands, strict=True)]
            for (name, grid), (a, b) in zip(grids.items(), operands, strict=True):
                for operand, room in zip((a, b), rooms, strict=True):
                    operand.stage(c, stages, room)
                copies = (
                    a.copy(c, grid.workitems, _vector(gemm, a, self.vector_a)),
                    b.copy(c, grid.workitems, _vector(gemm, b, self.vector_b)),
                )
                accumulator = grid.add_fragments(c, gemm, a, b, part)
                rows = RowReductions(c, gemm, grid.tiling, grid.row_layout, accumulator.barrier)
                parts[name] = _LoweredTile(accumulator, copies, grid.multiply(c, a, b), rows)

            def lower(op: Operation) -> Operation | Body:
                match op:
                    case InitAccumulator():
                        return parts[op.accumulator].accumulator.zero()
                    case For() if accumulates(op):
                        part = parts[multiplied(op).accumulator]
                        loop = replace(op, dim=counters[op.dim])
                        fetch = tuple(map(leader, fetched(taken_by(graph))))
                        return (*pipelined(c, loop, part.copies, part.multiply), *fetch)
                    case DynamicFor():
                        return passed_by_barrier(c, op)
                    case SendPartial() | ReceivePartial() | AccumulatePartial() | CollectPartial():
                        return _exchanged(op, parts[op.accumulator].accumulator, reduction)
                    case Epilogue() | StoreTile():
                        part = parts[op.accumulator]
                        after = _after(op, gemm, part.accumulator, narrow)
                        return part.rows.around(op, after) if isinstance(op, Epilogue) else after
                    case _:
                        return op

            tables, body = add_tables(c, graph), graph.control.root.body
            if SHARE in c:
                ((name, grid),) = grids.items()  # reduce-scatter needs tiles of a single shape
                whole, share = parts[name].accumulator, grid.add_shares(c, part)
                scatter = ScatterLowering(
                    c,
                    share,
                    share.add("partials", PAIR),
                    index_symbol("workitem"),
                    grid.workitems,
                    whole.barrier,
                    whole.store("partials", PAIR),
                    lambda op: _after(op, gemm, share, narrow),
                    len(main_loops(graph)),
                )
                body = scatter.lower(body)
            body = tuple(new for op in body for new in rewrite(op, lower))
            e.kernel(*tables, *body, workgroup=graph.control.root.workgroup)
        return e.graph


@dataclass(frozen=True)
class _LoweredTile:
    """The lowered operations on tiles of one shape.

    Args:
        accumulator: the registers that hold the sums of products.
        copies: the operations that copy one tile of A and one of B to shared memory.
        multiply: the operations that multiply the two tiles.
        rows: the reductions of rows of the output tile.
    """

    accumulator: Accumulator
    copies: Body
    multiply: Body
    rows: RowReductions


def _vector(gemm: GemmProblem, operand: Operand, most: int) -> int:
    """Number of elements of A or B that one copy moves.

    The number is `most`, or as many elements as 16 bytes hold if `most` is 0. But the number is 1
    if groups divide the tensor's contiguous axis, because a group may begin at any element. If each
    group is a separate matrix, its rows begin at aligned addresses and are padded. Then the number
    is 1 only if the contiguous axis is k: padding along k would be added to the sums, and padding
    along m or n affects only elements that are not stored.
    """
    axis = TENSORS[operand.tensor][operand.column_axis]
    cut = gemm.ragged(axis) and (axis == "k" or not gemm.diagonal)
    widest = most or operand.kind.chunk
    if axis == "n" and gemm.parts_in_rows:
        # 8 columns of B for one sum precede 8 for another sum, and blocks may be narrower
        widest = gcd(widest, EIGHTH, gemm.part_width)
    return 1 if cut else widest


def _operands(gemm: GemmProblem, tiling: Tiling) -> tuple[Operand, Operand]:
    """(operand A, operand B) of a problem, as 2-D tiles whose rows are contiguous in memory."""
    kind = dtype(gemm.dtype)
    a = Operand("A", *((1, 0) if gemm.transpose_a else (0, 1)), tiling, kind)
    b = Operand("B", *((1, 0) if gemm.transpose_b else (0, 1)), tiling, kind)
    return a, b


def _row_bytes(graph: KernelGraph, m: int, n: int) -> int:
    """Bytes of shared memory for reductions of the rows of an m x n tile, rounded up to 1024.

    Tiles of A and B begin at multiples of 1024 bytes, after this memory.
    """
    warps = warps_of(m, n) or (1, 1)
    used = exchange_bytes(graph.gemm, m, warps[1])
    return -(-used // SHARED_ALIGN) * SHARED_ALIGN


def _no_warps(tilings: Tilings) -> str | None:
    """Why the warps of a workgroup cannot divide the tiles of every shape; None if they can."""
    grids = choose_warps(tilings)
    for tiling in tilings:
        m, n, _ = tiling.summed
        if not grids:
            most, least = most_accumulators(m, n), -(-m * n // (MOST_WARPS * LANES))
            if least > most:
                return (
                    f"the output tile {m}x{n} needs {least} accumulator registers in each thread "
                    f"of {MOST_WARPS} warps, and {most} fit; a smaller tile is needed"
                )
            return (
                f"the output tile {m}x{n} cannot be divided among up to {MOST_WARPS} warps into "
                f"parts that are multiples of {MMA_M}x{PAIR_N} and need at most {most} accumulator "
                "registers in a thread; other extents are needed"
            )
        if tiling.accumulator not in grids:
            warps = next(iter(grids.values())).workitems // LANES
            return (
                f"the output tile {m}x{n} cannot be divided among {warps} warps, which the largest "
                f"tile has, into multiples of {MMA_M}x{PAIR_N}; choose extents that are multiples "
                "of 64"
            )
    return None


def _halves(extent: int, least: int) -> list[int]:
    """Round `extent` down to a multiple of 64 or a power of two below 64, and halve it repeatedly.

    Returns the rounded extent, then its half, quarter and so on, as long as these are multiples of
    `least`.
    """
    rounded = extent // ROUND * ROUND or 1 << (extent.bit_length() - 1)
    found = [rounded]
    while (half := found[-1] // 2) >= least and half % least == 0:
        found.append(half)
    return found


def _exchanged(
    op: SendPartial | ReceivePartial | AccumulatePartial | CollectPartial,
    accumulator: Accumulator,
    reduction: str,
) -> Body:
    """Lower an operation that sends or receives a partial sum of a tile.

    Args:
        op: the operation.
        accumulator: the accumulator that is sent, or to which the received sums are added.
        reduction: the form of the PTX instruction `red`: `vector` or `scalar`.
    """
    match op:
        case SendPartial():
            return accumulator.send(op.turn)
        case ReceivePartial():
            return accumulator.receive(op.turn)
        case AccumulatePartial():
            return accumulator.add_to(reduction)
        case CollectPartial():
            return accumulator.collect(op)


def _after(op: Operation, gemm: GemmProblem, accumulator: Accumulator, width: int) -> Body:
    """Lower an epilogue, or a store of a tile to D; return any other operation unchanged.

    Args:
        op: the operation.
        gemm: the matrix product: element types, extents, layouts and epilogue.
        accumulator: the registers that the operation reads and writes.
        width: number of elements of C and of D that one access moves.
    """
    match op:
        case Epilogue():
            return accumulator.epilogue(gemm, op, width)
        case StoreTile():
            return (accumulator.store_output(gemm, op.tensor, width),)
        case _:
            return (op,)


def _accumulation_loops(graph: KernelGraph) -> tuple[str, ...]:
    """The ids of the dimensions that loops over k tiles iterate over, without duplicates."""
    loops = (op.dim for op in graph.control.of_kind(For) if accumulates(op))
    return tuple(dict.fromkeys(loops))
