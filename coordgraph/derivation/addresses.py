"""The memory address of the element at an index along a whole tensor: offset and strides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sympy import Expr, Integer

from coordgraph.coordinates.dimensions import Dimension, Shared, User
from coordgraph.derivation.record import Address, Stride
from coordgraph.elements import dtype
from coordgraph.integers import Ranges, evaluate, simplify, symbols_of
from coordgraph.kernel import KernelGraph

__all__ = ["address_of"]

MBARRIER, MBARRIER_BYTES = "mbarrier", 8
"""MBARRIER: name of the element type of mbarriers in shared memory. MBARRIER_BYTES: size of an
mbarrier in bytes."""


def address_of(
    graph: KernelGraph,
    wanted: str,
    expression: Expr,
    known: Mapping[str, Expr],
    ranges: Ranges,
    values: Mapping[str, Any],
) -> Address | None:
    """The linear address that the index `expression` along the dimension `wanted` stands for.

    None if the dimension indexes neither a tensor nor an allocation in shared memory.
    """
    dimension = graph.coordinates[wanted]
    found = _element(graph, dimension)
    if found is None:
        return None
    memory, kind, width = found
    size = dimension.size
    strides = tuple(_strides(graph, expression, known, ranges, values))
    value = values.get(wanted)
    length = None
    if size is not None and {s.name for s in symbols_of(size)} <= set(values):
        length = int(evaluate(size, values))
    return Address(memory, kind, width, size, expression, strides, value, length)


def _element(graph: KernelGraph, dimension: Dimension) -> tuple[str, str, int] | None:
    """The name, element type and bytes per element of the memory that a dimension indexes.

    None if the dimension indexes neither a tensor nor an allocation in shared memory.
    """
    match dimension:
        case User():
            kind = graph.tensor(dimension.tensor).dtype
        case Shared():
            if dimension.barriers:
                return dimension.id, MBARRIER, MBARRIER_BYTES
            kind = dimension.element or graph.tensor(dimension.tensor).dtype
        case _:
            return None
    memory = dimension.tensor if isinstance(dimension, User) else dimension.id
    return memory, kind, dtype(kind).bytes


def _strides(
    graph: KernelGraph,
    expression: Expr,
    known: Mapping[str, Expr],
    ranges: Ranges,
    values: Mapping[str, Any],
) -> Iterator[Stride]:
    """For each coordinate in `known`, the change of an address when the coordinate grows by 1.

    The address is `expression`. Coordinates that `known` maps to a number (such as a selector's) or
    to an expression are left out, so only coordinates mapped to their own symbols remain.
    """
    symbols = {graph.coordinates.symbol(name) for name in known}
    for name, given in known.items():
        symbol = graph.coordinates.symbol(name)
        if given != symbol or isinstance(given, Integer):
            continue
        number = None
        if name in values:
            after = evaluate(expression, {**values, name: values[name] + 1})
            number = after - evaluate(expression, values)
        after = expression.xreplace({symbol: symbol + 1})
        distance = simplify((after - expression).expand(), ranges)
        if symbols_of(distance) & symbols:
            yield Stride(name, None, number, "not constant")
        else:
            yield Stride(name, distance, number)
