"""Edges map given indices to expected indices, and their formulas have the expected form."""

from __future__ import annotations

import time
from typing import Any

import pytest
from sympy import Integer, symbols

from coordgraph import CoordinateGraph, EvaluationError, VerifyError
from coordgraph.coordinates.dimensions import Dimension, Linear, Selector
from coordgraph.coordinates.edges import Bands, Curve, Deal, Edge, Flatten, Split, Sunder, Tile
from coordgraph.integers import (
    FloorDiv,
    FloorMod,
    Select,
    evaluate,
    index_symbol,
    size_symbol,
    to_text,
)


def build(dimensions: list[Dimension], *edges: Edge) -> CoordinateGraph:
    with CoordinateGraph().edit() as e:
        for dimension in dimensions:
            e.add(dimension)
        for edge in edges:
            e.connect(edge)
    return e.graph


FLAT = build(
    [Linear("i", 64), Linear("j", 32), Linear("k", 16), Linear("o", 64 * 32 * 16)],
    Flatten(("i", "j", "k"), "o"),
)


def test_flatten():
    assert FLAT.forward({"i": 5, "j": 3, "k": 7}, ["o"]) == [2615]
    assert FLAT.reverse({"o": 2615}, ["i", "j", "k"]) == [5, 3, 7]


def test_split_then_tile():
    graph = build(
        [Linear("whole", 2 * 639 + 1), Linear("i", 640), Linear("tile", 10), Linear("inside", 64)],
        Split("whole", "i", (2,)),
        Tile("i", ("tile", "inside")),
    )
    assert graph.reverse({"tile": 2, "inside": 33}, ["i", "whole"]) == [161, 322]
    assert graph.forward({"whole": 322}, ["i", "tile", "inside"]) == [161, 2, 33]


BANDS = [[0, 2, 4], [1, 3, 5], [6, 8, 10], [7, 9, 11], [12, 13, 14]]
"""For 5 rows of 3 columns, visited in bands of two rows: each element's position in the order."""
SNAKE = [BANDS[0], BANDS[1], BANDS[2][::-1], BANDS[3][::-1], BANDS[4]]
THICK = [[5 * column + row for column in range(3)] for row in range(5)]


@pytest.mark.parametrize(
    ("width", "snake", "order"),
    [
        (1, False, [[3 * row + column for column in range(3)] for row in range(5)]),
        (1, True, [[0, 1, 2], [5, 4, 3], [6, 7, 8], [11, 10, 9], [12, 13, 14]]),
        (2, False, BANDS),
        (2, True, SNAKE),
        (5, True, THICK),
        (9, False, THICK),
    ],
)
@pytest.mark.parametrize("symbolic", [False, True])
def test_bands(width: int, snake: bool, order: list[list[int]], symbolic: bool):
    rows, columns = (size_symbol("M"), size_symbol("N")) if symbolic else (5, 3)
    graph = build(
        [Linear("i", rows), Linear("j", columns), Linear("o", rows * columns)],
        Bands(("i", "j"), "o", width=width, snake=snake),
    )
    (there,), back = graph.forward(["i", "j"], ["o"]), graph.reverse(["o"], ["i", "j"])
    sizes = {"M": 5, "N": 3}
    for i, row in enumerate(order):
        for j, place in enumerate(row):
            assert evaluate(there, {"i": i, "j": j, **sizes}) == place
            assert [evaluate(index, {"o": place, **sizes}) for index in back] == [i, j]


@pytest.mark.parametrize("snake", [False, True])
def test_bands_are_fit_for_code(snake: bool):
    """`Bands` divides only by expressions of sizes, and its indices are proved to be in range."""
    m, n = size_symbol("M"), size_symbol("N")
    graph = build(
        [Linear("i", m), Linear("j", n), Linear("o", m * n)],
        Bands(("i", "j"), "o", width=8, snake=snake),
    )
    for index, size in zip(graph.reverse(["o"], ["i", "j"]), (m, n), strict=True):
        for division in index.atoms(FloorDiv, FloorMod):
            assert graph.symbol("o") not in division.args[1].free_symbols
        assert graph.ranges().prove_less(index, size)
        assert graph.ranges().prove_nonnegative(index)


def test_bands_that_divide_the_rows_have_one_height():
    graph = build(
        [Linear("i", 32), Linear("j", 5), Linear("o", 160)], Bands(("i", "j"), "o", width=8)
    )
    row, column = graph.reverse(["o"], ["i", "j"])
    assert [to_text(row), to_text(column)] == ["o % 8 + 8*(o // 40)", "o // 8 % 5"]


def test_a_band_needs_rows():
    with pytest.raises(VerifyError, match="width = 0 must be at least 1"):
        Bands(("i", "j"), "o", width=0)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"function": "peano"}, "unknown function 'peano'; choose one of hilbert, morton"),
        ({"side": 6}, "a power of two from 2 to 64"),
        ({"side": 1}, "a power of two from 2 to 64"),
        ({"side": 128}, "a power of two from 2 to 64"),
    ],
)
def test_a_curve_needs_a_power_of_two(options: dict[str, Any], why: str):
    with pytest.raises(VerifyError, match=why):
        Curve(("i", "j"), ("k", "l"), **options)


