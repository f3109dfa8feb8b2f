"""Tests of proofs that use the step of a table or the result of a search in a table.

The step is the least difference of neighbouring entries.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sympy import Expr, Integer, Lt, Symbol

from coordgraph.integers import (
    Ranges,
    evaluate,
    floor_div,
    index_symbol,
    load,
    search,
    size_symbol,
)

T, U, G, H, X, Y = (index_symbol(name) for name in ("t", "u", "g", "h", "x", "y"))
N, P, Q, M = (size_symbol(name) for name in ("n", "p", "q", "m"))
STEP = 2
KNOWN = Ranges().with_index(X, M).with_table(T, M, from_zero=True, step=STEP)
INLINE = search(T, N, floor_div(X, P))
"""Number of the block that contains x, if block g begins at `p·t[g]` and ends at `p·t[g + 1]`."""
INSIDE = X - P * load(T, G)
"""The offset of x from the begin `p·t[g]` of block g."""


def located(ranges: Ranges = KNOWN, value: Expr = INLINE) -> Ranges:
    """`ranges`, extended by two facts: g equals `value`, and `value` is the result of a search."""
    return ranges.with_value(G, value).with_found(G, value)


def test_entries_rise_by_the_least_step():
    length = load(T, G + 1) - load(T, G)
    assert KNOWN.prove_nonnegative(length - STEP)
    assert not KNOWN.prove_nonnegative(length - STEP - 1)
    assert KNOWN.interval(length)[0] == STEP
    assert KNOWN.interval(load(T, G + 3) - load(T, G))[0] == 3 * STEP
    assert KNOWN.interval(load(T, G + 3) - load(T, G + 1))[0] == 2 * STEP
    assert KNOWN.prove_less(load(T, G), load(T, G + 1))
    assert KNOWN.interval(load(T, Integer(2)))[0] == 2 * STEP
    # At an index as large as 5000, only the bound 0 is proved, not 5000 times the step.
    assert KNOWN.interval(load(T, Integer(5000)))[0] == 0


def test_entries_before_the_first_are_none():
    """`t[1 - g] >= STEP` is not proved: STEP is the least difference of entries, and t[0] is 0."""
    assert not KNOWN.with_index(G, 2).prove_nonnegative(load(T, 1 - G) - STEP)


def test_what_was_found_of_an_old_value_is_not_kept():
    old = KNOWN.with_index(G, M)
    moved = old.with_found(G, search(T, N, G + 5))
    assert not moved.prove_nonnegative(G + 5 - load(T, G))
    found = KNOWN.with_found(G, search(T, N, X))
    assert found.prove_nonnegative(X - load(T, G))
    assert not found.with_index(G, 3).prove_nonnegative(X - load(T, G))


def test_entries_of_other_tables_only_rise():
    for ranges in (Ranges().with_table(T, M), KNOWN.with_table(U, M)):
        table = T if U not in ranges.tables else U
        length = load(table, G + 1) - load(table, G)
        assert ranges.prove_nonnegative(length)
        assert not ranges.prove_nonnegative(length - 1)
    unknown = Ranges()
    assert not unknown.prove_nonnegative(load(T, G + 1) - load(T, G))
    # Nothing is proved about entries whose order is not known.
    assert not KNOWN.prove_nonnegative(load(T, H) - load(T, G))
    assert not KNOWN.prove_nonnegative(load(T, G) - load(T, G + 1))


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=6),
    st.integers(0, 3),
    st.booleans(),
    st.integers(1, 3),
    st.data(),
)
def test_what_is_proved_holds(
    sizes: list[int], step: int, named: bool, p: int, data: st.DataObject
):
    """Proved lower bounds of differences between indices and table entries hold (brute force)."""
    table = [sum(sizes[:i]) + step * i for i in range(len(sizes) + 1)]
    x = data.draw(st.integers(0, p * table[-1]))
    ranges = KNOWN.with_table(T, M, from_zero=True, step=step)
    group: Expr = INLINE
    if named:
        group, ranges = G, located(ranges)
    values = {"t": table, "n": len(sizes), "m": 10**6, "x": x, "p": p}
    values["g"] = evaluate(INLINE, values)
    start, end = load(T, group), load(T, group + 1)
    for expr in (
        X - P * start,
        X - P * end,
        X - P * start - 1,
        X - (P + 1) * start,
        end - start - step,
        end - start - step - 1,
        P * end - X - 1,
        floor_div(X, P) - start,
        P * start - X,
    ):
        low, high = ranges.interval(expr)
        value = evaluate(expr, values)
        assert low is None or low <= value
        assert high is None or value <= high
    for expr in (X - P * start, floor_div(X, P) - start, end - start - step):
        assert ranges.prove_nonnegative(expr)


@pytest.mark.parametrize("each", [P, Integer(1), Integer(6), P * Q], ids=str)
def test_a_block_begins_at_or_before_what_was_searched_for(each: Expr):
    group = search(T, N, floor_div(X, each))
    assert KNOWN.prove_nonnegative(X - each * load(T, group))
    assert not KNOWN.prove_nonnegative(X - each * load(T, group) - 1)
    assert not KNOWN.prove_nonnegative(X - (each + 1) * load(T, group))
    assert not KNOWN.prove_nonnegative(X - each * load(T, group + 1))
    inside = located(value=group)
    assert inside.prove_nonnegative(X - each * load(T, G))
    assert not inside.prove_nonnegative(X - each * load(T, G) - 1)
    assert not inside.prove_nonnegative(X - (each + 1) * load(T, G))
    assert not inside.prove_nonnegative(X - each * load(T, G + 1))


def test_a_name_says_nothing_before_it_was_found():
    assert not KNOWN.prove_nonnegative(INSIDE)
    assert not KNOWN.with_value(G, INLINE).prove_nonnegative(INSIDE)
    assert located().prove_nonnegative(INSIDE)
    # With another symbol or another table than those of the search, or if the first entry may be
    # above 0, the difference is not proved to be non-negative.
    assert not located().prove_nonnegative(X - P * load(T, H))
    both = KNOWN.with_table(U, M, from_zero=True)
    assert not located(both).prove_nonnegative(X - P * load(U, G))
    assert not located(KNOWN.with_table(T, M, step=STEP)).prove_nonnegative(INSIDE)


def test_what_may_be_below_0_is_not_found():
    """If x - y may be negative, a search for x - y may find an entry above x - y (the first, 0).

    So x - y minus the entry that the search finds is not proved to be at least 0.
    """
    before = X - Y
    group = search(T, N, before)
    assert not KNOWN.prove_nonnegative(before - load(T, group))
    assert not located(value=group).prove_nonnegative(before - load(T, G))


def test_two_names_in_one_table():
    other = search(T, N, Y)
    both = located().with_value(H, other).with_found(H, other)
    assert both.prove_nonnegative(INSIDE)
    assert both.prove_nonnegative(Y - load(T, H))
    assert not both.prove_nonnegative(Y - load(T, G))
    assert not both.prove_nonnegative(X - P * load(T, H))
    # With a new value for the symbol H, facts that follow from H's old value are dropped.
    again = both.with_value(H, other)
    assert again.prove_nonnegative(INSIDE)
    assert not again.prove_nonnegative(Y - load(T, H))


def test_only_searches_in_known_tables_are_kept():
    for value in (X, load(T, X), Integer(3), INLINE + 1, search(U, N, X)):
        assert KNOWN.with_found(G, value) is KNOWN
    assert KNOWN.with_found(G, INLINE).tables[T].found == {G: floor_div(X, P)}
    assert not KNOWN.tables[T].found


NEW_VALUES: dict[str, Callable[[Ranges, Symbol], Ranges]] = {
    "value": lambda ranges, s: ranges.with_value(s, s + 1),
    "bounds": lambda ranges, s: ranges.with_bounds(s, 0, (7,)),
    "index": lambda ranges, s: ranges.with_index(s, 7),
    "indices": lambda ranges, s: ranges.with_indices([(H, 3), (s, 7)]),
    "definition": lambda ranges, s: ranges.with_definition(s, 3 * Q),
}


@pytest.mark.parametrize("symbol", [G, X, P], ids=str)
@pytest.mark.parametrize("how", NEW_VALUES)
def test_a_new_value_of_what_was_found_or_searched_for(symbol: Symbol, how: str):
    """If a symbol in a search or its result gets a new value, facts from the search are dropped."""
    before = located(KNOWN.with_bounds(P, 1, (5,)))
    assert before.prove_nonnegative(INSIDE)
    after = NEW_VALUES[how](before, symbol)
    assert not after.prove_nonnegative(INSIDE)
    assert not after.tables[T].found
    # Known facts about the table itself are kept, and the old `Ranges` object is unchanged.
    assert after.prove_nonnegative(load(T, H + 1) - load(T, H) - STEP)
    assert after.prove_nonnegative(X - P * load(T, INLINE))
    assert before.prove_nonnegative(INSIDE)


@pytest.mark.parametrize("how", NEW_VALUES)
def test_new_values_of_others_change_nothing(how: str):
    assert NEW_VALUES[how](located().with_index(Y, 3), Y).prove_nonnegative(INSIDE)


def test_more_that_is_said_of_the_same_value():
    """New bounds of g, the result of a table search, keep the facts that the search implies.

    If g becomes the result of another search, the facts of the other search replace them.
    """
    inside = located().with_upper(X, 40).with_guard(Lt(G, 5)).with_upper(G, 4)
    assert inside.prove_nonnegative(INSIDE)
    again = inside.with_value(G, search(T, N, floor_div(X, Q)))
    again = again.with_found(G, search(T, N, floor_div(X, Q)))
    assert not again.prove_nonnegative(INSIDE)
    assert again.prove_nonnegative(X - Q * load(T, G))


def test_proofs_of_outer_ranges_are_not_those_of_inner_ones():
    """A fact that follows from a search inside a loop is not known outside of the loop."""
    loop = index_symbol("loop")
    around = KNOWN
    body = around.with_bounds(loop, 0, (M - 1,))
    group = search(T, N, floor_div(loop, P))
    inside = body.with_value(G, group).with_found(G, group)
    assert inside.prove_nonnegative(loop - P * load(T, G))
    assert not body.prove_nonnegative(loop - P * load(T, G))
    assert not around.prove_nonnegative(loop - P * load(T, G))
    # `deeper` only adds the symbol h, so the proof uses the ranges of `inside`.
    deeper = inside.with_index(H, 4)
    assert deeper.about(loop - P * load(T, G)) is inside
    assert deeper.prove_nonnegative(loop - P * load(T, G))
    next_step = inside.with_bounds(loop, 0, (9,))
    assert not next_step.prove_nonnegative(loop - P * load(T, G))


def test_copies_know_the_same():
    known = located().with_table(U, floor_div(M, 2), step=1)
    copy = pickle.loads(pickle.dumps(known))
    assert dict(copy.tables) == dict(known.tables)
    assert copy.tables[T].found == {G: floor_div(X, P)}
    assert copy.prove_nonnegative(INSIDE)
    assert copy.prove_nonnegative(load(T, G + 1) - load(T, G) - STEP)
    assert copy.prove_nonnegative(load(U, G + 1) - load(U, G) - 1)
    assert not copy.with_value(X, X + 1).prove_nonnegative(INSIDE)
    with pytest.raises(TypeError):
        copy.tables[T] = copy.tables[U]
