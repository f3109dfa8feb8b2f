"""`Formulas`: index expressions compiled to functions of NumPy arrays, once for all workgroups."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sympy import Symbol
from sympy.core.basic import Basic

from coordgraph.control.resolve import Node
from coordgraph.errors import VerifyError
from coordgraph.integers import symbols_of, tables_in
from coordgraph.integers.columns import compile_columns
from coordgraph.verification.memory_order.thread_values import Value

__all__ = ["Formulas"]


class Formulas:
    """Compiles expressions to functions of arrays, once for all workgroups."""

    def __init__(self) -> None:
        self._compiled: dict[Basic, tuple[Callable[..., tuple[Any, ...]], tuple[Symbol, ...]]] = {}
        self._known: dict[tuple[Node, str], Any] = {}
        self._tables: dict[Basic, tuple[str, ...]] = {}

    def tables(self, expr: Basic) -> tuple[str, ...]:
        """The names of the tables that an expression reads."""
        if expr not in self._tables:
            self._tables[expr] = tuple(sorted(symbol.name for symbol in tables_in(expr)))
        return self._tables[expr]

    def known(self, node: Node, name: str, make: Callable[[], Any]) -> Any:
        """The cached result of `make()`, which is called only once for each node and name."""
        if (node, name) not in self._known:
            self._known[node, name] = make()
        return self._known[node, name]

    def value(self, expr: Basic, env: Mapping[Symbol, Value]) -> Value:
        """Evaluate an expression or a condition for the values of its symbols in `env`.

        Raises:
            VerifyError: a symbol has no value.
        """
        if expr not in self._compiled:
            symbols = tuple(sorted({*symbols_of(expr), *tables_in(expr)}, key=str))
            self._compiled[expr] = compile_columns([expr], symbols), symbols
        function, symbols = self._compiled[expr]
        try:
            values = [env[symbol] for symbol in symbols]
        except KeyError as missing:
            raise VerifyError(
                f"the symbol {missing} has no value where {expr} is used; bind it with For, "
                "SetCoordinate or Assign around this use"
            ) from None
        (found,) = function(*values)
        return found
