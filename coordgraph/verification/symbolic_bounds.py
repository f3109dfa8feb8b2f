"""`SymbolicBounds`: proves inequalities that need symbolic bounds of divisions, minima, maxima.

`Ranges` replaces symbols by numeric bounds. Proofs about workspace slots need symbolic bounds:
`w // 3 < tiles` follows from `w <= 3*tiles - 1`, not from the largest number of tiles. To prove
`e <= limit`, one part of `e` after another is replaced by an expression that is at least as large:

- a symbol by each of its stated upper bounds;
- `x // d` by `q - 1` if `x <= q*d - 1`, and by q if `x <= q*d + d - 1`;
- `min(a, b)` by a, or by b; `max(a, b)` by a and by b, which both must be proved;
- a parameter by the expression that defines it;
- the inequality `x // d <= q` by `x <= q*d + d - 1`.

Every replacement is sound by itself. After each replacement, `Ranges` tries to prove the
inequality.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sympy import Expr, Integer, Symbol

from coordgraph.integers import Bounds, FloorDiv, Maximum, Minimum, Ranges, operands
from coordgraph.integers.polynomials import (
    Atom,
    Polynomial,
    add,
    atom_of,
    atoms_of,
    coefficient_of,
    constant,
    divide,
    multiply,
    negate,
    substitute,
    to_expression,
    to_polynomial,
)

__all__ = ["Effort", "SymbolicBounds"]

FUEL = 60
"""Largest number of inequalities that the search for one proof asks `Ranges` to prove; a search
that needs more finds no proof."""
DEEPEST = 6
"""Exclusive limit on the depth of a proof: the number of successive steps, each of which replaces a
part of the expression by a bound of that part."""
DEPTH = 3
"""Largest number of symbols in the dividend of a division that are replaced, one after another, by
their bounds to find an upper bound of the quotient."""


@dataclass
class Effort:
    """A budget of inequalities that several proofs together may ask `Ranges` to prove.

    Args:
        left: number of inequalities that proofs may still ask for.
    """

    left: int


class SymbolicBounds:
    """Proves inequalities between expressions, given ranges of their symbols.

    Args:
        ranges: known bounds of the symbols.
        definitions: the expression that each defined parameter equals.
        uppers: further upper bounds of symbols, which `ranges` does not have.
        effort: the number of inequalities that all proofs together may ask `ranges` to prove; None
            for no limit.
    """

    def __init__(
        self,
        ranges: Ranges,
        definitions: Mapping[Symbol, Expr],
        uppers: Mapping[Symbol, tuple[Expr, ...]] | None = None,
        effort: Effort | None = None,
    ) -> None:
        self._uppers, self._effort = uppers or {}, effort
        self._ranges = ranges
        self._definitions = {atom_of(symbol): to_polynomial(e) for symbol, e in definitions.items()}
        self._fuel = 0
        self._proved: dict[tuple[Expr, Expr], bool] = {}
        self._answers: dict[Expr, bool] = {}

    def at_least_zero(self, expr: Expr) -> bool:
        """Whether `expr >= 0` is proved."""
        return self.at_most(-expr, Integer(0))

    def less(self, expr: Expr, limit: Expr) -> bool:
        """Whether `expr < limit` is proved."""
        return self.at_most(expr, limit - 1)

    def at_most(self, expr: Expr, limit: Expr) -> bool:
        """Whether `expr <= limit` is proved."""
        if (expr, limit) not in self._proved:
            gap = add(to_polynomial(expr), to_polynomial(limit), -1)
            # Try short proofs first: most proofs replace one or two symbols or terms by bounds.
            self._fuel = FUEL
            self._proved[expr, limit] = any(self._at_most_zero(gap, n) for n in range(DEEPEST))
        return self._proved[expr, limit]

    def _at_most_zero(self, p: Polynomial, depth: int) -> bool:
        """Whether `p <= 0` is proved by replacing up to `depth` symbols or subterms by bounds."""
        if self._holds(to_expression(negate(p))):
            return True
        if not depth:
            return False
        for steps in self._raised(p):
            if self._fuel <= 0:
                return False
            if all(self._at_most_zero(step, depth - 1) for step in steps):
                return True
        return False

    def _raised(self, p: Polynomial) -> Iterator[tuple[Polynomial, ...]]:
        """Yield tuples of polynomials: if every polynomial of one tuple is <= 0, then `p` is <= 0.

        Each tuple results from replacing one atom of `p` (a symbol, quotient, minimum or maximum)
        by its bounds or by its definition.
        """
        for a in atoms_of(p):
            parts = coefficient_of(p, a)
            if parts is None or not (sign := self._sign(parts[0])):
                continue
            if isinstance(a.expr, FloorDiv) and parts[0] == constant(1):
                x, d = map(to_polynomial, operands(a.expr))
                if self._positive(d):
                    # To prove x // d <= q for d > 0, it is enough to prove x - q*d - d + 1 <= 0.
                    rest = multiply(add(parts[1], constant(1), -1), d)
                    yield (add(add(x, rest), constant(1)),)
            yield from (
                tuple(substitute(p, a, end) for end in ends) for ends in self._ends(a, sign)
            )
        for a in atoms_of(p):
            if a in self._definitions:
                yield (substitute(p, a, self._definitions[a]),)

    def _ends(self, a: Atom, sign: int) -> Iterator[tuple[Polynomial, ...]]:
        """Yield bounds that may replace the atom `a` (a symbol, quotient, minimum or maximum).

        Yields tuples of upper bounds if `sign` is 1, else of lower bounds. A proof must succeed
        with every bound of at least one tuple.
        """
        match a.expr:
            case Minimum() | Maximum():
                both = tuple(map(to_polynomial, operands(a.expr)))
                if isinstance(a.expr, Minimum) == (sign > 0):
                    yield from ((part,) for part in both)
                else:
                    yield both
            case FloorDiv() if sign > 0:
                x, d = map(to_polynomial, operands(a.expr))
                if self._positive(d):
                    yield from ((q,) for q in self._quotients(x, d))
            case Symbol():
                yield from ((end,) for end in self._stated(a, sign))
            case _:
                return

    def _quotients(self, x: Polynomial, d: Polynomial) -> Iterator[Polynomial]:
        """Upper bounds of `x // d` for d > 0, each from an upper bound of x."""
        for top in self._tops(x, DEPTH):
            quotient, rest = divide(top, d)
            gap = to_expression(rest)
            if self._holds(-gap - 1):
                yield add(quotient, constant(1), -1)
            elif self._holds(to_expression(d) - gap - 1):
                yield quotient

    def _tops(self, p: Polynomial, depth: int) -> Iterator[Polynomial]:
        """Upper bounds of p, made by replacing some symbols of p by the symbols' upper bounds."""
        yield p
        if not depth:
            return
        for a in atoms_of(p):
            parts = coefficient_of(p, a)
            if parts is not None and isinstance(a.expr, Symbol) and (sign := self._sign(parts[0])):
                for end in self._stated(a, sign):
                    yield from self._tops(substitute(p, a, end), depth - 1)

    def _stated(self, a: Atom, sign: int) -> Iterator[Polynomial]:
        """Symbolic bounds of a symbol that the caller stated: upper if `sign` > 0, else lower.

        Constant bounds are left out, because `Ranges` uses them itself.
        """
        if not isinstance(a.expr, Symbol):
            return
        bounds = self._ranges.bounds.get(a.expr, Bounds())
        ends = (*bounds.uppers, *self._uppers.get(a.expr, ())) if sign > 0 else bounds.lowers
        for end in ends:
            if not end.is_Integer and a not in atoms_of(to_polynomial(end)):
                yield to_polynomial(end)

    def _positive(self, d: Polynomial) -> bool:
        return self._holds(to_expression(d) - 1)

    def _sign(self, p: Polynomial) -> int:
        """The proved sign of a polynomial: 1 if `p >= 0`, -1 if `p <= 0`, 0 if unknown."""
        if self._holds(to_expression(p)):
            return 1
        return -1 if self._holds(to_expression(negate(p))) else 0

    def _holds(self, expr: Expr) -> bool:
        """Whether `Ranges` proves `expr >= 0`; False if the budget of inequalities is spent."""
        if expr not in self._answers:
            if self._fuel <= 0 or (self._effort is not None and self._effort.left <= 0):
                return False
            self._fuel -= 1
            if self._effort is not None:
                self._effort.left -= 1
            self._answers[expr] = self._ranges.prove_nonnegative(expr)
        return self._answers[expr]
