"""`Elimination`: search for a lower bound of a polynomial by replacing its atoms by their bounds.

The steps that replace the atoms of a polynomial do not depend on the bound that a search needs, so
all searches under the same known ranges of symbols share these steps: a `SearchNode` is a
polynomial with its steps. An atom is a variable of polynomials: a symbol or an integer function.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol, TypeAlias

from sympy import Expr

from coordgraph.integers.bounds import SymbolBounds
from coordgraph.integers.functions import Maximum, Minimum, Select
from coordgraph.integers.guards import Guards, alternatives
from coordgraph.integers.intervals import Bound, largest, smallest
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
"""The largest number of steps that the search for one lower bound of a polynomial tries; then the
search returns the best bound found so far. A step replaces a variable by a bound of the variable,
or subtracts a multiple of a polynomial that is at least 0."""
MOST_TERMS = 1 << 13
"""The largest number of terms, over all polynomials that the search for one lower bound visits;
then the search returns the best bound found so far. Proofs about correct kernels need at most a
tenth of this number."""

_Replaced: TypeAlias = list[tuple[Polynomial, Guards]]
"""The result of replacing an atom of a polynomial: one polynomial for each case that is possible.

The guards of a polynomial are polynomials that are at least 0 in its case. The smallest of the
cases' lower bounds is a lower bound of the original polynomial.
"""
Step: TypeAlias = "tuple[tuple[SearchNode, int], ...]"
"""The result of a step (such as replacing an atom) from a node: pairs of a node and a constant.

Each pair is one case: its polynomial is the node's polynomial plus the constant. The smallest lower
bound of the cases is a lower bound of the polynomial from which the step started.
"""


class Known(Protocol):
    """Protocol: the methods of a `Prover` that the search for a polynomial's lower bound calls."""

    @property
    def definitions(self) -> Mapping[Atom, Expr]:
        """The expression that each defined symbol equals."""
        ...

    def search_node(self, p: Polynomial, guards: Guards) -> "tuple[SearchNode, int]":
        """The polynomial ``p`` less its constant term as a `SearchNode`, and the constant term."""
        ...

    def numeric_minimum(self, p: Polynomial) -> Bound:
        """A lower bound of ``p`` from the numeric bounds of its variables (atoms), or None."""
        ...

    def order(self, p: Polynomial) -> list[Atom]:
        """The variables (atoms) of ``p``, in the order in which proofs eliminate them."""
        ...

    def exact(self, p: Polynomial, a: Atom) -> Polynomial | None:
        """``p`` with its variable ``a`` replaced by an equal polynomial; None if none is known."""
        ...

    def ends(self, target: Atom) -> SymbolBounds:
        """All known lower and upper bounds of a variable of polynomials (an atom)."""
        ...

    def sign(self, p: Polynomial) -> int:
        """1 if numeric bounds show ``p >= 0``, -1 if they show ``p <= 0``, else 0."""
        ...

    def natural(self, monomial: Monomial) -> bool:
        """Whether all variables (atoms) of a monomial are known to be at least 0."""
        ...


