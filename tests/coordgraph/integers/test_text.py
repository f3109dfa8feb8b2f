"""Expressions have one canonical text, and parsing it gives an equal expression."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sympy import And, Eq, Expr, Function, Ge, Integer, Lt, Ne, Not, Or, S, Symbol
from sympy.core.basic import Basic

from coordgraph.integers import (
    ExpressionSyntaxError,
    bit_xor,
    floor_div,
    floor_mod,
    index_symbol,
    maximum,
    minimum,
    parse_expression,
    select,
    size_symbol,
    to_text,
)
from tests.coordgraph.integers.strategies import NAMES, conditions, expressions
from tests.support.sampling import quick_cases

a, b, c = (index_symbol(name) for name in "abc")
tile = size_symbol("sk.tile")
SYMBOLS: dict[str, Symbol] = {**NAMES, **{x.name: x for x in (a, b, c, tile)}}


def parse(text: str) -> Expr:
    return parse_expression(text, SYMBOLS.__getitem__)


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (a + b * c, "b*c + a"),
        (a - b, "a - b"),
        (-a - b, "-a - b"),
        (-a - 2 * b + 3, "3 - a - 2*b"),
        (-a * b - 1, "-a*b - 1"),
        (2 * a - 1, "2*a - 1"),
        (a * (b + c), "a*(b + c)"),
        (2 * a * (b + 1) ** 2, "2*a*(b + 1)*(b + 1)"),
        (a**3, "a*a*a"),
        (floor_div(a * b, c + 1), "a*b // (c + 1)"),
        (floor_div(floor_div(a, b + 1), c + 1), "a // (b + 1) // (c + 1)"),
        (floor_div(a, floor_mod(b, 3)), "a // (b % 3)"),
        (floor_div(a, tile) * tile + floor_mod(a, tile), "sk.tile*(a // sk.tile) + a % sk.tile"),
        (-floor_div(a, tile), "-(a // sk.tile)"),
        (floor_div(-a, tile), "-a // sk.tile"),
        (floor_div(a, -tile), "a // -sk.tile"),
        (floor_mod(a + b, -3), "(a + b) % -3"),
        (c - floor_mod(a, tile), "c - a % sk.tile"),
        (bit_xor(a, floor_mod(b, 8)), "a ^ b % 8"),
        (bit_xor(a, b) + 1, "(a ^ b) + 1"),
        (bit_xor(bit_xor(a, b), 3), "(a ^ b) ^ 3"),
        (minimum(a, b - 1), "min(a, b - 1)"),
        (maximum(a, 3), "max(3, a)"),
        (select(Lt(a, b), a + 1, 0), "select(a < b, a + 1, 0)"),
        (And(Lt(a, b), Or(Eq(a, c), Ne(b, c))), "(a == c or b != c) and a < b"),
        (Not(And(Lt(a, b), Ge(c, 2))), "not (a < b and c >= 2)"),
        (-((a + b) ** 2), "-((a + b)*(a + b))"),
        (2 * (a + b) ** 2, "2*((a + b)*(a + b))"),
        (-(floor_div(a, b) ** 2), "-(a // b)*(a // b)"),
        (S.true, "true"),
        (Integer(-5), "-5"),
    ],
)
def test_canonical_text(expr: Basic, text: str) -> None:
    assert to_text(expr) == text
    assert parse(to_text(expr)) == expr
    assert to_text(parse(to_text(expr))) == to_text(expr)


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.one_of(expressions, conditions(expressions)))
def test_text_reads_back_as_the_same_expression(expr: Basic) -> None:
    assert parse(to_text(expr)) == expr


@pytest.mark.parametrize(
    ("text", "expr"),
    [
        ("a+b*c", a + b * c),
        (" ( a ) ", a),
        ("a - (b - c)", a - b + c),
        ("a - b - c", a - b - c),
        ("--a", a),
        ("a // b % c * 2", 2 * floor_mod(floor_div(a, b), c)),
        ("a ^ b + c", bit_xor(a, b + c)),
        ("not a < b", Ge(a, b)),
        ("select(true, a, b)", a),
    ],
)
def test_freely_written_text(text: str, expr: Basic) -> None:
    assert parse(text) == expr


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("", 0, "expected a value"),
        ("a +", 3, "expected a value"),
        ("a b", 2, "expected an operator"),
        ("3a", 1, "expected an operator"),
        ("a ** 2", 3, "expected a value"),
        ("a ? b", 2, "unexpected character"),
        ("a + zz", 4, "unknown name"),
        ("(a + b", 6, "expected ')'"),
        ("min(a)", 5, "expected ','"),
        ("max(a, b, c)", 8, "expected ')'"),
        ("select(a, b, c)", 7, "a condition is needed"),
        ("a + (b < c)", 2, "an integer is needed"),
        ("a < b < c", 6, "cannot be chained"),
        ("a and b < c", 0, "a condition is needed"),
        ("a // 0", 2, "literal 0"),
        ("a % (b - b)", 2, "literal 0"),
        ("1" * 101, 0, "at most 100"),
        ("and", 0, "expected a value"),
        ("min", 3, "expected '('"),
        ("-(a < b)", 0, "an integer is needed"),
    ],
)
def test_errors_say_what_and_where(text: str, column: int, message: str) -> None:
    with pytest.raises(ExpressionSyntaxError, match="column") as caught:
        parse(text)
    assert message in str(caught.value)
    assert caught.value.column == column


@quick_cases(4)
@pytest.mark.parametrize(
    "text",
    [
        "(" * 100_000,
        "-" * 100_000 + "a",
        "not " * 100_000 + "a < b",
        "min(a, " * 5_000,
        "a" + " // b" * 5_000,
        "a" + " ^ b % c" * 5_000,
        "(" * 51 + "a" + ")" * 51,
    ],
)
def test_deep_nesting_is_an_error(text: str) -> None:
    with pytest.raises(ExpressionSyntaxError, match="levels"):
        parse(text)


def test_long_but_flat_text_is_fine() -> None:
    assert parse(" + ".join(["a"] * 3_000)) == 3_000 * a
    assert parse("(" * 50 + "a" + ")" * 50) == a


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="ab0 1+-*/%^()<>=!,.andortselcmix\n", max_size=40))
def test_any_text_parses_or_is_refused(text: str) -> None:
    expr, column = None, 0
    try:
        expr = parse(text)
    except ExpressionSyntaxError as error:
        column = error.column
    assert 0 <= column <= len(text)
    assert expr is None or parse(to_text(expr)) == expr


@pytest.mark.parametrize(
    ("expr", "error"),
    [
        (Symbol("a b"), ValueError),
        (Symbol("min"), ValueError),
        (Integer(10**100), ValueError),
        (1 / a, TypeError),
        (a / 2, TypeError),
        (a ** Symbol("n"), TypeError),
        (Function("f")(a), TypeError),
    ],
)
def test_what_cannot_be_read_back_is_not_written(expr: Basic, error: type[Exception]) -> None:
    with pytest.raises(error):
        to_text(expr)
