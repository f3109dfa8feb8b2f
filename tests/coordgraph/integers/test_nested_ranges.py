"""A `Ranges` object with added facts reuses proofs of the object that it extends.

Proofs are reused for expressions about which the added facts say nothing.
"""

from itertools import islice

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sympy import Expr, Symbol

from coordgraph.integers import (
    Ranges,
    evaluate,
    floor_div,
    index_symbol,
    minimum,
    simplify,
    size_symbol,
)
from tests.coordgraph.integers.strategies import (
    UPPERS,
    Space,
    Y,
    expressions,
    spaces,
    value_or_none,
)

checked = settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
n, share, total = (size_symbol(name) for name in ("n", "share", "total"))
i, j, k, workgroup = (index_symbol(name) for name in ("i", "j", "k", "workgroup"))


def test_what_does_not_mention_an_inner_index_is_found_outside() -> None:
    outer = Ranges().with_index(i, n)
    inner = outer.with_index(j, 4).with_value(k, j + i)
    assert inner.about(i + n) is outer
    assert inner.about(i, j) is not outer
    assert inner.about(k) is inner
    assert simplify(minimum(i, n), inner) == i
    assert minimum(i, n) in outer.simplified


def test_sibling_loops_have_the_same_ranges() -> None:
    outer = Ranges().with_index(i, n)
    assert outer.with_index(j, 4) is outer.with_index(j, 4)
    assert outer.with_index(j, 4) is not outer.with_index(j, 5)
    assert outer.with_index(j, 4).with_upper(j, 2) is not outer.with_bounds(j, 0, (2,))


def test_a_symbol_that_bounds_others_hides_what_was_known_outside() -> None:
    outer = Ranges().with_index(i, 8).with_bounds(j, 0, (i,))
    assert outer.interval(j) == (0, 7)
    narrowed = outer.with_upper(i, 3)
    assert narrowed.about(j) is narrowed
    assert narrowed.interval(j) == (0, 3)
    moved = outer.with_value(i, i + 90)
    assert not moved.prove_less(j, i + 1)
    assert moved.interval(i) == (90, 97)


def test_a_narrower_bound_is_not_a_new_value() -> None:
    outer = Ranges().with_index(i, 8).with_bounds(j, 0, (i,))
    assert outer.with_upper(i, 3).prove_less(j, i + 1)
    assert not outer.with_bounds(i, 0, (3, 7)).prove_less(j, i + 1)


def test_a_quotient_of_a_minimum_is_bounded_by_either() -> None:
    quotient = floor_div(minimum(j, n * i + n - 1), n)
    assert Ranges().prove_less(quotient, i + 1)
    assert not Ranges().prove_less(quotient, i)


def test_a_guard_is_news_about_everything() -> None:
    outer = Ranges().with_index(i, n)
    assert not outer.prove_less(i, 5)
    assert outer.with_index(j, 4).with_guard(i < 5).prove_less(i, 5)


def test_a_value_is_bounded_by_what_never_changes() -> None:
    known = Ranges().with_bounds(workgroup, 0, (107,)).with_index(j, 9)
    value = minimum(share, total - share * workgroup) - 1
    fixed = known.with_value(i, value, frozenset({workgroup}))
    assert fixed.prove_less(share * workgroup + i, total)
    assert fixed.prove_less(i, share)
    loose = known.with_value(i, value)
    assert loose.prove_less(i, share)
    assert not loose.prove_less(share * workgroup + i, total)


@checked
@given(spaces(), expressions, expressions, st.sampled_from(UPPERS))
def test_intervals_hold_in_a_branch_after_questions_outside(
    space: Space, first: Expr, second: Expr, upper: Expr
) -> None:
    for expr in (first, second):
        space.ranges.interval(expr)
    inside = space.ranges.with_upper(Y, upper)
    for expr in (first, second):
        low, high = inside.interval(expr)
        for values in islice(space.valuations(), 400):
            value = value_or_none(expr, values)
            if value is not None and values[Y] <= evaluate(upper, values):
                assert low is None or low <= value, values
                assert high is None or value <= high, values


@checked
@given(spaces(), expressions, expressions)
def test_intervals_hold_for_a_named_value(space: Space, named: Expr, expr: Expr) -> None:
    name: Symbol = Symbol("named", integer=True)
    inside = space.ranges.with_value(name, named)
    low, high = inside.interval(expr + name)
    for values in islice(space.valuations(), 400):
        parts = value_or_none(named, values), value_or_none(expr, values)
        if parts[0] is not None and parts[1] is not None:
            assert low is None or low <= parts[0] + parts[1], values
            assert high is None or parts[0] + parts[1] <= high, values


@checked
@given(spaces(), expressions, st.integers(2, 12))
def test_fits_agrees_with_intervals(space: Space, expr: Expr, bits: int) -> None:
    low, high = space.ranges.interval(expr)
    limit = 1 << (bits - 1)
    inside = low is not None and high is not None and -limit <= low and high < limit
    assert space.ranges.fits(expr, bits) == inside
