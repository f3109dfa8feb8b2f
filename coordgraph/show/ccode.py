"""Index expressions in C's operators.

C's `/` rounds toward zero where ours rounds down; the two agree here, because what a kernel divides
is never negative.
"""

from __future__ import annotations

from sympy import Symbol
from sympy.core.basic import Basic
from sympy.logic.boolalg import And, Not, Or

from coordgraph.integers import BitXor, FloorDiv, FloorMod, Load, Select
from coordgraph.integers.text import AND, ATOM, COMPARISON, NOT, OR, PRODUCT, SUM, UNARY, Printer

__all__ = ["identifier", "to_c"]


def to_c(expr: Basic) -> str:
    """An expression or condition as a C programmer would write it."""
    return _printer.at(expr)


def identifier(name: str) -> str:
    """A dimension's id as a variable: `partial.slot` is `partial_slot`."""
    return name.replace(".", "_")


class _CPrinter(Printer):
    def symbol(self, symbol: Symbol) -> str:
        return identifier(symbol.name)

    def bound(self, expr: Basic) -> tuple[str, int]:
        match expr:
            case FloorDiv() | FloorMod():
                a, b = expr.args
                sign = "/" if isinstance(expr, FloorDiv) else "%"
                return f"{self._dividend(a)} {sign} {self.at(b, UNARY)}", PRODUCT
            case Load():
                table, index = expr.args
                return f"{self.at(table)}[{self.at(index)}]", ATOM
            case Select():
                condition, a, b = expr.args
                text = f"{self.at(condition, COMPARISON)} ? {self.at(a, AND)} : {self.at(b, AND)}"
                return text, OR
            case BitXor():  # in C it binds weaker than a comparison: parentheses everywhere
                return self._joined(expr, " ^ ", SUM), OR
            case And():
                return self._joined(expr, " && ", NOT), AND
            case Or():
                return self._joined(expr, " || ", NOT), OR
            case Not():
                return f"!{self.at(expr.args[0], ATOM)}", UNARY
            case _:
                return super().bound(expr)

    def _dividend(self, a: Basic) -> str:
        """Quotients of quotients keep their parentheses, which C would not need."""
        return self.at(a, ATOM if isinstance(a, FloorDiv | FloorMod) else PRODUCT)


_printer = _CPrinter()
