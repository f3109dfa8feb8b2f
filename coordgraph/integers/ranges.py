"""What is known about the symbols of index expressions, and proofs from it.

Everything here is sound and conservative: a claim that is not proved may still be true.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from types import MappingProxyType
from typing import cast

from sympy import Expr, Symbol, sympify
from sympy.core.add import Add
from sympy.core.basic import Basic

from coordgraph.integers.bounds import TableBounds
from coordgraph.integers.functions import IntegerLike, Maximum, Minimum
from coordgraph.integers.guards import guard_polynomials
from coordgraph.integers.polynomials import (
    Polynomial,
    add,
    constant,
    negate,
    symbols_of,
    to_expression,
    to_polynomial,
)
from coordgraph.integers.proofs import Prover
from coordgraph.integers.tables import Search

MAX_ALTERNATIVES = 16


@dataclass(frozen=True, slots=True)
class Bounds:
    """Alternative bounds of one symbol, all inclusive: each lower and each upper one holds."""

    lowers: tuple[Expr, ...] = ()
    uppers: tuple[Expr, ...] = ()


def _nothing() -> Mapping[Symbol, Expr]:
    return MappingProxyType({})


@dataclass(frozen=True, eq=False)
class Ranges:
    """Immutable knowledge about symbols; every ``with_…`` method returns a new object.

    A symbol about which nothing was said is at least 1 if it is positive (a size), at least 0 if it
    is nonnegative (an index). Giving a known symbol new bounds or a new value forgets what
    was said about its old value.
    """

    bounds: Mapping[Symbol, Bounds] = field(
        default_factory=cast("type[Mapping[Symbol, Bounds]]", _nothing)
    )
    facts: tuple[tuple[Expr, int], ...] = ()
    definitions: Mapping[Symbol, Expr] = field(default_factory=_nothing)
    guards: tuple[Basic, ...] = ()
    tables: Mapping[Symbol, TableBounds] = field(
        default_factory=cast("type[Mapping[Symbol, TableBounds]]", _nothing)
    )
    simplified: dict[Basic, Basic] = field(default_factory=dict, init=False, repr=False)
    """The simplifier's memory: an answer holds for exactly these ranges."""
    _provers: list[Prover] = field(default_factory=list, init=False, repr=False)
    _outer: list[tuple["Ranges", Symbol]] = field(default_factory=list, init=False, repr=False)
    _inner: dict[tuple[Symbol, Bounds, bool], "Ranges"] = field(
        default_factory=dict, init=False, repr=False
    )

    def __reduce__(self) -> tuple[object, ...]:
        """Copies know the same, and remember nothing of what was worked out from it."""
        known = dict(self.bounds), self.facts, dict(self.definitions), self.guards
        return _copied, (*known, dict(self.tables))

    def about(self, *exprs: Basic) -> "Ranges":
        """Return the ranges in which all that is known about expressions was known first.

        Loops nest: what an inner one adds about its index says nothing about expressions without
        it, so their bounds and simplified forms are found, and remembered, once, farther out.
        """
        known, symbols = self, frozenset[Symbol]().union(*map(symbols_of, exprs))
        while known._outer and known._outer[0][1] not in symbols:
            known = known._outer[0][0]
        return known

    def with_index(self, symbol: Symbol, size: IntegerLike) -> "Ranges":
        """Let ``0 <= symbol < size``."""
        return self.with_bounds(symbol, 0, (_expr(size) - 1,))

    def with_indices(self, sizes: Iterable[tuple[Symbol, IntegerLike]]) -> "Ranges":
        """Let ``0 <= symbol < size`` for each pair, as `with_index` would, but in linear time."""
        known, bounds = self, dict(self.bounds)
        for symbol, size in sizes:
            if symbol in bounds or symbol in known.definitions:
                known = replace(known, bounds=MappingProxyType(bounds)).with_index(symbol, size)
                bounds = dict(known.bounds)
                continue
            highs = _alternatives(_expr(size) - 1, Minimum, Maximum)
            highs.extend([bound for high in tuple(highs) for bound in known._guarded(high)])
            bounds[symbol] = Bounds((_expr(0),), _distinct(highs))
        return replace(known, bounds=MappingProxyType(bounds))

    def with_bounds(
        self, symbol: Symbol, lower: IntegerLike, uppers: Iterable[IntegerLike]
    ) -> "Ranges":
        """Let ``lower <= symbol`` and ``symbol <= upper`` for each of ``uppers``.

        A minimum in an upper bound, or a maximum in a lower one, becomes several alternatives.
        A known guard on one of the upper bounds adds what the guard says.
        """
        lowers = _alternatives(_expr(lower), Maximum, Minimum)
        highs = [u for upper in uppers for u in _alternatives(_expr(upper), Minimum, Maximum)]
        for high in tuple(highs):
            highs.extend(self._guarded(high))
        new = Bounds(_distinct(lowers), _distinct(highs))
        if self.bounds.get(symbol) == new:
            return self
        return self._bounded(symbol, new, forget=self._knows(symbol))

    def with_upper(self, symbol: Symbol, upper: IntegerLike) -> "Ranges":
        """Let ``symbol <= upper`` hold besides what is known (inside a branch that tests it)."""
        highs = _alternatives(_expr(upper), Minimum, Maximum)
        old = self.bounds.get(symbol, Bounds())
        new = Bounds(old.lowers, _distinct([*highs, *old.uppers]))
        return self._bounded(symbol, new, forget=False)

    def with_fact(self, expr: IntegerLike, maximum: int) -> "Ranges":
        """Let ``expr <= maximum``, as in ``with_fact(TM*TN*TK, 2**31 - 1)``.

        Products of some of a bounded product's factors are bounded too, sizes being at least 1.
        """
        return replace(self, facts=(*self.facts, (_expr(expr), int(maximum))))

    def with_definition(self, symbol: Symbol, expr: IntegerLike) -> "Ranges":
        """Let ``symbol = expr`` for good; proofs may look through the name."""
        expr = _expr(expr)
        if self.definitions.get(symbol) == expr:
            return self
        if symbol in symbols_of(expr):
            raise ValueError(f"the definition of {symbol} mentions itself")
        known = self._forget(symbol) if self._knows(symbol) else self
        return replace(known, definitions=MappingProxyType({**known.definitions, symbol: expr}))

    def with_guard(self, condition: Basic | bool) -> "Ranges":
        """Let a condition hold; parts of it that no bound follows from are ignored."""
        condition = sympify(condition)
        if condition in self.guards or not guard_polynomials(condition):
            return self
        return replace(self, guards=(*self.guards, condition))

    def with_table(
        self,
        table: Symbol,
        maximum: IntegerLike,
        *,
        from_zero: bool = False,
        step: int | None = 0,
    ) -> "Ranges":
        """Let no entry of a table exceed `maximum`, and each rise by `step` at least.

        The first is 0 where `from_zero` says so. With None for `step` they need not rise.
        """
        return self._tabled(table, TableBounds(_expr(maximum), from_zero, step))

    def with_found(self, symbol: Symbol, value: IntegerLike) -> "Ranges":
        """Let ``symbol`` be what a search found, whose symbols do not change before it does.

        Of any other value nothing is kept, nor of one that reads the symbol's old value.
        """
        value = _expr(value)
        if not isinstance(value, Search):
            return self
        table, _, x = cast(tuple[Symbol, Expr, Expr], value.args)
        if (known := self.tables.get(table)) is None or symbol in symbols_of(value):
            return self
        return self._tabled(table, replace(known, found={**known.found, symbol: x}))

    def _tabled(self, table: Symbol, known: TableBounds) -> "Ranges":
        return replace(self, tables=MappingProxyType({**self.tables, table: known}))

    def with_value(
        self, symbol: Symbol, expr: IntegerLike, fixed: frozenset[Symbol] = frozenset()
    ) -> "Ranges":
        """Let ``symbol`` hold the present value of ``expr``, whose symbols may change afterwards.

        Only bounds are kept: numbers, those of guards on exactly the expression, and those in
        terms of what never changes: sizes, and the symbols in ``fixed``.
        """
        expr = _expr(expr)
        p = to_polynomial(expr)
        low, high = self.interval(expr)

        def constant(e: Expr) -> bool:
            return all(s in fixed or s.is_positive for s in symbols_of(e))

        uppers = [e for e in _alternatives(expr, Minimum, Maximum) if constant(e)]
        uppers.extend(to_expression(top) for top in self._prover.maxima(p) if top != p)
        uppers.extend(self._guarded(expr))
        uppers.extend(() if high is None else (_expr(high),))
        # A bound that mentions the symbol itself is about its old value.
        kept = _distinct([u for u in uppers if symbol not in symbols_of(u)])
        new = Bounds(() if low is None else (_expr(low),), kept)
        return self._bounded(symbol, new, forget=True)

    def prove_nonnegative(self, expr: IntegerLike) -> bool:
        """Tell whether ``expr >= 0`` was proved."""
        expr = _expr(expr)
        return self.about(expr)._prover.at_least_zero(to_polynomial(expr))

    def prove_less(self, a: IntegerLike, b: IntegerLike) -> bool:
        """Tell whether ``a < b`` was proved."""
        a, b = _expr(a), _expr(b)
        return self.about(a, b)._prover.at_least_zero(add(_difference(b, a), constant(1), -1))

    def prove_equal(self, a: IntegerLike, b: IntegerLike) -> bool:
        """Tell whether ``a == b`` was proved."""
        a, b = _expr(a), _expr(b)
        p = _difference(a, b)
        if not p:
            return True
        prover = self.about(a, b)._prover
        p = prover.normal_form(p)
        return not p or (prover.at_least_zero(p) and prover.at_least_zero(negate(p)))

    def interval(self, expr: IntegerLike) -> tuple[int | None, int | None]:
        """Return inclusive numeric bounds, None where none is known."""
        expr = _expr(expr)
        return self.about(expr)._prover.interval_of(expr)

    def fits(self, expr: IntegerLike, bits: int) -> bool:
        """Tell whether the value (not what it is computed from) fits a signed integer."""
        expr, most = _expr(expr), (1 << (bits - 1)) - 1
        p, prover = to_polynomial(expr), self.about(expr)._prover
        return prover.at_least(p, -most - 1) and prover.at_least(negate(p), -most)

    @property
    def _prover(self) -> Prover:
        if not self._provers:
            bounds = {
                symbol: (
                    tuple(to_polynomial(e) for e in known.lowers),
                    tuple(to_polynomial(e) for e in known.uppers),
                )
                for symbol, known in self.bounds.items()
            }
            facts = tuple((to_polynomial(e), limit) for e, limit in self.facts)
            guards = tuple(p for condition in self.guards for p in guard_polynomials(condition))
            outer = [(known._prover, symbol) for known, symbol in self._outer]
            outer_prover = outer[0] if outer else None
            self._provers.append(
                Prover(bounds, facts, self.definitions, guards, outer_prover, self.tables)
            )
        return self._provers[0]

    def _guarded(self, expr: Expr) -> list[Expr]:
        """Return what guards say that ``expr`` is at most: ``stop - 1`` after ``expr < stop``."""
        p = to_polynomial(expr)
        found: list[Expr] = []
        for condition in self.guards:
            for guard in guard_polynomials(condition):
                bound = add(guard, p)
                # The guard's polynomial is bound - expr; what is left must not mention expr.
                if p and all(monomial not in bound for monomial in p if monomial):
                    found.append(to_expression(bound))
        return found

    def _bounded(self, symbol: Symbol, bounds: Bounds, *, forget: bool) -> "Ranges":
        """Return what is known inside, where a symbol has these bounds; the same object each time.

        Sibling loops with the same index so share what is proved of it.
        """
        key = symbol, bounds, forget
        if key not in self._inner:
            known = self._forget(symbol) if forget else self
            inner = replace(known, bounds=MappingProxyType({**known.bounds, symbol: bounds}))
            if not self._mentions(symbol):
                inner._outer.append((self, symbol))
            self._inner[key] = inner
        return self._inner[key]

    def _mentions(self, symbol: Symbol) -> bool:
        """Tell whether what is known of other symbols is stated in terms of this one."""
        others = (b for s, b in self.bounds.items() if s != symbol)
        stated = chain(
            chain.from_iterable((*b.lowers, *b.uppers) for b in others),
            (e for s, e in self.definitions.items() if s != symbol),
            (e for e, _ in self.facts),
            (known.maximum for known in self.tables.values()),
            chain.from_iterable(
                (s, x) for known in self.tables.values() for s, x in known.found.items()
            ),
            self.guards,
        )
        return any(symbol in symbols_of(e) for e in stated)

    def _knows(self, symbol: Symbol) -> bool:
        found = any(symbol in known.found for known in self.tables.values())
        return found or symbol in self.bounds or symbol in self.definitions

    def _forget(self, symbol: Symbol) -> "Ranges":
        """Drop every statement about the symbol's old value."""

        def keep(expr: Basic) -> bool:
            return symbol not in symbols_of(expr)

        def filtered(known: Bounds) -> Bounds:
            return Bounds(tuple(filter(keep, known.lowers)), tuple(filter(keep, known.uppers)))

        bounds = {s: filtered(known) for s, known in self.bounds.items() if s != symbol}
        definitions = {s: e for s, e in self.definitions.items() if s != symbol and keep(e)}
        return replace(
            self,
            bounds=MappingProxyType(bounds),
            definitions=MappingProxyType(definitions),
            facts=tuple(fact for fact in self.facts if keep(fact[0])),
            guards=tuple(guard for guard in self.guards if keep(guard)),
            tables=MappingProxyType(
                {
                    t: replace(
                        known,
                        found={s: x for s, x in known.found.items() if s != symbol and keep(x)},
                    )
                    for t, known in self.tables.items()
                }
            ),
        )


