"""What every schedule does with the precondition: find a tile's work, flatten the tile numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

from sympy import Expr, Integer, Symbol

from coordgraph import KernelGraph, PassError
from coordgraph.control.operations import Body, For, Locate, SetCoordinate, accumulates
from coordgraph.coordinates.dimensions import Dimension, Workgroup
from coordgraph.coordinates.edges import Concatenate, Edge, Flatten, PassThrough, Ragged
from coordgraph.integers import index_symbol, load, maximum
from coordgraph.kernel import KernelEditor
from coordgraph.parameters import Parameter
from coordgraph.tables import Table, place_of

__all__ = [
    "TileWork",
    "accumulation_loop",
    "depth_is_data",
    "flatten_into",
    "flatten_iterations",
    "no_plane",
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


def number_of(graph: KernelGraph, dimensions: tuple[Dimension, ...]) -> Expr:
    """How many tiles the tile numbers count together, of all groups where that is data.

    Raises:
        PassError: one has no size.
    """
    return _together(graph, dimensions).size


def number_of_iterations(graph: KernelGraph, numbers: tuple[Dimension, ...]) -> Expr:
    """How many k tiles are added up for all output tiles that tile numbers count.

    Raises:
        PassError: a tile number has no size.
    """
    return _together(graph, (*numbers, graph.coordinates[accumulation_loop(graph).dim])).size


def no_plane(graph: KernelGraph) -> str | None:
    """Why the tiles of one product cannot be visited in another order, or None."""
    if any(d.size is None for d in graph.plane):
        return (
            "every group has numbers of rows and columns of tiles of its own, and orders are of "
            "one grid; groups that part m or k alone can be walked in another order"
        )
    return None


def depth_is_data(graph: KernelGraph) -> bool:
    """Whether output tiles have different numbers of k tiles, which a table holds."""
    return graph.coordinates[accumulation_loop(graph).dim].size is None


def flatten_iterations(
    e: KernelEditor, graph: KernelGraph, numbers: tuple[Dimension, ...], below: str
) -> None:
    """Tie tile numbers and the k tiles of each output tile to one dimension, k fastest.

    Args:
        e: the editor of `graph`.
        graph: what no schedule has tied yet.
        numbers: the tile numbers, which dangle no more after that.
        below: the id of a dimension that was added, with `number_of_iterations` for its size.
    """
    flatten_into(e, (*numbers, graph.coordinates[accumulation_loop(graph).dim]), below)


def flatten_into(e: KernelEditor, above: tuple[Dimension, ...], below: str) -> None:
    """Tie several dimensions to one, row-major; a single one just passes through.

    Where groups have each their own numbers of them they follow one another, a block for each
    group: `group, m, n, k --Concatenate--> below`.

    Args:
        e: the editor of a graph that no schedule has tied yet.
        above: the tile numbers, which dangle no more after that.
        below: the id of a dimension that was added, with `number_of(above)` for its size.
    """
    e.coordinates.connect(_together(e.graph, above).edge(below))


class _Together(NamedTuple):
    """Dimensions that are counted together: how many there are of all, and what ties them."""

    size: Expr
    edge: Callable[[str], Edge]


def _together(graph: KernelGraph, dimensions: tuple[Dimension, ...]) -> _Together:
    """Raises PassError where one has no size, and no table says how many each group has."""
    names = tuple(d.id for d in dimensions)
    sizes = [d.size for d in dimensions]
    known = [size for size in sizes if size is not None]
    if len(known) == len(sizes):
        several = Flatten if len(names) > 1 else PassThrough
        return _Together(prod(known, start=Integer(1)), lambda below: several(names, (below,)))
    parted = {d.id: _parted(graph, d.id) for d in dimensions if d.size is None}
    (group,) = {edge.downstream[0] for edge in parted.values()}
    tables = tuple(
        parted[d.id].table if d.id in parted else "" for d in dimensions if d.id != group
    )
    if len(parted) == 1:
        # Blocks of one table: with equally many along all other axes.
        (only,) = parted.values()
        whole = graph.coordinates[only.upstream[0]].size
        among = [d.size for d in dimensions if d.size is not None and d.id != group]
        if whole is not None and dimensions[-1].id in parted:
            size = prod((size for size in among), start=whole)
            above = (group, *(name for name in names if name != group))
            return _Together(size, lambda below: Concatenate(above, (below,), only.table))
    starts = _counted(graph, [edge.table for edge in parted.values()])
    all_of_them = starts and maximum(load(starts.symbol, graph.coordinates[group].size or 0), 1)
    sums = (p.symbol for p in graph.parameters.items if p.value == all_of_them)
    size = next(sums, None) if starts and names[0] == group else None
    if starts is None or size is None:
        listed = ", ".join(parted)
        raise PassError(f"how many of {listed} there are together is in no table")
    return _Together(size, lambda below: Concatenate(names, (below,), starts.name, tables))


def _parted(graph: KernelGraph, tiles: str) -> Ragged:
    found = graph.parted(tiles)
    if found is None:
        raise PassError(f"how many '{tiles}' there are in each group is nowhere said")
    return found


def _counted(graph: KernelGraph, along: Sequence[str]) -> Table | None:
    """The table of what all axes count together: whose steps are products of the others' steps."""
    for table in graph.parameters.tables:
        steps = (_rise(index_symbol(name), place_of(table.name)) for name in along)
        if table.step == prod(steps, start=Integer(1)):
            return table
    return None


def _rise(table: Symbol, place: Symbol) -> Expr:
    return load(table, place + 1) - load(table, place)


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
