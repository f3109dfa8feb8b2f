"""Numeric bounds of polynomials and of their atoms (variables); every proof ends with such a bound.

To bound a polynomial from below, every atom is written as its lower bound plus an excess that is at
least 0. If no coefficient other than the constant is then negative, the constant is a lower bound.
A term with a negative coefficient is bounded through the atoms' upper bounds or through facts:
known upper limits of polynomials.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from threading import get_ident, local
from typing import TypeAlias, TypeVar, cast

from sympy import Expr, Integer, Symbol

from coordgraph.integers.functions import BitXor, FloorDiv, FloorMod, Maximum, Minimum
from coordgraph.integers.intervals import (
    Bound,
    Interval,
    both,
    divided,
    largest,
    quotient_with_remainder,
    reduced,
    smallest,
    xored,
)
from coordgraph.integers.polynomials import (
    MAX_TERMS,
    Atom,
    Monomial,
    Polynomial,
    add,
    by_key,
    negate,
    shared,
    to_polynomial,
    without,
)
from coordgraph.integers.tables import Load, Search

Fact: TypeAlias = tuple[Polynomial, int]
"""A known upper limit: a polynomial, and a number that its value never exceeds."""
SymbolBounds: TypeAlias = tuple[tuple[Polynomial, ...], tuple[Polynomial, ...]]
"""The lower bounds and the upper bounds of an atom; every one of these bounds holds."""

MOST_NESTED = 32
"""The largest recursion depth of computing bounds, where each bound needs the next one; beyond it,
a weak bound or none is used, so that Python's stack does not overflow. Bounds of correct kernels
need a depth of up to 30."""

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class TableBounds:
    """The known properties of the entries of a table of integers.

    Args:
        maximum: an upper bound of all entries.
        from_zero: whether the first entry is 0.
        step: a lower bound of the difference between consecutive entries; None if the entries need
            not be non-decreasing.
        found: for each symbol that holds the result of a `Search` of the table, the value that was
            searched for (`x` of `Search`).
    """

    maximum: Expr
    from_zero: bool = False
    step: int | None = 0
    found: Mapping[Symbol, Expr] = field(default_factory=dict[Symbol, Expr])


def assumed_lower(symbol: Expr) -> Bound:
    """The lower bound that SymPy's assumptions give: 1 if positive, 0 if nonnegative."""
    if symbol.is_positive:
        return 1
    return 0 if symbol.is_nonnegative else None


class _Nested(local):
    """The recursion depth of `NumericBounds._once` in each thread of the process."""

    depth = 0


_nested = _Nested()


