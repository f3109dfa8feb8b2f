"""Bounds of sums of a quotient and a remainder: never exceeded, and reached by some values."""

from itertools import islice, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sympy import Add, Expr, Integer

from coordgraph.integers import (
    Ranges,
    evaluate,
    floor_div,
    floor_mod,
    index_symbol,
    minimum,
    size_symbol,
)
from coordgraph.integers.intervals import quotient_with_remainder
from tests.coordgraph.integers.strategies import A, B, S, Space, X, Y, spaces

LIMIT = 2**31 - 1
tiles, depth = size_symbol("tiles"), size_symbol("depth")
x, lane = index_symbol("x"), index_symbol("lane")

DIVISORS = (A, B, A * B, A + 1, 2 * A, A + B, minimum(A, B), Integer(2), Integer(3))
dividends = st.sampled_from((X, Y, S, X + Y, floor_div(X, A), floor_div(Y + 1, B), 3 * X + S))
parts = st.builds(
    lambda make, scale, dividend, divisor: scale * make(dividend, divisor),
    st.sampled_from((floor_div, floor_mod)),
    st.integers(-2, 5),
    dividends,
    st.sampled_from(DIVISORS),
)


@pytest.mark.parametrize(("low", "high"), [(d, e) for d in range(1, 6) for e in range(d, 6)])
def test_no_sum_exceeds_its_bound(low: int, high: int) -> None:
    """The bound holds for all small numbers, and for a = 1 it is reached."""
    for a, c, most in product((1, 2, 5), (1, 3, 4), range(-2, 13)):
        bound = quotient_with_remainder(a, c, most, (low, high))
        assert bound is not None
        sums = [
            a * (value // (d + more)) + c * rest
            for d in range(low, high + 1)
            for more in range(3)
            for value in range(-3, most + 1)
            for rest in range(d)
        ]
        assert max(sums, default=0) <= bound
        if a == 1 and most >= 0:
            assert max(sums) == bound


@pytest.mark.parametrize("unknown", [(None, (1, 2)), (5, (None, 2)), (5, (1, None)), (5, (0, 2))])
def test_unknown_bounds_give_none(unknown: tuple[int | None, tuple[int | None, int | None]]):
    assert quotient_with_remainder(1, 1, *unknown) is None


@settings(max_examples=150, deadline=None)
@given(spaces(), st.lists(parts, min_size=2, max_size=5))
def test_sums_of_quotients_and_remainders_are_inside_their_intervals(
    space: Space, terms: list[Expr]
) -> None:
    expr = Add(*terms)
    low, high = space.ranges.interval(expr)
    for values in islice(space.valuations(), 400):
        value = evaluate(expr, values)
        assert low is None or low <= value, values
        assert high is None or value <= high, values


@pytest.mark.parametrize("group", [2, 3, 7, 1000])
def test_a_strided_tile_number_fits_like_the_number_of_tiles(group: int) -> None:
    """In the order 0, group, 2*group, …, visit x is of tile ``x//tiles + group*(x % tiles)``."""
    known = Ranges().with_fact(group * tiles * depth, LIMIT).with_bounds(x, 0, (LIMIT,))
    strided = floor_div(x, tiles) + group * floor_mod(x, tiles)
    merged = floor_div(x, tiles * depth) + group * floor_mod(floor_div(x, depth), tiles)
    assert known.fits(strided, 32)
    assert known.fits(merged, 32)
    assert known.interval(strided) == (0, LIMIT)
    # A sum with two such pairs, or with another term, is bounded too.
    assert known.interval(strided + merged) == (0, 2 * LIMIT)
    assert known.with_index(lane, 32).interval(strided - 2 * lane) == (-62, LIMIT)
    # If the quotient is divided by a smaller number than the remainder, both terms may be large
    # for the same x.
    smaller = floor_div(x, tiles) + group * floor_mod(x, tiles * depth)
    assert not known.fits(smaller, 32)
