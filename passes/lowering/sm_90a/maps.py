"""Maps: what TMA is told of matrices whose extents are data.

It is told of a tensor by a map, an argument of the launch. Where every group has a matrix of its
own extents and row pitch, one map does not do. So every workgroup writes one for each group that it
comes to, into a place of its own for that group, and boxes are of that map: they end where the
matrix does, at all of its sides. The edges, of `tensors` that have such matrices::

    maps --Tile--> holder, map.group, map.number, map.word; map.group --PassThrough--> group
    maps.shared --Tile--> map.number, map.word

To write maps and bring them near takes microseconds. So a warp of its own does it, which walks the
same schedule a tile or two ahead of the producer: a ring of their own says how far. Consumers, who
store D, come to know through the producer's barriers. A place is never written with anything else
in a launch, so that nobody waits before writing one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sympy import Expr, Integer

from coordgraph.control.asynchronous import (
    Advance,
    ArriveBarrier,
    Counter,
    DescribeMatrix,
    WaitBarrier,
)
from coordgraph.control.operations import Body, If, Operation, Scope
from coordgraph.coordinates.dimensions import Linear, Shared, User
from coordgraph.coordinates.edges import Diagonal, PassThrough, Ragged, Tile
from coordgraph.coordinates.graph import CoordinateEditor, CoordinateGraph
from coordgraph.integers import equal, floor_div, index_symbol, maximum, minimum
from coordgraph.kernel import KernelEditor, KernelGraph
from coordgraph.tensors import Role, Tensor
from passes.lowering.control import at
from passes.lowering.sm_90a.division import LANES, RANK, WARP, WARPS, Division
from passes.lowering.sm_90a.ring import Ring

__all__ = ["Maps", "axis_of", "blocks_of"]

MAPS = "maps"
AHEAD = 2
"""Tiles whose maps are written and not yet used."""
RING = Ring("map", "map.stage", "barrier.described", "barrier.used")
WORDS, WORD_BYTES = 32, 4
"""Words in a map (CUDA driver API, CUtensorMap), and bytes of one."""


def blocks_of(graph: CoordinateGraph, tensor: str) -> Diagonal | None:
    """How the matrices of a tensor lie in it, where their extents are data."""
    found = (e for user in graph.of_kind(User, tensor=tensor) for e in graph.edges_below(user))
    return next((edge for edge in found if isinstance(edge, Diagonal)), None)


def axis_of(graph: CoordinateGraph, axis: str, tensor: str) -> str:
    """The coordinate that boxes begin at: inside the matrix, where each has a map of its own."""
    if blocks_of(graph, tensor) is None:
        return axis
    (below,) = (e for e in graph.edges_below(axis) if isinstance(e, Ragged))
    return below.downstream[1]


@dataclass(frozen=True)
class Maps:
    """The maps of a group's matrices: a number for each of the tensors."""

    tensors: tuple[str, ...]

    @classmethod
    def of(cls, graph: KernelGraph, tensors: Sequence[str]) -> Maps:
        """Those of `tensors` whose matrices have extents of their own."""
        return cls(tuple(t for t in tensors if blocks_of(graph.coordinates, t)))

    @property
    def bytes(self) -> int:
        """Of shared memory."""
        return WORD_BYTES * WORDS * len(self.tensors)

    def add(self, e: KernelEditor, workgroup: str, ranks: int) -> None:
        """Room for them, in memory and, where one is put together, in shared memory.

        Args:
            e: the kernel being built.
            workgroup: the coordinate of the grid.
            ranks: workgroups of CUDA for each of the schedule's.
        """
        if not self.tensors:
            return
        c = e.coordinates
        group, workgroups = self._group(c), c[workgroup].size
        groups = c[group].size
        assert groups is not None
        assert workgroups is not None
        number = Integer(len(self.tensors))
        shape = (workgroups * ranks, groups, number, Integer(WORDS))
        e.tensors += (Tensor(MAPS, "i32", shape, Role.MAPS),)
        RING.add(c, AHEAD, "running number of a tile")
        c.add(User(MAPS, workgroups * ranks * groups * number * WORDS, tensor=MAPS))
        c.add(Shared("maps.shared", number * WORDS, element="i32", note="a map in the making"))
        c.add(Linear("map.number", number, note="which tensor's"))
        c.add(Linear("map.word", Integer(WORDS)))
        holders = {"map.workgroup": (workgroup, workgroups), "map.group": (group, groups)}
        if ranks > 1:
            first, last = holders.items()
            holders = dict((first, ("map.rank", (RANK, Integer(ranks))), last))
        for name, (below, size) in holders.items():
            c.add(Linear(name, size))
            c.connect(PassThrough(name, below))
        words = ("map.number", "map.word")
        c.connect(Tile(MAPS, (*holders, *words)))
        c.connect(Tile("maps.shared", words))

    def _group(self, c: CoordinateEditor) -> str:
        """The coordinate that tells the matrices apart."""
        (group,) = {self._blocks(c, tensor).downstream[0] for tensor in self.tensors}
        return group

    @staticmethod
    def _blocks(c: CoordinateEditor, tensor: str) -> Diagonal:
        edge = blocks_of(c.finish(), tensor)
        assert edge is not None
        return edge

    def place(self, tensor: str, *body: Operation) -> Operation:
        """The body, where the map is a tensor's; as it is, where that has one for all."""
        if tensor not in self.tensors:
            (only,) = body
            return only
        return at({"map.number": self.tensors.index(tensor), "map.word": 0}, *body)

    def name(self, tensor: str) -> str:
        """The coordinate of a tensor's map; '' where it is an argument."""
        return MAPS if tensor in self.tensors else ""

    def initial(self, c: CoordinateEditor) -> Body:
        """What one workitem does before all others begin."""
        return RING.initial(c, LANES, LANES) if self.tensors else ()

    def described(self, c: CoordinateEditor, division: Division, describe: Body) -> Body:
        """The role of the warp after the producer."""
        if not self.tensors:
            return ()
        role = self.counted(Scope("describer", describe))
        return (If(equal(index_symbol(WARP), division.consumers * WARPS + 1), role),)

    def counted(self, body: Operation) -> Body:
        """What walks the schedule, and counts tiles for the maps' ring."""
        return (Counter(RING.step, (body,)),) if self.tensors else (body,)

    def describe(self, c: CoordinateEditor) -> Body:
        """Write the maps of the tile at hand."""
        if not self.tensors:
            return ()
        every = (self.place(t, self._described(c, t)) for t in self.tensors)
        wait = WaitBarrier(RING.empty, RING.phase, before=True)
        return (wait, *every, ArriveBarrier(RING.full), Advance(RING.step))

    def await_described(self) -> Body:
        """What the producer does before the boxes of the tile at hand."""
        if not self.tensors:
            return ()
        wait = WaitBarrier(RING.full, RING.phase)
        return (wait, ArriveBarrier(RING.empty), Advance(RING.step))

    def _described(self, c: CoordinateEditor, tensor: str) -> Operation:
        """The matrix of the group at hand.

        One without elements is told to have one, which nothing is to come of: it must lie in the
        tensor all the same, and no other row may.
        """
        graph, edge = c.finish(), self._blocks(c, tensor)
        group, one = graph.symbol(edge.downstream[0]), Integer(1)
        places = {axis_of(graph, axis, tensor): 0 for axis in edge.downstream[1:]}
        elements = graph.size(tensor)
        assert elements is not None
        (first,) = graph.reverse({edge.downstream[0]: group, **places}, [tensor])
        step = Integer(edge.step)
        last = floor_div(elements - 1, step) * step  # where a matrix may begin
        rows, columns = (edge.extent(table, group) for table in (edge.rows, edge.columns))
        extents: tuple[Expr, Expr] = (
            maximum(columns * minimum(one, rows), one),
            maximum(rows * minimum(one, columns), one),
        )
        pitch = maximum(edge.pitch(group), step)
        return DescribeMatrix(tensor, MAPS, "maps.shared", minimum(first, last), extents, pitch)
