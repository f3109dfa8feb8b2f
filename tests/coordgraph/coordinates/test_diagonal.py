"""`Diagonal`, and `Concatenate` of parts with different extents, give elements right positions."""

from __future__ import annotations

from itertools import product

import pytest
from sympy import Expr, Integer

from coordgraph import NotInvertible, VerifyError
from coordgraph.coordinates.edges import Concatenate, Diagonal, Sizes
from coordgraph.integers import Ranges, compile_function, index_symbol, symbols_of

ROWS, COLUMNS, STARTS = (0, 2, 2, 5), (0, 9, 12, 13), (0, 32, 32, 56)
"""Three blocks of 2 x 9, 0 x 3 and 3 x 1 elements in a block-diagonal matrix.

For each block: its first row, its first column, and its first position in memory, where rows begin
at multiples of 8. The last number of each tuple is the end of the last block.
"""
PARTS = ("group", "row", "column")
EDGE = Diagonal("memory", PARTS, "starts", "rows", "columns", 8)
TABLES = {"starts": STARTS, "rows": ROWS, "columns": COLUMNS}


def value(expr: Expr, **tables: tuple[int, ...]) -> int:
    symbols = tuple(symbols_of(expr))
    (found,) = compile_function([expr], symbols)(*(tables[s.name] for s in symbols))
    return int(found)


def test_blocks_lie_one_after_another():
    """`Diagonal` maps no two elements to one position; positions between rows are padding."""
    sizes, places = Sizes((Integer(56),), (Integer(3), None, None)), dict[int, tuple[int, ...]]()
    for group in range(3):
        every = product(
            range(ROWS[group], ROWS[group + 1]), range(COLUMNS[group], COLUMNS[group + 1])
        )
        for row, column in every:
            at = tuple(map(Integer, (group, row, column)))
            (place,) = EDGE.reverse(at, sizes, Ranges())
            places[value(place, **TABLES)] = (group, row, column)
    assert len(places) == 2 * 9 + 3
    assert [place % 8 for place, (_, _, column) in places.items() if column in (0, 12)] == [0] * 5
    for place in range(56):
        found = EDGE.forward((Integer(place),), sizes, Ranges())
        group, row, column = (value(x, **TABLES) for x in found)
        if place in places:
            assert (group, row, column) == places[place]
        else:
            assert column >= COLUMNS[group + 1]
            assert ROWS[group] <= row < ROWS[group + 1]


def test_segments_with_extents_of_their_own():
    """`Concatenate` numbers the elements of parts with 2, 0 and 3 rows of 4 columns in order."""
    edge = Concatenate(("group", "row", "column"), "all", "starts", ("rows", ""))
    sizes = Sizes((Integer(3), None, Integer(4)), (Integer(20),))
    tables = {"starts": (0, 8, 8, 20), "rows": ROWS}
    every = [(g, i, j) for g in range(3) for i in range(ROWS[g + 1] - ROWS[g]) for j in range(4)]
    for number, parts in enumerate(every):
        (found,) = edge.forward(tuple(map(Integer, parts)), sizes, Ranges())
        assert value(found, **tables) == number
        back = edge.reverse((Integer(number),), sizes, Ranges())
        assert tuple(value(x, **tables) for x in back) == parts
    (enough,) = edge.size_rule(sizes)
    assert enough.has(index_symbol("starts"))


def test_refusals():
    with pytest.raises(VerifyError, match="step=0 is too small"):
        Diagonal("memory", PARTS, "starts", "rows", "columns", 0)
    with pytest.raises(VerifyError, match="2 downstream operands, but Diagonal takes 3"):
        Diagonal("memory", PARTS[:2], "starts", "rows", "columns")
    with pytest.raises(
        NotInvertible, match="has no size; give that dimension the number of blocks"
    ):
        EDGE.forward((Integer(3),), Sizes((None,), (None, None, None)), Ranges())
    for extents in (("rows",), ("rows", "columns", "depths")):
        with pytest.raises(VerifyError, match="give one for each upstream operand after the first"):
            Concatenate(PARTS, "all", "starts", extents)
    with pytest.raises(
        NotInvertible, match="numbers the parts, has no size; give it the number of parts"
    ):
        Concatenate(PARTS, "all", "starts", ("rows", "columns")).reverse(
            (Integer(3),), Sizes((None, None, None), (None,)), Ranges()
        )
