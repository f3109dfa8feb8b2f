"""The number that `divisor_of` returns divides the expression for all values of symbols."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from sympy import Integer, Symbol

from coordgraph.integers import (
    bit_xor,
    evaluate,
    floor_div,
    floor_mod,
    less,
    maximum,
    minimum,
    select,
)
from coordgraph.integers.divisors import divisor_of

X, Y = (Symbol(name, integer=True, nonnegative=True) for name in "xy")
CASES: tuple[tuple[Any, int], ...] = (
    (Integer(0), 0),
    (Integer(12), 12),
    (8 * X + 4 * Y, 4),
    (8 * X * Y, 8),
    (X + 8, 1),
    (minimum(8 * X, 12 * Y), 4),
    (maximum(8 * X, Integer(6)), 2),
    (floor_div(12 * X, Integer(4)), 3),
    (floor_div(12 * X, Integer(8)), 1),
    (floor_mod(12 * X, Integer(8)), 4),
    (bit_xor(8 * X, 12 * Y), 4),
    (select(less(X, Y), 6 * X, 9 * Y), 3),
    (8 * floor_div(X + 7, Integer(8)) * Y, 8),
)


@pytest.mark.parametrize(("expr", "expected"), CASES, ids=str)
def test_it_divides_every_value(expr: Any, expected: int):
    found = divisor_of(expr, 8)
    assert found == expected
    for x, y in product(range(12), repeat=2):
        value = int(evaluate(expr, {X: x, Y: y}))
        assert value == 0 if found == 0 else value % found == 0


@pytest.mark.parametrize(
    ("expr", "known", "expected"),
    [(X * Y, X, 8), (3 * X * Y, X, 24), (X, 2 * X, 4), (X, 3 * X, 8), (X + Y, X, 1), (Y, X, 1)],
    ids=str,
)
def test_known_multiples(expr: Any, known: Any, expected: int):
    """If `known` is a multiple of 8, `expr` is proved to be a multiple of `expected`."""
    found = divisor_of(expr, 8, [known])
    assert found == expected
    for x, y in product(range(48), range(5)):
        at = {X: x, Y: y}
        if int(evaluate(known, at)) % 8 == 0:
            assert int(evaluate(expr, at)) % found == 0
