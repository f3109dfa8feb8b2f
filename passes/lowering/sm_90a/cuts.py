"""Stores of boxes of D that extend past the end of a group, where TMA does not clip boxes.

TMA clips a box at the end of a tensor only. In a grouped problem a group may end inside D, and TMA
would overwrite rows of the next group. So TMA stores a box only if it is entirely inside its group.
Any other box is copied from shared memory to D by the threads of its warpgroup, in chunks of 16
bytes; a chunk is copied only if the coordinate graph's conditions hold at its position. An axis of
a tensor is *cut* if the edges from the axis to the tile have a guard (a condition for elements that
are not padding) besides the guard for the end of the tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sympy import Expr, Integer, Lt
from sympy.logic.boolalg import Boolean

from coordgraph.control.lowered import CopyElements
from coordgraph.control.operations import Operation
from coordgraph.coordinates.dimensions import Linear, Register
from coordgraph.coordinates.edges import Flatten, PassThrough, Tile
from coordgraph.coordinates.graph import CoordinateEditor, CoordinateGraph
from coordgraph.coordinates.traverse import Direction, solve
from coordgraph.gemm import PART, PART_COLUMN
from coordgraph.tilings import Tiling
from passes.lowering.control import at, unrolled
from passes.lowering.sm_90a.division import WARPGROUP
from passes.lowering.sm_90a.maps import blocks_of

__all__ = ["RowCopy", "cuts", "holds"]


def cuts(
    graph: CoordinateGraph,
    tiling: Tiling,
    tensor: str,
    located: Iterable[str],
    *,
    maps: bool = True,
) -> dict[str, tuple[Boolean, ...]]:
    """The conditions along the axes of a tensor that TMA does not check (guards).

    A guard is a condition on indices that is true for those elements of a tile that come before the
    end of the tile's group along the axis. The result has the guards by the name of the axis; an
    axis along which no group ends inside the tensor has no entry.

    Args:
        graph: the coordinate graph.
        tiling: the tiles of A, B and D of one shape, and their dimensions.
        tensor: the name of the tensor.
        located: the coordinates that the scheduled graph computes for every output tile, such as
            its group's number.
        maps: whether TMA clips boxes at the ends of matrices that have their own tensor maps; if
            so, the result is empty for a tensor of such matrices.
    """
    if maps and blocks_of(graph, tensor):
        return {}
    found: dict[str, tuple[Boolean, ...]] = {}
    for axis in (0, 1):
        name = f"{tensor}.{axis}"
        known = (*located, tiling.number(tensor, axis), tiling.index(tensor, axis))
        ends = [Lt(graph.symbol(name), graph.size(name))]
        if name == "B.1" and PART in graph:
            # B has several parts, the matrices of several sums. The guard for the end of a part is
            # ignored: products of columns past that end are not stored.
            known = (*known, PART)
            if PART_COLUMN in graph:
                ends.append(Lt(graph.symbol(PART_COLUMN), graph.size(PART_COLUMN)))
        guards = (
            guard
            for edge in solve(graph, Direction.REVERSE, known, [name]).path
            for guard in edge.guard(
                tuple(map(graph.symbol, edge.upstream)),
                tuple(map(graph.symbol, edge.downstream)),
                graph.sizes(edge),
            )
        )
        if others := tuple(guard for guard in guards if guard not in ends):
            found[name] = others
    return found


def holds(graph: CoordinateGraph, guard: Boolean, known: Mapping[str, Expr | int]) -> Boolean:
    """The condition `guard` as a condition on the indices `known`.

    Each coordinate in `guard` is replaced by its index, computed from `known`.
    """
    read = [d.id for d in graph if d.symbol in guard.free_symbols]
    values = graph.reverse(known, read)
    return guard.xreplace(dict(zip(map(graph.symbol, read), values, strict=True)))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class RowCopy:
    """The copy of a box from shared memory to D by the threads of a warpgroup.

    Adjacent lanes copy adjacent 16-byte chunks of a row.

    Args:
        tiling: the tiles of A, B and D of one shape, and their dimensions.
        rows: number of rows of the box.
        chunks: number of 16-byte chunks of a row.
        width: number of elements of a chunk.
    """

    tiling: Tiling
    rows: int
    chunks: int
    width: int

    def add(self, c: CoordinateEditor, row: str, column: str) -> tuple[str, str]:
        """Add the edges from positions in a box of D to the copy step, warp and lane of the copy.

        Args:
            c: the coordinate graph under construction.
            row, column: the coordinates of the row and of the column in the box.

        Returns:
            (coordinate of the row, coordinate of the 16-byte chunk), before the swizzle.
        """
        own, count = self.tiling.own, self.rows * self.chunks
        names = ("row", "chunk", "vector", "pass")
        here, chunk, vector, turn = (own(f"store.copy.{name}") for name in names)
        c.add(Linear(here, Integer(self.rows), note="row of a box"))
        c.add(Linear(chunk, Integer(self.chunks), note="16-byte chunk of a row"))
        c.add(Linear(vector, Integer(count), note="chunks of a box"))
        turns = -(-count // WARPGROUP)
        c.add(Register(turn, Integer(turns), note="chunks that a workitem copies"))
        c.connect(Flatten((here, chunk), vector))
        c.connect(Tile(vector, (turn, "warp", "lane")))
        c.connect(PassThrough(row, here))
        c.connect(Tile(column, (chunk, own("D.shared.element"))))
        return here, chunk

    def copy(self, c: CoordinateEditor, source: str, tensor: str) -> Operation:
        """The operation that copies those chunks of a box that are inside the box's group.

        Args:
            c: the coordinate graph under construction.
            source: the coordinate of the shared memory that holds the box.
            tensor: the name of the tensor to which the chunks are copied.
        """
        own = self.tiling.own
        copy = CopyElements(source, tensor, self.width)
        return unrolled(c, (own("store.copy.pass"),), at({own("D.shared.element"): 0}, copy))
