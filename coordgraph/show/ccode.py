"""Print index expressions as C.

C's `/` and `%` round toward zero, whereas `FloorDiv` and `FloorMod` round down. Both agree for
non-negative operands, so `/` and `%` are printed only if both operands are proved non-negative, as
in code generation. Otherwise a call of one of the `FLOOR_HELPERS` is printed.
"""

from __future__ import annotations

from typing import cast

from sympy import Expr, Symbol
from sympy.core.basic import Basic
from sympy.logic.boolalg import And, Not, Or

from coordgraph.integers import BitXor, FloorDiv, FloorMod, Load, Ranges, Select
from coordgraph.integers.text import AND, ATOM, COMPARISON, NOT, OR, PRODUCT, SUM, UNARY, Printer

__all__ = ["FLOOR_HELPERS", "identifier", "to_c"]

FLOOR_HELPERS = {
    "floor_div": "int floor_div(int a, int b) { return a / b - (a % b && (a < 0) != (b < 0)); }",
    "floor_mod": "int floor_mod(int a, int b) { return (a % b + b) % b; }",
}
"""C source of the functions that divide integers rounding down: quotient and remainder, by name."""


def to_c(expr: Basic, ranges: Ranges | None = None) -> str:
    """The C source of an integer expression or a condition.

    Args:
        expr: the expression or condition to print.
        ranges: bounds of the expression's symbols, with which operands are proved non-negative; by
            default every index symbol is at least 0.
    """
    return _CPrinter(ranges or Ranges()).at(expr)


def identifier(name: str) -> str:
    """The C variable name for a dimension's id: `partial.slot` becomes `partial_slot`."""
    return name.replace(".", "_")


MOST_PROOFS = 400
"""Largest number of proofs that an operand of a division is at least 0 which `to_c` tries for one
expression. Nested `Select`s need many, because each branch has its own ranges. Further quotients
are printed as calls of `FLOOR_HELPERS`, which are right without a proof."""


class _CPrinter(Printer):
    """Prints expressions as C.

    Args:
        ranges: bounds of the symbols.
        outer: if this printer prints a branch of a `Select`, the printer of the expression that
            contains the `Select`; what that printer has proved is not proved again. Else None.
    """

    def __init__(self, ranges: Ranges, outer: _CPrinter | None = None) -> None:
        super().__init__()
        self.ranges = ranges
        self.outer = outer
        self.proofs: list[Expr] = outer.proofs if outer else []
        """The expressions for which a proof that they are at least 0 was tried. The printers of all
        branches of `Select`s share this list, whose length is limited to `MOST_PROOFS`."""
        self.natural: dict[Expr, bool] = {}

    def _is_natural(self, expr: Expr) -> bool:
        """Whether an expression is proved to be at least 0."""
        if expr not in self.natural:
            found = self.outer is not None and self.outer._is_natural(expr)
            if not found and len(self.proofs) < MOST_PROOFS:
                self.proofs.append(expr)
                found = self.ranges.prove_nonnegative(expr)
            self.natural[expr] = found
        return self.natural[expr]

    def symbol(self, symbol: Symbol) -> str:
        return identifier(symbol.name)

    def bound(self, expr: Basic) -> tuple[str, int]:
        match expr:
            case FloorDiv() | FloorMod():
                return self._quotient(expr)
            case Load():
                table, index = expr.args
                return f"{self.at(table)}[{self.at(index)}]", ATOM
            case Select():
                condition, a, b = expr.args
                yes = _CPrinter(self.ranges.with_guard(condition), self).at(a, AND)
                no = _CPrinter(self.ranges.with_guard(Not(condition)), self).at(b, AND)
                return f"{self.at(condition, COMPARISON)} ? {yes} : {no}", OR
            # C's ^ binds more weakly than comparisons, so its operands get parentheses
            case BitXor():
                return self._joined(expr, " ^ ", SUM), OR
            case And():
                return self._joined(expr, " && ", NOT), AND
            case Or():
                return self._joined(expr, " || ", NOT), OR
            case Not():
                return f"!{self.at(expr.args[0], ATOM)}", UNARY
            case _:
                return super().bound(expr)

    def _quotient(self, expr: FloorDiv | FloorMod) -> tuple[str, int]:
        """The C source of a quotient or remainder, and its precedence.

        A dividend that is a quotient or remainder itself is printed in parentheses.
        """
        a, b = (cast("Expr", arg) for arg in expr.args)
        division = isinstance(expr, FloorDiv)
        if not (self._is_natural(a) and self._is_natural(b)):
            name = "floor_div" if division else "floor_mod"
            return f"{name}({self.at(a)}, {self.at(b)})", ATOM
        inner = ATOM if isinstance(a, FloorDiv | FloorMod) else PRODUCT
        sign = "/" if division else "%"
        return f"{self.at(a, inner)} {sign} {self.at(b, UNARY)}", PRODUCT
