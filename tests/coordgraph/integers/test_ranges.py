"""`Ranges` proves true inequalities from bounds of symbols, and proves no false ones."""

import pytest
from sympy import And, Eq, Lt, Symbol

from coordgraph.integers import (
    Ranges,
    bit_xor,
    ceil_div,
    floor_div,
    floor_mod,
    index_symbol,
    maximum,
    minimum,
    select,
    size_symbol,
)

TM, TN, TK, W = (size_symbol(name) for name in ("TM", "TN", "TK", "W"))
share, total, stop = (size_symbol(name) for name in ("share", "total", "stop"))
m, n, k, s, t, wg = (index_symbol(name) for name in ("m", "n", "k", "s", "t", "wg"))
fk, ahead = index_symbol("fk"), index_symbol("ahead")

LIMIT = 2**31 - 1
GRID = Ranges().with_index(m, TM).with_index(n, TN).with_index(k, TK)
STREAM = (
    Ranges()
    .with_index(wg, W)
    .with_bounds(t, 0, (share - 1, total - share * wg - 1))
    .with_fact(total, LIMIT)
)


def test_a_flattened_index_is_inside_the_product() -> None:
    g = (m * TN + n) * TK + k
    assert GRID.prove_less(g, TM * TN * TK)
    assert not GRID.prove_less(g, TM * TN * TK - 1)
    assert GRID.prove_nonnegative(g)
    assert GRID.interval(g) == (0, None)
    assert GRID.with_fact(TM * TN * TK, LIMIT).interval(g) == (0, LIMIT - 1)


def test_parts_of_a_bounded_product_are_bounded() -> None:
    known = GRID.with_fact(TM * TN * TK, 1000)
    assert known.interval(TM * TK) == (1, 1000)
    assert known.interval(m) == (0, 999)
    assert known.with_bounds(TN, 10, ()).interval(TM * TK) == (1, 100)
    # The size s may be 0, so s*TM <= 5 gives no bound of TM.
    assert known.with_fact(s * TM, 5).interval(TM) == (1, 1000)
    assert Ranges().with_fact(s * TM, 5).interval(TM) == (1, None)


def test_a_share_ends_where_the_work_ends() -> None:
    assert STREAM.prove_less(share * wg + t, total)
    assert STREAM.interval(share * wg + t) == (0, LIMIT - 1)
    assert STREAM.with_fact(share * W, LIMIT).interval(share * wg) == (0, LIMIT - 1)


def test_definitions_are_looked_through() -> None:
    known = Ranges().with_index(wg, W).with_definition(share, ceil_div(total, W))
    assert known.prove_nonnegative(share * W - total)
    assert known.prove_less(share * W, total + W)
    assert known.prove_equal(share, floor_div(total + W - 1, W))
    assert known.with_fact(share * W, LIMIT).interval(share * wg) == (0, LIMIT - 1)
    assert known.with_definition(s, minimum(share, 8)).interval(s) == (1, 8)
    assert known.with_definition(s, maximum(share, 8)).prove_nonnegative(s - share)
    assert known.with_definition(s, select(Lt(t, 5), t, 4)).interval(s) == (0, 4)
    with pytest.raises(ValueError, match="itself; define it by other symbols"):
        known.with_definition(s, s + 1)


def test_definitions_that_are_added_keep_bounds() -> None:
    known = Ranges().with_bounds(share, 2, (9,)).with_definitions({share: ceil_div(total, W)})
    assert known.interval(share) == (2, 9)
    assert known.prove_nonnegative(share * W - total)
    assert known.prove_nonnegative(9 * W - share * W)
    assert not known.prove_nonnegative(8 * W - share * W)
    assert known.with_definition(share, W).interval(share) == (1, None)


def test_minimum_bounds_are_alternatives() -> None:
    known = STREAM.with_bounds(k, 0, (minimum(TK - floor_mod(t, TK), share - t) - 1,))
    assert [str(u) for u in known.bounds[k].uppers] == ["TK - FloorMod(t, TK) - 1", "share - t - 1"]
    assert known.prove_less(k, TK)
    assert known.prove_less(floor_mod(t, TK) + k, TK)
    assert known.prove_less(t + k, share)
    lower = Ranges().with_bounds(k, maximum(s, 4), ())
    assert lower.prove_nonnegative(k - s)
    assert lower.interval(k) == (4, None)


