"""Which symbol a name stands for.

A parameter's name gives its own symbol (positive or non-negative); the id of a dimension and the
name of an `Assign` give an index. A graph may hold other symbols while it is being built; those
are declared with a `symbol` line.
"""

from __future__ import annotations

from sympy import Symbol

from coordgraph.control.operations import Assign
from coordgraph.errors import VerifyError
from coordgraph.integers import index_symbol, size_symbol
from coordgraph.kernel import KernelGraph

__all__ = ["declared_symbols", "free_symbols"]


def declared_symbols(graph: KernelGraph) -> dict[str, Symbol]:
    """Name to symbol, of parameters, tables and their places, dimensions and assigned values."""
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
    """Symbols that nothing in the graph declares, by name.

    Raises:
        VerifyError: a name stands for two symbols, or a symbol is neither an index nor a size, so
            that what is written could not be read back.
    """
    table = declared_symbols(graph)
    free: dict[str, Symbol] = {}
    for symbol in sorted(_symbols(graph), key=lambda s: (s.name, str(s.is_positive))):
        name = symbol.name
        if symbol == table.get(name):
            continue
        if name in table:
            raise VerifyError(
                f"two symbols have the name '{name}': one that may be zero and one that may not"
            )
        if symbol not in (index_symbol(name), size_symbol(name)):
            raise VerifyError(f"the symbol '{name}' is neither an index_symbol nor a size_symbol")
        table[name] = free[name] = symbol
    return list(free.values())


def _symbols(graph: KernelGraph) -> set[Symbol]:
    found: set[Symbol] = set()
    for expr in graph.expressions:
        found |= {s for s in expr.free_symbols if isinstance(s, Symbol)}
    return found
