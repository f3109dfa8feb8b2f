"""Index expressions as C expressions.

The C code computes with 128-bit integers, which hold every product of four 31-bit sizes.
"""

from __future__ import annotations

import re

from sympy import Integer, Symbol
from sympy.core.basic import Basic
from sympy.core.relational import Relational
from sympy.logic.boolalg import And, Not, Or

from coordgraph import CodegenError
from coordgraph.integers import BitXor, FloorDiv, FloorMod, Load, Maximum, Minimum, Search, operands
from coordgraph.integers.text import ATOM, UNARY, Printer, comparison_sign

__all__ = ["c_expression", "c_name"]

FUNCTIONS: dict[type[Basic], str] = {
    FloorDiv: "floor_div",
    FloorMod: "floor_mod",
    Minimum: "smaller",
    Maximum: "larger",
}
"""The C functions, defined in the exported file, for functions of index expressions."""
RESERVED = frozenset(
    "auto bool break case char const continue default do double else enum extern false float for "
    "goto if inline int long register restrict return short signed sizeof static struct switch "
    "this true typedef union unsigned void volatile while class delete new operator private "
    "protected public template throw try using namespace".split()
)
"""Words of C and C++ that cannot name a struct member."""
LARGEST = 2**63
"""The first positive integer that is not a C constant of type `long long`."""


def c_name(name: str) -> str:
    """The C identifier for the name of a parameter or a tensor.

    Characters that C forbids become underscores; a reserved word gets an underscore at its end.
    """
    found = re.sub(r"\W", "_", name, flags=re.ASCII)
    return f"{found}_" if found in RESERVED else found


class _C(Printer):
    """Prints expressions in C; a symbol is a member of the struct to which `prefix` points."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self.prefix = prefix

    def symbol(self, symbol: Symbol) -> str:
        return f"{self.prefix}{c_name(symbol.name)}"

    def integer(self, value: int) -> str:
        if abs(value) >= LARGEST:
            raise CodegenError(
                f"the constant {value} in an index expression does not fit 64 bits, so it cannot "
                "be written in C; make the problem or the tile smaller"
            )
        return str(value) if abs(value) < 2**31 else f"{value}LL"

    def truth(self, value: bool) -> str:
        return str(int(value))

    def select(self, condition: Basic, a: Basic, b: Basic) -> str:
        return f"({self.at(condition)} ? {self.at(a)} : {self.at(b)})"

    def _bound(self, expr: Basic) -> tuple[str, int]:
        match expr:
            case Integer() if int(expr) < 0:
                return f"({self.integer(int(expr))})", ATOM
            case FloorDiv() | FloorMod() | Minimum() | Maximum():
                first, *rest = (self.at(arg) for arg in operands(expr))
                for other in rest:
                    first = f"{FUNCTIONS[type(expr)]}({first}, {other})"
                return first, ATOM
            case BitXor():
                return f"({' ^ '.join(self.at(arg, UNARY) for arg in operands(expr))})", ATOM
            case Relational():
                left, right = (self.at(arg, UNARY) for arg in expr.args)
                return f"({left} {comparison_sign(expr)} {right})", ATOM
            case And() | Or():
                sign = " && " if isinstance(expr, And) else " || "
                return f"({sign.join(sorted(self.at(arg) for arg in expr.args))})", ATOM
            case Load() | Search():
                raise CodegenError(
                    f"{expr} reads a table in device memory, which the host cannot read; export a "
                    "kernel whose sizes do not depend on tables"
                )
            case Not():
                return f"!{self.at(expr.args[0], ATOM)}", UNARY
            case _:
                return super()._bound(expr)


def c_expression(expr: Basic | int, prefix: str = "") -> str:
    """An index expression or a condition as a C expression.

    The functions `floor_div`, `floor_mod`, `smaller` and `larger` must be defined in C.

    Args:
        expr: the expression, which reads no tables.
        prefix: text before the name of each symbol, such as `v->`.

    Raises:
        CodegenError: a constant does not fit 64 bits, or the expression reads a table.
    """
    return str(expr) if isinstance(expr, int) else _C(prefix).at(expr)
