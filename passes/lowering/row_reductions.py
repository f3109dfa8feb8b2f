"""Reductions of rows of an output tile on a GPU: in registers, over lanes, and over warps.

A thread reduces its own elements of each row while the epilogue computes them. Lanes of a warp that
hold other elements of the same rows are merged by shuffles. If several warps divide the columns of
the tile, each writes its results to shared memory, and the first of them combines the results of
all, in order. So each run gives the same bits. The edges, if several warps divide the columns::

    sums.shared --Tile--> reduce.warp, reduce.row
    reduce.row --PassThrough--> the position along m of an element of D
    reduce.own --Tile--> the coordinates of warps that divide the columns
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from sympy import And, Integer
from sympy.logic.boolalg import Boolean

from coordgraph.control.lowered import Barrier
from coordgraph.control.operations import Body, Epilogue, For, If, Operation, SetCoordinate
from coordgraph.control.row_reductions import (
    CombineRows,
    ReduceLanes,
    StartRows,
    StoreRows,
    rows_of,
)
from coordgraph.coordinates.dimensions import Linear, Shared, Unroll, WarpNumber
from coordgraph.coordinates.edges import PassThrough, Tile
from coordgraph.coordinates.graph import CoordinateEditor
from coordgraph.epilogue.output import Output
from coordgraph.gemm import GemmProblem
from coordgraph.integers import equal, index_symbol
from coordgraph.tilings import Tiling
from passes.lowering.control import at, unrolled

__all__ = ["RowLayout", "RowReductions", "exchange_bytes"]

KIND, KIND_BYTES = "f32", 4
"""The element type of the partial results of row reductions that warps exchange through shared
memory, and the number of bytes of an element."""
ALIGNMENT = 128
"""The largest alignment, in bytes, of a shared-memory allocation that is not for tiles of A, B or
D. `exchange_bytes` rounds the size of each allocation up to a multiple of this number."""


def exchange_bytes(gemm: GemmProblem, rows: int, warps: int, turns: int = 1) -> int:
    """Bytes of shared memory through which warps combine their reductions of rows.

    Args:
        gemm: the matrix product: element types, extents, layouts and epilogue.
        rows: number of rows of a workgroup's part of a tile.
        warps: number of warps that divide the columns of the tile.
        turns: number of warpgroups that compute different tiles.
    """
    own = -(-rows * warps * turns * KIND_BYTES // ALIGNMENT) * ALIGNMENT
    return own * len(gemm.row_reductions) if warps > 1 else 0


@dataclass(frozen=True)
class RowLayout:
    """Where the elements of a row of D are: in which registers, lanes and warps.

    Args:
        rows: the register coordinates that number the rows of which a thread holds elements.
        lane: the lane coordinate along the columns.
        warps: the coordinates of warps and warpgroups that divide the columns.
        counts: for each of `warps`, how many warps or warpgroups there are.
        row: the coordinate of the row in a workgroup's part of the tile.
        turn: 1-tuple of the coordinate that numbers warpgroups which compute different tiles; ()
            if all warps of the workgroup compute one tile.
        turns: number of warpgroups that compute different tiles; 1 if all compute one tile.
    """

    rows: tuple[str, ...]
    lane: str
    warps: tuple[str, ...]
    counts: tuple[int, ...]
    row: str
    turn: tuple[str, ...] = ()
    turns: int = 1


class RowReductions:
    """The operations and edges that reduce the rows of tiles of one shape.

    Args:
        c: the coordinate graph under construction, with the accumulator's coordinates.
        gemm: the matrix product: element types, extents, layouts and epilogue.
        tiling: the tiles of A, B and D of one shape, and their dimensions.
        layout: the registers, lanes and warps that hold the elements of a row of D.
        barrier: the barrier among the threads that hold the accumulator.
    """

    def __init__(
        self,
        c: CoordinateEditor,
        gemm: GemmProblem,
        tiling: Tiling,
        layout: RowLayout,
        barrier: Barrier,
    ) -> None:
        self.c, self.tiling, self.layout, self.barrier = c, tiling, layout, barrier
        self.outputs = [gemm.outputs[name] for name in gemm.row_reductions]
        self.several = bool(self.outputs) and prod(layout.counts) > 1
        names = ("reduce.warp", "reduce.row", "reduce.own")
        self.warp, self.row, self.own = map(tiling.own, names)
        if self.several:
            self._add_memory()

    def _add_memory(self) -> None:
        """Add shared memory for each output's partial results, with edges to rows and warps."""
        c, layout, count = self.c, self.layout, prod(self.layout.counts)
        rows = c[layout.row].fixed_size
        c.add(Unroll(self.warp, Integer(count), note="warps that divide the columns"))
        c.add(Linear(self.row, Integer(rows), note="rows of a tile"))
        c.add(Linear(self.own, Integer(count), note="the thread's warp among these"))
        c.connect(PassThrough(self.row, layout.row))
        c.connect(Tile(self.own, layout.warps))
        for output in self.outputs:
            size = Integer(rows * count * layout.turns)
            c.add(Shared(self._shared(output), size, element=KIND))
            c.connect(Tile(self._shared(output), (*layout.turn, self.warp, self.row)))

    def _shared(self, output: Output) -> str:
        """The shared memory through which warps combine their reductions of rows for an output."""
        return self.tiling.own(f"{output.name}.shared")

    def around(self, op: Epilogue, body: Body) -> Body:
        """Put the reductions of rows of the epilogue `op` around `body`, its other operations."""
        outputs = [output for output in self.outputs if output.name in op.stores]
        if not outputs:
            return body
        start = (StartRows(rows_of(o.name), self.layout.rows, o.reduce) for o in outputs)
        lanes = (
            ReduceLanes(rows_of(o.name), self.layout.rows, o.reduce, self._distances())
            for o in outputs
        )
        finish = self._over_warps(outputs) if self.several else self._store(outputs, self._first)
        return (*map(self._each, start), *body, *map(self._each, lanes), *finish)

    def _each(self, *body: Operation) -> Operation:
        """Unrolled loops that execute `body` for all rows of which a thread holds elements."""
        return unrolled(self.c, self.layout.rows, *body)

    def _distances(self) -> tuple[int, ...]:
        """The distances, in lanes, at which shuffles merge the lanes of a row."""
        graph, lane = self.c.finish(), self.layout.lane
        (edge,) = graph.edges_below(lane)
        bits = (1 << i for i in range((self.c[lane].fixed_size - 1).bit_length()))
        at_bits = ({**dict.fromkeys(edge.upstream, 0), lane: bit} for bit in bits)
        return tuple(int(graph.forward(known, edge.downstream)[0]) for known in at_bits)

    @property
    def _first(self) -> Boolean:
        """The condition that the thread is in the first of the lanes that hold a row."""
        workitem = {"workitem": index_symbol("workitem")}
        (lane,) = self.c.finish().reverse(workitem, [self.layout.lane])
        return equal(lane, 0)

    def _store(self, outputs: list[Output], condition: Boolean, *before: Operation) -> Body:
        """Let one thread for each row write the row's results to the tensors of the outputs.

        Args:
            outputs: the outputs that reduce rows.
            condition: true in the threads that write.
            before: operations that these threads execute before they write.
        """
        stores = (
            at(
                {self.tiling.index(o.name, 1): 0},
                StoreRows(rows_of(o.name), o.name, self.layout.rows),
            )
            for o in outputs
        )
        return (If(condition, (*before, *map(self._each, stores))),)

    def _over_warps(self, outputs: list[Output]) -> Body:
        """Combine the warps' reductions of each row through shared memory, in the order of warps.

        The second barrier orders the reads of a tile before the writes of the next tile.
        """
        graph = self.c.finish()
        numbered = [dim.id for dim in graph.of_kind(WarpNumber)] or ["workitem"]
        known = {dim: index_symbol(dim) for dim in numbered}
        (own,) = graph.reverse(known, [self.own])
        writes = (
            self._each(StoreRows(rows_of(o.name), self._shared(o), self.layout.rows))
            for o in outputs
        )
        reads = (
            self._each(CombineRows(rows_of(o.name), self._shared(o), self.layout.rows, o.reduce))
            for o in outputs
        )
        others = For(
            self.warp,
            Integer(1),
            Integer(prod(self.layout.counts)),
            body=tuple(reads),
            unroll=True,
        )
        first = self._first
        return (
            If(first, (SetCoordinate(self.warp, own, tuple(writes)),)),
            self.barrier,
            *self._store(outputs, And(first, equal(own, 0)), others),
            self.barrier,
        )
