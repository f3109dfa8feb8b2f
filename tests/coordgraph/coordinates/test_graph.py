"""Tests of coordinate graphs: editing, traversal and its errors, guards, derivatives."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sympy import Integer, Lt
from sympy.logic.boolalg import true

from coordgraph import AmbiguousPath, CoordinateGraph, NoPath, NotInvertible, VerifyError
from coordgraph.coordinates.dimensions import Dimension, Linear, MacroTileNumber, Selector
from coordgraph.coordinates.edges import (
    Edge,
    Flatten,
    Join,
    PassThrough,
    Split,
    Sunder,
    Swizzle,
    Tile,
)
from coordgraph.integers import evaluate, index_symbol, size_symbol


def build(sizes: dict[str, object], *edges: Edge) -> CoordinateGraph:
    with CoordinateGraph().edit() as e:
        for name, size in sizes.items():
            e.add(Linear(name, size))
        for edge in edges:
            e.connect(edge)
    return e.graph


TILED = build({"i": 10, "t": 3, "e": 4}, Tile("i", ("t", "e")))


class TestEditing:
    def test_an_edit_leaves_the_graph_alone(self):
        with TILED.edit() as e:
            e.add(Linear("more", 3))
            e.connect(PassThrough("t", "more"))
        assert "more" not in TILED
        assert "more" in e.graph
        assert e.graph != TILED
        assert TILED.edit().finish() == TILED
        assert hash(TILED.edit().finish()) == hash(TILED)

    def test_ids_are_unique_and_well_formed(self):
        e = TILED.edit()
        with pytest.raises(VerifyError, match="a dimension 'i' exists already"):
            e.add(Linear("i"))
        with pytest.raises(VerifyError, match="'1x' is not a dimension id"):
            e.add(Linear("1x"))
        assert e.fresh("i") == "i_2"
        assert e.fresh("j") == "j"

    def test_edges_need_their_dimensions(self):
        with pytest.raises(VerifyError, match="there is no dimension 'x', 'y'"):
            TILED.edit().connect(PassThrough("x", "y"))

    def test_edges_that_go_round(self):
        e = CoordinateGraph().edit()
        for name in "abc":
            e.add(Linear(name, 4))
        for above, below in ("ab", "bc", "ca"):
            e.connect(PassThrough(above, below))
        with pytest.raises(VerifyError, match="the edges form a cycle: "):
            e.finish()

    def test_two_ways_to_one_dimension_are_no_circle(self):
        e = CoordinateGraph().edit()
        for name in "abcd":
            e.add(Linear(name, 4))
        for above, below in ("ab", "ac", "bd", "cd"):
            e.connect(PassThrough(above, below))
        graph = e.finish()
        assert graph.below("a") == {"b", "c", "d"}
        assert graph.below(graph["c"]) == {"d"}
        assert graph.below("d") == frozenset()

    def test_what_is_tied_cannot_be_removed(self):
        e = TILED.edit()
        with pytest.raises(VerifyError, match="'t' cannot be removed"):
            e.remove("t")
        e.disconnect(Tile("i", ("t", "e")))
        e.remove("t")
        assert "t" not in e.finish()
        with pytest.raises(VerifyError, match="has no such edge to disconnect"):
            e.disconnect(Tile("i", ("t", "e")))

    def test_unknown_names_get_a_suggestion(self):
        graph = build({"workgroup": 4})
        with pytest.raises(VerifyError, match="no dimension 'workgruop'; did you mean 'workgroup'"):
            graph.size("workgruop")
        with pytest.raises(VerifyError, match=r"no dimension 'zzz'; there are workgroup$"):
            graph.size("zzz")

    def test_dangling_dimensions_keep_the_place_of_what_they_replace(self):
        def number(name: str) -> Dimension:
            return MacroTileNumber(name, Integer(4))

        with CoordinateGraph().edit() as e:
            for name in ("row", "column"):
                e.add(number(name))
        graph = e.graph
        assert [d.id for d in graph.dangling(MacroTileNumber)] == ["row", "column"]
        with graph.edit() as e:
            e.add(number("below_row"))
            e.connect(PassThrough("row", "below_row"))
        assert [d.id for d in e.graph.dangling(MacroTileNumber)] == ["below_row", "column"]


class TestPaths:
    def test_what_is_missing_is_named(self):
        with pytest.raises(
            NoPath, match="no reverse path leads to 'i' from t; give more indices, such as 'e'"
        ):
            TILED.reverse({"t": 1}, ["i"])
        with pytest.raises(NoPath, match="no forward path leads to 'i' from e"):
            TILED.forward({"e": 1}, ["i"])

    def test_two_routes_to_one_coordinate(self):
        graph = build({"i": 4, "a": 4, "b": 4}, PassThrough("i", "a"), PassThrough("i", "b"))
        assert graph.reverse({"a": 1}, ["i"]) == [1]
        with pytest.raises(AmbiguousPath, match="'i' is defined twice from a, b"):
            graph.reverse({"a": 1, "b": 2}, ["i"])

    def test_two_routes_to_what_nobody_asks_for(self):
        graph = build(
            {"i": 4, "a": 4, "b": 4, "j": 4},
            PassThrough("i", "a"),
            PassThrough("i", "b"),
            PassThrough("j", "a"),
        )
        assert graph.reverse({"a": 1, "b": 2}, ["j"]) == [1]

    def test_a_known_coordinate_is_not_derived(self):
        graph = build({"i": 4, "a": 4, "b": 4}, PassThrough("i", "a"), PassThrough("i", "b"))
        assert graph.reverse({"a": 1, "b": 2, "i": 3}, ["i"]) == [3]

    def test_strides_that_do_not_nest_have_no_inverse(self):
        graph = build({"i": 7, "a": 4, "b": 4}, Split("i", ("a", "b"), (1, 1)))
        assert graph.reverse({"a": 2, "b": 3}, ["i"]) == [5]
        with pytest.raises(NotInvertible, match=r"its strides \(1, 1\) do not nest"):
            graph.forward({"i": 5}, ["a", "b"])
        joined = build({"o": 7, "a": 4, "b": 4}, Join(("a", "b"), "o", (1, 1)))
        with pytest.raises(NotInvertible, match="do not nest"):
            joined.reverse({"o": 5}, ["a", "b"])

    def test_absent_sizes(self):
        with CoordinateGraph().edit() as e:
            for name in "oab":
                e.add(Linear(name))
            e.connect(Flatten(("a", "b"), "o"))
        with pytest.raises(NotInvertible, match="an operand after the first has no size"):
            e.graph.reverse({"o": 5}, ["a"])

    def test_reflecting_needs_a_size(self):
        with CoordinateGraph().edit() as e:
            e.add(Linear("i"))
            e.add(Linear("o"))
            e.connect(Swizzle("i", "o", function="reflect"))
        with pytest.raises(NotInvertible, match="the last upstream operand has no size"):
            e.graph.reverse({"o": 1}, ["i"])

    def test_a_long_chain_is_no_trouble(self):
        names = [f"d{i}" for i in range(3000)]
        edges = [PassThrough(a, b) for a, b in pairwise(names)]
        graph = build(dict.fromkeys(names, 4), *edges)
        assert graph.reverse({names[-1]: 3}, [names[0]]) == [3]


class TestGuards:
    def test_padding_of_a_ragged_tile(self):
        guard = TILED.guards(["t", "e"], ["i"])
        assert guard == Lt(index_symbol("e") + 4 * index_symbol("t"), 10)
        assert TILED.guards({"t": 2, "e": 1}, ["i"]) == true
        assert TILED.guards({"t": 2, "e": 2}, ["i"]) == False  # noqa: E712

    def test_an_exact_tile_needs_none(self):
        n = size_symbol("n")
        graph = build({"i": 4 * n, "t": n, "e": 4}, Tile("i", ("t", "e")))
        assert graph.guards(["t", "e"], ["i"]) == true

    def test_gaps_of_a_join(self):
        graph = build({"o": 5, "a": 2, "b": 2}, Join(("a", "b"), "o", (1, 3)))
        guard = graph.guards(["o"], ["a", "b"])
        assert [bool(evaluate(guard, {"o": o})) for o in range(5)] == [
            True,
            True,
            False,
            True,
            True,
        ]

    def test_a_symbolic_selector(self):
        with CoordinateGraph().edit() as e:
            for name, size in (("i", 7), ("a", 4), ("b", 3)):
                e.add(Linear(name, size))
            e.add(Selector("x", 2))
            e.add(Linear("y", 5))
            e.connect(Sunder("i", ("a", "b", "x")))
        guard = e.graph.guards({"a": None, "b": None, "x": index_symbol("y")}, ["i"])
        assert guard == Lt(index_symbol("y"), 2)

    def test_paths_for_each_constant_selector(self):
        """A path through the graph, cached for one value of a selector, serves no other value."""
        with CoordinateGraph().edit() as e:
            for name, size in (("i", 7), ("a", 4), ("b", 3)):
                e.add(Linear(name, size))
            e.add(Selector("x", 2))
            e.connect(Sunder("i", ("a", "b", "x")))
        for _ in range(2):
            assert e.graph.reverse({"a": 3, "x": 0}, ["i"]) == [3]
            assert e.graph.reverse({"b": 2, "x": 1}, ["i"]) == [6]
            with pytest.raises(NoPath):
                e.graph.reverse({"a": 3, "x": 1}, ["i"])

    def test_only_what_a_selector_reads_is_guarded(self):
        """A guard derived for symbolic selectors gives the result of one derived for numbers.

        One part of a `Sunder` has a ragged tile, another part is divided by a second `Sunder`.
        """
        with CoordinateGraph().edit() as e:
            sizes = {"i": 12, "a": 5, "b": 7, "c": 4, "d": 3, "at": 3, "ae": 2, "ct": 2}
            for name, size in {**sizes, "e": 3, "shared": 3}.items():
                e.add(Linear(name, size))
            e.add(Selector("x", 2))
            e.add(Selector("y", 2))
            e.connect(Sunder("i", ("a", "b", "x")))
            e.connect(Sunder("b", ("c", "d", "y")))
            e.connect(Tile("a", ("at", "ae")))
            e.connect(Tile("c", ("ct", "e")))
            e.connect(PassThrough("d", "e"))
            e.connect(PassThrough("at", "shared"))
        graph, known = e.graph, ["shared", "ae", "ct", "e", "x", "y"]
        guard = graph.guards(known, ["i"])
        assert guard.free_symbols == {graph.symbol(name) for name in known}
        outside = 0
        for values in product(range(3), range(2), range(2), range(3), range(2), range(2)):
            at = dict(zip(known, values, strict=True))
            here = bool(evaluate(guard, at))
            assert here == bool(evaluate(graph.guards(at, ["i"]), {})), at
            outside += not here
        assert 0 < outside < 3 * 2 * 2 * 3 * 2 * 2
        # A guard of i alone reads `a` only for the selector values for which i depends on `a`. If
        # index `a` is requested too, its guard must hold for all values of the selectors.
        assert not bool(evaluate(graph.guards(known, ["i", "a"]), {**at, "shared": 2, "ae": 1}))


class TestDerivatives:
    def test_of_an_address(self):
        m, k = size_symbol("m"), size_symbol("k")
        graph = build(
            {"A": m * k, "row": m, "column": k},
            Split("A", ("row", "column"), (k, 1)),
        )
        assert graph.derivative("A", "row", ["row", "column"]) == k
        assert graph.derivative("A", "column", ["row", "column"]) == 1

    @given(
        st.lists(st.integers(2, 5), min_size=2, max_size=4),
        st.data(),
    )
    @settings(max_examples=25)
    def test_the_law(self, sizes: list[int], data: st.DataObject):
        """The derivative of index A by coordinate d equals the increase of A if d grows by 1."""
        total = 1
        for size in sizes:
            total *= size
        digits = [f"d{i}" for i in range(len(sizes))]
        stride = data.draw(st.integers(1, 4))
        graph = build(
            {"A": stride * (total - 1) + 1, "o": total, **dict(zip(digits, sizes, strict=True))},
            Split("A", "o", (stride,)),
            Tile("o", tuple(digits)),
        )
        by = data.draw(st.sampled_from(digits))
        found = graph.derivative("A", by, digits)
        at = {d: data.draw(st.integers(0, s - 1)) for d, s in zip(digits, sizes, strict=True)}
        at[by] = min(at[by], sizes[digits.index(by)] - 2)
        (here,) = graph.reverse(at, ["A"])
        (after,) = graph.reverse({**at, by: at[by] + 1}, ["A"])
        assert evaluate(found, at) == after - here

    def test_where_the_path_divides(self):
        """The derivative of o // 8 is 1 at indices o where (o + 1) // 8 > o // 8, else 0."""
        graph = build({"a": 4, "b": 8, "o": 32}, Flatten(("a", "b"), "o"))
        found = graph.derivative("a", "o", ["o"])
        for o in range(31):
            assert evaluate(found, {"o": o}) == (o + 1) // 8 - o // 8
