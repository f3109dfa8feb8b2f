"""`Points`: values of symbols inside known ranges, which show that a bound cannot be proved.

A proof holds for all values inside the ranges. So if a polynomial is less than a number at one
point inside the ranges, there is no proof that it is at least that number. Evaluating a
polynomial takes microseconds; a search for a proof that does not exist takes milliseconds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, cast, overload
from zlib import crc32

from sympy import Expr, Symbol
from sympy.core.basic import Basic

from coordgraph.errors import DivisionByZero, NoEntry
from coordgraph.integers.bounds import Fact, SymbolBounds, TableBounds, assumed_lower
from coordgraph.integers.evaluate import Evaluation
from coordgraph.integers.guards import Guards
from coordgraph.integers.polynomials import Atom, Polynomial, to_polynomial
from coordgraph.integers.tables import search_table

SPANS = (0, 1, 1, 2, 3, 4, 6, 9, 14, 40, 300, 5000, 1 << 16, 1 << 21)
"""The spans that points use: the largest difference of a symbol's value from its lower bound.

A point assigns a value to every symbol, and chooses one of these spans for each symbol separately.
So one symbol may be much larger than another: many false inequalities fail only at such points.
"""
MOST_KEPT = 12
"""The largest number of points (assignments of a value to every symbol) that are kept to refute
inequalities; all known upper limits and conditions hold at these points."""
MOST_TRIED = 3 * MOST_KEPT
"""The largest number of points (assignments of a value to every symbol) that are generated, until
`MOST_KEPT` of them satisfy all known upper limits and conditions."""


@dataclass(frozen=True, eq=False)
class Points:
    """Points (a value for every symbol) inside known ranges, at which inequalities are tried.

    Equal ranges have the same points in every process.

    Attributes:
        bounds: the lower and upper bounds of symbols.
        facts: known upper limits of polynomials.
        definitions: the expression that each defined symbol equals.
        guards: polynomials that are known to be at least 0.
        tables: the known bounds of tables' entries, by the table's symbol.
        outer: the points of the enclosing loop's ranges, and the symbol, such as an inner loop's
            index, that is bounded only by these ranges; None if no ranges enclose them.
    """

    bounds: Mapping[Atom, SymbolBounds]
    facts: tuple[Fact, ...]
    definitions: Mapping[Atom, Expr]
    guards: Guards
    tables: Mapping[Symbol, TableBounds]
    outer: "tuple[Points, Symbol] | None"

    def below(self, p: Polynomial, goal: int) -> bool:
        """Whether ``p`` is less than ``goal`` at one of the points, which refutes ``p >= goal``."""
        for at in self._inside:
            value = at.value(p)
            if value is not None and value < goal:
                return True
        return False

    def least(self, p: Polynomial) -> int | None:
        """The smallest value of the polynomial ``p`` at the tried points inside the ranges.

        The result is None if the value is unknown at all these points.
        """
        values = [at.value(p) for at in self._inside]
        return min([value for value in values if value is not None], default=None)

    def scopes_inside(self, target: Atom) -> int:
        """How many ranges, from these outward, add bounds of a symbol that `target` lacks.

        Ranges are nested: inner ranges add bounds of one symbol, such as an inner loop's index, to
        those of the enclosing ranges. The count ends before the first ranges whose added symbol
        occurs in the atom `target`, or before the outermost ranges.
        """
        if self.outer is None or self.outer[1] in target.symbols:
            return 0
        found = self._scopes.get(target)
        if found is None:
            found = self._scopes[target] = 1 + self.outer[0].scopes_inside(target)
        return found

    @cached_property
    def _scopes(self) -> dict[Atom, int]:
        """The cache of `scopes_inside`: by atom, how many nested ranges do not affect its value."""
        return {}

    @cached_property
    def _inside(self) -> list["_Point"]:
        if self.outer is None:
            points = (_Point(self, number) for number in range(MOST_TRIED))
            return [*islice((point for point in points if point.inside()), MOST_KEPT)]
        # An inner loop's ranges have the facts and guards of the outer loop's ranges. So each point
        # of the outer ranges is reused: only the value of the inner loop's index is added to it.
        outer, symbol = self.outer
        return [_Point(self, point.number, (point, symbol)) for point in outer._inside]


class _Point(dict[Atom, int | None]):
    """The values of the atoms of polynomials (symbols, quotients, …) at one point.

    Values are computed when they are first needed; None stands for an unknown value.

    Args:
        ranges: the ranges that contain the point.
        number: the position of the point among all generated points; it determines the values.
        outer: a point of the enclosing loop's ranges, whose values this point shares, and the
            symbol, such as an inner loop's index, whose value this point adds; or None.
    """

    def __init__(
        self, ranges: Points, number: int, outer: "tuple[_Point, Symbol] | None" = None
    ) -> None:
        super().__init__()
        self.ranges, self.number, self.outer = ranges, number, outer

    def __missing__(self, target: Atom) -> int | None:
        scopes = self.ranges.scopes_inside(target)
        if scopes:
            home = self
            for _ in range(scopes):
                assert home.outer is not None
                home = home.outer[0]
            found = home[target]
        else:
            # A value is unknown while it is computed: a value that depends on itself stays unknown.
            self[target] = None
            found = self._find(target)
        self[target] = found
        return found

    def value(self, p: Polynomial) -> int | None:
        """The value of a polynomial at this point; None if a variable of it has no known value."""
        total = 0
        for monomial, c in p.items():
            for a in monomial:
                x = self[a]
                if x is None:
                    return None
                c *= x
            total += c
        return total

    def inside(self) -> bool:
        """Whether all known upper limits (facts) and conditions (guards) hold at this point."""
        gaps = [(self.value(p), limit) for p, limit in self.ranges.facts]
        guards = map(self.value, self.ranges.guards)
        return all(value is not None and value <= limit for value, limit in gaps) and all(
            value is not None and value >= 0 for value in guards
        )

    def _find(self, target: Atom) -> int | None:
        if isinstance(target.expr, Symbol):
            return self._symbol(target)
        try:
            return _AtPoint(self).compute(target.expr)
        except (KeyError, TypeError, NoEntry, DivisionByZero):
            return None

    def _symbol(self, target: Atom) -> int | None:
        symbol = cast(Symbol, target.expr)
        ends = self.ranges.bounds.get(target, ((), ()))
        lows, highs = ([self.value(p) for p in known] for known in ends)
        if (assumed := assumed_lower(symbol)) is not None:
            lows.append(assumed)
        if None in lows or None in highs:
            return None
        low = max(cast(list[int], lows), default=None)
        high = min(cast(list[int], highs), default=None)
        if target in self.ranges.definitions:
            found = self.value(to_polynomial(self.ranges.definitions[target]))
        else:
            found = self._searched(symbol, self._between(symbol.name, low, high))
        if found is None or (low is not None and found < low):
            return None
        return None if high is not None and found > high else found

    def _between(self, name: str, low: int | None, high: int | None) -> int:
        chosen = crc32(f"{self.number} {name}".encode())
        span = SPANS[(chosen >> 16) % len(SPANS)]
        if low is None:
            return -span if high is None else high - span
        width = span if high is None else min(high - low, span)
        # In half of the cases the value is an end of the range (the largest or the smallest), since
        # most false inequalities fail there.
        if width < 1 or chosen % 8 == 0:
            return low + min(width, 0)
        return low + (width if chosen % 8 < 4 else (chosen >> 3) % (width + 1))

    def _searched(self, symbol: Symbol, most: int) -> int | None:
        """The value of `symbol` at this point, which is at most `most`.

        If `symbol` is the result of a search in a table, its value is what the search finds among
        the first `most` + 1 entries, or None if the search cannot be evaluated. Otherwise the value
        is `most`.
        """
        for table, known in self.ranges.tables.items():
            if symbol in known.found and most >= 0:
                x = self.value(to_polynomial(known.found[symbol]))
                try:
                    most = -1 if x is None else search_table(self.table(table), most + 1, x)
                except (KeyError, NoEntry):
                    return None
        return most

    def table(self, symbol: Symbol) -> "_Entries":
        """Entries invented for the table `symbol`, whose real entries are known only at launch.

        They are inside the known bounds of the table's entries; inequalities are tried with them.

        Raises:
            KeyError: the maximum of the table's entries is unknown at this point, or negative.
        """
        known = self.ranges.tables.get(symbol)
        if known is None:
            return _Entries(self.number % 3)
        most = self.value(to_polynomial(known.maximum))
        if most is None or most < 0:
            raise KeyError(
                f"the maximum of the entries of table '{symbol.name}' is negative or unknown; "
                "declare it by Ranges.with_table"
            )
        return _Entries(max(known.step or 0, self.number % 3), most)


class _AtPoint(Evaluation):
    """Evaluates expressions with the symbols' values at a point; KeyError if one is unknown."""

    def __init__(self, point: _Point) -> None:
        super().__init__({})
        self.point = point

    def value(self, expr: Basic) -> int:
        if not isinstance(expr, Expr):
            return self.compute(expr)
        found = self.point.value(to_polynomial(expr))
        if found is None:
            raise KeyError(expr)
        return found

    def given(self, symbol: Basic) -> Any:
        return self.point.table(cast(Symbol, symbol))


@dataclass(frozen=True)
class _Entries(Sequence[int]):
    """Entries invented for a table, to try inequalities before a launch gives the real entries.

    Args:
        step: the difference between consecutive entries; entry i is ``i·step``.
        most: the largest entry; reading an entry that would be larger raises NoEntry. None for no
            limit.
    """

    step: int
    most: int | None = None

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...
    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        assert isinstance(index, int)
        entry = self.step * index
        if self.most is not None and entry > self.most:
            raise NoEntry(
                f"entry {index} of a table, taken as {index} * {self.step} to try an inequality, "
                f"is more than the table's declared maximum {self.most}; use a smaller index"
            )
        return entry

    def __len__(self) -> int:
        return 1 << 40
