"""Constructors of integer functions simplify only what holds for all values of symbols."""

import pytest
from sympy import Lt, Rational, S, Symbol

from coordgraph.integers import (
    BitXor,
    FloorDiv,
    FloorMod,
    Maximum,
    Minimum,
    Select,
    ceil_div,
    index_symbol,
    less,
    size_symbol,
)

x, y = index_symbol("x"), index_symbol("y")
size = size_symbol("size")


@pytest.mark.parametrize("b", [-3, -1, 1, 2, 7])
@pytest.mark.parametrize("a", [-8, -1, 0, 1, 9])
def test_constants_fold_as_in_python(a: int, b: int) -> None:
    assert FloorDiv(a, b) == a // b
    assert FloorMod(a, b) == a % b
    assert BitXor(a, b) == a ^ b
    assert Minimum(a, b) == min(a, b)
    assert Maximum(a, b) == max(a, b)


def test_identities() -> None:
    assert FloorDiv(x, 1) == x
    assert FloorDiv(0, x) == 0
    assert FloorDiv(size, size) == 1
    assert FloorDiv(x, x).func is FloorDiv  # x may be 0, so this is not 1
    assert FloorMod(x, 1) == 0
    assert FloorMod(size, size) == 0
    assert Minimum(x, x) == Maximum(x, x) == x
    assert BitXor(x, 0) == BitXor(0, x) == x
    assert BitXor(x, x) == 0
    assert Select(S.true, x, y) == x
    assert Select(S.false, x, y) == y
    assert Select(Lt(x, y), x, x) == x
    assert ceil_div(7, 2) == 4


def test_nested_remainders_are_left_alone() -> None:
    # sympy's Mod would turn this into 2*(x % 3), which is wrong.
    nested = FloorMod(2 * FloorMod(x, 3), 3)
    assert nested.args == (2 * FloorMod(x, 3), 3)


@pytest.mark.parametrize("function", [FloorDiv, FloorMod])
def test_division_by_the_literal_zero(function: type) -> None:
    with pytest.raises(ZeroDivisionError):
        function(x, 0)


@pytest.mark.parametrize("function", [FloorDiv, FloorMod, BitXor, Minimum, Maximum])
def test_only_integers_are_accepted(function: type) -> None:
    with pytest.raises(TypeError):
        function(x, Rational(1, 2))
    with pytest.raises(TypeError):
        function(x, 1.5)
    with pytest.raises(TypeError):
        function(Lt(x, y), y)


def test_a_select_needs_a_condition() -> None:
    with pytest.raises(TypeError):
        Select(x, x, y)


def test_symmetric_functions_order_their_arguments() -> None:
    for function in (BitXor, Minimum, Maximum):
        assert function(x, y) == function(y, x)


def test_assumptions() -> None:
    signed = Symbol("signed", integer=True)
    for function in (FloorDiv, FloorMod, BitXor, Minimum, Maximum):
        assert function(x, y).is_integer
        assert function(x, y).is_nonnegative
    assert FloorDiv(signed, size).is_nonnegative is None
    assert Maximum(signed, size).is_positive
    assert Select(Lt(x, y), x, y).is_nonnegative
    assert Select(Lt(x, y), x, y).is_commutative
    assert index_symbol("x") is x
    assert size_symbol("sk.tile").is_positive


def test_a_comparison_is_evaluated_between_numbers_only() -> None:
    assert less(S(1), S(2)) is S.true
    assert less(S(2), S(2)) is S.false
    assert less(x, size) == Lt(x, size)
    kept = less(S(-1), x)
    # `less` does not evaluate -1 < x, although SymPy assumes x >= 0; `Lt` does.
    assert kept.args == (S(-1), x)
    assert Lt(S(-1), x) is S.true
