"""Each rule of the simplifier gives the expected text; property tests check the values."""

import time

import pytest
from sympy import And, Eq, Expr, Ge, Gt, Le, Lt, Ne, S

from coordgraph.integers import (
    Ranges,
    bit_xor,
    ceil_div,
    evaluate,
    floor_div,
    floor_mod,
    index_symbol,
    maximum,
    minimum,
    parse_expression,
    select,
    simplify,
    size_symbol,
    to_text,
)

TM, TN, TK, W = (size_symbol(name) for name in ("TM", "TN", "TK", "W"))
share, total = size_symbol("share"), size_symbol("total")
m, n, k, s, t, wg = (index_symbol(name) for name in ("m", "n", "k", "s", "t", "wg"))
lane, x, y = index_symbol("lane"), index_symbol("x"), index_symbol("y")
SYMBOLS = {a.name: a for a in (TM, TN, TK, W, share, total, m, n, k, s, t, wg, lane, x, y)}

RANGES = (
    Ranges()
    .with_index(m, TM)
    .with_index(n, TN)
    .with_index(k, TK)
    .with_index(lane, 32)
    .with_index(wg, W)
)
STREAMED = RANGES.with_bounds(k, 0, (minimum(TK - floor_mod(share * wg + t, TK), share - t) - 1,))


def parse(text: str) -> Expr:
    return parse_expression(text, SYMBOLS.__getitem__)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # (a*d + r)//d -> a + r//d, (a*d + r)%d -> r%d
        ("(x*TK + y) // TK", "x + y // TK"),
        ("(x*TK + y) % TK", "y % TK"),
        ("(24*x + y + 17) // 8", "(y + 1) // 8 + 3*x + 2"),
        ("(10*x + y) % 8", "(2*x + y) % 8"),
        ("(x - 1) % 8", "(x + 7) % 8"),
        ("(x - 1) // 8", "(x + 7) // 8 - 1"),
        ("(y - 3*x*TK) % TK", "y % TK"),
        ("((TN + 1)*x + y) % (TN + 1)", "y % (TN + 1)"),
        ("(TN*x + x + y) // (TN + 1)", "x + y // (TN + 1)"),
        ("(x*TN*TK + y) // (TN*TK)", "x + y // (TK*TN)"),
        # x//d -> 0 and x%d -> x, if 0 <= x < d is known
        ("lane // 32", "0"),
        ("lane % 32", "lane"),
        ("(lane + 3) % 35", "lane + 3"),
        ("lane % 31", "lane % 31"),
        ("(m*TN + n) // (TM*TN)", "0"),
        ("(m*TN + n) % (TM*TN)", "TN*m + n"),
        # (x//a)//b -> x//(a*b)
        ("x // 4 // 8", "x // 32"),
        ("x // TK // TN", "x // (TK*TN)"),
        # (x%(a*b))%b -> x%b
        ("x % 16 % 8", "x % 8"),
        ("(x % 16 + y) % 8", "(x + y) % 8"),
        ("x % (TN*TK) % TK", "x % TK"),
        ("(4*(x % 4) + y) % 8", "(4*x + y) % 8"),
        ("x % 12 % 8", "x % 12 % 8"),
        # (x%(a*b))//b -> (x//b)%a
        ("x % 32 // 8", "x // 8 % 4"),
        ("x % (TN*TK) // TK", "x // TK % TN"),
        # (a*x + r)//(a*b) -> x//b when 0 <= r < a
        ("(x*TN) // (TN*TK)", "x // TK"),
        ("(x*TN) % (TN*TK)", "TN*(x % TK)"),
        ("(6*x) // 8", "3*x // 4"),
        ("(4*x + 2) // 8", "x // 2"),
        ("(4*x + 2) % 8", "4*(x % 2) + 2"),
        ("(4*x + lane % 4) // 8", "x // 2"),
        ("(x*TK + k) // (TK*TN)", "x // TN"),
        # (x//d)*d + x%d -> x
        ("x // 8 * 8 + x % 8", "x"),
        ("3*TK*(x // TK) + 3*(x % TK) + y", "3*x + y"),
        ("(10*x + y) // 8 * 8 + (10*x + y) % 8", "10*x + y"),
        ("TK*TN*(x // TK // TN) + TK*(x // TK % TN) + x % TK", "x"),
        # Rules for min, max, select, conditions and xor.
        ("min(lane, 31)", "lane"),
        ("max(lane, 31)", "31"),
        ("min(m*TN + n, TM*TN - 1)", "TN*m + n"),
        ("min(x, y)", "min(x, y)"),
        ("select(lane < 32, x, y)", "x"),
        ("select(lane >= 32, x, y)", "y"),
        ("select(lane < 31, x, y)", "select(lane < 31, x, y)"),
        ("lane % 64 ^ (x - x % 1 - x)", "lane"),
        ("x // 8 ^ y*0", "x // 8"),
        # The simplifier changes only the order of terms here.
        ("TK*(x + y)*(m + n) + 1", "TK*(m + n)*(x + y) + 1"),
        ("(x*(y + 1) + 3) % TK", "(x*(y + 1) + 3) % TK"),
    ],
)
def test_rules(before: str, after: str) -> None:
    assert to_text(simplify(parse(before), RANGES)) == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("(share*wg + t + k) // TK", "(share*wg + t) // TK"),
        ("(share*wg + t + k) % TK", "(share*wg + t) % TK + k"),
        ("(share*wg + t + k + 2*TK) // TK", "(share*wg + t) // TK + 2"),
        ("(share*wg + t + k) // TK // TN", "(share*wg + t) // (TK*TN)"),
        ("(share*wg + t + k) // TK % TN", "(share*wg + t) // TK % TN"),
        # This is not simplified: k < TK - (share*wg + t) % TK is known, but no bound is known that
        # contains share*wg without t.
        ("(share*wg + k) % TK", "(share*wg + k) % TK"),
    ],
)
def test_a_segment_never_carries(before: str, after: str) -> None:
    assert to_text(simplify(parse(before), STREAMED)) == after


