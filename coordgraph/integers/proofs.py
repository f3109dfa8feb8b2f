"""`Prover`: proves lower bounds of polynomials by elimination; :class:`Ranges` uses it.

To prove ``p >= 0``, atoms are replaced one after another by their bounds. An atom with a positive
coefficient is replaced by a lower bound, and an atom with a negative coefficient by an upper bound;
if there are several bounds, each of them is tried. If the sign of the coefficient is unknown, the
atom's lower and upper bounds are both tried, because a linear function has its minimum at an end of
its range. Every replacement is valid by itself, so the order of replacements only affects how much
can be proved. Symbols whose bounds depend on other symbols are replaced first.
"""

from collections.abc import Mapping
from typing import cast

from sympy import Expr, Symbol

from coordgraph.integers.bounds import Fact, NumericBounds, SymbolBounds, TableBounds
from coordgraph.integers.elimination import FUEL, Elimination, SearchNode
from coordgraph.integers.functions import FloorDiv, FloorMod, Maximum, Minimum, floor_mod
from coordgraph.integers.guards import Guards
from coordgraph.integers.intervals import Bound, Interval, largest, smallest
from coordgraph.integers.points import Points
from coordgraph.integers.polynomials import (
    MAX_TERMS,
    Atom,
    Monomial,
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
    substitute,
    symbols_of,
    to_polynomial,
)
from coordgraph.integers.tables import Load, Search, load

MAX_MAXIMA = 6
"""The largest number of symbolic upper bounds that `Prover.maxima` computes for a polynomial."""
MOST_STEPS = 8
"""The largest constant c for which proofs derive a bound of a table entry t[i + c] from t[i]."""


