"""The canonical text of an index expression.

Operators bind as in Python. A quotient or remainder inside a product keeps its parentheses
although Python would not need them all, because ``a // b*c`` misleads the eye; apart from that
parentheses are minimal. Products are written out (``x*x``), there is no power operator.
"""

import re
from itertools import chain

from sympy import Expr, Integer, Symbol
from sympy.core.add import Add
from sympy.core.basic import Basic
from sympy.core.mul import Mul
from sympy.core.power import Pow
from sympy.core.relational import Relational
from sympy.logic.boolalg import And, BooleanAtom, Not, Or

from coordgraph.integers.functions import BitXor, FloorDiv, FloorMod, Maximum, Minimum, Select
from coordgraph.integers.tables import Load, Search

MAX_DIGITS = 100
MAX_POWER = 64
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
RESERVED = frozenset(
    {"and", "or", "not", "true", "false", "min", "max", "select", "load", "search"}
)

# Binding strengths, weakest first.
OR, AND, NOT, COMPARISON, XOR, SUM, PRODUCT, UNARY, ATOM = range(9)


class Printer:
    """Prints an expression; subclasses say how symbols, constants and selects look.

    A printer remembers its texts: a sum asks for a term's text twice, to sort and to print it,
    which would double the work with every level of nested sums.
    """

    def __init__(self) -> None:
        self.known: dict[Basic, tuple[str, int]] = {}

    def symbol(self, symbol: Symbol) -> str:
        """Return the name; it must be one that can be read back."""
        name = symbol.name
        if not NAME.fullmatch(name) or name in RESERVED:
            raise ValueError(f"symbol name {name!r} cannot be written as an identifier")
        return name

    def integer(self, value: int) -> str:
        """Return the decimal digits."""
        if abs(value) >= 10**MAX_DIGITS:
            raise ValueError(f"an integer literal may have {MAX_DIGITS} digits at most")
        return str(value)

    def truth(self, value: bool) -> str:
        """Return the literal of a decided condition."""
        return "true" if value else "false"

    def select(self, condition: Basic, a: Basic, b: Basic) -> str:
        """Return a select in call form."""
        return f"select({self.at(condition)}, {self.at(a)}, {self.at(b)})"

    def at(self, expr: Basic, strength: int = OR) -> str:
        """Print ``expr``, in parentheses if it binds weaker than ``strength``."""
        text, own = self.bound(expr)
        return f"({text})" if own < strength else text

    def bound(self, expr: Basic) -> tuple[str, int]:
        """Return the text of ``expr`` and how strongly it binds."""
        if expr not in self.known:
            self.known[expr] = self._bound(expr)
        return self.known[expr]

    def _bound(self, expr: Basic) -> tuple[str, int]:
        match expr:
            case Integer():
                value = int(expr)
                return self.integer(value), UNARY if value < 0 else ATOM
            case Symbol():
                return self.symbol(expr), ATOM
            case Add():
                return self._sum(expr), SUM
            case Mul() | Pow():
                return self._product(expr)
            case FloorDiv() | FloorMod():
                a, b = expr.args
                sign = "//" if isinstance(expr, FloorDiv) else "%"
                return f"{self.at(a, PRODUCT)} {sign} {self.at(b, UNARY)}", PRODUCT
            case BitXor():
                return self._joined(expr, " ^ ", SUM), XOR
            case Minimum() | Maximum():
                name = "min" if isinstance(expr, Minimum) else "max"
                return f"{name}({self._joined(expr, ', ', OR)})", ATOM
            case Select():
                return self.select(*expr.args), ATOM
            case Load() | Search():
                name = "load" if isinstance(expr, Load) else "search"
                return f"{name}({', '.join(self.at(arg) for arg in expr.args)})", ATOM
            case _:
                return self._condition(expr)

    def _condition(self, expr: Basic) -> tuple[str, int]:
        match expr:
            case BooleanAtom():
                return self.truth(bool(expr)), ATOM
            case Relational():
                return self._comparison(expr), COMPARISON
            case And():
                return self._joined(expr, " and ", NOT), AND
            case Or():
                return self._joined(expr, " or ", AND), OR
            case Not():
                return f"not {self.at(expr.args[0], NOT)}", NOT
            case _:
                kind = type(expr).__name__
                raise TypeError(f"{kind} is not part of the index expression language")

    def _comparison(self, expr: Relational) -> str:
        left, right = expr.args
        return f"{self.at(left, XOR)} {comparison_sign(expr)} {self.at(right, XOR)}"

    def _joined(self, expr: Basic, separator: str, strength: int) -> str:
        # sympy keeps its own order; sorting the texts makes ours independent of it.
        return separator.join(sorted(self.at(arg, strength) for arg in expr.args))

    def _sum(self, expr: Add) -> str:
        terms: list[tuple[tuple[bool, int, str], bool, Expr]] = []
        for term in expr.args:
            coefficient, rest = term.as_coeff_Mul()
            degree = 0 if rest == 1 else _degree(rest)
            key = (degree == 0, -degree, self.at(rest))
            terms.append((key, bool(coefficient < 0), term))
        terms.sort(key=lambda item: item[0])
        # A sum opens with a positive term where it has one.
        first = next((i for i, item in enumerate(terms) if not item[1]), 0)
        terms.insert(0, terms.pop(first))
        head = self.at(terms[0][2], PRODUCT)
        return head + "".join(
            f" - {self.at(-term, PRODUCT)}" if minus else f" + {self.at(term, PRODUCT)}"
            for _, minus, term in terms[1:]
        )

    def _product(self, expr: Expr) -> tuple[str, int]:
        coefficient, rest = expr.as_coeff_Mul()
        if not isinstance(coefficient, Integer):
            raise TypeError(f"{expr} is not an integer expression")
        powers = [factor.as_base_exp() for factor in Mul.make_args(rest)]
        for _, exponent in powers:
            if not isinstance(exponent, Integer) or not 0 < int(exponent) <= MAX_POWER:
                raise TypeError(f"{expr} has a power that cannot be written as a product")
        texts = [(self.at(base, UNARY), int(exponent)) for base, exponent in powers]
        texts.sort(key=lambda item: (item[0].startswith("("), item[0]))
        factors = list(chain.from_iterable([text] * count for text, count in texts))
        if coefficient == 1:
            return "*".join(factors), PRODUCT
        if coefficient == -1:
            return "-" + "*".join(factors), UNARY if len(factors) == 1 else PRODUCT
        return "*".join([self.integer(int(coefficient)), *factors]), PRODUCT


def comparison_sign(relation: Relational) -> str:
    """Return ``<``, ``<=``, ``==``, ``!=``, ``>`` or ``>=``."""
    return str(getattr(relation, "rel_op", type(relation).__name__))


def _degree(expr: Expr) -> int:
    return sum(
        int(exponent) if isinstance(exponent, Integer) else 1
        for _, exponent in (factor.as_base_exp() for factor in Mul.make_args(expr))
    )


def to_text(expr: Basic) -> str:
    """Return the canonical text of an expression or condition.

    Raises ``TypeError`` for a node outside the language (a negative power, say) and
    ``ValueError`` for a symbol name or a literal that could not be read back.
    """
    return Printer().at(expr)
