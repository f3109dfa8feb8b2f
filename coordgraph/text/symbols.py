"""Map the names in a written graph to sympy symbols.

A parameter has a positive or non-negative symbol. The id of a dimension and the name of an `Assign`
stand for a non-negative index symbol. A graph under construction may use symbols that neither a
parameter, a dimension nor an `Assign` declares; the text form declares each such symbol by a
`symbol` line.
"""

from __future__ import annotations

from sympy import Symbol

from coordgraph.control.operations import Assign
from coordgraph.errors import VerifyError
from coordgraph.integers import index_symbol, size_symbol
from coordgraph.kernel import KernelGraph

__all__ = ["declared_symbols", "free_symbols"]


def declared_symbols(graph: KernelGraph) -> dict[str, Symbol]:
    """The symbols of a graph's parameters, tables, dimensions and `Assign` operations, by name."""
    table = {p.name: p.symbol for p in graph.parameters.items}
    for known in graph.parameters.tables:
        table |= {symbol.name: symbol for symbol in (known.symbol, known.place)}
    for name in graph.coordinates.dimensions:
        table.setdefault(name, index_symbol(name))
    for op in graph.control.operations:
        if isinstance(op, Assign):
            table.setdefault(op.name, op.symbol)
    return table


def free_symbols(graph: KernelGraph) -> list[Symbol]:
    """The symbols in a graph's expressions that the graph does not declare, sorted by name.

    Raises:
        VerifyError: two symbols have one name, or a symbol was made neither by `index_symbol` nor
            by `size_symbol`, so that the text form could not be read back.
    """
    table = declared_symbols(graph)
    free: dict[str, Symbol] = {}
    for symbol in sorted(_symbols(graph), key=lambda s: (s.name, str(s.is_positive))):
        name = symbol.name
        if symbol == table.get(name):
            continue
        if name in table:
            raise VerifyError(
                f"two symbols have the name '{name}': one that may be zero and one that may not; "
                "rename one of these two symbols"
            )
        if symbol not in (index_symbol(name), size_symbol(name)):
            raise VerifyError(
                f"the symbol '{name}' is neither an index_symbol nor a size_symbol; make it by one "
                "of these functions"
            )
        table[name] = free[name] = symbol
    return list(free.values())


def _symbols(graph: KernelGraph) -> set[Symbol]:
    found: set[Symbol] = set()
    for expr in graph.expressions:
        found |= {s for s in expr.free_symbols if isinstance(s, Symbol)}
    return found
