"""The canonical text form of index expressions.

Operators have Python's precedence. Parentheses are minimal, except that a quotient or remainder in
a product always has them, because ``a // b*c`` is easily misread. Powers are written as products
(``x*x``).
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
"""The largest number of decimal digits of an integer in the text form of an expression; printing or
parsing a longer one is an error."""
MAX_POWER = 64
"""The largest exponent of a power that the text form of an expression writes as a repeated factor;
a larger exponent raises `TypeError`."""
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
"""The pattern of names of symbols in the text form."""
RESERVED = frozenset(
    {"and", "or", "not", "true", "false", "min", "max", "select", "load", "search"}
)
"""Words of the expression language that cannot be the name of a symbol."""

# The precedence levels of operators, from the weakest to the strongest.
OR, AND, NOT, COMPARISON, XOR, SUM, PRODUCT, UNARY, ATOM = range(9)


class Printer:
    """Prints index expressions; subclasses change how symbols, constants and selects are written.

    A printer caches the text of every node. Printing a sum needs the text of each term twice, to
    sort and to print the terms, so without the cache the work would double with every nesting
    level.
    """

    def __init__(self) -> None:
        self.known: dict[Basic, tuple[str, int]] = {}

    def symbol(self, symbol: Symbol) -> str:
        """The text of a symbol: the symbol's name.

        Raises:
            ValueError: the text form does not allow the name (see `NAME` and `RESERVED`).
        """
        name = symbol.name
        if not NAME.fullmatch(name) or name in RESERVED:
            raise ValueError(
                f"the symbol name {name!r} cannot be printed; use letters, digits, _ and ., and no "
                "reserved word"
            )
        return name

    def integer(self, value: int) -> str:
        """The text of an integer in decimal.

        Raises:
            ValueError: the integer has more than `MAX_DIGITS` digits.
        """
        if abs(value) >= 10**MAX_DIGITS:
            raise ValueError(
                f"the integer {value:#x} has more than {MAX_DIGITS} decimal digits; use a smaller "
                "integer"
            )
        return str(value)

    def truth(self, value: bool) -> str:
        """The text of a condition that is always true or always false."""
        return "true" if value else "false"

    def select(self, condition: Basic, a: Basic, b: Basic) -> str:
        """The text ``select(condition, a, b)`` of a `Select`; subclasses may print another form."""
        return f"select({self.at(condition)}, {self.at(a)}, {self.at(b)})"

    def at(self, expr: Basic, strength: int = OR) -> str:
        """The text of ``expr``, in parentheses if its precedence is lower than ``strength``."""
        text, own = self.bound(expr)
        return f"({text})" if own < strength else text

    def bound(self, expr: Basic) -> tuple[str, int]:
        """The text of ``expr`` without parentheses, and its precedence."""
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
                raise TypeError(
                    f"{kind} is not allowed in index expressions: {expr}; use +, -, * and the "
                    "functions of coordgraph.integers"
                )

    def _comparison(self, expr: Relational) -> str:
        left, right = expr.args
        return f"{self.at(left, XOR)} {comparison_sign(expr)} {self.at(right, XOR)}"

    def _joined(self, expr: Basic, separator: str, strength: int) -> str:
        # Sort arguments by text, because the order of SymPy's arguments is not stable.
        return separator.join(sorted(self.at(arg, strength) for arg in expr.args))

    def _sum(self, expr: Add) -> str:
        terms: list[tuple[tuple[bool, int, str], bool, Expr]] = []
        for term in expr.args:
            coefficient, rest = term.as_coeff_Mul()
            degree = 0 if rest == 1 else _degree(rest)
            key = (degree == 0, -degree, self.at(rest))
            terms.append((key, bool(coefficient < 0), term))
        terms.sort(key=lambda item: item[0])
        # Move the first positive term, if there is one, to the front, so that the text does not
        # begin with a minus sign.
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
            raise TypeError(
                f"{expr} has the coefficient {coefficient}, which is not an integer; write a "
                "quotient with floor_div"
            )
        powers = [factor.as_base_exp() for factor in Mul.make_args(rest)]
        for _, exponent in powers:
            if not isinstance(exponent, Integer) or not 0 < int(exponent) <= MAX_POWER:
                raise TypeError(
                    f"{expr} has a power that cannot be written as a product; use exponents from "
                    f"1 to {MAX_POWER}"
                )
        texts = [(self.at(base, UNARY), int(count), base) for base, count in powers]
        texts.sort(key=lambda item: (item[0].startswith("("), item[0]))
        factors = list(chain.from_iterable([text] * count for text, count, _ in texts))
        if coefficient != 1 and len(factors) > 1 and isinstance(texts[0][2], Add):
            # Add parentheses: SymPy multiplies a number into the first factor if that is a sum, so
            # it would read `-(i + j)*j` as `(-i - j)*j`.
            factors = [f"({'*'.join(factors)})"]
        if coefficient == 1:
            return "*".join(factors), PRODUCT
        if coefficient == -1:
            return "-" + "*".join(factors), UNARY if len(factors) == 1 else PRODUCT
        return "*".join([self.integer(int(coefficient)), *factors]), PRODUCT


def comparison_sign(relation: Relational) -> str:
    """The operator of a comparison: ``<``, ``<=``, ``==``, ``!=``, ``>`` or ``>=``."""
    return str(getattr(relation, "rel_op", type(relation).__name__))


def _degree(expr: Expr) -> int:
    """The number of factors of a product, counted with their exponents."""
    return sum(
        int(exponent) if isinstance(exponent, Integer) else 1
        for _, exponent in (factor.as_base_exp() for factor in Mul.make_args(expr))
    )


def to_text(expr: Basic) -> str:
    """The canonical text of an index expression or a condition; `parse_expression` reads it back.

    Raises:
        TypeError: a node is not allowed in index expressions, such as a negative power.
        ValueError: the text form does not allow a symbol's name, or an integer is too long.
    """
    return Printer().at(expr)