class SearchNode:
    """A polynomial with the steps that replace its atoms; the steps are computed when first needed.

    Args:
        prover: a prover that knows all bounds of the polynomial's atoms.
        polynomial: the polynomial, without a constant term.
        guards: polynomials that are at least 0.
    """

    __slots__ = ("_defined", "_first", "_guarded", "_low", "guards", "polynomial", "prover")

    def __init__(self, prover: Known, polynomial: Polynomial, guards: Guards) -> None:
        self.prover, self.polynomial, self.guards = prover, polynomial, guards
        self._low: tuple[Bound] | None = None
        self._first: tuple[Step, ...] | None = None
        self._defined: tuple[Step, ...] | None = None
        self._guarded: dict[int, tuple[Step, ...]] = {}

    @property
    def low(self) -> Bound:
        """A lower bound of the polynomial from numeric bounds of its variables (atoms), or None."""
        if self._low is None:
            self._low = (self.prover.numeric_minimum(self.polynomial),)
        return self._low[0]

    def steps(self, constant: int) -> Iterator[Step]:
        """All steps of the search for a lower bound of the polynomial, in the order to try them.

        A step replaces a variable by a bound of it, or subtracts a multiple of a guard (a
        polynomial that is at least 0).

        Args:
            constant: the constant that a search adds to the polynomial; it decides which multiples
                of guards are subtracted.
        """
        # Expand defined symbols last: facts and bounds may be stated in terms of these symbols.
        if self._first is None:
            self._first = self._nodes(self._eliminated_first())
        yield from self._first
        if self._defined is None:
            self._defined = self._nodes(self._eliminated_definitions())
        yield from self._defined
        if self.guards:
            if constant not in self._guarded:
                self._guarded[constant] = self._nodes(self._less_guards(constant))
            yield from self._guarded[constant]

    def _nodes(self, steps: Iterable[_Replaced]) -> tuple[Step, ...]:
        node = self.prover.search_node
        return tuple([tuple([node(p, guards) for p, guards in step]) for step in steps])

    def _eliminated_first(self) -> list[_Replaced]:
        for a in self.prover.order(self.polynomial):
            if a not in self.prover.definitions and (steps := self._eliminations(a)):
                return steps
        return []

    def _eliminated_definitions(self) -> Iterator[_Replaced]:
        for a in self.prover.order(self.polynomial):
            if a in self.prover.definitions:
                yield from self._eliminations(a)

    def _less_guards(self, constant: int) -> Iterator[_Replaced]:
        p = {**self.polynomial, (): constant} if constant else self.polynomial
        for index, guard in enumerate(self.guards):
            # A lower bound of p - ratio*guard is a lower bound of p: ratio > 0 and guard >= 0.
            ratios = [p[m] // c for m, c in guard.items() if m in p and p[m] * c > 0]
            if any(ratio > 0 for ratio in ratios):
                ratio = min(r for r in ratios if r > 0)
                less = add(self.polynomial, guard, -ratio)
                yield [(less, self.guards[:index] + self.guards[index + 1 :])]

    def _eliminations(self, a: Atom) -> list[_Replaced]:
        p, guards = self.polynomial, self.guards
        exact = self.prover.exact(p, a)
        if exact is not None and exact != p:
            return [[(exact, guards)]]
        lowers, uppers = self.prover.ends(a)
        parts = coefficient_of(p, a)
        if parts is None:
            return self._by_term(a)
        sign = self.prover.sign(parts[0])
        result: list[_Replaced] = []
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
            cases = alternatives(a.expr)
            result.append([(substitute(p, a, e), (*guards, *where)) for e, where in cases])
        return result

    def _by_term(self, a: Atom) -> list[_Replaced]:
        # Atoms are the variables of the polynomial. If all are at least 0, every term is monotone
        # in the atom a. So replacing a by its lower bound if the coefficient is positive, else by
        # its upper bound, gives a lower bound of the term.
        p = self.polynomial
        if not all(self.prover.natural(monomial) for monomial in p):
            return []
        lowers, uppers = self.prover.ends(a)
        result: list[_Replaced] = []
        for low in (x for x in lowers if self.prover.sign(x) > 0):
            for high in uppers:
                total: Polynomial = {}
                for monomial, c in p.items():
                    others = tuple(b for b in monomial if b is not a)
                    end = power(low if c > 0 else high, monomial.count(a))
                    total = add(total, multiply({others: c}, end))
                result.append([(total, self.guards)])
        return result


class Elimination:
    """One search for the best lower bound of a polynomial, with at most `FUEL` (64) steps.

    Args:
        prover: the prover whose ranges the search uses.
        goal: the search ends at the first bound of at least ``goal``; None to search for the best
            bound.
    """

    def __init__(self, prover: Known, goal: int | None) -> None:
        self.prover = prover
        self.goal = goal
        self.fuel, self.terms = FUEL, MOST_TERMS
        self.seen: dict[tuple[SearchNode, int], Bound] = {}

    def run(self, p: Polynomial, guards: Guards) -> Bound:
        """The best lower bound found for ``p`` where all ``guards`` are >= 0, or None."""
        return self._bound(*self.prover.search_node(p, guards))

    def _bound(self, node: SearchNode, constant: int) -> Bound:
        """The best lower bound found for the sum of a node's polynomial and a constant, or None."""
        key = node, constant
        if key in self.seen:
            return self.seen[key]
        best = None if node.low is None else node.low + constant
        self.seen[key] = best
        known = not node.polynomial and not constant
        if known or len(node.polynomial) > MAX_TERMS or self._reached(best):
            return best
        steps: list[Step] = []
        # First bound the result of every step numerically: most proofs need only one step.
        for step in node.steps(constant):
            steps.append(step)
            low = _numeric_low(step)
            best = largest(best, None if low is None else low + constant)
            self.terms -= sum([len(part.polynomial) for part, _ in step])
            if self.terms <= 0 or self._reached(best):
                break
        for step in steps:
            if self.terms <= 0 or self.fuel <= 0 or self._reached(best):
                break
            self.fuel -= 1
            best = largest(best, self._all_of(step, constant))
        self.seen[key] = best
        return best

    def _reached(self, best: Bound) -> bool:
        return best is not None and self.goal is not None and best >= self.goal

    def _all_of(self, step: Step, constant: int) -> Bound:
        worst: Bound = None
        for node, c in step:
            low = self._bound(node, c + constant)
            if low is None:
                return None
            worst = smallest(worst, low)
        return worst


def _numeric_low(step: Step) -> Bound:
    """A lower bound of the polynomial from which `step` started; None if none is known."""
    worst: Bound = None
    for node, constant in step:
        if node.low is None:
            return None
        worst = smallest(worst, node.low + constant)
    return worst
