"""Tensor maps (CUtensorMap) that the kernel writes, because groups' matrices differ in extents.

TMA needs a tensor map of each matrix. Usually the launch passes one map for each tensor. In a
kernel for a list of products, each group has a matrix with its own extents and leading dimension,
which are known on the device only. So each workgroup writes a map for each group that it works on,
to a slot in global memory that belongs to this workgroup and this group. TMA then clips boxes at
the ends of that matrix. The edges of the coordinate graph, for the tensors that need such maps::

    maps --Tile--> workgroup, map.group, map.number, map.word; map.group --PassThrough--> group
    maps.shared --Tile--> map.number, map.word

Writing a map and making it visible to TMA takes microseconds. So a separate warp, the describer
warp, writes maps up to two tiles ahead of the producer warp; a ring of mbarriers limits how far.
Consumers, which store D, are ordered after the writes through the producer's barriers. During a
launch, all writes to a slot store the same map, so the describer warp need not wait until readers
have finished with the slot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
"""Largest number of tiles by which the describer warp, which writes tensor maps, is ahead of the
producer warp."""
RING = Ring("map", "map.stage", "barrier.described", "barrier.used")
"""The ring of mbarriers by which the describer warp, which writes tensor maps, signals the producer
warp that the maps of a tile are written."""
WORDS, WORD_BYTES = 32, 4
"""WORDS: number of 32-bit words of a CUtensorMap (CUDA driver API). WORD_BYTES: number of bytes of
such a word."""


def blocks_of(graph: CoordinateGraph, tensor: str) -> Diagonal | None:
    """The edge that locates each group's own matrix in a tensor; None if groups share a matrix.

    Groups have matrices of their own only in a kernel for a list of products.
    """
    found = (e for user in graph.of_kind(User, tensor=tensor) for e in graph.edges_below(user))
    return next((edge for edge in found if isinstance(edge, Diagonal)), None)


def axis_of(graph: CoordinateGraph, axis: str, tensor: str) -> str:
    """The coordinate whose index is passed to TMA as the start of a box along `axis`.

    The index of this coordinate is the position in the tensor or, if each matrix has its own tensor
    map, the position in the matrix.
    """
    if blocks_of(graph, tensor) is None:
        return axis
    (below,) = (e for e in graph.edges_below(axis) if isinstance(e, Ragged))
    return below.downstream[1]


@dataclass(frozen=True)
class Maps:
    """The tensor maps that the kernel itself writes for each group.

    Args:
        tensors: the tensors that need such maps; the index of a tensor in this tuple is its index
            along the coordinate `map.number`.
    """

    tensors: tuple[str, ...]

    @classmethod
    def of(cls, graph: KernelGraph, tensors: Sequence[str]) -> Maps:
        """The `Maps` of those `tensors` that need one tensor map per group, made by the kernel."""
        return cls(tuple(t for t in tensors if blocks_of(graph.coordinates, t)))

    @property
    def bytes(self) -> int:
        """Bytes of shared memory in which tensor maps are made before the copy to global memory."""
        return WORD_BYTES * WORDS * len(self.tensors)

    def add(self, e: KernelEditor, workgroup: str, ranks: int) -> None:
        """Add the memory of the tensor maps: in global memory, and in shared memory to make a map.

        Args:
            e: the kernel under construction.
            workgroup: the coordinate of the workgroup in the grid, or of the cluster in the grid
                if clusters have several workgroups.
            ranks: number of workgroups of a cluster.
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
        """The coordinate that numbers the groups; each group has its own matrix in every tensor."""
        (group,) = {self._blocks(c, tensor).downstream[0] for tensor in self.tensors}
        return group

    @staticmethod
    def _blocks(c: CoordinateEditor, tensor: str) -> Diagonal:
        """The edge of the coordinate graph that says where each group's matrix is in a tensor."""
        edge = blocks_of(c.finish(), tensor)
        assert edge is not None
        return edge

    def place(self, tensor: str, *body: Operation) -> Operation:
        """Select the kernel-written tensor map of `tensor` for the operations in `body`.

        The result sets the coordinates `map.number` and `map.word` around `body`. If the launch
        passes the map of `tensor`, the result is the single operation in `body`.
        """
        if tensor not in self.tensors:
            (only,) = body
            return only
        return at({"map.number": self.tensors.index(tensor), "map.word": 0}, *body)

    def name(self, tensor: str) -> str:
        """The coordinate of the memory of a tensor's tensor map; '' if launches pass the map."""
        return MAPS if tensor in self.tensors else ""

    def initial(self, c: CoordinateEditor) -> Body:
        """Initialise the mbarriers between the warp that writes tensor maps and the producer warp.

        One thread does so at the start of the kernel.
        """
        return RING.initial(c, LANES, LANES) if self.tensors else ()

    def describer(
        self,
        c: CoordinateEditor,
        division: Division,
        describe: Body,
        counted: Callable[[Operation], Operation],
    ) -> Body:
        """The operations of the describer warp, which writes the tensor maps of each group.

        The describer warp is the warp after the producer warp.

        Args:
            c: the coordinate graph under construction.
            division: how a macro tile is divided, which decides the numbers of the two warps.
            describe: the schedule's loops over tiles, around the operations of `Maps.describe`.
            counted: a function that wraps the warp's operations in a counter of the tiles that a
                dynamic loop takes, if the graph has such a loop.
        """
        if not self.tensors:
            return ()
        role = self.counted(counted(Scope("describer", describe)))
        return (If(equal(index_symbol(WARP), division.consumers * WARPS + 1), role),)

    def counted(self, body: Operation) -> Body:
        """Wrap `body` in a counter, from 0, of tiles whose tensor maps are written or awaited."""
        return (Counter(RING.step, (body,)),) if self.tensors else (body,)

    def describe(self, c: CoordinateEditor) -> Body:
        """Write the tensor maps of the current tile's matrices, then signal the producer warp."""
        if not self.tensors:
            return ()
        every = (self.place(t, self._describe_matrix(c, t)) for t in self.tensors)
        wait = WaitBarrier(RING.empty, RING.phase, before=True)
        return (wait, *every, ArriveBarrier(RING.full), Advance(RING.step))

    def await_described(self) -> Body:
        """Make the producer warp wait until the tensor maps of the current tile are written."""
        if not self.tensors:
            return ()
        wait = WaitBarrier(RING.full, RING.phase)
        return (wait, ArriveBarrier(RING.empty), Advance(RING.step))

    def _describe_matrix(self, c: CoordinateEditor, tensor: str) -> Operation:
        """Write the tensor map of the current group's matrix in a tensor.

        TMA rejects an extent of 0, so the map of an empty matrix has one element. The element's
        address must be inside the tensor, although other operations ignore the element or replace
        it by 0.
        """
        graph, edge = c.finish(), self._blocks(c, tensor)
        group, one = graph.symbol(edge.downstream[0]), Integer(1)
        places = {axis_of(graph, axis, tensor): 0 for axis in edge.downstream[1:]}
        elements = graph.size(tensor)
        assert elements is not None
        (first,) = graph.reverse({edge.downstream[0]: group, **places}, [tensor])
        step = Integer(edge.step)
        last = floor_div(elements - 1, step) * step  # last element at which a matrix may begin
        rows, columns = (edge.extent(table, group) for table in (edge.rows, edge.columns))
        extents: tuple[Expr, Expr] = (
            maximum(columns * minimum(one, rows), one),
            maximum(rows * minimum(one, columns), one),
        )
        pitch = maximum(edge.pitch(group), step)
        return DescribeMatrix(tensor, MAPS, "maps.shared", minimum(first, last), extents, pitch)
