"""The order in which columns of B are multiplied if the epilogue has several sums.

An epilogue such as `silu(gate) * up` computes an element of D from two sums, one for each part of
B's columns. Along n, a tile of B has as many columns in each part (the coordinate `part`) as a tile
of D has in all. Matrix instructions multiply a plain range of columns. A lowering orders this range
so that all sums of an element of D are registers of one thread:

    B.index.1 --Tile--> B.outer, B.inner        B.outer, part, B.inner --Flatten--> B.columns

The edges are the same wherever the parts are in memory, because the graph derives an address in B
from `part`.
"""

from __future__ import annotations

from dataclasses import replace

from sympy import Integer

from coordgraph.coordinates.dimensions import Linear, MacroTileIndex
from coordgraph.coordinates.edges import Flatten, PassThrough, Tile
from coordgraph.coordinates.graph import CoordinateEditor
from coordgraph.gemm import PART, SUM, GemmProblem
from coordgraph.tilings import Tiling

__all__ = ["ordered_columns", "tie_sums", "too_many_sums"]

MOST_SUMS = 2
"""Largest number of sums of an epilogue on a GPU: 2, the size of the register coordinate that
numbers the sums of an element of D."""


def too_many_sums(gemm: GemmProblem) -> str | None:
    """Why a GPU cannot compute the epilogue's sums, or None if it can."""
    if gemm.sums <= MOST_SUMS:
        return None
    return (
        f"the epilogue {gemm.epilogue.name} has {gemm.sums} sums, and GPU kernels have at most "
        f"{MOST_SUMS}; use target='cpu', or compute the sums in separate products"
    )


def ordered_columns(c: CoordinateEditor, tiling: Tiling, inner: int) -> Tiling:
    """Order the columns of B's tiles for matrix instructions, if the epilogue has several sums.

    Args:
        c: the coordinate graph under construction.
        tiling: the tiles of A, B and D of one shape, and their dimensions.
        inner: number of columns of one part of B (the columns of one sum) that are multiplied
            before columns of the next part.

    Returns:
        A copy of `tiling` in which B's index along n counts the columns of all parts in this
        order; `tiling` itself if the epilogue has one sum.
    """
    if tiling.sums == 1:
        return tiling
    own = tiling.own
    columns = tiling.shape[1]
    c.add(Linear(own("B.outer"), Integer(columns // inner), note="group of columns"))
    c.add(Linear(own("B.inner"), Integer(inner), note="column of a part in its group"))
    every = MacroTileIndex(
        own("B.columns"), Integer(columns * tiling.sums), tensor="B", axis=1, note="of all parts"
    )
    c.add(every)
    c.connect(Tile(tiling.index("B", 1), (own("B.outer"), own("B.inner"))))
    c.connect(Flatten((own("B.outer"), PART, own("B.inner")), every.id))
    return replace(tiling, indices={**tiling.indices, ("B", 1): every}, sums=1)


def tie_sums(c: CoordinateEditor, register: str, vector: str = "") -> None:
    """Add the edge that makes a sum's number in workspaces equal to its register coordinate.

    A workspace holds partial sums for each sum of the epilogue; the coordinate `SUM` numbers the
    sums.

    Partial sums are exchanged a vector of registers at a time. If the sums of an element are one
    vector, they must be adjacent in the workspace, so the edge of `partials` is replaced by
    `partials --Tile--> slot, row, column, sum`.

    Args:
        c: the coordinate graph under construction.
        register: the register coordinate that numbers the sums of one element of D; '' if the
            epilogue has one sum.
        vector: the coordinate along a vector of registers; '' if partial sums are exchanged one by
            one.
    """
    if not register or SUM not in c:
        return
    c.connect(PassThrough(SUM, register))
    if register == vector:
        (edge,) = c.finish().edges_below("partials")
        c.disconnect(edge)
        others = (dim for dim in edge.downstream if dim != SUM)
        c.connect(Tile("partials", (*others, SUM)))