class Prover(NumericBounds):
    """Proves bounds of polynomials under one immutable set of ranges, and caches the bounds.

    Args:
        bounds: the symbolic lower and upper bounds of each symbol.
        facts: known upper limits of polynomials.
        definitions: the expression that each defined symbol equals.
        guards: polynomials that are known to be at least 0.
        outer: the prover for the enclosing loop's ranges, and the symbol, such as an inner loop's
            index, that is bounded only by this prover's ranges; None if no ranges enclose them.
        tables: the known bounds of tables' entries, by the table's symbol.
    """

    def __init__(
        self,
        bounds: Mapping[Atom, SymbolBounds],
        facts: tuple[Fact, ...],
        definitions: Mapping[Atom, Expr],
        guards: Guards,
        outer: "tuple[Prover, Symbol] | None" = None,
        tables: Mapping[Symbol, TableBounds] | None = None,
    ) -> None:
        super().__init__(facts, tables)
        self.outer = outer
        self.bounds = bounds
        self.definitions = definitions
        self.guards = guards
        around = (outer[0].points, outer[1]) if outer else None
        self.points = Points(self.bounds, facts, self.definitions, guards, self.tables, around)
        self._outers: tuple[Prover, ...] = (*outer[0]._outers, outer[0]) if outer else ()
        self._depths: dict[Symbol, int] = dict(outer[0]._depths) if outer else {}
        if outer:
            self._depths[outer[1]] = len(self._outers)
        self._atom_depths: dict[Atom, int] = {}
        self._levels: dict[Atom, int] = {}
        self._nodes: dict[tuple[frozenset[tuple[Monomial, int]], ...], SearchNode] = {}
        self._found: dict[tuple[frozenset[tuple[object, int]], int | None], Bound] = {}
        self._ends: dict[Atom, SymbolBounds] = {}

    def home(self, target: Atom) -> "Prover":
        """The outermost prover whose ranges contain everything that is known about a variable.

        Provers are nested: each inner one adds bounds of one symbol. Bounds of the variable (atom)
        are cached in the outermost prover, so that all provers inside it share them.
        """
        return self._at(self._depth(target))

    def _depth(self, target: Atom) -> int:
        """The nesting depth of the outermost prover that knows the ranges of an atom's symbols.

        The depth of a prover is the number of provers that enclose it.
        """
        depth = self._atom_depths.get(target)
        if depth is None:
            depth = max([self._depths.get(symbol, 0) for symbol in target.symbols], default=0)
            self._atom_depths[target] = depth
        return depth

    def _at(self, depth: int) -> "Prover":
        """The prover at nesting depth `depth`: this one, or one of those that enclose it."""
        return self if depth == len(self._outers) else self._outers[depth]

    def search_node(self, p: Polynomial, guards: Guards) -> tuple[SearchNode, int]:
        """The `SearchNode` of ``p`` without its constant term, and the constant term.

        The node is cached in the outermost prover whose scope has all symbols of the polynomial
        and of the guards, so that the provers of all inner scopes share it.
        """
        constant = p.get((), 0)
        if constant:
            p = dict(p)
            del p[()]
        key = tuple([frozenset(q.items()) for q in (p, *guards)])
        if key not in self._nodes:
            depths = [self._depth(a) for q in (p, *guards) for m in q for a in m]
            home = self._at(max(depths, default=0))
            self._nodes[key] = (
                SearchNode(self, p, guards) if home is self else home.search_node(p, guards)[0]
            )
        return self._nodes[key], constant

    def lower(self, target: Atom) -> Bound:
        """A numeric lower bound of an atom, or None; provers of nested scopes share the result."""
        try:
            return self._lowers[target]
        except KeyError:
            home = self.home(target)
        if home is self:
            return super().lower(target)
        self._lowers[target] = found = home.lower(target)
        return found

    def upper(self, target: Atom) -> Bound:
        """A numeric upper bound of an atom, or None; provers of nested scopes share the result."""
        try:
            return self._uppers[target]
        except KeyError:
            home = self.home(target)
        if home is self:
            return super().upper(target)
        self._uppers[target] = found = home.upper(target)
        return found

    def operands(self, target: Atom) -> tuple[Interval, Interval] | None:
        """The bounds of x and of d that gave the bounds of ``x // d`` or ``x % d``, or None."""
        home = self.home(target)
        return super().operands(target) if home is self else home.operands(target)

    def minimum(self, p: Polynomial, goal: int | None = None) -> Bound:
        """A lower bound of ``p``, or None; the search ends at a bound of ``goal`` or more."""
        key = (frozenset(p.items()), goal)
        if key not in self._found:
            low = self.numeric_minimum(p)
            if goal is None:
                # End the search at the smallest known value of p (at some values of the symbols):
                # no lower bound can be larger.
                low = Elimination(self, self.points.least(p)).run(p, self.guards)
            elif (low is None or low < goal) and not self.points.below(p, goal):
                low = Elimination(self, goal).run(p, self.guards)
            self._found[key] = low
        return self._found[key]

    def at_least(self, p: Polynomial, goal: int) -> bool:
        """Whether ``p >= goal`` can be proved."""
        low = self.minimum(p, goal)
        return low is not None and low >= goal

    def at_least_zero(self, p: Polynomial) -> bool:
        """Whether ``p >= 0`` can be proved."""
        return self.at_least(p, 0)

    def symbol_lower(self, symbol: Atom) -> Bound:
        """The largest known numeric lower bound of a symbol, or None."""
        best = super().symbol_lower(symbol)
        lows = self.bounds.get(symbol, ((), ()))[0]
        for low in lows:
            best = largest(best, self.minimum(low))
        # Use the symbol's definition only if no bound is declared: the search for a bound of the
        # definition takes long, and declared bounds are nearly as good.
        if symbol in self.definitions and not lows:
            best = largest(best, self.minimum(to_polynomial(self.definitions[symbol])))
        return best

    def symbol_upper(self, symbol: Atom) -> Bound:
        """The smallest known numeric upper bound of a symbol, or None."""
        best = super().symbol_upper(symbol)
        highs = self.bounds.get(symbol, ((), ()))[1]
        for high in highs:
            best = smallest(best, self.maximum(high))
        if symbol in self.definitions and not highs:
            best = smallest(best, self.maximum(to_polynomial(self.definitions[symbol])))
        return best

    def level(self, target: Atom) -> int:
        """Length of the longest chain of variables, each in the bounds of the one before it.

        The chain begins with ``target``. Atoms with longer chains are eliminated first.
        """
        if target in self._levels:
            return self._levels[target]
        return self._once(self._levels, target, lambda: self._find_level(target), lambda: 0)

    def _find_level(self, target: Atom) -> int:
        used: set[Atom] = set()
        if isinstance(target.expr, Symbol):
            lowers, uppers = self.bounds.get(target, ((), ()))
            used = {a for p in (*lowers, *uppers) for m in p for a in m}
            if target in self.definitions:
                used.update(map(atom_of, symbols_of(self.definitions[target])))
            floor = 1 if used or lowers or uppers else 0
        else:
            used, floor = set(map(atom_of, target.symbols)), 1
            # Bounds of a table entry contain other atoms, which must be eliminated after the entry.
            if isinstance(target.expr, Load):
                ends = *self._most_loaded(target.expr), *self._least_loaded(target.expr)
                used |= {a for p in ends for m in p for a in m}
        # Sort atoms: their order affects the result if bounds of atoms depend on each other.
        levels = (self.level(a) for a in sorted(used, key=by_key) if a is not target)
        return max(floor, 1 + max(levels, default=-1))

    def ends(self, target: Atom) -> SymbolBounds:
        """All lower bounds and all upper bounds of an atom, symbolic and numeric."""
        if target not in self._ends and (home := self.home(target)) is not self:
            self._ends[target] = home.ends(target)
        return self._once(self._ends, target, lambda: self._find_ends(target), lambda: ((), ()))

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
        """The bounds declared for an atom, or implied by its function, as ``min(a, b) <= a``."""
        expr = target.expr
        if isinstance(expr, (Minimum, Maximum)):
            parts = tuple(to_polynomial(cast(Expr, arg)) for arg in expr.args)
            return ((), parts) if isinstance(expr, Minimum) else (parts, ())
        if isinstance(expr, Load):
            return (constant(0), *self._least_loaded(expr)), self._most_loaded(expr)
        if isinstance(expr, Search):
            # The result of a search among n entries is at most n - 1.
            last = add(to_polynomial(cast(Expr, expr.args[1])), constant(1), -1)
            return (constant(0),), (last,) if self.at_least_zero(last) else ()
        return self.bounds.get(target, ((), ()))

    def _most_loaded(self, target: Load) -> tuple[Polynomial, ...]:
        """Upper bounds of a table's entry: the table's maximum, and ``t[search(t, n, x)] <= x``.

        The second bound holds only if the table begins with 0 and x >= 0.
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
        """The symbolic lower bound ``t[i - 1] + step`` of a table entry ``t[i]``, as a tuple.

        ``step`` is the least difference of consecutive entries. The tuple is empty if ``step`` is
        not known, or if the entry ``t[i - 1]`` may not exist.
        """
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
            # From x <= top and top = q*d + r follows x//d <= q + r//d.
            quotient, rest = divide(top, d)
            if self.at_least_zero(add(negate(rest), constant(1), -1)):
                uppers.append(add(quotient, constant(1), -1))
            elif self.at_least_zero(add(add(d, rest, -1), constant(1), -1)):
                uppers.append(quotient)
        return ((constant(0),) if natural else ()), (*uppers, *below)

    def maxima(self, p: Polynomial) -> list[Polynomial]:
        """Symbolic upper bounds of ``p``, from which as many symbols as possible are eliminated."""
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
        """The variables (atoms) of ``p``, in the order in which proofs eliminate them."""
        return sorted(atoms_of(p), key=lambda a: -self.level(a))

    def sign(self, p: Polynomial) -> int:
        """1 if numeric bounds show ``p >= 0``, -1 if they show ``p <= 0``, else 0."""
        low = self.numeric_minimum(p)
        if low is not None and low >= 0:
            return 1
        high = self.numeric_minimum(negate(p))
        return -1 if high is not None and high >= 0 else 0

    def normal_form(self, p: Polynomial) -> Polynomial:
        """Replace variables (atoms) of ``p`` by equal expressions, at most `FUEL` (64) times.

        Polynomials that always have equal values then often have the same terms, too.
        """
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
        """Replace a defined atom in ``p`` by its definition, or ``c·d·(x//d)`` by ``c·(x - x%d)``.

        None if neither rewrite applies to the atom ``a``.
        """
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
