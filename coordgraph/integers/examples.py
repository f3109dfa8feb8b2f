"""Examples of values inside known ranges: one of them often shows that there is no proof.

A search for a proof that does not exist tries every step, so it takes ten times as long as one
that succeeds. An example in which an inequality is false ends the search before it begins. What is
proved does not depend on examples.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from typing import TypeAlias
from zlib import crc32

from sympy import Expr, Symbol
from sympy.core.basic import Basic

from coordgraph.errors import CoordGraphError
from coordgraph.integers.bounds import (
    Bound,
    Fact,
    NumericBounds,
    TableBounds,
    assumed_lower,
    smallest,
)
from coordgraph.integers.evaluate import Evaluation
from coordgraph.integers.polynomials import Atom, Polynomial, atom_of, to_polynomial
from coordgraph.integers.tables import Load, Search

CHOICES = ("high", "low", "first", "random", "round")
"""How each example chooses values: indices at the end or at the start of their ranges, every value
the least one, all values at random, or sizes that are powers of two."""
WIDE = 1 << 12
"""A symbol with more values than this one is a size; its value is chosen at random."""
UNKNOWN = (CoordGraphError, ArithmeticError, LookupError, RecursionError)
"""What an evaluation raises if an example has no value for an expression."""

SymbolBounds: TypeAlias = tuple[tuple[Polynomial, ...], tuple[Polynomial, ...]]
"""The lower bounds and the upper bounds of an atom; every one of these bounds holds."""
Guards: TypeAlias = tuple[Polynomial, ...]
"""Polynomials that are known to be at least 0."""


class Example(Evaluation):
    """Values of symbols for which all statements hold, chosen when they are first needed.

    Args:
        known: the statements.
        choice: one of `CHOICES`.
        outer: the example of the enclosing scope, and the symbol that the inner scope adds.
    """

    def __init__(
        self, known: "Statements", choice: str, outer: "tuple[Example, Symbol] | None" = None
    ) -> None:
        super().__init__({})
        self.statements, self.choice, self.outer = known, choice, outer
        self._atoms: dict[Atom, int | None] = {}

    def of(self, p: Polynomial) -> int | None:
        """The value of a polynomial; None if it is unknown."""
        total = 0
        for monomial, c in p.items():
            for a in monomial:
                value = self.at(a)
                if value is None:
                    return None
                c *= value
            total += c
        return total

    def at(self, target: Atom) -> int | None:
        """The value of an atom; None if it is unknown."""
        if target not in self._atoms:
            if self.outer and self.outer[1] not in target.symbols:
                self._atoms[target] = self.outer[0].at(target)
            else:
                self._atoms[target] = None  # for a symbol whose bounds contain it
                with suppress(*UNKNOWN):
                    symbol = isinstance(target.expr, Symbol)
                    found = self._chosen(target) if symbol else int(self.value(target.expr))
                    self._atoms[target] = found
        return self._atoms[target]

    def compute(self, expr: Basic) -> int:
        """The value of an expression; KeyError for an entry of a table, which has no example."""
        if isinstance(expr, Load | Search):
            raise KeyError(str(expr.args[0]))
        return super().compute(expr)

    def given(self, symbol: Basic) -> int:
        """The value of a symbol; KeyError if it is unknown."""
        assert isinstance(symbol, Symbol)
        found = self.at(atom_of(symbol))
        if found is None:
            raise KeyError(symbol.name)
        return found

    def _chosen(self, target: Atom) -> int | None:
        """The value of a symbol: that of its definition, or one between its bounds."""
        if target in self.statements.definitions:
            return self.of(to_polynomial(self.statements.definitions[target]))
        lowers, uppers = self.statements.bounds.get(target, ((), ()))
        ends = [self.of(p) for p in (*lowers, *uppers)]
        if None in ends:
            return None
        known = [end for end in ends if end is not None]
        low = max((*known[: len(lowers)], assumed_lower(target.expr) or 0))
        high = min(known[len(lowers) :], default=low + WIDE)
        return self._between(low, high, target) if low <= high else None

    def _between(self, low: int, high: int, target: Atom) -> int:
        """A value of a symbol between two numbers; the same one in every process."""
        draw = crc32(f"{self.choice} {target.key}".encode())
        if self.choice == "first":
            return low
        if high - low >= WIDE:
            # Sizes of every order of magnitude.
            power = 1 << draw % 11
            return max(low, power) if self.choice == "round" else low + draw % (3 * power)
        return {"high": high, "low": low}.get(self.choice, low + draw % (high - low + 1))

    def holds(self) -> bool:
        """Whether every statement is true; False if the value of one is unknown."""
        if self.outer:
            return self.at(atom_of(self.outer[1])) is not None
        return all(gap is not None and gap >= 0 for gap in self._gaps())

    def _gaps(self) -> Iterator[int | None]:
        """Numbers that are at least 0 if all statements are true; None for an unknown one."""
        stated = self.statements
        for target in stated.bounds.keys() | stated.definitions.keys():
            lowers, uppers = stated.bounds.get(target, ((), ()))
            value, least = self.at(target), assumed_lower(target.expr)
            if least is not None:
                yield _minus(value, least)
            yield from (_minus(value, self.of(p)) for p in lowers)
            yield from (_minus(self.of(p), value) for p in uppers)
        yield from (_minus(most, self.of(p)) for p, most in stated.facts)
        yield from map(self.of, stated.guards)


def _minus(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a - b


class Statements(NumericBounds):
    """Statements about the values of symbols, with examples of values for which all of them hold.

    Args:
        bounds: the symbolic lower and upper bounds of each symbol.
        facts: known upper limits of polynomials.
        definitions: the expression that each defined symbol equals.
        guards: polynomials that are known to be at least 0.
        outer: the statements of the enclosing scope, and the symbol that the inner scope adds.
        tables: the known bounds of tables' entries, by the table's symbol.
    """

    def __init__(
        self,
        bounds: Mapping[Symbol, SymbolBounds],
        facts: tuple[Fact, ...],
        definitions: Mapping[Symbol, Expr],
        guards: Guards,
        outer: "tuple[Statements, Symbol] | None" = None,
        tables: Mapping[Symbol, TableBounds] | None = None,
    ) -> None:
        super().__init__(facts, tables)
        self.bounds = {atom_of(symbol): known for symbol, known in bounds.items()}
        self.definitions = {atom_of(symbol): e for symbol, e in definitions.items()}
        self.guards, self._around = guards, outer

    @cached_property
    def examples(self) -> tuple[Example, ...]:
        """At most one example of each of `CHOICES`."""
        if self._around is None:
            found = (Example(self, choice) for choice in CHOICES)
        else:
            outer, symbol = self._around
            found = (Example(self, e.choice, (e, symbol)) for e in outer.examples)
        return tuple(example for example in found if example.holds())

    def least_example(self, p: Polynomial) -> Bound:
        """The least value of a polynomial in the examples; None if it is unknown.

        No lower bound of the polynomial is larger.
        """
        least: Bound = None
        for example in self.examples:
            least = smallest(least, example.of(p))
        return least
