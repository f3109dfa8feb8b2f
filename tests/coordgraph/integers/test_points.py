"""`Points`, sample values of symbols, satisfy all known facts and refute false goals."""

from itertools import islice

import pytest
from hypothesis import given
from sympy import Expr, Lt, Symbol

from coordgraph.integers import (
    Ranges,
    evaluate,
    floor_div,
    floor_mod,
    index_symbol,
    load,
    proofs,
    search,
    select,
    size_symbol,
)
from coordgraph.integers.elimination import Elimination, Step
from coordgraph.integers.guards import Guards
from coordgraph.integers.points import MOST_KEPT, Points
from coordgraph.integers.polynomials import Polynomial, add, atom_of, to_polynomial
from coordgraph.integers.proofs import Prover
from tests.coordgraph.integers.strategies import Space, conditions, expressions, leaves, spaces
from tests.coordgraph.integers.test_simplify_property import checked

i, j, g = map(index_symbol, "ijg")
m, n = map(size_symbol, "mn")
T = Symbol("T", integer=True, nonnegative=True)


def prover_of(ranges: Ranges) -> Prover:
    return ranges._prover


def values_of(ranges: Ranges, *exprs: Expr) -> list[tuple[int | None, ...]]:
    """For each sample assignment of values to symbols, the values of `exprs`; None if undefined."""
    polynomials = [to_polynomial(e) for e in exprs]
    return [
        tuple(point.value(p) for p in polynomials) for point in prover_of(ranges).points._inside
    ]


def known(ranges: Ranges, *exprs: Expr) -> list[tuple[int, ...]]:
    """For each sample assignment of values to symbols, the values of the expressions `exprs`.

    Assignments are left out if an expression has no value there, for example if it divides by 0.
    """
    found = [tuple(v for v in row if v is not None) for row in values_of(ranges, *exprs)]
    return [row for row in found if len(row) == len(exprs)]


@checked
@given(spaces(), conditions(leaves), expressions, expressions)
def test_no_point_contradicts_a_proof(space: Space, guard: Expr, a: Expr, b: Expr) -> None:
    for ranges in (space.ranges, space.ranges.with_guard(guard)):
        prover, p = prover_of(ranges), add(to_polynomial(b), to_polynomial(a), -1)
        for goal in (0, None):
            low = Elimination(prover, goal).run(p, prover.guards)
            least = prover.points.least(p)
            assert low is None or least is None or low <= least
            assert low is None or not prover.points.below(p, low)


@checked
@given(spaces(), expressions)
def test_the_smallest_value_is_that_of_a_valuation(space: Space, expr: Expr) -> None:
    """At a sample point (values of symbols), a polynomial has the value that `evaluate` gives."""
    valuations = [*islice(space.valuations(), 400)]
    names = [*valuations[0]]
    p = to_polynomial(expr)
    for point in prover_of(space.ranges).points._inside:
        at = {s: point[atom_of(s)] for s in names}
        if at in valuations and (value := point.value(p)) is not None:
            assert evaluate(expr, at) == value


def test_points_satisfy_all_statements() -> None:
    ranges = (
        Ranges()
        .with_fact(m * n, 500)
        .with_definition(g, floor_div(m + 3, 4))
        .with_guard(Lt(m, n))
        .with_bounds(i, 2, (m + n, 9))
        .with_index(j, i)
    )
    points = known(ranges, m, n, g, i, j)
    assert len({*points}) > 4
    for vm, vn, vg, vi, vj in points:
        assert vm * vn <= 500
        assert 1 <= vm < vn
        assert vg == (vm + 3) // 4
        assert 2 <= vi <= min(vm + vn, 9)
        assert 0 <= vj < vi


def test_an_inner_scope_has_the_values_of_the_outer_one() -> None:
    outer = Ranges().with_fact(m, 30).with_index(i, m)
    inner = outer.with_index(j, i + 1)
    assert prover_of(inner).outer is not None
    assert [row[:2] for row in values_of(inner, m, i, j)] == values_of(outer, m, i)
    assert all(vj <= vi for _, vi, vj in known(inner, m, i, j))


