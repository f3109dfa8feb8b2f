"""Tests of `load` (entry of a table) and `search` (in a table): values, text, proofs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sympy import Integer

from coordgraph.integers import (
    ExpressionSyntaxError,
    Ranges,
    compile_function,
    evaluate,
    floor_div,
    index_symbol,
    load,
    parse_expression,
    search,
    select,
    simplify,
    size_symbol,
    tables_in,
    to_text,
)

T, G, X = index_symbol("t"), index_symbol("g"), index_symbol("x")
N, M = size_symbol("n"), size_symbol("m")
tables = st.lists(st.integers(0, 9), min_size=1, max_size=9).map(sorted)


def slowly(table: list[int], count: int, x: int) -> int:
    """`search` by definition: index of the last of the first `count` entries <= x; 0 if none is."""
    return max((g for g in range(count) if table[g] <= x), default=0)


@given(tables, st.integers(-2, 12), st.data())
def test_search_is_the_last_entry_that_is_not_larger(table: list[int], x: int, data: st.DataObject):
    count = data.draw(st.integers(1, len(table)))
    expr = search(T, N, X)
    values = {"t": table, "n": count, "x": x}
    assert evaluate(expr, values) == slowly(table, count, x)
    assert compile_function([expr], [T, N, X])(table, count, x) == (slowly(table, count, x),)


@given(tables.map(lambda entries: [0, *entries]), st.integers(0, 12))
def test_what_is_proved_holds(table: list[int], x: int):
    """Proved bounds of a table's entries, and of a search in the table, hold for actual values."""
    most = table[-1]
    ranges = Ranges().with_bounds(N, 1, (10,)).with_table(T, most, from_zero=True)
    group = search(T, N, X)
    values = {"t": table, "n": len(table), "x": x}
    for expr in (group, load(T, group), load(T, X), X - load(T, group), most - load(T, G)):
        low, high = ranges.interval(expr)
        if expr.has(G) or (expr == load(T, X) and x >= len(table)):
            assert low == 0
            continue
        value = evaluate(expr, values)
        assert low is not None
        assert low <= value
        assert high is None or value <= high
    assert ranges.prove_less(group, N)
    assert ranges.prove_nonnegative(X - load(T, group))
    assert ranges.interval(load(T, G)) == (0, most)


def test_what_does_not_follow_is_not_proved():
    """If a table may begin above x, the entry found by a search for x is not proved to be <= x."""
    ranges = Ranges().with_table(T, M)
    assert not ranges.prove_nonnegative(X - load(T, search(T, N, X)))
    assert not ranges.prove_nonnegative(X - load(T, G))
    assert Ranges().interval(load(T, G)) == (0, None)
    assert not Ranges().with_table(T, M, from_zero=True).prove_less(load(T, G), M)
    other = index_symbol("u")
    mixed = Ranges().with_table(T, M, from_zero=True)
    assert not mixed.prove_nonnegative(X - load(T, search(other, N, X)))


def test_a_search_without_entries_is_not_bounded_by_their_number():
    count = index_symbol("count")
    assert not Ranges().prove_less(search(T, count, X), count)


def test_a_maximum_in_terms_of_a_symbol_follows_it():
    ranges = Ranges().with_bounds(M, 1, (100,)).with_table(T, floor_div(M + 7, 8))
    assert ranges.interval(load(T, G)) == (0, 13)
    assert ranges.prove_less(load(T, G), floor_div(M + 7, 8) + 1)
    inner = ranges.with_bounds(M, 1, (8,))
    assert inner.interval(load(T, G)) == (0, 1)


def test_text():
    expr = 4 * load(T, G + 1) + X - load(T, search(T, N, floor_div(X, 3)))
    text = to_text(expr)
    assert text == "4*load(t, g + 1) - load(t, search(t, n, x // 3)) + x"
    names = {s.name: s for s in (T, G, X, N)}
    assert parse_expression(text, names.__getitem__) == expr
    for wrong in (
        "load(t)",
        "load(t, g, x)",
        "search(t, g)",
        "load(3, g)",
        "load(t + 1, g)",
        "load",
    ):
        with pytest.raises(ExpressionSyntaxError):
            parse_expression(wrong, names.__getitem__)


def test_entries_that_a_table_has_not():
    for index in (-1, 2):
        with pytest.raises(IndexError, match="a table that has 2 entries"):
            evaluate(load(T, X), {"t": [0, 4], "x": index})
    with pytest.raises(IndexError, match="first 3 entries of a table that has 2"):
        evaluate(search(T, N, X), {"t": [0, 4], "n": 3, "x": 1})
    with pytest.raises(KeyError):
        evaluate(load(T, X), {"x": 0})
    with pytest.raises(TypeError, match="symbol of a table"):
        load(X + 1, X)  # type: ignore[arg-type]


def test_a_branch_that_is_not_taken_reads_nothing():
    expr = select(X < 2, load(T, X), Integer(-1))
    assert evaluate(expr, {"t": [5, 6], "x": 7}) == -1
    assert compile_function([expr], [T, X])([5, 6], 7) == (-1,)


def test_tables_of_an_expression():
    assert tables_in(load(T, G) + X) == {T}
    assert tables_in(X + G) == set()
    assert simplify(load(T, X + G - X), Ranges()) == load(T, G)
