"""`Concatenate` with more than two upstream dimensions, whose parts are row-major blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sympy import Expr, Integer
from sympy.logic.boolalg import Boolean

from coordgraph import CoordinateGraph, NotInvertible, VerifyError
from coordgraph.coordinates import check_laws
from coordgraph.coordinates.dimensions import Linear
from coordgraph.coordinates.edges import Concatenate, Edge, Flatten
from coordgraph.coordinates.edges.base import Law, Sizes
from coordgraph.integers import Ranges, evaluate, floor_mod, index_symbol, size_symbol
from coordgraph.integers.tables import Search

TABLE, GROUPS, ROWS, COLUMNS = index_symbol("t"), *map(size_symbol, ("groups", "rows", "columns"))
PARTS = ("group", "row", "column", "k")
few = settings(max_examples=30)
lengths = st.lists(st.integers(0, 4), min_size=1, max_size=5)
extents = st.integers(1, 3)


def starts_of(sizes: list[int]) -> list[int]:
    return [sum(sizes[:i]) for i in range(len(sizes) + 1)]


def blocks(
    groups: object, rows: object, columns: object, whole: object = None, k: object = None
) -> CoordinateGraph:
    """A coordinate graph whose edge `Concatenate` numbers the elements of all groups consecutively.

    A group is a row-major block of rows x columns x k elements. The edge relates `group`, `row`,
    `column` and `k` to the element's number `all`. The arguments are the sizes of the five
    dimensions, `whole` that of `all`; None is an unknown size.
    """
    with CoordinateGraph().edit() as e:
        for name, size in zip((*PARTS, "all"), (groups, rows, columns, k, whole), strict=True):
            e.add(Linear(name, size))  # type: ignore[arg-type]
        e.connect(Concatenate(PARTS, "all", "t"))
    return e.graph


OPEN = blocks(GROUPS, ROWS, COLUMNS)


def searches(*exprs: Expr) -> set[Expr]:
    return {x for expr in exprs for x in expr.atoms(Search)}


@few
@given(lengths, extents, extents)
def test_segments_are_blocks_one_after_another(sizes: list[int], rows: int, columns: int):
    """Elements are numbered group by group, and in a group in row-major order with k innermost."""
    starts = starts_of(sizes)
    known = {"t": starts, "groups": len(sizes), "rows": rows, "columns": columns}
    forward, back = OPEN.forward(PARTS, ["all"]), OPEN.reverse(["all"], PARTS)
    place = 0
    for group, size in enumerate(sizes):
        for inside in product(range(rows), range(columns), range(size)):
            at = dict(zip(PARTS, (group, *inside), strict=True))
            assert evaluate(forward[0], {**known, **at}) == place
            found = tuple(evaluate(value, {**known, "all": place}) for value in back)
            assert found == (group, *inside)
            place += 1
    assert place == rows * columns * starts[-1]


@few
@given(lengths.filter(lambda sizes: sizes[-1] > 0), extents, extents, st.integers(0, 9))
def test_an_index_past_the_end(sizes: list[int], rows: int, columns: int, over: int):
    """`Concatenate.reverse` maps an index past its last part to a row past that part's end."""
    edge, starts = Concatenate(PARTS, "all", "t"), starts_of(sizes)
    whole = rows * columns * starts[-1]
    above = (len(sizes), rows, columns, max(sizes))
    given_sizes = Sizes(tuple(map(Integer, above)), (Integer(whole + 10),))
    found = edge.reverse([Integer(whole + over)], given_sizes, Ranges())
    group, row, *_ = (evaluate(value, {"t": starts}) for value in found)
    assert group == len(sizes) - 1
    assert row >= rows


def test_blocks_of_equal_segments_are_a_flatten():
    sizes = (3, 2, 4, 5)
    block, flat = Concatenate(PARTS, "all", "t"), Flatten(PARTS, "all")
    both = Sizes(tuple(map(Integer, sizes)), (Integer(prod(sizes)),))
    tables = {"t": starts_of([5] * 3)}
    for place in range(prod(sizes)):
        reverse = (edge.reverse([Integer(place)], both, Ranges()) for edge in (block, flat))
        one, other = (tuple(evaluate(v, tables) for v in found) for found in reverse)
        assert one == other


@few
@given(lengths, st.lists(extents, max_size=3), st.integers(-3, 3))
def test_size_rule(sizes: list[int], between: list[int], more: int):
    """The size rule of `Concatenate`: the downstream dimension is at least as large as all parts.

    There is no rule if the size of the downstream dimension or of a needed upstream one is unknown.
    """
    names = tuple(f"u{i}" for i in range(2 + len(between)))
    edge, starts = Concatenate(names, "all", "t"), starts_of(sizes)
    whole, above = prod(between) * starts[-1] + more, (len(sizes), *between, max(sizes))
    up = tuple(map(Integer, above))
    (rule,) = edge.size_rule(Sizes(up, (Integer(whole),)))
    assert bool(evaluate(rule, {"t": starts})) == (more >= 0)
    assert edge.size_rule(Sizes(up, (None,))) == ()
    # The lengths of the parts come from a table, so the rule does not read the size of the last
    # upstream dimension.
    assert edge.size_rule(Sizes((*up[:-1], None), (Integer(whole),))) == (rule,)
    for unknown in range(len(up) - 1):
        missing = tuple(None if i == unknown else size for i, size in enumerate(up))
        assert edge.size_rule(Sizes(missing, (Integer(whole),))) == ()


