"""`compile_columns` evaluates expressions for all workgroups at once, as `evaluate` does for one.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sympy import And, Eq, Expr, Lt, Not, Or, Symbol, true

from coordgraph.integers import (
    bit_xor,
    evaluate,
    floor_div,
    floor_mod,
    index_symbol,
    load,
    maximum,
    minimum,
    search,
    select,
)
from coordgraph.integers.columns import compile_columns
from tests.support.sampling import quick_cases

X, Y = index_symbol("x"), index_symbol("y")
TABLE = Symbol("table", integer=True)
ENTRIES = [0, 3, 3, 8, 12, 20]
EXPRESSIONS: list[Expr] = [
    X * Y - 3 * X + 7,
    X**3,
    floor_div(X, Y + 1) + floor_mod(X, Y + 1),
    bit_xor(X, Y),
    minimum(X, Y) - maximum(X - 5, Y),
    select(Lt(X, Y), X, floor_div(Y, maximum(X - Y, 1))),
    select(And(Lt(X, 9), Not(Eq(Y, 2))), 1, 2) + select(Or(Lt(X, 3), Lt(Y, 3)), 4, 8),
    load(TABLE, minimum(X, 5)) * 2,
    search(TABLE, 4, X) + search(TABLE, 6, Y),
    select(true, X, Y) + 0 * X,
]


@quick_cases(5)
@pytest.mark.parametrize("expression", EXPRESSIONS, ids=str)
@given(
    st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 40)), min_size=1, max_size=9),
)
def test_columns_are_the_values_of_each_workgroup(expression: Expr, pairs: list[tuple[int, int]]):
    pairs = [(x % 100 if expression.has(X**3) else x, y) for x, y in pairs]
    function = compile_columns([expression], [X, Y, TABLE])
    x, y = np.array(pairs, np.int64).T
    (found,) = function(x, y, np.array(ENTRIES))
    wanted = [evaluate(expression, {X: a, Y: b, TABLE: ENTRIES}) for a, b in pairs]
    assert np.broadcast_to(found, len(pairs)).tolist() == wanted


def test_a_branch_that_is_not_chosen_may_divide_by_zero():
    function = compile_columns([select(Lt(0, X), floor_div(Y, X), 5)], [X, Y])
    # NumPy must not warn of the division by 0 either (tests turn warnings into errors).
    assert function(np.array([0, 2]), np.array([6, 6]))[0].tolist() == [5, 3]


def test_unknown_and_repeated_symbols_are_refused():
    with pytest.raises(ValueError, match="'y' is not among the arguments"):
        compile_columns([X + Y], [X])
    with pytest.raises(ValueError, match="contain a symbol twice"):
        compile_columns([X], [X, X])
