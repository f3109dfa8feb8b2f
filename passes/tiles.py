"""What every schedule does with the precondition: find a tile's work, flatten the tile numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sympy import Expr, Integer

from coordgraph import KernelGraph, PassError
from coordgraph.control.operations import Body, For, Locate, SetCoordinate, accumulates
from coordgraph.coordinates.dimensions import Dimension, Workgroup
from coordgraph.coordinates.edges import Flatten, PassThrough
from coordgraph.kernel import KernelEditor
from coordgraph.parameters import Parameter

__all__ = ["TileWork", "accumulation_loop", "flatten_into", "number_of", "workgroup_count"]

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

    def whole(self) -> Body:
        """One output tile from beginning to end."""
        return self._located((*self.before, self.loop, *self.after))

    def part(self, dim: str, stop: Expr, after: Body) -> Body:
        """Some iterations of one output tile, then `after`.

        Args:
            dim: the dimension that counts them, from 0.
            stop: how many there are.
            after: what ends the part, such as sending the sums to who ends the tile.
        """
        finish = SetCoordinate(dim, Integer(0), after)
        body = (*self.before, self.accumulate(dim, stop), finish)
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