def _expr(value: IntegerLike) -> Expr:
    return value if isinstance(value, Expr) else cast(Expr, sympify(int(value)))


def _difference(a: Expr, b: Expr) -> Polynomial:
    return add(to_polynomial(a), to_polynomial(b), -1)


def _distinct(exprs: Iterable[Expr]) -> tuple[Expr, ...]:
    return tuple(dict.fromkeys(exprs))


def _alternatives(expr: Expr, rising: type[Basic], falling: type[Basic]) -> list[Expr]:
    """Split ``min(a, b) + c`` into ``a + c`` and ``b + c`` (and a maximum that is subtracted)."""
    pending, done = [expr], cast(list[Expr], [])
    while pending:
        current = pending.pop(0)
        parts = _split(current, rising, falling)
        if parts is None or len(pending) + len(done) >= MAX_ALTERNATIVES:
            done.append(current)
        else:
            pending.extend(parts)
    return done


def _split(expr: Expr, rising: type[Basic], falling: type[Basic]) -> tuple[Expr, ...] | None:
    for term in Add.make_args(expr):
        scale, node = term.as_coeff_Mul()
        if isinstance(node, rising if scale > 0 else falling):
            rest = expr - term
            return tuple(scale * cast(Expr, arg) + rest for arg in node.args)
    return None


def _copied(
    bounds: Mapping[Symbol, Bounds],
    facts: tuple[tuple[Expr, int], ...],
    definitions: Mapping[Symbol, Expr],
    guards: tuple[Basic, ...],
    tables: Mapping[Symbol, TableBounds],
) -> Ranges:
    """Ranges with views of their own, which cannot be pickled themselves."""
    views = MappingProxyType(bounds), facts, MappingProxyType(definitions), guards
    return Ranges(*views, MappingProxyType(tables))
