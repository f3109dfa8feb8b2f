"""Compile index expressions to functions of numpy arrays with one entry for each workgroup."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from sympy import Integer, Symbol
from sympy.core.basic import Basic
from sympy.core.relational import Relational
from sympy.logic.boolalg import And, Not, Or

from coordgraph.integers.functions import Maximum, Minimum
from coordgraph.integers.text import ATOM, COMPARISON, UNARY, Printer, comparison_sign

__all__ = ["Column", "compile_columns"]

Column = npt.NDArray[np.int64]
"""Type: a column, with one integer for each workgroup."""


class _ColumnPrinter(Printer):
    """Prints index expressions as Python source that computes with numpy arrays.

    Args:
        names: the Python names of arguments, and of subexpressions that are already computed.
    """

    def __init__(self, names: dict[Basic, str]) -> None:
        super().__init__()
        self.names = names

    def symbol(self, symbol: Symbol) -> str:
        raise ValueError(
            f"the symbol {symbol.name!r} is not among the arguments of the function; add it to the "
            "arguments"
        )

    def truth(self, value: bool) -> str:
        return f"bool_({value})"

    def select(self, condition: Basic, a: Basic, b: Basic) -> str:
        return f"where({self.at(condition)}, {self.at(a)}, {self.at(b)})"

    def bound(self, expr: Basic) -> tuple[str, int]:
        name = self.names.get(expr)
        if name is not None:
            return name, UNARY + 1
        match expr:
            case Minimum() | Maximum():
                kind = "minimum" if isinstance(expr, Minimum) else "maximum"
                return f"{kind}({', '.join(map(self.at, expr.args))})", ATOM
            case And() | Or():
                sign = " & " if isinstance(expr, And) else " | "
                return f"({sign.join(f'({self.at(part)})' for part in expr.args)})", ATOM
            case Not():
                return f"logical_not({self.at(expr.args[0])})", ATOM
            case Relational():
                left, right = map(self.at, expr.args)
                return f"({left}) {comparison_sign(expr)} ({right})", COMPARISON
            case _:
                return super().bound(expr)


def compile_columns(
    expressions: Iterable[Basic], arguments: Sequence[Symbol]
) -> Callable[..., tuple[Any, ...]]:
    """Compile expressions into one Python function of columns: arrays with an entry per workgroup.

    Both branches of a select are computed for all workgroups, and one is kept for each. So a branch
    that is not chosen may divide by 0 or read a table out of bounds; its value is then arbitrary.
    Common subexpressions are computed once.

    Args:
        expressions: the expressions and conditions.
        arguments: the symbols that are the function's positional arguments: columns, or integers
            that all workgroups share. The argument for the symbol of a table is an array.

    Raises:
        ValueError: an argument is repeated, or an expression has a symbol that is no argument.
    """
    roots = [*expressions]
    names: dict[Basic, str] = {symbol: f"a{i}" for i, symbol in enumerate(arguments)}
    if len(names) != len(arguments):
        raise ValueError(f"the arguments {tuple(arguments)} contain a symbol twice; give it once")
    printer = _ColumnPrinter(names)
    lines = [f"def compiled({', '.join(names.values())}):"]
    for node in _in_order(roots):
        text = printer.at(node)
        names[node] = f"t{len(lines)}"
        lines.append(f"    {names[node]} = {text}")
    results = "".join(f"{printer.at(root)}, " for root in roots)
    lines.append(f"    return ({results})")
    exec(compile("\n".join(lines), "<columns>", "exec"), scope := {**_FUNCTIONS})
    # Branches that are not chosen may divide by 0: NumPy shall not warn.
    return np.errstate(divide="ignore", invalid="ignore")(scope["compiled"])


def _in_order(roots: Sequence[Basic]) -> list[Basic]:
    """The distinct nodes of `roots` that have arguments; a node comes after its arguments."""
    order: dict[Basic, None] = {}

    def visit(node: Basic) -> None:
        if node in order or isinstance(node, (Integer, Symbol)):
            return
        for argument in node.args:
            visit(argument)
        if node.args:
            order[node] = None

    for root in roots:
        visit(root)
    return [*order]


def _load(table: Column, index: Any) -> Any:
    return table[np.clip(index, 0, len(table) - 1)]


def _search(table: Column, count: Any, x: Any) -> Any:
    """The last `g < count` with `table[g] <= x`, or 0 if there is none."""
    return np.maximum(np.minimum(np.searchsorted(table, x, side="right"), count) - 1, 0)


_FUNCTIONS: dict[str, Any] = {
    **{"load": _load, "search": _search, "where": np.where, "bool_": np.bool_},
    **{"minimum": np.minimum, "maximum": np.maximum, "logical_not": np.logical_not},
}
