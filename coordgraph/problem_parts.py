"""The parts of B: where B has the columns for each sum of an epilogue that has several."""

from __future__ import annotations

from sympy import Expr, Integer

from coordgraph.coordinates.dimensions import Linear, MacroTileIndex
from coordgraph.coordinates.edges import Flatten, Tile
from coordgraph.gemm import PART, PART_BLOCK, PART_COLUMN, GemmProblem
from coordgraph.integers import ceil_div
from coordgraph.kernel import KernelEditor

__all__ = ["add_part_number", "columns_of_b", "divide_columns"]


def columns_of_b(gemm: GemmProblem, columns: Expr) -> Expr:
    """The number of columns of the tensor B, in elements, if D has `columns` columns.

    Whole blocks are interleaved: if their width does not divide the number of columns of D, the
    last block of each part ends with columns that kernels may read but do not use.
    """
    if gemm.sums == 1 or gemm.parts_apart:
        return columns
    width = gemm.part_width
    if width > 1:
        columns = ceil_div(columns, Integer(width)) * width
    return columns * gemm.sums


def add_part_number(gemm: GemmProblem, e: KernelEditor) -> None:
    """Add the dimension that numbers the parts of B; each part gives one sum of the epilogue."""
    e.coordinates.add(MacroTileIndex(PART, Integer(gemm.sums), note="which sum of the epilogue"))


def divide_columns(gemm: GemmProblem, e: KernelEditor, columns: str, extent: Expr) -> str:
    """Divide the columns of B into parts, one for each sum of the epilogue.

    The edges are::

        columns --Tile--> part, B.column                  stacked
        columns --Tile--> B.column, part                  interleaved
        columns --Tile--> B.block, part, B.block.column   interleaved by blocks
        B.block, B.block.column --Flatten--> B.column

    Args:
        gemm: the problem.
        e: the editor.
        columns: the dimension of B's columns.
        extent: the number of columns of a part, which is n.

    Returns:
        The id of the dimension that numbers the columns of each part; `columns` if each part is a
        matrix of its own.
    """
    if gemm.parts_apart:
        return columns
    inside, width = PART_COLUMN, gemm.part_width
    add_part_number(gemm, e)
    e.coordinates.add(Linear(inside, extent, note="column in a part"))
    if width > 1:
        # The number of blocks is not given: the size of B's columns limits it.
        block = e.coordinates.add(Linear(PART_BLOCK, note=f"{width} columns of each part")).id
        column = e.coordinates.add(Linear(f"{PART_BLOCK}.column", Integer(width))).id
        e.coordinates.connect(Tile((columns,), (block, PART, column)))
        e.coordinates.connect(Flatten((block, column), inside))
    else:
        e.coordinates.connect(Tile((columns,), (inside, PART) if width else (PART, inside)))
    return inside