def test_a_bound_that_is_one_too_large_may_carry() -> None:
    ranges = RANGES.with_bounds(k, 0, (TK - floor_mod(share * wg + t, TK),))
    expr = floor_mod(share * wg + t + k, TK)
    assert simplify(expr, ranges) == expr


def test_the_carry_rule_keeps_values() -> None:
    expr = floor_mod(share * wg + t + k, TK)
    simplified = simplify(expr, STREAMED)
    for size in range(1, 6):
        for first in range(12):
            for step in range(size - first % size):
                values = {share: 3, wg: 0, t: first, TK: size, k: step}
                assert evaluate(simplified, values) == evaluate(expr, values)


@pytest.mark.parametrize("ranges", [RANGES, RANGES.with_index(m, 7).with_index(n, TN)])
def test_flatten_then_reverse_gives_back_the_indices_quickly(ranges: Ranges) -> None:
    g = (m * TN + n) * TK + k
    exprs = (
        floor_mod(g, TK),
        floor_mod(floor_div(g, TK), TN),
        floor_div(floor_div(g, TK), TN),
    )
    for expr in exprs:  # sympy is slow when a class is first used, so this run is not timed
        simplify(expr, ranges)
    fresh = ranges.with_fact(0, 0)
    start = time.perf_counter()
    assert [simplify(expr, fresh) for expr in exprs] == [k, n, m]
    assert time.perf_counter() - start < 0.05


def test_an_expanded_index_is_taken_apart_too() -> None:
    g = ((m * TN + n) * TK + k).expand()
    assert simplify(floor_mod(g, TK), RANGES) == k
    assert simplify(floor_mod(floor_div(g, TK), TN), RANGES) == n
    assert simplify(floor_div(g, TN * TK), RANGES) == m


def test_known_alignment() -> None:
    wm, mi = index_symbol("wm"), index_symbol("mi")
    expr = floor_mod(64 * wm + 16 * mi + floor_mod(lane, 16), 8)
    assert to_text(simplify(expr, RANGES)) == "lane % 8"


@pytest.mark.parametrize(
    ("condition", "wanted"),
    [
        (Lt(m, TM), True),
        (Le(TM, m), False),
        (Gt(TM * TN, m * TN + n), True),
        (Ge(m, TM), False),
        (Eq(m, TM), False),
        (Ne(m, TM), True),
        (Eq(floor_div(x, TK) * TK, x - floor_mod(x, TK)), True),
    ],
)
def test_conditions_are_decided(condition: Expr, wanted: bool) -> None:
    assert simplify(condition, RANGES) == wanted


def test_conditions_inside_connectives() -> None:
    assert simplify(And(Lt(m, TM), Lt(x, y)), RANGES) == Lt(x, y)
    assert simplify(And(Lt(m, TM), Lt(n, TN)), RANGES) is S.true


def test_a_division_by_zero_in_a_dead_branch_is_no_crash() -> None:
    zero = floor_div(lane, 32)
    expr = select(Lt(x, y), floor_div(x, zero), x)
    assert evaluate(simplify(expr, RANGES), {x: 2, y: 1, lane: 0}) == 2


def test_a_negative_difference_is_not_mistaken() -> None:
    assert to_text(simplify(floor_mod(x - y, TK), RANGES)) == "(x - y) % TK"
    assert to_text(simplify(maximum(x - y, 0), RANGES)) == "max(0, x - y)"


def test_sharing_is_quick() -> None:
    expr: Expr = x
    for i in range(30):
        expr = floor_div(expr * 3 + floor_mod(expr, i + 2), 2)
    start = time.process_time()
    simplify(expr, RANGES)
    assert time.process_time() - start < 20


def test_rounding_up_and_down() -> None:
    assert to_text(simplify(ceil_div(total, W), RANGES)) == "(total - 1) // W + 1"
    # If s is 0, (s - 1) // W + 1 is wrong in unsigned arithmetic, so ceil_div(s, W) is kept.
    assert simplify(ceil_div(s, W), RANGES) == ceil_div(s, W)
    assert simplify(floor_mod(s + W - 1, W), RANGES) == floor_mod(s + W - 1, W)
    assert to_text(simplify(floor_div(TK * TM - 1, TK), RANGES)) == "TM - 1"
    assert simplify(bit_xor(floor_mod(lane, 64), 0), RANGES) == lane
