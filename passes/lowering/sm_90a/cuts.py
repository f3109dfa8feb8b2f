"""Cuts: boxes of D that end where TMA cannot end them.

TMA drops what of a box lies outside the tensor. Where rows of a group end inside the
tensor, it would write on. So a box that lies inside its group goes by TMA, and one that
reaches over the end is brought from shared memory to D by the workitems of its warpgroup, in chunks
of 16 bytes, each behind the guard of the coordinate graph. What cuts a box is read from the graph:
every guard between an axis of D and the tile, but that of the axis' own end.
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
    """For each axis of a tensor, the guards that TMA does not check, if any.

    They are of an index that rises along the axis, and hold up to some end.

    Args:
        located: what is known of a tile beside its number.
        maps: boxes end where the matrices do that have maps of their own.
    """
    if maps and blocks_of(graph, tensor):
        return {}
    found: dict[str, tuple[Boolean, ...]] = {}
    for axis in (0, 1):
        name = f"{tensor}.{axis}"
        known = (*located, tiling.number(tensor, axis), tiling.index(tensor, axis))
        end = Lt(graph.symbol(name), graph.size(name))
        guards = (
            guard
            for edge in solve(graph, Direction.REVERSE, known, [name]).path
            for guard in edge.guard(
                tuple(map(graph.symbol, edge.upstream)),
                tuple(map(graph.symbol, edge.downstream)),
                graph.sizes(edge),
            )
        )
        if others := tuple(guard for guard in guards if guard != end):
            found[name] = others
    return found


def holds(graph: CoordinateGraph, guard: Boolean, known: Mapping[str, Expr | int]) -> Boolean:
    """A guard at some place: its coordinates replaced by what they are there."""
    read = [d.id for d in graph if d.symbol in guard.free_symbols]
    values = graph.reverse(known, read)
    return guard.xreplace(dict(zip(map(graph.symbol, read), values, strict=True)))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class RowCopy:
    """A box in shared memory, copied to D by the workitems of a warpgroup.

    A box has `rows` rows of `chunks` chunks of 16 bytes, of `width` elements each. They are dealt
    to the workitems in passes, row by row: neighbouring lanes have neighbouring chunks.
    """

    tiling: Tiling
    rows: int
    chunks: int
    width: int

    def add(self, c: CoordinateEditor, row: str, column: str) -> tuple[str, str]:
        """Tie a box's `row` and `column` in D to passes, warps and lanes.

        Returns its row, and its chunk before the swizzle.
        """
        own, count = self.tiling.own, self.rows * self.chunks
        names = ("row", "chunk", "vector", "pass")
        here, chunk, vector, turn = (own(f"store.copy.{name}") for name in names)
        c.add(Linear(here, Integer(self.rows), note="row of a box"))
        c.add(Linear(chunk, Integer(self.chunks), note="16-byte chunk of a row"))
        c.add(Linear(vector, Integer(count), note="chunks of a box"))
        c.add(Register(turn, Integer(count // WARPGROUP), note="chunks that a workitem copies"))
        c.connect(Flatten((here, chunk), vector))
        c.connect(Tile(vector, (turn, "warp", "lane")))
        c.connect(PassThrough(row, here))
        c.connect(Tile(column, (chunk, own("D.shared.element"))))
        return here, chunk

    def copy(self, c: CoordinateEditor, source: str, tensor: str) -> Operation:
        """Every chunk whose row is inside; the others are left out."""
        own = self.tiling.own
        copy = CopyElements(source, tensor, self.width)
        return unrolled(c, (own("store.copy.pass"),), at({own("D.shared.element"): 0}, copy))
