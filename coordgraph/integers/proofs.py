"""Lower bounds of polynomials by elimination: what :class:`Ranges` answers its questions with.

``p >= 0`` is shown by replacing, one after another, what is bounded by its bounds: a symbol with
a positive coefficient by its lower bound, with a negative one by an upper bound (every alternative
is tried), with an unknown one by both, since a linear function is least at an end of its range.
Each replacement is sound point by point, whatever the order; the order only decides how
much is proved. Symbols whose bounds mention others go first.
"""

from collections.abc import Iterator, Mapping
from typing import TypeAlias, cast

from sympy import Expr, Symbol
from sympy.logic.boolalg import Not

from coordgraph.integers.bounds import Bound, Fact, NumericBounds, TableBounds, largest, smallest
from coordgraph.integers.functions import FloorDiv, FloorMod, Maximum, Minimum, Select, floor_mod
from coordgraph.integers.guards import guard_polynomials
from coordgraph.integers.polynomials import (
    MAX_TERMS,
    Atom,
    Polynomial,
    add,
    atom_of,
    atoms_of,
    by_key,
    coefficient_of,
    constant,
    divide,
    multiply,
    negate,
    power,
    substitute,
    symbols_of,
    to_polynomial,
)
from coordgraph.integers.tables import Load, Search, load

FUEL = 64
MAX_MAXIMA = 6
MOST_STEPS = 8
"""Entries of a table, from one that is known, that a proof goes along."""

SymbolBounds: TypeAlias = tuple[tuple[Polynomial, ...], tuple[Polynomial, ...]]
Guards: TypeAlias = tuple[Polynomial, ...]
# Alternatives, each a list of polynomials (with their guards) that all must be bounded.
_Step: TypeAlias = list[tuple[Polynomial, Guards]]


