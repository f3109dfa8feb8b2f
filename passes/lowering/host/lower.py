"""`LowerToHost`: the pass that lowers a scheduled graph to a CPU core with vector registers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby

from sympy import Integer

from coordgraph import KernelGraph
from coordgraph.control import Scoped
from coordgraph.control.lowered import TakeFlag
from coordgraph.control.operations import (
    AccumulatePartial,
    AddPartial,
    Assign,
    AwaitPartial,
    Body,
    CollectPartial,
    Epilogue,
    For,
    If,
    InitAccumulator,
    Inside,
    LoadTile,
    Locate,
    MultiplyAccumulate,
    Operation,
    ReceivePartial,
    SendPartial,
    SetCoordinate,
    StoreTile,
)
from coordgraph.control.tickets import DynamicFor
from coordgraph.coordinates.dimensions import Workitem
from coordgraph.tensors import dtype
from coordgraph.tilings import Tiling, Tilings
from passes.base import Pass
from passes.kit.reduce_scatter import SHARE
from passes.lowering.host.blocking import Block, choose_block
from passes.lowering.host.buffers import Buffers

__all__ = ["LowerToHost"]

ON_TILES = (
    InitAccumulator,
    LoadTile,
    MultiplyAccumulate,
    SendPartial,
    ReceivePartial,
    AddPartial,
    AccumulatePartial,
    CollectPartial,
    Epilogue,
    StoreTile,
)
"""Types of operations on tiles, which the lowering replaces by loops over elements of buffers."""
LARGEST_BUFFERS = 1 << 30
"""The largest total size, in bytes, of a workgroup's buffers; larger tiles are an error."""


@dataclass(frozen=True)
class LowerToHost(Pass):
    """Lower a graph to a CPU: copy tiles to buffers, and multiply them with vector instructions.

    Before: `LoadTile`, `MultiplyAccumulate` and `StoreTile` on macro tiles. After: loops over
    register blocks, and over the elements of tiles that are inside the tensor. One thread executes
    a workgroup. Buffers have the accumulator's element type, so loads from tensors and stores to
    tensors convert elements.

    Args:
        vector_bits: width of a vector register in bits, a power of two.
        registers: number of vector registers.
        fused: whether one instruction multiplies and adds floats, with a single rounding (FMA).
    """

    vector_bits: int = 256
    registers: int = 16
    fused: bool = True

    name = "lower-to-host"
    requires = ("scheduled",)
    establishes = ("lowered",)

    def why_not(self, graph: KernelGraph) -> str | None:
        """Why this pass cannot lower the graph; None if it can.

        The pass refuses too few vector registers, a width of them that is no power of two or less
        than an accumulator element, graphs that were lowered to a GPU, and tiles whose buffers are
        too large.
        """
        bits, element = self.vector_bits, dtype(graph.gemm.accumulator).bits
        if bits < element or bits & (bits - 1):
            return f"vector_bits={bits} must be a power of two, at least {element}"
        if self.registers < 5:
            return f"registers={self.registers} is too few for a register block; set at least 5"
        if graph.coordinates.of_kind(Workitem):
            return "the graph was lowered to a GPU: it has workitems; lower the scheduled graph"
        for tiling in graph.tilings:
            m, n, k = tiling.shape
            size = self._block(graph, tiling).elements(m, n, k) * element // 8
            if size > LARGEST_BUFFERS:
                tile = f"{m}x{n}x{k}"
                return f"tiles of {tile} need buffers of {size} bytes a thread; use a smaller tile"
        return None

    def _block(self, graph: KernelGraph, tiling: Tiling) -> Block:
        """The register block for tiles of one shape."""
        m, n, _ = tiling.shape
        lanes = self.vector_bits // dtype(graph.gemm.accumulator).bits
        return choose_block(m, n, lanes, self.registers, tiling.sums)

    def apply(self, graph: KernelGraph) -> KernelGraph:
        """Add the coordinates of register blocks, then replace operations on tiles by loops."""
        with graph.edit(str(self)) as e:
            e.level = "lowered"
            fused = self.fused and dtype(graph.gemm.accumulator).is_float
            kind = "fma" if fused else "multiply-add"
            buffers: dict[str, Buffers] = {}
            for tiling in graph.tilings:
                block = self._block(graph, tiling)
                block.add(e.coordinates, graph.gemm, tiling)
                instruction = f"{kind}.{graph.gemm.accumulator}x{block.lanes}"
                own = Buffers(e.coordinates, graph.gemm, block, tiling, instruction)
                if SHARE in e.coordinates:
                    own.cut_tiles()
                buffers[tiling.accumulator] = own
            shares = e.coordinates[SHARE].fixed_size if SHARE in e.coordinates else 0
            lower = _Lowering(graph.tilings, buffers, shares)
            body = tuple(lower.body(graph.control.root.body, graph.scope()))
            e.kernel(*body, workgroup=graph.control.root.workgroup)
        return e.graph


@dataclass(frozen=True)
class _Lowering:
    """Replaces operations on tiles in a control graph by loops over buffers.

    Args:
        tilings: the tile shapes of the graph, by the name of the accumulator.
        buffers: the `Buffers` of each accumulator, by the accumulator's name.
        shares: number of shares into which a `scatter` reduction divides a tile; 0 without one.
    """

    tilings: Tilings
    buffers: Mapping[str, Buffers]
    shares: int

    def body(self, body: Body, scope: Scoped) -> Iterator[Operation]:
        """Yield the operations of `body`, in which operations on tiles are replaced by loops.

        Args:
            body: operations that run one after another.
            scope: the coordinates and variables that are known where `body` runs.
        """
        for own, group in groupby(body, self._buffers):
            if own is not None:
                yield from own.lower(tuple(group), scope)
                continue
            for op in group:
                match op:
                    case For() | DynamicFor():
                        yield self._loop(op, scope)
                    case SetCoordinate():
                        _, inside = scope.enter_set(op)
                        yield op.with_body(*self.body(op.body, inside))
                    case Locate():
                        _, inside = scope.enter_locate(op)
                        yield op.with_body(*self.body(op.body, inside))
                    case If() | Inside():
                        condition = scope.condition(op)
                        yes = tuple(self.body(op.body, scope.enter_if(condition)))
                        no = tuple(self.body(op.orelse, scope.enter_if(~condition)))
                        yield replace(op, body=yes, orelse=no)
                    case Assign():
                        _, scope = scope.assign(op)
                        yield op
                    case _ if op.BODIES:
                        yield op.with_body(*self.body(op.children, scope))
                    case AwaitPartial():
                        yield TakeFlag("flags")
                    case _:
                        yield op

    def _loop(self, op: For | DynamicFor, scope: Scoped) -> Operation:
        """A copy of the loop `op` in which operations on tiles are lowered."""
        if isinstance(op, DynamicFor):
            _, inside = scope.enter_dynamic(op)
            return op.with_body(*self.body(op.body, inside))
        if op.dim == SHARE:
            op = replace(op, stop=Integer(self.shares))
        _, inside = scope.enter_for(op)
        return op.with_body(*self.body(op.body, inside))

    def _buffers(self, op: Operation) -> Buffers | None:
        """The `Buffers` for an operation on tiles, or None for other operations."""
        if not isinstance(op, ON_TILES):
            return None
        return self.buffers[self.tilings.of_operation(op).accumulator]