def test_laws_of_a_block_by_name():
    tables = {"t": [0, 2, 2, 5]}
    sizes = {"group": 3, "row": 2, "column": 2, "k": 3, "all": 20}

    def exists(indices: tuple[int, ...]) -> bool:
        return indices[-1] < (2, 0, 3)[indices[0]]

    edge = Concatenate(PARTS, "all", "t")
    check_laws(edge, sizes, tables, among=exists)
    with pytest.raises(VerifyError, match="for no downstream index"):
        check_laws(edge, {**sizes, "all": 19}, tables, among=exists)


def test_a_segment_needs_what_is_in_it():
    with pytest.raises(
        VerifyError, match=r"Concatenate\(group -> all\): it has only 1 upstream operand"
    ):
        Concatenate("group", "all", "t")
    with pytest.raises(VerifyError, match="2 downstream operands, but Concatenate takes 1"):
        Concatenate(PARTS, ("all", "more"), "t")


@pytest.mark.parametrize("place", [1, 2])
def test_sizes_of_the_operands_between_are_needed(place: int):
    sizes = [GROUPS, ROWS, COLUMNS]
    sizes[place] = None  # type: ignore[call-overload]
    graph = blocks(*sizes)
    for direction in (lambda: graph.reverse(["all"], PARTS), lambda: graph.forward(PARTS, ["all"])):
        with pytest.raises(NotInvertible, match="between the first and the last has no size"):
            direction()


def test_the_number_of_segments_is_needed_to_find_one():
    graph = blocks(None, 2, 3)
    assert graph.forward(PARTS, ["all"])
    with pytest.raises(
        NotInvertible, match="numbers the parts, has no size; give it the number of parts"
    ):
        graph.reverse(["all"], ["k"])


# Tests of `reverse` where some of the upstream indices are known.


@few
@given(lengths, extents, extents)
def test_a_segment_that_is_known_is_not_searched_for(sizes: list[int], rows: int, columns: int):
    """If the part's number is a known symbol, `reverse` uses it and does not search the table."""
    starts = starts_of(sizes)
    known = {"t": starts, "groups": len(sizes), "rows": rows, "columns": columns}
    others = list(PARTS[1:])
    found = OPEN.reverse(["all", "group"], others)
    assert not searches(*found)
    assert all(TABLE in value.free_symbols for value in found)
    search_for_it = OPEN.reverse(["all"], PARTS)
    for place in range(rows * columns * starts[-1]):
        (group, *wanted) = (evaluate(v, {**known, "all": place}) for v in search_for_it)
        at = {**known, "all": place, "group": group}
        assert [evaluate(value, at) for value in found] == wanted


def test_a_segment_known_as_an_expression():
    """If a caller gives the part's number as an expression, `reverse` does not search the table."""
    place, here = index_symbol("place"), index_symbol("here")
    group, k = OPEN.reverse({"all": place, "group": here + 1}, ["group", "k"])
    assert group == here + 1
    assert not searches(k)
    assert {"here", "place", "t"} <= {symbol.name for symbol in k.free_symbols}


@dataclass(frozen=True)
class Found(Edge):
    """An edge for tests from I and J (upstream) to O: `i = o mod |I|` and `j = 2·i`.

    If the size |I| is unknown, `i = o` and `j = o + 1`.
    """

    arity = (2, 1)
    laws = frozenset({Law.FORWARD_UNDOES_REVERSE})

    def size_rule(self, sizes: Sizes) -> tuple[Boolean, ...]:
        return ()

    def reverse(
        self, indices: Sequence[Expr | None], sizes: Sizes, ranges: Ranges
    ) -> tuple[Expr, ...]:
        (index,), count = indices, sizes.upstream[0]
        assert index is not None
        if count is None:
            return index, index + 1
        found = floor_mod(index, count)
        return found, 2 * found

    def forward(self, indices: Sequence[Expr], sizes: Sizes, ranges: Ranges) -> tuple[Expr, ...]:
        return (indices[0],)


def found_in(size: int | None) -> CoordinateGraph:
    with CoordinateGraph().edit() as e:
        for name, extent in (("i", size), ("j", None), ("o", None)):
            e.add(Linear(name, extent))  # type: ignore[arg-type]
        e.connect(Found(("i", "j"), "o"))
    return e.graph


def test_siblings_of_any_edge():
    """`reverse` computes upstream indices of an edge from an upstream index that the caller gives.

    Where the formula of another index contains the formula of the given index, the given index
    replaces that part. A formula that is only a symbol is not replaced.
    """
    graph, i, o = found_in(5), index_symbol("i"), index_symbol("o")
    assert graph.reverse(["o"], ["j"]) == [2 * floor_mod(o, 5)]
    assert graph.reverse(["o", "i"], ["j"]) == [2 * i]
    assert graph.reverse({"o": o, "i": 3}, ["i", "j"]) == [3, 6]
    bare = found_in(None)
    assert bare.reverse(["o", "i"], ["j"]) == [o + 1]


def test_siblings_that_share_nothing_change_nothing():
    assert OPEN.reverse(["all", "row"], ["k"]) == OPEN.reverse(["all"], ["k"])
    single = blocks(GROUPS, 1, 1)  # rows and columns of size 1 have the index 0
    assert single.reverse({"all": None, "row": 0}, ["k"]) == single.reverse(["all"], ["k"])