class Prover(NumericBounds):
    """Answers for one immutable set of ranges, remembering what it found."""

    def __init__(
        self,
        bounds: Mapping[Symbol, SymbolBounds],
        facts: tuple[Fact, ...],
        definitions: Mapping[Symbol, Expr],
        guards: Guards,
        outer: "tuple[Prover, Symbol] | None" = None,
        tables: Mapping[Symbol, TableBounds] | None = None,
    ) -> None:
        super().__init__(facts, tables)
        self.outer = outer
        self.bounds = {atom_of(symbol): known for symbol, known in bounds.items()}
        self.definitions = {atom_of(symbol): e for symbol, e in definitions.items()}
        self.guards = guards
        self._levels: dict[Atom, int] = {}
        self._found: dict[tuple[frozenset[tuple[object, int]], int | None], Bound] = {}
        self._ends: dict[Atom, SymbolBounds] = {}

    def home(self, target: Atom) -> "Prover":
        """Return the first prover that knew all there is to know about an atom."""
        prover, symbols = self, target.symbols
        while prover.outer and prover.outer[1] not in symbols:
            prover = prover.outer[0]
        return prover

    def lower(self, target: Atom) -> Bound:
        """Return a lower bound of an atom, found where it is known first."""
        try:
            return self._lowers[target]
        except KeyError:
            home = self.home(target)
        if home is self:
            return super().lower(target)
        self._lowers[target] = found = home.lower(target)
        return found

    def upper(self, target: Atom) -> Bound:
        """Return an upper bound of an atom, found where it is known first."""
        try:
            return self._uppers[target]
        except KeyError:
            home = self.home(target)
        if home is self:
            return super().upper(target)
        self._uppers[target] = found = home.upper(target)
        return found

    def minimum(self, p: Polynomial, goal: int | None = None) -> Bound:
        """Return a lower bound of ``p``; a search with a goal stops when it is reached."""
        key = (frozenset(p.items()), goal)
        if key not in self._found:
            self._found[key] = _Search(self, goal).run(p, self.guards)
        return self._found[key]

    def at_least(self, p: Polynomial, goal: int) -> bool:
        """Tell whether ``p >= goal`` was proved."""
        low = self.minimum(p, goal)
        return low is not None and low >= goal

    def at_least_zero(self, p: Polynomial) -> bool:
        """Tell whether ``p >= 0`` was proved."""
        return self.at_least(p, 0)

    def symbol_lower(self, symbol: Atom) -> Bound:
        """Return the largest numeric lower bound of a symbol."""
        best = super().symbol_lower(symbol)
        for low in self.bounds.get(symbol, ((), ()))[0]:
            best = largest(best, self.minimum(low))
        if symbol in self.definitions:
            best = largest(best, self.minimum(to_polynomial(self.definitions[symbol])))
        return best

    def symbol_upper(self, symbol: Atom) -> Bound:
        """Return the smallest numeric upper bound of a symbol."""
        best = super().symbol_upper(symbol)
        for high in self.bounds.get(symbol, ((), ()))[1]:
            best = smallest(best, self.maximum(high))
        if symbol in self.definitions:
            best = smallest(best, self.maximum(to_polynomial(self.definitions[symbol])))
        return best

    def level(self, target: Atom) -> int:
        """Return how long a chain of bounds hangs from an atom; longer chains go first."""
        if target not in self._levels:
            self._levels[target] = 0
            used: set[Atom] = set()
            if isinstance(target.expr, Symbol):
                lowers, uppers = self.bounds.get(target, ((), ()))
                used = {a for p in (*lowers, *uppers) for m in p for a in m}
                if target in self.definitions:
                    used.update(map(atom_of, symbols_of(self.definitions[target])))
                floor = 1 if used or lowers or uppers else 0
            else:
                used, floor = set(map(atom_of, target.symbols)), 1
                if isinstance(target.expr, Load):  # goes before what its maximum is made of
                    ends = *self._most_loaded(target.expr), *self._least_loaded(target.expr)
                    used |= {a for p in ends for m in p for a in m}
            # In a fixed order: where bounds mention one another, it decides.
            levels = (self.level(a) for a in sorted(used, key=by_key) if a is not target)
            self._levels[target] = max(floor, 1 + max(levels, default=-1))
        return self._levels[target]

    def ends(self, target: Atom) -> SymbolBounds:
        """Return symbolic lower and upper bounds of an atom."""
        if target not in self._ends and (home := self.home(target)) is not self:
            self._ends[target] = home.ends(target)
        if target not in self._ends:
            self._ends[target] = ((), ())
            self._ends[target] = self._find_ends(target)
        return self._ends[target]

    def _find_ends(self, target: Atom) -> SymbolBounds:
        if isinstance(target.expr, (FloorDiv, FloorMod)):
            lowers, uppers = self._division_ends(target.expr)
        else:
            lowers, uppers = self._stated(target)
        low, high = self.lower(target), self.upper(target)
        if low is not None and constant(low) not in lowers:
            lowers = (*lowers, constant(low))
        if high is not None and constant(high) not in uppers:
            uppers = (*uppers, constant(high))
        return lowers, uppers

    def _stated(self, target: Atom) -> SymbolBounds:
        """Return the bounds that hold by statement or by definition: ``min(a, b) <= a``."""
        expr = target.expr
        if isinstance(expr, (Minimum, Maximum)):
            parts = tuple(to_polynomial(cast(Expr, arg)) for arg in expr.args)
            return ((), parts) if isinstance(expr, Minimum) else (parts, ())
        if isinstance(expr, Load):
            return (constant(0), *self._least_loaded(expr)), self._most_loaded(expr)
        if isinstance(expr, Search):
            # Of a search among n entries: at most n - 1.
            last = add(to_polynomial(cast(Expr, expr.args[1])), constant(1), -1)
            return (constant(0),), (last,) if self.at_least_zero(last) else ()
        return self.bounds.get(target, ((), ()))

    def _most_loaded(self, target: Load) -> tuple[Polynomial, ...]:
        """Return what an entry is at most: the table's maximum; ``t[search(t, n, x)] <= x``.

        The latter where a search finds such an entry at all, as in a table that begins with 0.
        """
        table, index = cast(tuple[Symbol, Expr], target.args)
        known = self.tables.get(table)
        if known is None:
            return ()
        most = to_polynomial(known.maximum)
        found = known.found.get(index) if isinstance(index, Symbol) else None
        if isinstance(index, Search) and index.args[0] == table:
            found = cast(Expr, index.args[2])
        if known.from_zero and found is not None:
            x = to_polynomial(found)
            return (x, most) if self.at_least_zero(x) else (most,)
        return (most,)

    def _least_loaded(self, target: Load) -> tuple[Polynomial, ...]:
        """Return what an entry is at least: the one before, and the least step."""
        table, index = cast(tuple[Symbol, Expr], target.args)
        known, place = self.tables.get(table), index.as_coeff_Add()[0]
        if known is None or known.step is None or not 1 <= place <= MOST_STEPS:
            return ()
        if not self.at_least_zero(to_polynomial(index - 1)):
            return ()
        before = to_polynomial(load(table, index - 1))
        return (add(before, constant(known.step)),)

    def _division_ends(self, target: Expr) -> SymbolBounds:
        x, d = (to_polynomial(cast(Expr, arg)) for arg in target.args)
        if not self.at_least_zero(add(d, constant(1), -1)):
            return (), ()
        natural = self.at_least_zero(x)
        below = (x,) if natural else ()
        if isinstance(target, FloorMod):
            return (constant(0),), (add(d, constant(1), -1), *below)
        uppers: list[Polynomial] = []
        for top in self.maxima(x):
            # top = q*d + r, so x//d <= q + r//d
            quotient, rest = divide(top, d)
            if self.at_least_zero(add(negate(rest), constant(1), -1)):
                uppers.append(add(quotient, constant(1), -1))
            elif self.at_least_zero(add(add(d, rest, -1), constant(1), -1)):
                uppers.append(quotient)
        return ((constant(0),) if natural else ()), (*uppers, *below)

    def maxima(self, p: Polynomial) -> list[Polynomial]:
        """Return upper bounds of ``p`` in which bounded symbols are replaced as far as possible."""
        open_, done = [p], cast(list[Polynomial], [])
        for _ in range(FUEL):
            if not open_ or len(done) + len(open_) >= MAX_MAXIMA:
                break
            current = open_.pop(0)
            replaced = self._raised(current)
            open_.extend(replaced)
            if not replaced:
                done.append(current)
        return done + open_

    def _raised(self, p: Polynomial) -> list[Polynomial]:
        for a in self.order(p):
            parts, (lowers, uppers) = coefficient_of(p, a), self._stated(a)
            if parts is None or not (lowers or uppers):
                continue
            sign = self.sign(parts[0])
            ends = uppers if sign > 0 else lowers
            if sign and ends:
                return [substitute(p, a, end) for end in ends]
        return []

    def order(self, p: Polynomial) -> list[Atom]:
        """Return the atoms in the order in which they are eliminated."""
        return sorted(atoms_of(p), key=lambda a: -self.level(a))

    def sign(self, p: Polynomial) -> int:
        """Return 1 where ``p >= 0``, -1 where ``p <= 0`` is plain, else 0."""
        low = self.numeric_minimum(p)
        if low is not None and low >= 0:
            return 1
        high = self.numeric_minimum(negate(p))
        return -1 if high is not None and high >= 0 else 0

    def normal_form(self, p: Polynomial) -> Polynomial:
        """Expand definitions and ``x//d*d = x - x%d``, for equality."""
        for _ in range(FUEL):
            for a in self.order(p):
                changed = self.exact(p, a)
                if changed is not None and changed != p and len(changed) <= MAX_TERMS:
                    p = changed
                    break
            else:
                break
        return p

    def exact(self, p: Polynomial, a: Atom) -> Polynomial | None:
        """Replace a defined symbol by its definition, or ``c·d·(x//d)`` by ``c·(x - x%d)``."""
        if a in self.definitions:
            return substitute(p, a, to_polynomial(self.definitions[a]))
        parts = coefficient_of(p, a) if isinstance(a.expr, FloorDiv) else None
        if parts is None:
            return None
        x, d = cast(tuple[Expr, Expr], a.expr.args)
        quotient, rest = divide(parts[0], to_polynomial(d))
        if not quotient:
            return None
        whole = add(to_polynomial(x), to_polynomial(floor_mod(x, d)), -1)
        return add(parts[1], add(multiply(quotient, whole), multiply(rest, {(a,): 1})))


