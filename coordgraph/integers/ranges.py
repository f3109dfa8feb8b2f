"""`Ranges`: the known ranges of symbols in index expressions, and proofs from them.

Proofs are sound but incomplete: a statement that is not proved may still be true.
"""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from types import MappingProxyType
from typing import cast

from sympy import Expr, Symbol, sympify
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
from coordgraph.integers.provers import inner_prover, outermost_prover, shared_prover
from coordgraph.integers.split_bounds import alternatives
from coordgraph.integers.stated_bounds import Bounds, with_item
from coordgraph.integers.tables import Search


def _nothing() -> Mapping[Symbol, Expr]:
    return MappingProxyType({})


@dataclass(frozen=True, eq=False)
class Ranges:
    """Immutable statements about the values of symbols; ``with_…`` methods return new objects.

    A symbol without a statement is at least 1 if SymPy assumes it positive (a size), and at least 0
    if SymPy assumes it nonnegative (an index). New bounds or a new value of a symbol replace all
    statements about the symbol's old value.

    Args:
        bounds: the lower and upper bounds of symbols.
        facts: pairs of an expression and a number that it never exceeds.
        definitions: the expression that each defined symbol always equals.
        guards: conditions that are known to be true.
        tables: the known bounds of tables' entries, by the table's symbol.
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
    """The simplifier's cache of simplified expressions, which are valid only under these ranges."""
    _provers: list[Prover] = field(default_factory=list, init=False, repr=False)
    _outer: list[tuple["Ranges", Symbol]] = field(default_factory=list, init=False, repr=False)
    _inner: dict[tuple[Symbol, Bounds, bool], "Ranges"] = field(
        default_factory=dict, init=False, repr=False
    )
    _homes: dict[frozenset[Symbol], "Ranges"] = field(default_factory=dict, init=False, repr=False)
    """Cache of `about`: by set of symbols, the outermost ranges with all statements about them."""

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle what is known about symbols, but not the caches of proofs and simplifications."""
        known = dict(self.bounds), self.facts, dict(self.definitions), self.guards
        return _copied, (*known, dict(self.tables))

    def about(self, *exprs: Basic) -> "Ranges":
        """The ranges of the outermost scope that has all statements relevant to ``exprs``.

        An inner loop's ranges add statements only about the loop's index. For expressions without
        that index, the ranges of the outer loop give the same bounds and simplified forms, and all
        inner loops share the caches of these outer ranges.
        """
        if not self._outer:
            return self
        symbols = symbols_of(exprs[0])
        if len(exprs) > 1:
            symbols = symbols.union(*map(symbols_of, exprs[1:]))
        home = self._homes.get(symbols)
        if home is None:
            outers, depths = self._enclosing
            depth = max((depths.get(symbol, 0) for symbol in symbols), default=0)
            home = self._homes[symbols] = self if depth == len(outers) else outers[depth]
        return home

    @cached_property
    def _enclosing(self) -> tuple[tuple["Ranges", ...], Mapping[Symbol, int]]:
        """The enclosing scopes' ranges, outermost first, and the nesting depths of loop indices.

        The depth of an index is the number of scopes that enclose the scope that bounds it.
        """
        if not self._outer:
            return (), {}
        outer, symbol = self._outer[0]
        outers, depths = outer._enclosing
        return (*outers, outer), {**depths, symbol: len(outers) + 1}

    def with_index(self, symbol: Symbol, size: IntegerLike) -> "Ranges":
        """A copy of the ranges with the bounds ``0 <= symbol < size``."""
        return self.with_bounds(symbol, 0, (_expr(size) - 1,))

    def with_indices(self, sizes: Iterable[tuple[Symbol, IntegerLike]]) -> "Ranges":
        """A copy of the ranges with ``0 <= symbol < size`` for each pair (symbol, size).

        One call of this method is faster than repeated calls of `with_index`.
        """
        known, bounds = self, dict(self.bounds)
        for symbol, size in sizes:
            if symbol in bounds or symbol in known.definitions:
                known = replace(known, bounds=MappingProxyType(bounds)).with_index(symbol, size)
                bounds = dict(known.bounds)
                continue
            highs = alternatives(_expr(size) - 1, Minimum, Maximum)
            highs.extend([bound for high in tuple(highs) for bound in known._guarded(high)])
            bounds[symbol] = Bounds((_expr(0),), _distinct(highs))
        return replace(known, bounds=MappingProxyType(bounds))

    def with_bounds(
        self, symbol: Symbol, lower: IntegerLike, uppers: Iterable[IntegerLike]
    ) -> "Ranges":
        """A copy with ``lower <= symbol``, and with ``symbol <= upper`` for each of ``uppers``.

        An upper bound that is a minimum (or a lower bound that is a maximum) is split into several
        bounds. If a known guard limits an upper bound, the guard's limit becomes another upper
        bound of the symbol. Earlier statements about the symbol are dropped.
        """
        lowers = alternatives(_expr(lower), Maximum, Minimum)
        highs = [u for upper in uppers for u in alternatives(_expr(upper), Minimum, Maximum)]
        for high in tuple(highs):
            highs.extend(self._guarded(high))
        new = Bounds(_distinct(lowers), _distinct(highs))
        if self.bounds.get(symbol) == new:
            return self
        return self._bounded(symbol, new, forget=self._knows(symbol))

    def with_upper(self, symbol: Symbol, upper: IntegerLike) -> "Ranges":
        """A copy of the ranges with ``symbol <= upper`` added, as in a branch that tests this."""
        highs = alternatives(_expr(upper), Minimum, Maximum)
        old = self.bounds.get(symbol, Bounds())
        new = Bounds(old.lowers, _distinct([*highs, *old.uppers]))
        return self._bounded(symbol, new, forget=False)

    def with_fact(self, expr: IntegerLike, maximum: int) -> "Ranges":
        """A copy of the ranges with ``expr <= maximum``: ``with_fact(TM*TN*TK, 2**31 - 1)``.

        From this example proofs also conclude ``TM*TN <= 2**31 - 1``, because the size ``TK`` is at
        least 1.
        """
        return replace(self, facts=(*self.facts, (_expr(expr), int(maximum))))

    def with_definition(self, symbol: Symbol, expr: IntegerLike) -> "Ranges":
        """A copy of the ranges with ``symbol == expr``, so that proofs may substitute ``expr``.

        Raises:
            ValueError: ``expr`` contains ``symbol``.
        """
        expr = _expr(expr)
        if self.definitions.get(symbol) == expr:
            return self
        if symbol in symbols_of(expr):
            raise ValueError(
                f"the definition {symbol} = {expr} contains {symbol} itself; define it by other "
                "symbols"
            )
        known = self._forget(symbol) if self._knows(symbol) else self
        return replace(known, definitions=MappingProxyType({**known.definitions, symbol: expr}))

    def with_definitions(self, definitions: Mapping[Symbol, Expr]) -> "Ranges":
        """A copy of the ranges in which each symbol equals an expression and keeps its bounds.

        Unlike `with_definition`, which gives a symbol a new value and drops its old bounds, this
        method adds facts: the expressions must be inside the bounds of their symbols.
        """
        return replace(self, definitions=MappingProxyType({**self.definitions, **definitions}))

    def with_guard(self, condition: Basic | bool) -> "Ranges":
        """A copy of the ranges with a condition that holds, which proofs may use.

        The condition is ignored unless it is a comparison or a conjunction of comparisons.
        """
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
        """A copy of the ranges with bounds of a table's entries.

        Args:
            table: the symbol of the table.
            maximum: an upper bound of all entries.
            from_zero: whether the first entry is 0.
            step: a lower bound of the difference between consecutive entries; None if the entries
                need not be non-decreasing.
        """
        return self._tabled(table, TableBounds(_expr(maximum), from_zero, step))

    def with_found(self, symbol: Symbol, value: IntegerLike) -> "Ranges":
        """A copy of the ranges in which ``symbol`` is the result of the `Search` ``value``.

        Proofs then use ``table[symbol] <= x``, where x is the value that was searched for. The
        symbols in ``value`` must not change while ``symbol`` keeps its value. A ``value`` that is
        not a `Search`, or that contains ``symbol``, is ignored.
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
        """A copy of the ranges with ``symbol`` set to the current value of ``expr``.

        The symbols of ``expr`` may change later, so the copy does not state ``symbol == expr``. The
        copy states bounds of ``symbol``: numeric bounds, limits from guards on ``expr``, and bounds
        in terms of sizes and of the symbols in ``fixed``, whose values never change.
        """
        expr = _expr(expr)
        p = to_polynomial(expr)
        low, high = self.interval(expr)

        def constant(e: Expr) -> bool:
            return all(s in fixed or s.is_positive for s in symbols_of(e))

        uppers = [e for e in alternatives(expr, Minimum, Maximum) if constant(e)]
        uppers.extend(to_expression(top) for top in self._prover.maxima(p) if top != p)
        uppers.extend(self._guarded(expr))
        uppers.extend(() if high is None else (_expr(high),))
        # Drop bounds that contain the symbol itself: they refer to the symbol's old value.
        kept = _distinct([u for u in uppers if symbol not in symbols_of(u)])
        new = Bounds(() if low is None else (_expr(low),), kept)
        return self._bounded(symbol, new, forget=True)

    def prove_nonnegative(self, expr: IntegerLike) -> bool:
        """Whether ``expr >= 0`` can be proved for all values inside the ranges."""
        expr = _expr(expr)
        return self.about(expr)._prover.at_least_zero(to_polynomial(expr))

    def prove_less(self, a: IntegerLike, b: IntegerLike) -> bool:
        """Whether ``a < b`` can be proved for all values inside the ranges."""
        a, b = _expr(a), _expr(b)
        return self.about(a, b)._prover.at_least_zero(add(_difference(b, a), constant(1), -1))

    def prove_equal(self, a: IntegerLike, b: IntegerLike) -> bool:
        """Whether ``a == b`` can be proved for all values inside the ranges."""
        a, b = _expr(a), _expr(b)
        p = _difference(a, b)
        if not p:
            return True
        prover = self.about(a, b)._prover
        p = prover.normal_form(p)
        return not p or (prover.at_least_zero(p) and prover.at_least_zero(negate(p)))

    def interval(self, expr: IntegerLike) -> tuple[int | None, int | None]:
        """The inclusive numeric lower and upper bound of ``expr``; None for an unknown bound."""
        expr = _expr(expr)
        return self.about(expr)._prover.interval_of(expr)

    def fits(self, expr: IntegerLike, bits: int) -> bool:
        """Whether the value of ``expr`` is proved to fit a signed integer of ``bits`` bits.

        Intermediate results of the computation of ``expr`` are not considered.
        """
        expr, most = _expr(expr), (1 << (bits - 1)) - 1
        p, prover = to_polynomial(expr), self.about(expr)._prover
        return prover.at_least(p, -most - 1) and prover.at_least(negate(p), -most)

    @property
    def _prover(self) -> Prover:
        if self._provers:
            return self._provers[0]
        if self._outer:
            known, symbol = self._outer[0]
            made = inner_prover(
                known._prover,
                symbol,
                self.bounds[symbol],
                self.definitions.get(symbol),
                self.tables,
            )
        else:
            made = shared_prover(self._statements(), self._make_prover)
        self._provers.append(made)
        return made

    def _make_prover(self) -> Prover:
        """A new prover for these ranges; called only if no other ranges enclose them."""
        facts = tuple((to_polynomial(e), limit) for e, limit in self.facts)
        guards = tuple(p for condition in self.guards for p in guard_polynomials(condition))
        return outermost_prover(self.bounds, facts, self.definitions, guards, self.tables)

    def _statements(self) -> Hashable:
        """All that is known about symbols, as a key: `Ranges` with equal keys prove the same."""
        tables = (
            (table, known.maximum, known.from_zero, known.step, frozenset(known.found.items()))
            for table, known in self.tables.items()
        )
        definitions = frozenset(self.definitions.items())
        others = self.facts, definitions, self.guards, frozenset(tables)
        return frozenset(self.bounds.items()), *others

    def _guarded(self, expr: Expr) -> list[Expr]:
        """Upper bounds of ``expr`` that guards give: ``stop - 1`` for guard ``expr < stop``."""
        p = to_polynomial(expr)
        found: list[Expr] = []
        for condition in self.guards:
            for guard in guard_polynomials(condition):
                bound = add(guard, p)
                # If the guard's polynomial is bound - expr, adding expr to it gives a bound that
                # lacks expr.
                if p and all(monomial not in bound for monomial in p if monomial):
                    found.append(to_expression(bound))
        return found

    def _bounded(self, symbol: Symbol, bounds: Bounds, *, forget: bool) -> "Ranges":
        """A copy of the ranges with bounds of a symbol; equal arguments give the same object.

        Loops over the same index therefore share the caches of proofs.

        Args:
            symbol: the symbol.
            bounds: the symbol's new bounds.
            forget: whether to drop all statements about the symbol's old value.
        """
        key = symbol, bounds, forget
        if key not in self._inner:
            known = self._forget(symbol) if forget else self
            inner = replace(known, bounds=with_item(known.bounds, symbol, bounds))
            if not self._mentions(symbol):
                inner._outer.append((self, symbol))
            self._inner[key] = inner
        return self._inner[key]

    def _mentions(self, symbol: Symbol) -> bool:
        """Whether a bound of another symbol, a fact, a table or a guard contains ``symbol``."""
        if symbol not in self._stated:
            return False
        if any(symbol in b.symbols and s != symbol for s, b in self.bounds.items()):
            return True
        stated = chain(
            (e for s, e in self.definitions.items() if s != symbol),
            (e for e, _ in self.facts),
            (known.maximum for known in self.tables.values()),
            chain.from_iterable(
                (s, x) for known in self.tables.values() for s, x in known.found.items()
            ),
            self.guards,
        )
        return any(symbol in symbols_of(e) for e in stated)

    @cached_property
    def _stated(self) -> frozenset[Symbol]:
        """All symbols in facts, guards, tables, and the expressions of bounds and definitions.

        A symbol that only has bounds or a definition of its own is left out.
        """
        exprs = chain(
            self.definitions.values(),
            (e for e, _ in self.facts),
            (known.maximum for known in self.tables.values()),
            chain.from_iterable(known.found for known in self.tables.values()),
            chain.from_iterable(known.found.values() for known in self.tables.values()),
            self.guards,
        )
        bounds = (known.symbols for known in self.bounds.values())
        return frozenset[Symbol]().union(*bounds, *map(symbols_of, exprs))

    def _knows(self, symbol: Symbol) -> bool:
        found = any(symbol in known.found for known in self.tables.values())
        return found or symbol in self.bounds or symbol in self.definitions

    def _forget(self, symbol: Symbol) -> "Ranges":
        """A copy without bounds, facts and guards that contain ``symbol``, whose value changes."""

        def keep(expr: Basic) -> bool:
            return symbol not in symbols_of(expr)

        def filtered(known: Bounds) -> Bounds:
            if symbol not in known.symbols:
                return known
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


def _copied(
    bounds: Mapping[Symbol, Bounds],
    facts: tuple[tuple[Expr, int], ...],
    definitions: Mapping[Symbol, Expr],
    guards: tuple[Basic, ...],
    tables: Mapping[Symbol, TableBounds],
) -> Ranges:
    """Rebuild `Ranges` from the dictionaries in a pickle; read-only mappings cannot be pickled."""
    views = MappingProxyType(bounds), facts, MappingProxyType(definitions), guards
    return Ranges(*views, MappingProxyType(tables))