@pytest.mark.parametrize(
    "edge",
    [Curve(("i", "j"), ("k", "l"), function, 8) for function in Curve.FUNCTIONS],
    ids=lambda edge: edge.function,
)
def test_curves_are_fit_for_code(edge: Curve):
    """`Curve` divides only by constants, and its indices are proved to be in range."""
    m, n = size_symbol("M"), size_symbol("N")
    graph = build([Linear("i", m), Linear("j", n), Linear("k", m), Linear("l", n)], edge)
    for index, size in zip(graph.reverse(["k", "l"], ["i", "j"]), (m, n), strict=True):
        assert all(x.args[1].is_Integer for x in index.atoms(FloorDiv, FloorMod))
        assert graph.ranges().prove_less(index, size)
        assert graph.ranges().prove_nonnegative(index)


def test_deals_are_fit_for_code():
    n = size_symbol("N")
    graph = build([Linear("i", n), Linear("o", n)], Deal("i", "o", groups=5))
    (index,) = graph.reverse(["o"], ["i"])
    for division in index.atoms(FloorDiv, FloorMod):
        assert graph.symbol("o") not in division.args[1].free_symbols
    assert graph.ranges().prove_less(index, n)
    assert graph.ranges().prove_nonnegative(index)


def test_a_deal_needs_groups():
    with pytest.raises(VerifyError, match="groups = 0 must be at least 1"):
        Deal("i", "o", groups=0)


SUNDERED = build(
    [
        Linear("i", 141),
        *(Linear(f"s{n}", size) for n, size in enumerate((100, 24, 17))),
        Selector("x", 3),
    ],
    Sunder("i", ("s0", "s1", "s2", "x")),
)


@pytest.mark.parametrize(("x", "at", "index"), [(0, 83, 83), (1, 10, 110), (2, 16, 140)])
def test_sunder(x: int, at: int, index: int):
    # To compute i, `reverse` needs the selector x and the index in part x only; the indices in the
    # other parts are not passed.
    assert SUNDERED.reverse({f"s{x}": at, "x": x}, ["i"]) == [index]
    *_, selector = SUNDERED.forward({"i": index}, ["s0", "s1", "s2", "x"])
    assert selector == x
    assert SUNDERED.forward({"i": index}, [f"s{x}"]) == [at]


def test_sunder_with_a_selector_that_does_not_exist():
    known = {"s0": 0, "s1": 0, "s2": 0, "x": 3}
    with pytest.raises(
        EvaluationError, match=r"the selector is 3, but there are only the parts 0 to 2"
    ):
        SUNDERED.reverse(known, ["i"])


def test_sunder_with_a_symbolic_selector():
    (index,) = SUNDERED.reverse(["s0", "s1", "s2", "x"], ["i"])
    assert index.atoms(Select)
    for x, at, expected in ((0, 83, 83), (1, 10, 110), (2, 16, 140)):
        assert evaluate(index, {"s0": at, "s1": at, "s2": at, "x": x}) == expected


def test_the_selector_of_every_index():
    (selector,) = SUNDERED.forward(["i"], ["x"])
    found = [evaluate(selector, {"i": i}) for i in range(141)]
    assert found == [0] * 100 + [1] * 24 + [2] * 17


def test_symbolic_sizes_cancel_quickly():
    """Forward and reverse of a `Flatten` give the original symbols, in less than 50 ms."""
    seconds: list[float] = []
    for attempt in range(3):
        m, n, k = (size_symbol(f"{name}{attempt}") for name in ("M", "N", "K"))
        graph = build(
            [Linear("i", m), Linear("j", n), Linear("l", k), Linear("o", m * n * k)],
            Flatten(("i", "j", "l"), "o"),
        )
        start = time.perf_counter()
        ranges = graph.ranges()
        (whole,) = graph.forward(["i", "j", "l"], ["o"], ranges)
        back = graph.reverse({"o": whole}, ["i", "j", "l"], ranges)
        seconds.append(time.perf_counter() - start)
        assert back == [index_symbol("i"), index_symbol("j"), index_symbol("l")]
    assert min(seconds) < 0.05


def test_numbers_cancel_as_well():
    (whole,) = FLAT.forward(["i", "j", "k"], ["o"])
    assert FLAT.reverse({"o": whole}, ["i", "j", "k"], FLAT.ranges()) == list(
        map(index_symbol, "ijk")
    )


def test_tiles_of_tiles():
    n = symbols("n", integer=True, positive=True)
    graph = build(
        [Linear("i", 24 * n), Linear("a", n), Linear("b", 4), Linear("c", 6)],
        Tile("i", ("a", "b", "c")),
    )
    (index,) = graph.reverse(["a", "b", "c"], ["i"])
    assert evaluate(index, {"a": 2, "b": 3, "c": 5}) == 2 * 24 + 3 * 6 + 5
    assert [to_text(e) for e in graph.forward(["i"], ["a", "b", "c"])] == [
        "i // 24",
        "i // 6 % 4",
        "i % 6",
    ]
    assert graph.guards(["a", "b", "c"], ["i"]) == True  # noqa: E712
    assert Integer(0) == graph.reverse({"a": 0, "b": 0, "c": 0}, ["i"])[0]
