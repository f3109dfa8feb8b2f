"""A part of the check `well-formed`: the symbols in sizes and definitions are launch parameters.

The host evaluates sizes and definitions before the kernel starts, when indices have no values.
"""

from __future__ import annotations

from collections.abc import Iterator

from sympy import Expr, Symbol

from coordgraph.integers import to_text
from coordgraph.kernel import KernelGraph

__all__ = ["problems_of_symbols"]


def problems_of_symbols(graph: KernelGraph) -> Iterator[str]:
    """Error messages: each names a symbol that has no value at launch, and where it occurs."""
    parameters = graph.parameters
    launch = {p.symbol for p in parameters.items}
    known = launch | {table.symbol for table in parameters.tables}
    for dimension in graph.coordinates:
        if dimension.size is not None:
            for symbol in _others(dimension.size, launch):
                yield (
                    f"the size of '{dimension.id}' contains '{symbol}', which is not a parameter; "
                    "declare the parameter"
                )
    for what, value in _definitions(graph):
        for symbol in _others(value, known):
            yield (
                f"{what} is {to_text(value)}, but '{symbol}' is not a parameter, so it has no "
                "value at launch; use parameters only"
            )


def _others(value: Expr, known: set[Symbol]) -> list[Symbol]:
    found: set[Symbol] = {s for s in value.free_symbols if isinstance(s, Symbol)}
    return sorted(found - known, key=str)


def _definitions(graph: KernelGraph) -> Iterator[tuple[str, Expr]]:
    """(name for error messages, expression) of every value that a graph defines, except tables."""
    for p in graph.parameters.items:
        if p.value is not None:
            yield f"param {p.name}: its value", p.value
    for assumption in graph.parameters.assumptions:
        yield "assume: the expression", assumption.expr
    for tensor in graph.tensors:
        for axis, extent in enumerate(tensor.shape):
            yield f"tensor {tensor.name}: the extent of axis {axis}", extent
        for axis, stride in enumerate(tensor.strides or ()):
            yield f"tensor {tensor.name}: the stride of axis {axis}", stride
