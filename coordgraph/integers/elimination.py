"""`Elimination`: searches a lower bound of a polynomial by replacing its atoms by their bounds."""

from collections.abc import Iterator, Mapping
from typing import Protocol, TypeAlias, cast

from sympy import Expr

from coordgraph.integers.bounds import Bound, SymbolBounds, largest, smallest
from coordgraph.integers.functions import Maximum, Minimum, Select
from coordgraph.integers.guards import Guards, alternatives
from coordgraph.integers.polynomials import (
    MAX_TERMS,
    Atom,
    Monomial,
    Polynomial,
    add,
    coefficient_of,
    multiply,
    power,
    substitute,
)

FUEL = 64
"""The largest number of replacements that one search for a bound tries."""
MOST_TERMS = 1 << 13
"""The largest number of terms that one search bounds; correct kernels need a tenth of that."""

_Step: TypeAlias = list[tuple[Polynomial, Guards]]
"""The result of replacing an atom of a polynomial: polynomials, each with guards that hold for it.

The smallest lower bound of these polynomials is a lower bound of the original polynomial.
"""


class Known(Protocol):
    """Protocol of the facts about atoms and polynomials that a search uses; see `Prover`."""

    @property
    def definitions(self) -> Mapping[Atom, Expr]:
        """The expression that each defined symbol equals."""
        ...

    def numeric_minimum(self, p: Polynomial) -> Bound:
        """A lower bound of ``p`` from the numeric bounds of its atoms, or None."""
        ...

    def order(self, p: Polynomial) -> list[Atom]:
        """The atoms of ``p``, in the order in which proofs eliminate them."""
        ...

    def exact(self, p: Polynomial, a: Atom) -> Polynomial | None:
        """``p`` with an atom replaced by an expression that equals it, or None."""
        ...

    def ends(self, target: Atom) -> SymbolBounds:
        """All lower bounds and all upper bounds of an atom."""
        ...

    def sign(self, p: Polynomial) -> int:
        """1 if numeric bounds show ``p >= 0``, -1 if they show ``p <= 0``, else 0."""
        ...

    def natural(self, monomial: Monomial) -> bool:
        """Whether all atoms of a monomial are known to be at least 0."""
        ...


class Elimination:
    """One search for the best lower bound of a polynomial, with a limited number of steps.

    Args:
        prover: the prover whose ranges the search uses.
        goal: the search ends at the first bound of at least ``goal``; None searches the best bound.
    """

    def __init__(self, prover: Known, goal: int | None) -> None:
        self.prover = prover
        self.goal = goal
        self.fuel, self.terms = FUEL, MOST_TERMS
        self.seen: dict[object, Bound] = {}

    def run(self, p: Polynomial, guards: Guards) -> Bound:
        """The best lower bound found for ``p`` where all ``guards`` are >= 0; None if none is."""
        key = (frozenset(p.items()), *(frozenset(g.items()) for g in guards))
        if key in self.seen:
            return self.seen[key]
        self.seen[key] = best = self.prover.numeric_minimum(p)
        if not p or len(p) > MAX_TERMS or self._reached(best):
            return best
        steps: list[_Step] = []
        # First bound the polynomials of every step numerically: most proofs end after one step.
        for step in self._steps(p, guards):
            steps.append(step)
            lows = [self.prover.numeric_minimum(q) for q, _ in step]
            best = largest(best, None if None in lows else min(cast(list[int], lows)))
            self.terms -= sum(len(q) for q, _ in step)
            if self.terms <= 0 or self._reached(best):
                break
        for step in steps:
            if self.terms <= 0 or self.fuel <= 0 or self._reached(best):
                break
            self.fuel -= 1
            best = largest(best, self._all_of(step))
        self.seen[key] = best
        return best

    def _reached(self, best: Bound) -> bool:
        return best is not None and self.goal is not None and best >= self.goal

    def _all_of(self, step: _Step) -> Bound:
        worst: Bound = None
        for q, guards in step:
            low = self.run(q, guards)
            if low is None:
                return None
            worst = smallest(worst, low)
        return worst

    def _steps(self, p: Polynomial, guards: Guards) -> Iterator[_Step]:
        # Expand defined symbols last: facts and bounds may be stated in terms of these symbols.
        order = self.prover.order(p)
        named = [a for a in order if a in self.prover.definitions]
        for a in (b for b in order if b not in named):
            steps = self._eliminations(p, a, guards)
            if steps:
                yield from steps
                break
        for a in named:
            yield from self._eliminations(p, a, guards)
        for index, guard in enumerate(guards):
            # p >= 0 follows from p - c*guard >= 0, because guard >= 0.
            ratios = [p[m] // c for m, c in guard.items() if m in p and p[m] * c > 0]
            if any(ratio > 0 for ratio in ratios):
                ratio = min(r for r in ratios if r > 0)
                yield [(add(p, guard, -ratio), guards[:index] + guards[index + 1 :])]

    def _eliminations(self, p: Polynomial, a: Atom, guards: Guards) -> list[_Step]:
        exact = self.prover.exact(p, a)
        if exact is not None and exact != p:
            return [[(exact, guards)]]
        lowers, uppers = self.prover.ends(a)
        parts = coefficient_of(p, a)
        if parts is None:
            return self._by_term(p, a, guards)
        sign = self.prover.sign(parts[0])
        result: list[_Step] = []
        if sign > 0:
            result = [[(substitute(p, a, low), guards)] for low in lowers]
        elif sign < 0:
            result = [[(substitute(p, a, high), guards)] for high in uppers]
        else:
            result = [
                [(substitute(p, a, low), guards), (substitute(p, a, high), guards)]
                for low in lowers
                for high in uppers
            ]
        if isinstance(a.expr, (Minimum, Maximum, Select)):
            result.append(self._cases(p, a, guards))
        return result

    def _by_term(self, p: Polynomial, a: Atom, guards: Guards) -> list[_Step]:
        # p has a power of the atom a. If all atoms are at least 0, every term is monotone in a.
        if not all(self.prover.natural(monomial) for monomial in p):
            return []
        lowers, uppers = self.prover.ends(a)
        result: list[_Step] = []
        for low in (x for x in lowers if self.prover.sign(x) > 0):
            for high in uppers:
                total: Polynomial = {}
                for monomial, c in p.items():
                    others = tuple(b for b in monomial if b is not a)
                    end = power(low if c > 0 else high, monomial.count(a))
                    total = add(total, multiply({others: c}, end))
                result.append([(total, guards)])
        return result

    def _cases(self, p: Polynomial, a: Atom, guards: Guards) -> _Step:
        return [
            (substitute(p, a, value), (*guards, *where)) for value, where in alternatives(a.expr)
        ]
