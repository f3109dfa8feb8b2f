"""What every schedule does with the precondition: find a tile's work, flatten the tile numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sympy import Expr, Integer

from coordgraph import KernelGraph, PassError
from coordgraph.control.operations import Body, For, Locate, SetCoordinate, accumulates
from coordgraph.coordinates.dimensions import Dimension, Workgroup
from coordgraph.coordinates.edges import Concatenate, Flatten, PassThrough, Ragged
from coordgraph.kernel import KernelEditor
from coordgraph.parameters import Parameter

__all__ = [
    "TileWork",
    "accumulation_loop",
    "depth_is_data",
    "flatten_into",
    "flatten_iterations",
    "number_of",
    "number_of_iterations",
    "workgroup_count",
]

MOST_WORKGROUPS = 65535


def accumulation_loop(graph: KernelGraph) -> For:
    """The one loop that holds the `MultiplyAccumulate`."""
    loops = [op for op in graph.control.operations if accumulates(op)]
    if len(loops) != 1:
        raise PassError(f"needs one accumulation loop, the graph has {len(loops)}")
    return loops[0]


@dataclass(frozen=True)
class TileWork:
    """The control of one output tile: what precedes the accumulation, the loop, what follows.

    A schedule puts `whole()` where a workgroup has a tile to itself, `part(…)` where it has some
    of its iterations, in loops of its own under the kernel.

    Args:
        before: what begins a tile: its sums are set to 0.
        loop: the accumulation over all its iterations.
        after: what ends it: the epilogue, and the store of D.
        around: where coordinates of the tile are located, if some are.
    """

    before: Body
    loop: For
    after: Body
    around: Locate | None = None

    @classmethod
    def of(cls, graph: KernelGraph) -> TileWork:
        """Take a graph that no schedule has tied yet apart.

        Raises:
            PassError: it has not exactly one accumulation loop.
        """
        loop, body = accumulation_loop(graph), graph.control.root.body
        around = None
        if len(body) == 1 and isinstance(body[0], Locate):
            around, body = body[0], body[0].body
        at = body.index(loop)
        return cls(body[:at], loop, body[at + 1 :], around)

    def whole(self, dim: str = "") -> Body:
        """One output tile from beginning to end; `dim` counts its iterations, if it is given."""
        loop = self.accumulate(dim, self.depth) if dim else self.loop
        return self._located((*self.before, loop, *self.after))

    @property
    def depth(self) -> Expr:
        """Iterations of an output tile; may read coordinates that are located around it."""
        return self.loop.stop

    @property
    def located(self) -> tuple[str, ...]:
        """The coordinates of a tile that are located around its work."""
        return self.around.dims if self.around else ()

    def part(self, dim: str, stop: Expr, after: Body, *, first: Body = ()) -> Body:
        """Some iterations of one output tile, then `after`.

        Args:
            dim: the dimension that counts them, from 0.
            stop: how many there are.
            after: what ends the part, such as sending the sums to who ends the tile.
            first: what is worked out before; it may read what is located.
        """
        finish = SetCoordinate(dim, Integer(0), after)
        body = (*first, *self.before, self.accumulate(dim, stop), finish)
        if self.around is None:
            return body
        return (SetCoordinate(dim, Integer(0), self._located(body)),)

    def at(self, dim: str, body: Body) -> Body:
        """Operations on an output tile, in which `dim` counts iterations."""
        return (SetCoordinate(dim, Integer(0), self._located(body)),)

    def _located(self, body: Body) -> Body:
        return body if self.around is None else (replace(self.around, body=body),)

    def accumulate(self, dim: str, stop: Expr) -> For:
        """The accumulation over `stop` iterations counted by another dimension."""
        return For(dim, Integer(0), stop, body=self.loop.body)


def number_of(dimensions: tuple[Dimension, ...]) -> Expr:
    """How many tiles the tile numbers count together: the product of their sizes.

    Raises:
        PassError: one has no size.
    """
    total: Expr = Integer(1)
    for dimension in dimensions:
        if dimension.size is None:
            raise PassError(f"the tile number '{dimension.id}' has no size")
        total = total * dimension.size
    return total


def number_of_iterations(graph: KernelGraph, numbers: tuple[Dimension, ...]) -> Expr:
    """How many k tiles are added up for all output tiles that tile numbers count.

    Raises:
        PassError: a tile number has no size.
    """
    k = graph.coordinates[accumulation_loop(graph).dim]
    if k.size is not None:
        return number_of(numbers) * k.size
    parted = _parted(graph)
    among = tuple(d for d in numbers if d.id not in parted.downstream)
    return number_of((*among, graph.coordinates[parted.upstream[0]]))


def depth_is_data(graph: KernelGraph) -> bool:
    """Whether output tiles have different numbers of k tiles, which a table holds."""
    return graph.coordinates[accumulation_loop(graph).dim].size is None


def _parted(graph: KernelGraph) -> Ragged:
    """Which k tiles of all groups each has, where they have not as many."""
    if graph.parted_depth is None:
        raise PassError("how many k tiles an output tile has is nowhere said")
    return graph.parted_depth


def flatten_iterations(
    e: KernelEditor, graph: KernelGraph, numbers: tuple[Dimension, ...], below: str
) -> None:
    """Tie tile numbers and the k tiles of each output tile to one dimension, k fastest.

    Where groups have each their own number of k tiles they follow one another, output tile by
    output tile: `group, m, n, k --Concatenate--> below`.

    Args:
        e: the editor of `graph`.
        graph: what no schedule has tied yet.
        numbers: the tile numbers, which dangle no more after that.
        below: the id of a dimension that was added, with `number_of_iterations` for its size.
    """
    k = graph.coordinates[accumulation_loop(graph).dim]
    if k.size is not None:
        flatten_into(e, (*numbers, k), below)
        return
    parted = _parted(graph)
    group = parted.downstream[0]
    among = (d.id for d in numbers if d.id != group)
    e.coordinates.connect(Concatenate((group, *among, k.id), below, parted.table))


def flatten_into(e: KernelEditor, above: tuple[Dimension, ...], below: str) -> None:
    """Tie several dimensions to one, row-major; a single one just passes through.

    Args:
        e: the editor of the graph.
        above: the tile numbers, which dangle no more after that.
        below: the id of a dimension that was added, with `number_of(above)` for its size.
    """
    names = tuple(d.id for d in above)
    edge = PassThrough(names, (below,)) if len(names) == 1 else Flatten(names, (below,))
    e.coordinates.connect(edge)


def workgroup_count(e: KernelEditor, workgroups: int | None) -> Expr:
    """Add the dimension `workgroup`, and give its size, the grid.

    Args:
        e: the editor of the graph.
        workgroups: a number; None makes it the launch argument `workgroups`.
    """
    if workgroups is not None:
        count: Expr = Integer(workgroups)
    else:
        given = Parameter("workgroups", 1, MOST_WORKGROUPS, note="workgroups to launch")
        e.parameters = e.parameters.give(given)
        count = given.symbol
    e.coordinates.add(Workgroup("workgroup", count))
    return count
