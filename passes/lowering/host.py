"""`LowerToHost`: a scheduled graph for a processor core with vector registers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby

from sympy import Integer

from coordgraph import KernelGraph
from coordgraph.control import Scoped
from coordgraph.control.operations import (
    Assign,
    Body,
    For,
    If,
    Locate,
    Operation,
    SetCoordinate,
)
from coordgraph.coordinates.dimensions import Workitem
from coordgraph.tensors import dtype
from passes.base import Pass
from passes.lowering.blocking import Block, choose_block
from passes.lowering.buffers import Buffers
from passes.scatter import SHARE

__all__ = ["LowerToHost"]

LARGEST_BUFFERS = 1 << 30
"""Bytes of buffers for one workgroup: more is surely a mistake."""


@dataclass(frozen=True)
class LowerToHost(Pass):
    """Pack tiles into buffers, multiply them by register blocks with vector instructions.

    Before: `LoadTile`, `MultiplyAccumulate` and `StoreTile` on macro tiles. After: loops over the
    elements of tiles, clipped where the tensor ends, and over register blocks; a workgroup is one
    thread. Buffers hold the accumulator's type, so loads and stores convert.

    Args:
        vector_bits: width of a vector register.
        registers: how many vector registers there are.
        fused: multiply and add in one instruction with one rounding.
    """

    vector_bits: int = 256
    registers: int = 16
    fused: bool = True

    name = "lower-to-host"
    requires = ("scheduled",)
    establishes = ("lowered",)

    def why_not(self, graph: KernelGraph) -> str | None:
        """Options that make no sense, graphs of other machines, tiles that are too large."""
        bits, element = self.vector_bits, dtype(graph.gemm.accumulator).bits
        if bits < element or bits & (bits - 1):
            return f"vector_bits={bits} must be a power of two, at least {element}"
        if self.registers < 5:
            return f"registers={self.registers} is too few for a block: two operands and a result"
        if graph.coordinates.of_kind(Workitem):
            return "the graph has workitems: it was lowered for another machine"
        m, n, k = graph.macro_tile
        size = self._block(graph).elements(m, n, k) * element // 8
        if size > LARGEST_BUFFERS:
            return f"the tile {m}x{n}x{k} needs buffers of {size} bytes a thread; make it smaller"
        return None

    def _block(self, graph: KernelGraph) -> Block:
        m, n, _ = graph.macro_tile
        lanes = self.vector_bits // dtype(graph.gemm.accumulator).bits
        return choose_block(m, n, lanes, self.registers)

    def apply(self, graph: KernelGraph) -> KernelGraph:
        """Add the coordinates of blocks, then replace each operation on tiles."""
        block = self._block(graph)
        with graph.edit(str(self)) as e:
            e.level = "lowered"
            block.add(e.coordinates, graph.gemm)
            kind = "fma" if self.fused else "multiply-add"
            instruction = f"{kind}.{graph.gemm.accumulator}x{block.lanes}"
            buffers = Buffers(e.coordinates, graph.gemm, block, instruction)
            if SHARE in e.coordinates:
                buffers.cut_tiles()
            body = tuple(_lower(graph.control.root.body, graph.scope(), buffers))
            e.kernel(*body, workgroup=graph.control.root.workgroup)
        return e.graph


def _lower(body: Body, scope: Scoped, buffers: Buffers) -> Iterator[Operation]:
    """The operations with those on tiles replaced, each knowing what is bound around it."""
    for structural, group in groupby(body, lambda op: isinstance(op, Assign) or bool(op.BODIES)):
        if not structural:
            yield from buffers.lower(tuple(group), scope)
            continue
        for op in group:
            match op:
                case For():
                    if op.dim == SHARE:  # there are as many as tiles are cut into here
                        op = replace(op, stop=Integer(buffers.c[SHARE].fixed_size))
                    _, inside = scope.enter_for(op)
                    yield op.with_body(*_lower(op.body, inside, buffers))
                case SetCoordinate():
                    _, inside = scope.enter_set(op)
                    yield op.with_body(*_lower(op.body, inside, buffers))
                case Locate():
                    _, inside = scope.enter_locate(op)
                    yield op.with_body(*_lower(op.body, inside, buffers))
                case If():
                    condition = scope.resolve_condition(op.condition)
                    yes = tuple(_lower(op.body, scope.enter_if(condition), buffers))
                    no = tuple(_lower(op.orelse, scope.enter_if(~condition), buffers))
                    yield replace(op, body=yes, orelse=no)
                case Assign():
                    _, scope = scope.assign(op)
                    yield op
                case _:
                    yield op.with_body(*_lower(op.children, scope, buffers))
