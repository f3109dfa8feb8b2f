"""`TileWork`: the operations on one output tile, which a schedule nests in its own loops."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sympy import Expr, Integer

from coordgraph import KernelGraph, PassError
from coordgraph.control.operations import Body, For, Locate, SetCoordinate, accumulates

__all__ = ["TileWork", "accumulation_loop", "depth_is_data"]


def accumulation_loop(graph: KernelGraph) -> For:
    """The one loop that holds the `MultiplyAccumulate`."""
    loops = [op for op in graph.control.operations if accumulates(op)]
    if len(loops) != 1:
        raise PassError(f"needs one accumulation loop, the graph has {len(loops)}")
    return loops[0]


def depth_is_data(graph: KernelGraph) -> bool:
    """Whether output tiles differ in their number of k tiles, which a table gives at run time."""
    return graph.coordinates[accumulation_loop(graph).dim].size is None


@dataclass(frozen=True)
class TileWork:
    """The control of one output tile: operations before, in and after its accumulation loop.

    In its own loops, a schedule inserts `whole()` if a workgroup computes a tile alone, and
    `part(…)` if it computes some of the tile's iterations.

    Args:
        before: operations that begin a tile: they set the sums to 0.
        loop: the accumulation over all iterations of the tile.
        after: operations that end a tile: the epilogue and the store of D.
        around: the `Locate` that computes coordinates of the tile from tables, or None.
    """

    before: Body
    loop: For
    after: Body
    around: Locate | None = None

    @classmethod
    def of(cls, graph: KernelGraph) -> TileWork:
        """The work of an output tile, taken from a graph without a schedule.

        Raises:
            PassError: the graph does not have exactly one accumulation loop.
        """
        loop, body = accumulation_loop(graph), graph.control.root.body
        around = None
        if len(body) == 1 and isinstance(body[0], Locate):
            around, body = body[0], body[0].body
        at = body.index(loop)
        return cls(body[:at], loop, body[at + 1 :], around)

    def whole(self, dim: str = "") -> Body:
        """Control of a whole output tile; its loop runs over `dim`, if given, else its own."""
        loop = self.accumulate(dim, self.depth) if dim else self.loop
        return self._located((*self.before, loop, *self.after))

    @property
    def depth(self) -> Expr:
        """Iterations of an output tile; the expression may read the coordinates in `located`."""
        return self.loop.stop

    @property
    def located(self) -> tuple[str, ...]:
        """The coordinates that the `Locate` around a tile's work sets."""
        return self.around.dims if self.around else ()

    def part(self, dim: str, stop: Expr, after: Body, *, first: Body = ()) -> Body:
        """Control of some iterations of one output tile, then `after`.

        Args:
            dim: the dimension that counts these iterations, from 0.
            stop: the number of iterations.
            after: operations that end the part, such as sending its sums to the tile's owner.
            first: operations to run before; they may read the coordinates in `located`.
        """
        finish = SetCoordinate(dim, Integer(0), after)
        body = (*first, *self.before, self.accumulate(dim, stop), finish)
        if self.around is None:
            return body
        return (SetCoordinate(dim, Integer(0), self._located(body)),)

    def at(self, dim: str, body: Body) -> Body:
        """`body` at the beginning of an output tile: `dim`, which counts iterations, is 0."""
        return (SetCoordinate(dim, Integer(0), self._located(body)),)

    def _located(self, body: Body) -> Body:
        return body if self.around is None else (replace(self.around, body=body),)

    def accumulate(self, dim: str, stop: Expr) -> For:
        """The accumulation over `stop` iterations counted by another dimension."""
        return For(dim, Integer(0), stop, body=self.loop.body)
