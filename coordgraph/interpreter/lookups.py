"""`lookups`: the table reads that a `Locate` operation evaluates once, before its body.

A `Locate` computes indices once and binds them to dimensions, for the operations in its body.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from sympy import Expr, Symbol

from coordgraph.control.operations import Locate
from coordgraph.control.resolve import Node
from coordgraph.integers import Load, index_symbol
from coordgraph.kernel import KernelGraph

__all__ = ["READ", "lookups"]

READ = index_symbol("locate.read")
"""The symbol to which the result of a read in `lookups` is assigned; no operation uses it, because
the read is evaluated only to check that it is inside its table."""


def lookups(graph: KernelGraph, node: Node) -> Iterator[Expr]:
    """The table reads of a `Locate` operation that may be outside their tables.

    The result is empty for any other operation. Kernels evaluate these reads before the body, even
    if the body uses none of them. Reads at i and i + 1, where i is an index that the operation
    computes, are left out if the table has one entry more than there are such indices: they are
    always inside the table.

    Args:
        graph: the graph of the operation.
        node: the operation, with its scope.
    """
    op, coordinates = node.op, graph.coordinates
    if not isinstance(op, Locate) or not node.body:
        return
    lengths = {table.symbol: table.length for table in graph.parameters.tables}
    located = {
        coordinates.symbol(dim) + after: size
        for dim in op.dims
        if (size := coordinates.size(dim)) is not None
        for after in (0, 1)
    }
    for read in op.reads:
        loads = (cast(tuple[Symbol, Expr], load.args) for load in read.atoms(Load))
        if any(lengths.get(table) != located.get(at, at) + 1 for table, at in loads):
            yield node.body[0].scope.resolve(read)
