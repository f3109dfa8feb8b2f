"""What the coordinate graph refuses, and what it knows without being told."""

from __future__ import annotations

import pytest

from coordgraph import CoordinateGraph, VerifyError
from coordgraph.coordinates.dimensions import Linear
from coordgraph.coordinates.edges import Flatten
from coordgraph.integers import size_symbol


def flattened(*sizes: object) -> CoordinateGraph:
    m, n, k = sizes
    with CoordinateGraph().edit() as e:
        for name, size in (("m", m), ("n", n), ("k", k), ("o", m * n * k)):  # type: ignore[operator]
            e.add(Linear(name, size))  # type: ignore[arg-type]
        e.connect(Flatten(("m", "n", "k"), "o"))
    return e.graph


def test_forward_then_reverse_gives_the_symbols_back():
    """The sizes of dimensions that a known value mentions count, though they are not known."""
    graph = flattened(*(size_symbol(name) for name in ("TM", "TN", "TK")))
    (whole,) = graph.forward(["m", "n", "k"], ["o"])
    assert graph.reverse({"o": whole}, ["m", "n", "k"]) == [graph.symbol(d) for d in "mnk"]


def test_a_replaced_dimension_must_fit_its_edges():
    graph = flattened(2, 3, 5)
    with graph.edit() as e:
        with pytest.raises(VerifyError, match="sizes break"):
            e.replace(Linear("m", 7))
        e.replace(Linear("m", 2, note="rows"))
    assert e.graph["m"].note == "rows"


@pytest.mark.parametrize("value", ["5", 2.5, True])
def test_an_index_is_a_whole_number(value: object):
    with pytest.raises(VerifyError, match="whole number"):
        flattened(2, 3, 5).reverse({"o": value}, ["m"])


def test_text_is_no_size():
    with pytest.raises(VerifyError, match="is text"):
        Linear("m", "3*4")  # type: ignore[arg-type]
