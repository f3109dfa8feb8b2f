"""Coordinate graphs refuse wrong edits and queries; formulas assume 0 <= index < size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sympy import I, Integer, S, zoo

from coordgraph import CoordinateGraph, EvaluationError, VerifyError
from coordgraph.coordinates.dimensions import Linear
from coordgraph.coordinates.edges import (
    Bands,
    Curve,
    Deal,
    Edge,
    Flatten,
    Join,
    Share,
    Split,
    Swizzle,
    Tile,
)
from coordgraph.integers import size_symbol


def flattened(*sizes: object) -> CoordinateGraph:
    m, n, k = sizes
    with CoordinateGraph().edit() as e:
        for name, size in (("m", m), ("n", n), ("k", k), ("o", m * n * k)):  # type: ignore[operator]
            e.add(Linear(name, size))  # type: ignore[arg-type]
        e.connect(Flatten(("m", "n", "k"), "o"))
    return e.graph


def test_a_single_dimension_is_a_list_of_one():
    graph = flattened(2, 3, 5)
    assert graph.reverse("o", "m") == graph.reverse(["o"], ["m"])
    assert graph.reverse(graph["o"], graph["m"]) == graph.reverse(["o"], ["m"])
    assert graph.mermaid(only="o") == graph.mermaid(only=["o"])


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("mn", "o"), "there is no dimension 'mn'"),
        ((3, "m"), "known = 3 gives no indices; give a mapping"),
        ((["o"], 3), "wanted = 3 is no list of dimensions; give ids"),
        ((["o"], {"m": 1}), r"wanted = \{'m': 1\} is no list of dimensions"),
        ((["o"], [3]), "3 is no dimension; give an id"),
        ((["o"], ["m"], {}), r"ranges = \{\} is no Ranges; leave it out"),
    ],
)
def test_arguments_of_the_wrong_type(arguments: tuple[Any, ...], why: str):
    with pytest.raises(VerifyError, match=why):
        flattened(2, 3, 5).reverse(*arguments)


def test_forward_then_reverse_gives_the_symbols_back():
    """`reverse` of the index that `forward` computes from symbols simplifies to the symbols.

    The simplifier must know that a symbol in a given index is less than its dimension's size.
    """
    graph = flattened(*(size_symbol(name) for name in ("TM", "TN", "TK")))
    (whole,) = graph.forward(["m", "n", "k"], ["o"])
    assert graph.reverse({"o": whole}, ["m", "n", "k"]) == [graph.symbol(d) for d in "mnk"]


def test_a_replaced_dimension_must_fit_its_edges():
    graph = flattened(2, 3, 5)
    with graph.edit() as e:
        with pytest.raises(VerifyError, match="break its size rule"):
            e.replace(Linear("m", 7))
        e.replace(Linear("m", 2, note="rows"))
    assert e.graph["m"].note == "rows"


@pytest.mark.parametrize("value", ["5", 2.5, 1.0, float("nan"), True, [1], S.Half, I])
def test_an_index_is_a_whole_number(value: object):
    with pytest.raises(VerifyError, match="whole number"):
        flattened(2, 3, 5).reverse({"o": value}, ["m"])


@pytest.mark.parametrize(
    "value", ["3*4", 2.5, 3.0, float("nan"), True, [3], S.Half, S.Infinity, S.NaN, zoo, I]
)
def test_a_size_is_a_whole_number(value: object):
    with pytest.raises(VerifyError, match=r"dimension 'm': size .* whole number"):
        Linear("m", value)  # type: ignore[arg-type]


def test_a_size_is_not_negative():
    with pytest.raises(VerifyError, match="dimension 'm': size = -3 must be at least 0"):
        Linear("m", -3)  # type: ignore[arg-type]
    assert Linear("m", np.int64(3)) == Linear("m", Integer(3))  # type: ignore[arg-type]


def test_an_id_is_text():
    with pytest.raises(VerifyError, match="the id of a dimension = 5 is not text"):
        Linear(5)  # type: ignore[arg-type]
    with pytest.raises(VerifyError, match=r"operands .* are neither dimensions nor their ids"):
        Tile(5, ("a", "b"))  # type: ignore[arg-type]


SWIZZLED = ("a", "b"), ("c", "d")
SHARED = "a", ("b", "c", "d")


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Swizzle(*SWIZZLED, modulus=8, divisor=0), "divisor = 0 must be at least 1"),
        (lambda: Swizzle(*SWIZZLED, modulus=8, divisor=-1), "divisor = -1 must be at least 1"),
        (lambda: Swizzle(*SWIZZLED, modulus="8"), "modulus = '8' is not a whole number"),
        (lambda: Swizzle(*SWIZZLED, modulus=8.0), "modulus = 8.0 is not a whole number"),
        (lambda: Swizzle(*SWIZZLED, modulus=6), "is not a power of two"),
        (lambda: Share(*SHARED, tile=0), "tile = 0 must be at least 1"),
        (lambda: Share(*SHARED, share=-1), "share = -1 must be at least 1"),
        (lambda: Share(*SHARED, before=-1), "before = -1 must be at least 0"),
        (lambda: Share(*SHARED, behind="x"), "behind = 'x' is not a whole number"),
        (lambda: Bands(("a", "b"), "c", width=0), "width = 0 must be at least 1"),
        (lambda: Bands(("a", "b"), "c", width=1.5), "width = 1.5 is not a whole number"),
        (lambda: Bands(("a", "b"), "c", snake="no"), "snake = 'no' is neither True nor False"),
        (lambda: Curve(*SWIZZLED, side="8"), "side = '8' is not a whole number"),
        (lambda: Curve(*SWIZZLED, side=6), "is not a power of two from 2 to 64"),
        (lambda: Deal("a", "b", groups="2"), "groups = '2' is not a whole number"),
        (lambda: Deal("a", "b", groups=0), "groups = 0 must be at least 1"),
        (lambda: Deal("a", "b", groups=True), "groups = True is not a whole number"),
        (lambda: Split("a", "b", strides=3), "strides = 3 is not a sequence"),
        (lambda: Split("a", "b", strides=(2.5,)), r"strides\[0\] = 2.5 is not a whole number"),
        (lambda: Join("a", "b", strides="1"), "strides = '1' is not a sequence"),
    ],
)
def test_fields_of_edges(make: Callable[[], Edge], why: str):
    with pytest.raises(VerifyError, match=why):
        make()


def test_a_size_of_zero_leaves_no_index():
    """A size of 0 is an error only if an index along it is computed.

    A dimension of size 0 alone is valid: a schedule may have 0 data-parallel waves.
    """
    with CoordinateGraph().edit() as e:
        for name, size in (("i", None), ("tile", Integer(3)), ("inside", Integer(0))):
            e.add(Linear(name, size))
        e.connect(Tile("i", ("tile", "inside")))
    with pytest.raises(
        EvaluationError,
        match=r"Tile\(i -> tile, inside\): an operand has the size 0, so there is no index",
    ):
        e.graph.forward({"i": 3}, ["inside"])
