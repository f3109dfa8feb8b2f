"""Tensor maps (CUtensorMap) that the kernel writes itself, for matrices whose extents are data.

TMA needs a tensor map of each matrix. Usually the launch passes one map for each tensor. In a list
of products, each group has a matrix with its own extents and leading dimension, which are known on
the device only. So each workgroup writes a map for each group that it works on, to a slot in global
memory that belongs to this workgroup and this group. TMA then clips boxes at the ends of that
matrix. The edges of the coordinate graph, for the tensors that need such maps::

    maps --Tile--> workgroup, map.group, map.number, map.word; map.group --PassThrough--> group
    maps.shared --Tile--> map.number, map.word

Writing a map and making it visible to TMA takes microseconds. So a warp of its own, the describer
warp, runs up to two tiles ahead of the producer; a ring of mbarriers limits how far. Consumers,
which store D, are ordered after the writes through the producer's barriers. A slot is only ever
written with one value during a launch, so the describer does not wait before it writes a slot.
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
"""The name of the tensor, in global memory, that holds the tensor maps."""
AHEAD = 2
"""The most tiles whose tensor maps are written before the producer uses them."""
RING = Ring("map", "map.stage", "barrier.described", "barrier.used")
"""The ring of tiles with written maps, filled by the describer warp and emptied by the producer."""
WORDS, WORD_BYTES = 32, 4
"""WORDS: 32-bit words of a CUtensorMap (CUDA driver API). WORD_BYTES: bytes of a word."""


def blocks_of(graph: CoordinateGraph, tensor: str) -> Diagonal | None:
    """The edge that says where each group's matrix is in a tensor; None if groups share a matrix.

    Only in a list of products does each group have matrices with extents of its own.
    """
    found = (e for user in graph.of_kind(User, tensor=tensor) for e in graph.edges_below(user))
    return next((edge for edge in found if isinstance(edge, Diagonal)), None)


def axis_of(graph: CoordinateGraph, axis: str, tensor: str) -> str:
    """The coordinate whose index is passed to TMA as the start of a box along `axis`.

    It is the position in the tensor; or the position in a matrix, if each matrix has its own map.
    """
    if blocks_of(graph, tensor) is None:
        return axis
    (below,) = (e for e in graph.edges_below(axis) if isinstance(e, Ragged))
    return below.downstream[1]


@dataclass(frozen=True)
class Maps:
    """The tensor maps that the kernel writes for each group.

    Args:
        tensors: the tensors that need such maps; a tensor's index here is its `map.number`.
    """

    tensors: tuple[str, ...]

    @classmethod
    def of(cls, graph: KernelGraph, tensors: Sequence[str]) -> Maps:
        """The maps of those of `tensors` whose matrices have extents that are data."""
        return cls(tuple(t for t in tensors if blocks_of(graph.coordinates, t)))

    @property
    def bytes(self) -> int:
        """Bytes of shared memory in which maps are assembled before they are copied out."""
        return WORD_BYTES * WORDS * len(self.tensors)

    def add(self, e: KernelEditor, workgroup: str, ranks: int) -> None:
        """Add the maps' memory: slots in global memory, and shared memory to assemble a map.

        Args:
            e: the kernel under construction.
            workgroup: the coordinate of the workgroup in the grid (of the cluster, if clusters
                have several workgroups).
            ranks: workgroups of a cluster.
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
        """The coordinate that is a group's number; each group has one matrix of each tensor."""
        (group,) = {self._blocks(c, tensor).downstream[0] for tensor in self.tensors}
        return group

    @staticmethod
    def _blocks(c: CoordinateEditor, tensor: str) -> Diagonal:
        """The edge of the coordinate graph that says where each group's matrix is in a tensor."""
        edge = blocks_of(c.finish(), tensor)
        assert edge is not None
        return edge

    def place(self, tensor: str, *body: Operation) -> Operation:
        """The operations `body`, run with the coordinates that select the tensor map of `tensor`.

        If the kernel writes no map for that tensor, `body` is returned unchanged.
        """
        if tensor not in self.tensors:
            (only,) = body
            return only
        return at({"map.number": self.tensors.index(tensor), "map.word": 0}, *body)

    def name(self, tensor: str) -> str:
        """The coordinate of the tensor's map; '' if the launch passes the map as an argument."""
        return MAPS if tensor in self.tensors else ""

    def initial(self, c: CoordinateEditor) -> Body:
        """Initialise the mbarriers of the maps' ring; one thread executes this first."""
        return RING.initial(c, LANES, LANES) if self.tensors else ()

    def describer(self, c: CoordinateEditor, division: Division, describe: Body) -> Body:
        """The describer warp's operations, guarded so that only the warp after the producer runs.

        Args:
            c: the coordinate graph under construction.
            division: how a macro tile is divided; says which warp is the producer.
            describe: the schedule's loops around `describe`.
        """
        if not self.tensors:
            return ()
        role = self.counted(Scope("describer", describe))
        return (If(equal(index_symbol(WARP), division.consumers * WARPS + 1), role),)

    def counted(self, body: Operation) -> Body:
        """Wrap `body` in a counter of the steps of the maps' ring that starts at 0."""
        return (Counter(RING.step, (body,)),) if self.tensors else (body,)

    def describe(self, c: CoordinateEditor) -> Body:
        """Write the maps of the current tile's matrices, then signal the producer."""
        if not self.tensors:
            return ()
        every = (self.place(t, self._describe_matrix(c, t)) for t in self.tensors)
        wait = WaitBarrier(RING.empty, RING.phase, before=True)
        return (wait, *every, ArriveBarrier(RING.full), Advance(RING.step))

    def await_described(self) -> Body:
        """Make the producer wait until the maps of the current tile are written."""
        if not self.tensors:
            return ()
        wait = WaitBarrier(RING.full, RING.phase)
        return (wait, ArriveBarrier(RING.empty), Advance(RING.step))

    def _describe_matrix(self, c: CoordinateEditor, tensor: str) -> Operation:
        """Write the map of one tensor's matrix in the current group.

        TMA rejects an extent of 0. So an empty matrix is described as having one element; nothing
        uses that element, but its address must be inside the tensor.
        """
        graph, edge = c.finish(), self._blocks(c, tensor)
        group, one = graph.symbol(edge.downstream[0]), Integer(1)
        places = {axis_of(graph, axis, tensor): 0 for axis in edge.downstream[1:]}
        elements = graph.size(tensor)
        assert elements is not None
        (first,) = graph.reverse({edge.downstream[0]: group, **places}, [tensor])
        step = Integer(edge.step)
        last = floor_div(elements - 1, step) * step  # the last element where a matrix may begin
        rows, columns = (edge.extent(table, group) for table in (edge.rows, edge.columns))
        extents: tuple[Expr, Expr] = (
            maximum(columns * minimum(one, rows), one),
            maximum(rows * minimum(one, columns), one),
        )
        pitch = maximum(edge.pitch(group), step)
        return DescribeMatrix(tensor, MAPS, "maps.shared", minimum(first, last), extents, pitch)