class NumericBounds:
    """Numeric bounds of atoms (variables) and polynomials; `Prover` adds a search for better ones.

    Args:
        facts: known upper limits of polynomials.
        tables: the known bounds of tables' entries, by the table's symbol.
    """

    def __init__(
        self, facts: tuple[Fact, ...], tables: Mapping[Symbol, TableBounds] | None = None
    ) -> None:
        self.facts = facts
        self.tables = tables or {}
        self._lowers: dict[Atom, Bound] = {}
        self._uppers: dict[Atom, Bound] = {}
        self._operands: dict[Atom, tuple[Interval, Interval]] = {}
        self._open: set[tuple[int, int, Atom]] = set()
        self.circular = False
        """True once bounds of two symbols depended on each other, or the recursion was too deep
        (`MOST_NESTED`): results then depend on the order of queries."""
        self._facts_about: dict[Monomial, list[int]] = {}
        for number, (polynomial, _) in enumerate(facts):
            for monomial, c in polynomial.items():
                if monomial and c > 0:
                    self._facts_about.setdefault(monomial, []).append(number)
        self._minima: dict[frozenset[tuple[Monomial, int]], Bound] = {}
        self._fact_maxima: dict[Monomial, Bound] = {}
        self._excess_maxima: dict[Monomial, Bound] = {}
        self._expansions: dict[Monomial, tuple[tuple[Monomial, int], ...]] = {}
        self._usable_facts: list[Fact] | None = None

    def minimum(self, p: Polynomial) -> Bound:
        """A lower bound of the polynomial ``p``, or None if none is found."""
        return self.numeric_minimum(p)

    def maximum(self, p: Polynomial) -> Bound:
        """An upper bound of the polynomial ``p``, or None if none is found."""
        low = self.minimum(negate(p))
        return None if low is None else -low

    def symbol_lower(self, symbol: Atom) -> Bound:
        """The largest known numeric lower bound of a symbol, or None if there is none."""
        return assumed_lower(symbol.expr)

    def symbol_upper(self, symbol: Atom) -> Bound:
        """The smallest known numeric upper bound of a symbol, or None if there is none."""
        return self.fact_maximum((symbol,))

    def lower(self, target: Atom) -> Bound:
        """A numeric lower bound of an atom (a symbol or a function), or None; it is cached."""

        def find() -> Bound:
            symbol = isinstance(target.expr, Symbol)
            return self.symbol_lower(target) if symbol else self._bounds(target)[0]

        return self._once(self._lowers, target, find, lambda: assumed_lower(target.expr))

    def upper(self, target: Atom) -> Bound:
        """A numeric upper bound of an atom (a symbol or a function), or None; it is cached."""

        def find() -> Bound:
            symbol = isinstance(target.expr, Symbol)
            return self.symbol_upper(target) if symbol else self._bounds(target)[1]

        return self._once(self._uppers, target, find, lambda: None)

    def _once(
        self,
        cache: dict[Atom, _Result],
        target: Atom,
        find: Callable[[], _Result],
        provisional: Callable[[], _Result],
    ) -> _Result:
        """Return `cache[target]`; if it is missing, compute it with `find()` first.

        The value of `provisional()` is returned, and not cached, if `find()` asks for the same
        target again (bounds of symbols may depend on each other), or if the recursion is
        `MOST_NESTED` deep.
        Threads may share a prover; if two of them compute the same target, the results are equal.
        """
        if target in cache:
            return cache[target]
        token = get_ident(), id(cache), target
        if token in self._open or _nested.depth >= MOST_NESTED:
            self.circular = True
            return provisional()
        self._open.add(token)
        _nested.depth += 1
        try:
            found = cache[target] = find()
        finally:
            _nested.depth -= 1
            self._open.discard(token)
        return found

    def _bounds(self, atom: Atom) -> Interval:
        target = atom.expr
        args = cast(tuple[Expr, ...], target.args)
        if isinstance(target, (FloorDiv, FloorMod)):
            x, d = self._operands[atom] = self.interval_of(args[0]), self.interval_of(args[1])
            return (divided if isinstance(target, FloorDiv) else reduced)(x, d)
        if isinstance(target, (Minimum, Maximum, BitXor)):
            (al, ah), (bl, bh) = (self.interval_of(arg) for arg in args)
            if isinstance(target, Minimum):
                return both(min, al, bl), smallest(ah, bh)
            if isinstance(target, Maximum):
                return largest(al, bl), both(max, ah, bh)
            return xored(al, ah, bl, bh)
        if isinstance(target, Load):
            table = self.tables.get(cast(Symbol, args[0]))
            return 0, None if table is None else self.maximum(to_polynomial(table.maximum))
        if isinstance(target, Search):
            _, high = self.interval_of(args[1])
            return 0, None if high is None else max(high - 1, 0)
        if len(args) == 3:
            (al, ah), (bl, bh) = (self.interval_of(arg) for arg in args[1:])
            return both(min, al, bl), both(max, ah, bh)
        return assumed_lower(target), None

    def operands(self, target: Atom) -> tuple[Interval, Interval] | None:
        """The bounds of x and of d that gave the bounds of the atom ``x // d`` or ``x % d``.

        None if the bounds of the atom are being computed, or need a deeper recursion than `_once`
        allows.
        """
        self.lower(target)
        return self._operands.get(target)

    def interval_of(self, expr: Expr) -> Interval:
        """A numeric lower and a numeric upper bound of an expression; None for an unknown bound."""
        if isinstance(expr, Integer):
            return int(expr), int(expr)
        p = to_polynomial(expr)
        return self.minimum(p), self.maximum(p)

    def natural(self, monomial: Monomial) -> bool:
        """Whether all variables (atoms) of a monomial are known to be at least 0."""
        lowers = [self.lower(a) for a in monomial]
        return None not in lowers and min(cast(list[int], lowers), default=0) >= 0

    def fact_maximum(self, monomial: Monomial) -> Bound:
        """An upper bound of a product of non-negative atoms, from facts about other products.

        From the fact ``a*b*c <= 60`` and ``c >= 1`` it follows that ``a*b <= 60``; if ``c >= 5``,
        that ``a*b <= 12``. None if no fact applies.
        """
        if monomial not in self._fact_maxima:
            self._fact_maxima[monomial] = self._find_fact_maximum(monomial)
        return self._fact_maxima[monomial]

    def _find_fact_maximum(self, monomial: Monomial) -> Bound:
        if not self.natural(monomial):
            return None
        best: Bound = None
        for polynomial, limit in self._natural_facts():
            for term, c in polynomial.items():
                common = shared(term, monomial)
                if not common or not term:
                    continue
                others = cast(Monomial, without(term, common))
                scale = c * prod(cast(int, self.lower(a)) for a in others)
                rest = cast(Monomial, without(monomial, common))
                widths = [self.upper(a) for a in rest]
                if scale > 0 and None not in widths and limit >= 0:
                    best = smallest(best, limit // scale * prod(cast(list[int], widths)))
        return best

    def _natural_facts(self) -> list[Fact]:
        """The facts (upper limits of polynomials) with coefficients > 0 and variables >= 0."""
        if self._usable_facts is not None:
            return self._usable_facts
        found = [
            (polynomial, limit)
            for polynomial, limit in self.facts
            if not any(c < 0 or not self.natural(m) for m, c in polynomial.items())
        ]
        if all(a in self._lowers for polynomial, _ in self.facts for m in polynomial for a in m):
            # Cache the list only if the lower bounds of all variables of the facts are cached, and
            # so are final: a bound that is not cached may improve later.
            self._usable_facts = found
        return found

    def numeric_minimum(self, p: Polynomial) -> Bound:
        """A lower bound of ``p`` from numeric bounds of atoms and from facts, or None.

        A fact is a known upper limit of a polynomial. No symbol is replaced by a symbolic bound.
        The result is cached.
        """
        constant = p.get((), 0)
        if constant:  # `_minima` caches bounds of polynomials without a constant term
            p = dict(p)
            del p[()]
        key = frozenset(p.items())
        if key not in self._minima:
            self._minima[key] = self._find_numeric_minimum(p)
        low = self._minima[key]
        return None if low is None else low + constant

    def _find_numeric_minimum(self, p: Polynomial) -> Bound:
        best = self._shifted_minimum(p)
        paid, rest = self._less_pairs(p)
        if rest is not p:
            low = self.numeric_minimum(rest)
            best = largest(best, None if low is None else low - paid)
        negative = [m for m, c in p.items() if c < 0 and m] if self.facts else []
        if not negative:
            return best
        # A fact is a known upper limit of a polynomial. First bound each term with a negative
        # coefficient by a fact about its monomial. Then, for each fact, try to cancel negative
        # terms by adding a multiple of the fact's polynomial.
        paid, rest = 0, dict(p)
        for monomial in negative:
            limit = self.fact_maximum(monomial)
            if limit is not None:
                paid += p[monomial] * limit
                del rest[monomial]
        if paid:
            low = self._shifted_minimum(rest)
            best = largest(best, None if low is None else low + paid)
        useful = {number for m in negative for number in self._facts_about.get(m, ())}
        for polynomial, limit in (self.facts[number] for number in sorted(useful)):
            ratios = [-p[m] // polynomial[m] for m in negative if polynomial.get(m, 0) > 0]
            ratio = min((r for r in ratios if r > 0), default=0)
            if ratio:
                low = self._shifted_minimum(add(p, polynomial, ratio))
                best = largest(best, None if low is None else low - ratio * limit)
        return best

    def _less_pairs(self, p: Polynomial) -> tuple[int, Polynomial]:
        """An upper bound of a sum of terms that ``p`` subtracts, and ``p`` without these terms.

        The terms are pairs ``a*(x//e)`` and ``c*(z % d)`` with ``e >= d``, as in the number
        ``x//d + c*(x % d)`` of a tile that is visited with a stride. If x is a quotient ``y//s``,
        the simplifier merges ``(y//s)//d`` into ``y//(s*d)``, so e is ``s*d``. If there is no pair,
        the result is 0 and ``p`` itself.
        """
        terms = [m[0] for m, c in p.items() if c < 0 and len(m) == 1]
        remainders = [a for a in terms if isinstance(a.expr, FloorMod)]
        quotients = [a for a in terms if isinstance(a.expr, FloorDiv)] if remainders else []
        total, rest = 0, p
        remainders.sort(key=by_key)
        for quotient in sorted(quotients, key=by_key):
            for remainder in remainders:
                most = self._most_of_pair(quotient, -p[(quotient,)], remainder, -p[(remainder,)])
                if most is not None:
                    total += most
                    rest = {m: c for m, c in rest.items() if m not in ((quotient,), (remainder,))}
                    remainders.remove(remainder)
                    break
        return total, rest

    def _most_of_pair(self, quotient: Atom, a: int, remainder: Atom, c: int) -> Bound:
        """An upper bound of ``a*(x//e) + c*(z % d)``; None unless ``e >= d`` is known.

        The bounds of x and d are those from which the bounds of the two atoms were computed. A
        search for better bounds is avoided: it would be nested in the search that needs this bound,
        and could overflow Python's stack.
        """
        of_quotient, of_remainder = self.operands(quotient), self.operands(remainder)
        if of_quotient is None or of_remainder is None:
            return None
        e, d = (to_polynomial(cast(Expr, atom.expr.args[1])) for atom in (quotient, remainder))
        excess = self._shifted_minimum(add(e, d, -1))
        if excess is None or excess < 0:
            return None
        return quotient_with_remainder(a, c, of_quotient[0][1], of_remainder[1])

    def _shifted_minimum(self, p: Polynomial) -> Bound:
        shifted = self._shifted(p)
        if shifted is None:
            return None
        total = shifted.get((), 0)
        for monomial, c in shifted.items():
            if c < 0 and monomial:
                limit = self._shifted_maximum(monomial)
                if limit is None:
                    return None
                total += c * limit
        return total

    def _shifted(self, p: Polynomial) -> Polynomial | None:
        """Rewrite ``p`` in new variables: the excess of each atom over the atom's lower bound.

        For an atom without a lower bound, the new variable is the upper bound minus the atom. None
        if an atom has neither bound, or if there are more than `MAX_TERMS` terms.
        """
        result: Polynomial = {}
        for monomial, coefficient in p.items():
            terms = self._expansions.get(monomial) or self._expanded(monomial)
            if terms is None:
                return None
            for m, c in terms:
                result[m] = result.get(m, 0) + coefficient * c
            if len(terms) > 1 and len(result) > MAX_TERMS:
                return None
        return result

    def _expanded(self, monomial: Monomial) -> tuple[tuple[Monomial, int], ...] | None:
        """The terms of a monomial whose atoms are written as a bound plus or minus a new variable.

        None if an atom has no bound, or if there are more than `MAX_TERMS` terms.
        """
        terms: list[tuple[Monomial, int]] = [((), 1)]
        final = True
        for a, origin in [(a, self.lower(a)) for a in monomial]:
            way = 1
            final = final and a in self._lowers
            if origin is None:
                origin, way = self.upper(a), -1
                final = final and a in self._uppers
            if origin is None:
                return None
            shifted = [((*m, a), c * way) for m, c in terms]
            terms = shifted + [(m, c * origin) for m, c in terms] if origin else shifted
            # A monomial of degree d expands to up to 2**d terms when each atom is its bound plus an
            # excess.
            if len(terms) > MAX_TERMS:
                return None
        expanded = tuple(terms)
        if final:  # all used bounds of atoms are cached, so they cannot change any more
            self._expansions[monomial] = expanded
        return expanded

    def _shifted_maximum(self, monomial: Monomial) -> Bound:
        if monomial not in self._excess_maxima:
            self._excess_maxima[monomial] = self._find_shifted_maximum(monomial)
        return self._excess_maxima[monomial]

    def _find_shifted_maximum(self, monomial: Monomial) -> Bound:
        limit: Bound = 1
        for a in monomial:
            low, high = self.lower(a), self.upper(a)
            if low is None or high is None:
                limit = None
            elif limit is not None:
                limit *= high - low
        if self.facts:
            # If an atom's lower bound is >= 0, atom - bound is at most the atom, so an upper limit
            # of a product of atoms also limits the product of these differences. `fact_maximum` is
            # None if an atom may be negative.
            limit = smallest(limit, self.fact_maximum(monomial))
        return None if limit is None else max(limit, 0)
