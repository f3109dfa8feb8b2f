"""A cache of provers: `Ranges` with the same facts about symbols share a prover and its results."""

from collections import deque
from collections.abc import Callable, Hashable, Mapping
from weakref import WeakValueDictionary, ref

from sympy import Expr, Symbol

from coordgraph.integers.bounds import Fact, TableBounds
from coordgraph.integers.guards import Guards
from coordgraph.integers.polynomials import atom_of
from coordgraph.integers.proofs import Prover
from coordgraph.integers.stated_bounds import Bounds

MOST_KEPT = 128
"""The number of latest calls of `shared_prover` whose provers are kept, even if no `Ranges` uses
these provers any more."""

_provers = WeakValueDictionary[Hashable, Prover]()
_kept = deque[Prover](maxlen=MOST_KEPT)


def shared_prover(key: Hashable, make: Callable[[], Prover]) -> Prover:
    """The prover that all `Ranges` with the known facts `key` share; `make()` makes a missing one.

    Provers are shared because many `Ranges` are equal: those of the graphs before and after a pass,
    or of loops over the same indices. A prover with two bounds that depend on each other is not
    shared: its results depend on the order of queries, so equal pipelines would give different
    graphs.

    Args:
        key: the known facts about symbols (bounds, definitions and conditions), and the prover of
            the enclosing scope.
        make: returns a new prover for these facts.
    """
    prover = _provers.get(key)
    if prover is None or prover.circular:
        prover = _provers[key] = make()
    _kept.append(prover)
    return prover


def outermost_prover(
    bounds: Mapping[Symbol, Bounds],
    facts: tuple[Fact, ...],
    definitions: Mapping[Symbol, Expr],
    guards: Guards,
    tables: Mapping[Symbol, TableBounds],
) -> Prover:
    """A new prover for the outermost scope, from what is known there about symbols."""
    known = {atom_of(symbol): stated.polynomials() for symbol, stated in bounds.items()}
    defined = {atom_of(symbol): e for symbol, e in definitions.items()}
    return Prover(known, facts, defined, guards, None, tables)


def inner_prover(
    outer: Prover,
    symbol: Symbol,
    bounds: Bounds,
    definition: Expr | None,
    tables: Mapping[Symbol, TableBounds],
) -> Prover:
    """The shared prover of ranges that add bounds of one symbol to those of the prover `outer`.

    Everything else that the result knows is known to `outer`, and none of it contains the symbol.

    Args:
        outer: the prover of the enclosing scope.
        symbol: the symbol.
        bounds: the bounds of the symbol in the inner scope.
        definition: the expression that the symbol equals, or None.
        tables: the known bounds of tables' entries, by the table's symbol.
    """
    target = atom_of(symbol)

    def make() -> Prover:
        definitions = outer.definitions
        if definition is None and target in definitions:
            definitions = {a: e for a, e in definitions.items() if a is not target}
        known = {**outer.bounds, target: bounds.polynomials()}
        return Prover(known, outer.facts, definitions, outer.guards, (outer, symbol), tables)

    # The key must not keep `outer` alive: a prover is part of reference cycles, so the garbage
    # collector would free only one level of nested provers each time.
    return shared_prover((ref(outer), symbol, bounds, definition), make)