def test_an_empty_range_has_no_value() -> None:
    ranges = Ranges().with_bounds(i, 3, (2,)).with_definition(j, m - 1).with_bounds(g, 5, (m,))
    assert not known(ranges, i)
    assert len(known(ranges, j)) == MOST_KEPT
    assert 0 < len(known(ranges, g)) < MOST_KEPT
    assert not known(Ranges().with_definition(j, m - 10**9), j), "j is an index, so at least 0"


def test_bounds_that_depend_on_each_other_have_no_value() -> None:
    circular = Ranges().with_bounds(i, 0, (j,)).with_upper(j, i)
    assert not known(circular, i)
    assert not prover_of(circular).points.below(to_polynomial(i - 1), 0)


@pytest.mark.parametrize("step", [None, 0, 2])
@pytest.mark.parametrize("from_zero", [True, False])
def test_entries_of_tables(step: int | None, from_zero: bool) -> None:
    found = search(T, n, floor_div(i, m))
    ranges = Ranges().with_table(T, m + 2 * n, from_zero=from_zero, step=step)
    ranges = ranges.with_index(i, m * n).with_value(g, found).with_found(g, found)
    rows = known(ranges, load(T, g), load(T, g + 1), load(T, found), m, n, i, load(T, 0))
    assert len({*rows}) > 3
    for entry, following, searched, vm, vn, vi, first in rows:
        assert 0 <= entry <= following <= vm + 2 * vn
        assert following - entry >= (step or 0)
        assert max(entry, searched) * vm <= vi, "a search finds an entry that is not larger"
        assert first == 0


def test_expressions_without_a_value() -> None:
    assert not known(Ranges(), floor_mod(i, i - i // 1 * 1 + m - m + j - j + floor_div(i, m + i)))
    chosen = known(Ranges(), select(Lt(i, 2), floor_div(7, 2 - i), i), i)
    assert {row[0] for row in chosen if row[1] < 2} <= {3, 7}
    assert all(a == b for a, b in chosen if b >= 2)


def test_no_proof_is_searched_where_a_point_contradicts_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranges = Ranges().with_fact(m * n, 10**6).with_index(i, m).with_index(j, n)
    searched: list[object] = []

    class Recorded(Elimination):
        def run(self, p: Polynomial, guards: Guards) -> int | None:
            searched.append(p)
            return super().run(p, guards)

    monkeypatch.setattr(proofs, "Elimination", Recorded)
    below_all = to_polynomial(m * n - i * n - j - 1)
    assert not ranges.prove_less(i * n + j, m * n - 1)
    assert not ranges.prove_nonnegative(i - j)
    assert add(below_all, {(): -1}) not in searched
    assert to_polynomial(i - j) not in searched
    assert ranges.prove_less(i * n + j, m * n)
    assert below_all in searched
    monkeypatch.setattr(Points, "below", lambda *_: False)
    assert not ranges.prove_nonnegative(j - i)
    assert to_polynomial(j - i) in searched


def test_a_search_for_the_best_bound_ends_at_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search for the best lower bound stops when a bound equals the value at a sample point.

    No lower bound of the expression can be larger than a value that the expression takes.
    """
    tried: list[object] = []
    all_of = Elimination._all_of

    def recorded(search: Elimination, step: Step, constant: int) -> int | None:
        tried.append(step)
        return all_of(search, step, constant)

    def steps() -> int:
        del tried[:]
        ranges = Ranges().with_fact(m * n, 10**6).with_index(i, m).with_index(j, n)
        known = prover_of(ranges)
        fresh = Prover(known.bounds, known.facts, {}, ())
        assert fresh.minimum(to_polynomial(m * n - i * n - j)) == 1
        return len(tried)

    monkeypatch.setattr(Elimination, "_all_of", recorded)
    with_points = steps()
    monkeypatch.setattr(Points, "least", lambda *_: None)
    assert with_points < steps()