class _Search:
    """One bounded search for the best lower bound."""

    def __init__(self, prover: Prover, goal: int | None) -> None:
        self.prover = prover
        self.goal = goal
        self.fuel = FUEL
        self.seen: dict[object, Bound] = {}

    def run(self, p: Polynomial, guards: Guards) -> Bound:
        key = (frozenset(p.items()), *(frozenset(g.items()) for g in guards))
        if key in self.seen:
            return self.seen[key]
        self.seen[key] = best = self.prover.numeric_minimum(p)
        if not p or len(p) > MAX_TERMS or self.reached(best):
            return best
        steps: list[_Step] = []
        # A glance along all steps comes first: in most proofs one of them is the last.
        for step in self.steps(p, guards):
            steps.append(step)
            lows = [self.prover.numeric_minimum(q) for q, _ in step]
            best = largest(best, None if None in lows else min(cast(list[int], lows)))
            if self.reached(best):
                break
        for step in steps:
            if self.fuel <= 0 or self.reached(best):
                break
            self.fuel -= 1
            best = largest(best, self.all_of(step))
        self.seen[key] = best
        return best

    def reached(self, best: Bound) -> bool:
        return best is not None and self.goal is not None and best >= self.goal

    def all_of(self, step: _Step) -> Bound:
        worst: Bound = None
        for q, guards in step:
            low = self.run(q, guards)
            if low is None:
                return None
            worst = smallest(worst, low)
        return worst

    def steps(self, p: Polynomial, guards: Guards) -> Iterator[_Step]:
        # Names are looked through last: facts and bounds may be stated in terms of them.
        order = self.prover.order(p)
        named = [a for a in order if a in self.prover.definitions]
        for a in (b for b in order if b not in named):
            steps = self.eliminations(p, a, guards)
            if steps:
                yield from steps
                break
        for a in named:
            yield from self.eliminations(p, a, guards)
        for index, guard in enumerate(guards):
            # p >= 0 follows from p - c*guard >= 0, as guard >= 0.
            ratios = [p[m] // c for m, c in guard.items() if m in p and p[m] * c > 0]
            if any(ratio > 0 for ratio in ratios):
                ratio = min(r for r in ratios if r > 0)
                yield [(add(p, guard, -ratio), guards[:index] + guards[index + 1 :])]

    def eliminations(self, p: Polynomial, a: Atom, guards: Guards) -> list[_Step]:
        exact = self.prover.exact(p, a)
        if exact is not None and exact != p:
            return [[(exact, guards)]]
        lowers, uppers = self.prover.ends(a)
        parts = coefficient_of(p, a)
        if parts is None:
            return self.by_term(p, a, guards)
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
            result.append(self.cases(p, a, guards))
        return result

    def by_term(self, p: Polynomial, a: Atom, guards: Guards) -> list[_Step]:
        # A power: each term is monotone where every atom of the polynomial is at least 0.
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

    def cases(self, p: Polynomial, a: Atom, guards: Guards) -> _Step:
        first, second = cast(tuple[Expr, Expr], a.expr.args[-2:])
        yes, no = substitute(p, a, to_polynomial(first)), substitute(p, a, to_polynomial(second))
        if isinstance(a.expr, Select):
            condition = a.expr.args[0]
            other = Not(condition)
            known = guard_polynomials(condition), guard_polynomials(other)
        else:
            order = add(to_polynomial(second), to_polynomial(first), -1)
            known = (order,), (negate(order),)
            known = known if isinstance(a.expr, Minimum) else known[::-1]
        return [(yes, (*guards, *known[0])), (no, (*guards, *known[1]))]