def test_functions_are_bounded() -> None:
    lane = index_symbol("lane")
    known = GRID.with_index(lane, 32)
    assert known.interval(floor_mod(lane, 8)) == (0, 7)
    assert known.interval(floor_div(lane, 8)) == (0, 3)
    assert known.interval(bit_xor(floor_mod(lane, 8), 5)) == (0, 7)
    assert known.interval(bit_xor(lane, floor_mod(s, 64))) == (0, 63)
    assert known.interval(bit_xor(floor_mod(lane, 6), 2)) == (0, 7)
    assert known.interval(bit_xor(floor_mod(lane, 5), 8)) == (0, 15)
    assert known.interval(minimum(lane, s)) == (0, 31)
    assert known.interval(maximum(lane, s)) == (0, None)
    assert known.interval(select(Lt(s, 3), lane, -2)) == (-2, 31)
    assert known.interval(-lane) == (-31, 0)
    assert known.interval(lane - s) == (None, 31)
    assert known.interval(floor_div(lane - 16, 5)) == (-4, 3)
    assert known.interval(floor_div(lane - 1, TK)) == (-1, 30)
    assert known.prove_nonnegative(s - floor_div(s, TK) * TK)
    assert known.prove_less(s - TK, floor_div(s, TK) * TK)
    tiles = known.with_index(s, TM * TN)
    assert tiles.prove_less(floor_div(s, TN), TM)
    assert not tiles.prove_less(floor_div(s, TN), TM - 1)
    assert known.prove_nonnegative(s - minimum(s, TK))
    assert known.prove_less(select(Lt(s, TK), s, TK - 1), TK)


def test_negative_and_unknown_symbols() -> None:
    free = Symbol("free", integer=True)
    assert Ranges().interval(free) == (None, None)
    assert not Ranges().prove_nonnegative(free * free)
    known = Ranges().with_bounds(free, -4, (3,))
    assert known.interval(free) == (-4, 3)
    assert known.interval(2 * free + 1) == (-7, 7)
    assert known.prove_less(free, 4)
    assert not known.prove_nonnegative(free)
    assert known.fits(free, 3)
    assert not known.fits(free - 1, 3)


def test_a_guard_bounds_the_value_that_is_then_bound() -> None:
    known = Ranges().with_guard(And(Lt(fk + 3, stop), Eq(s, 4))).with_fact(stop, 100)
    assert known.prove_less(fk, stop - 3)
    assert known.interval(s) == (4, 4)
    later = known.with_value(ahead, fk + 3)
    assert later.prove_less(ahead, stop)
    assert later.interval(ahead) == (3, 99)
    assert not known.with_value(ahead, fk + 4).prove_less(ahead, stop)
    assert known.with_bounds(ahead, fk + 3, (fk + 3,)).prove_less(ahead, stop)


def test_a_value_is_bounded_by_sizes() -> None:
    """The size of an index bounds a value that is computed from the index."""
    later = Ranges().with_index(m, TM).with_value(ahead, 2 * m + 1)
    assert later.prove_less(ahead, 2 * TM)
    assert not later.prove_less(ahead, 2 * TM - 1)


def test_a_new_value_forgets_what_held_of_the_old_one() -> None:
    known = Ranges().with_guard(Lt(fk, stop)).with_bounds(k, 0, (fk, 9))
    assert known.prove_less(k, stop)
    moved = known.with_value(fk, fk + 1)
    assert not moved.prove_less(fk, stop)
    assert not moved.prove_nonnegative(fk - k)
    assert moved.interval(fk) == (1, None)
    assert moved.interval(k) == (0, 9)


def test_ranges_are_immutable_and_say_so_cheaply() -> None:
    known = GRID.with_index(s, 4)
    assert s not in GRID.bounds
    assert known.with_index(s, 4) is known
    assert known.with_guard(Lt(m, TM) | Lt(n, 3)) is known
    with pytest.raises(TypeError):
        known.bounds[s] = known.bounds[m]  # type: ignore[index]


def test_bounds_that_mention_each_other_end() -> None:
    known = Ranges().with_bounds(s, 0, (t,)).with_bounds(t, 0, (s, 7))
    assert known.prove_less(t, 8)
    assert known.interval(s)[1] in (7, None)
    assert not known.prove_less(s, 5)


def test_many_indices_at_once_are_the_same_as_one_by_one() -> None:
    base = STREAM.with_definition(n, 3 * W).with_guard(m < stop)
    sizes = [(m, TM), (s, minimum(TN, 2 * TK)), (n, stop), (t, TM), (m, stop + 1), (k, W), (wg, 7)]
    one_by_one = base
    for symbol, size in sizes:
        one_by_one = one_by_one.with_index(symbol, size)
    together = base.with_indices(sizes)
    for part in ("bounds", "facts", "definitions", "guards"):
        assert getattr(together, part) == getattr(one_by_one, part)
    assert together.prove_less(s, 2 * TK)
    assert dict(base.bounds) == dict(STREAM.with_definition(n, 3 * W).bounds)
