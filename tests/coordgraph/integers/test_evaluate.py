"""`evaluate` and compiled functions give the same exact values of expressions."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sympy import Eq, Expr, Lt, Symbol

from coordgraph.integers import (
    compile_function,
    evaluate,
    floor_div,
    floor_mod,
    index_symbol,
    select,
    size_symbol,
)
from coordgraph.integers.evaluate import _schedule  # pyright: ignore[reportPrivateUsage]
from tests.coordgraph.integers.strategies import (
    NAMES,
    Space,
    conditions,
    expressions,
    spaces,
    value_or_none,
)

x, y = index_symbol("x"), index_symbol("sk.y")


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(spaces(), st.lists(st.one_of(expressions, conditions(expressions)), max_size=3))
def test_compiled_is_evaluated(space: Space, exprs: list[Expr]) -> None:
    arguments = list(NAMES.values())
    compiled = compile_function(exprs, arguments)
    for values in space.valuations():
        wanted = tuple(value_or_none(e, values) for e in exprs)
        if None not in wanted:
            assert compiled(*(values[s] for s in arguments)) == wanted


def test_values_are_found_by_symbol_or_name() -> None:
    assert evaluate(x * y, {x: 3, "sk.y": 5}) == 15
    assert evaluate(7, {}) == 7
    assert evaluate(Lt(x, y), {"x": 3, "sk.y": 5}) is True
    with pytest.raises(KeyError, match=r"sk\.y"):
        evaluate(x * y, {x: 3})


def test_large_values_are_exact() -> None:
    wanted = (10**40 + 7) // 10**9
    assert evaluate(floor_div(x + 7, 10**9), {x: 10**40}) == wanted
    assert compile_function([floor_div(x + 7, 10**9)], [x])(10**40) == (wanted,)


def test_untaken_branches_are_not_computed() -> None:
    guarded = select(Eq(y, 0), 0, floor_div(x, y) + floor_mod(floor_div(x, y), 3))
    assert evaluate(guarded, {x: 4, y: 0}) == 0
    assert compile_function([guarded, guarded + 1], [x, y])(4, 0) == (0, 1)


def test_division_by_zero_is_an_error() -> None:
    with pytest.raises(ZeroDivisionError):
        evaluate(floor_div(x, y), {x: 1, y: 0})


def test_an_argument_that_is_missing_or_repeated_is_named() -> None:
    with pytest.raises(ValueError, match=r"'sk\.y' is not among"):
        compile_function([x + y], [x])
    with pytest.raises(ValueError, match="twice"):
        compile_function([x], [x, x])


def test_something_foreign_is_refused() -> None:
    with pytest.raises(TypeError):
        evaluate(1 / size_symbol("n"), {"n": 1})


def test_long_and_shared_expressions_compile() -> None:
    expr: Expr = x
    for i in range(60):
        # Without sharing of equal parts the expression would have 2**60 nodes.
        expr = floor_div(expr * 3 + floor_mod(expr, i + 2), 2)
    values: dict[Symbol, int] = {x: 12345}
    assert compile_function([expr], [x])(12345) == (evaluate(expr, values),)
    deep: Expr = x
    for i in range(40):
        deep = floor_mod(7 - floor_div(i - deep, 3), 1000 + i)
    assert compile_function([deep], [x])(5) == (evaluate(deep, {x: 5}),)


def test_a_value_that_is_used_twice_is_computed_once() -> None:
    shared = floor_div(x, y)
    computed = dict(_schedule([shared + 1, 2 * shared]))
    assert computed[shared]
    assert not computed[shared + 1]
