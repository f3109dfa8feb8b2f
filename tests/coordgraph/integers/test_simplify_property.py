"""Simplified expressions and proofs agree with evaluation at all values of random expressions."""

from itertools import islice

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from sympy import Expr

from coordgraph.integers import Ranges, evaluate, floor_div, floor_mod, simplify, to_text
from tests.coordgraph.integers.strategies import (
    Space,
    conditions,
    expressions,
    leaves,
    spaces,
    value_or_none,
)

checked = settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))


@checked
@given(spaces(), expressions)
def test_a_simplified_expression_has_the_same_values(space: Space, expr: Expr) -> None:
    simplified = simplify(expr, space.ranges)
    for values in islice(space.valuations(), 400):
        wanted = value_or_none(expr, values)
        if wanted is not None:
            assert evaluate(simplified, values) == wanted, (to_text(simplified), values)


@checked
@given(spaces(), conditions(expressions))
def test_a_simplified_condition_has_the_same_truth(space: Space, condition: Expr) -> None:
    simplified = simplify(condition, space.ranges)
    for values in islice(space.valuations(), 400):
        wanted = value_or_none(condition, values)
        if wanted is not None:
            assert evaluate(simplified, values) == wanted, (to_text(simplified), values)


@checked
@given(spaces(), expressions)
def test_simplifying_twice_changes_nothing_more(space: Space, expr: Expr) -> None:
    once = simplify(expr, space.ranges)
    # `with_fact(0, 0)` copies the ranges without their cache of simplified expressions.
    assert simplify(once, space.ranges.with_fact(0, 0)) == once


@checked
@given(spaces(), expressions)
def test_intervals_hold_every_value(space: Space, expr: Expr) -> None:
    low, high = space.ranges.interval(expr)
    for values in islice(space.valuations(), 400):
        value = value_or_none(expr, values)
        if value is not None:
            assert low is None or low <= value, values
            assert high is None or value <= high, values


@checked
@given(spaces(), expressions, expressions)
def test_what_is_proved_holds(space: Space, a: Expr, b: Expr) -> None:
    less = space.ranges.prove_less(a, b)
    equal = space.ranges.prove_equal(a, b)
    natural = space.ranges.prove_nonnegative(a - b)
    assume(less or equal or natural)
    for values in islice(space.valuations(), 400):
        x, y = value_or_none(a, values), value_or_none(b, values)
        if x is not None and y is not None:
            assert not less or x < y, values
            assert not equal or x == y, values
            assert not natural or x >= y, values


@checked
@given(spaces(), st.recursive(leaves, lambda e: st.builds(lambda a, b: a + b, e, e), max_leaves=3))
def test_quotient_and_remainder_recombine(space: Space, expr: Expr) -> None:
    both = floor_div(expr, 4) * 4 + floor_mod(expr, 4)
    assert simplify(both, space.ranges) == simplify(expr, space.ranges)


@checked
@given(spaces(), conditions(leaves), leaves, leaves)
def test_guards_only_prove_what_they_imply(space: Space, condition: Expr, a: Expr, b: Expr) -> None:
    ranges = space.ranges.with_guard(condition)
    less = ranges.prove_less(a, b)
    low, high = ranges.interval(a - b)
    for values in islice(space.valuations(), 400):
        if evaluate(condition, values):
            x, y = evaluate(a, values), evaluate(b, values)
            assert not less or x < y, values
            assert low is None or low <= x - y
            assert high is None or x - y <= high


@pytest.mark.parametrize("bits", [8, 32])
def test_fits_is_about_signed_integers(bits: int) -> None:
    limit = 1 << (bits - 1)
    assert Ranges().fits(limit - 1, bits)
    assert Ranges().fits(-limit, bits)
    assert not Ranges().fits(limit, bits)
