"""`TileWork`: the operations on one output tile, which schedules insert into their loops."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sympy import Expr, Integer

from coordgraph import KernelGraph, PassError
from coordgraph.control.operations import Body, For, Locate, SetCoordinate, accumulates

__all__ = ["TileWork", "accumulation_loop", "depth_is_data"]


def accumulation_loop(graph: KernelGraph) -> For:
    """The only loop whose body contains the `MultiplyAccumulate`: the main loop over k tiles.

    Raises:
        PassError: the graph has no such loop or several.
    """
    loops = [op for op in graph.control.operations if accumulates(op)]
    if len(loops) != 1:
        raise PassError(
            f"the graph has {len(loops)} loops with a MultiplyAccumulate, and the pass needs "
            "exactly one; start from Gemm.graph()"
        )
    return loops[0]


def depth_is_data(graph: KernelGraph) -> bool:
    """Whether output tiles have different numbers of k tiles, which a table gives at run time.

    The result is True if groups have their own k.
    """
    return graph.coordinates[accumulation_loop(graph).dim].size is None


@dataclass(frozen=True)
class TileWork:
    """The operations on one output tile: its main loop, and those before and after the loop.

    A schedule inserts `whole()` into its own loops if one workgroup computes a tile alone, and
    `part(…)` if a workgroup computes some of the tile's iterations.

    Args:
        before: operations that begin a tile: they set the sums to 0.
        loop: the loop over all iterations of the tile.
        after: operations that end a tile: the epilogue and the store of D.
        around: the `Locate` operation around them, which computes coordinates of the tile from
            tables; None if there is none.
    """

    before: Body
    loop: For
    after: Body
    around: Locate | None = None

    @classmethod
    def of(cls, graph: KernelGraph) -> TileWork:
        """The operations on an output tile, taken from a graph without a schedule.

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
        """Operations on a whole output tile.

        The main loop of the tile runs over the dimension `dim`; if `dim` is empty, over the k
        tiles.
        """
        loop = self.accumulate(dim, self.depth) if dim else self.loop
        return self._located((*self.before, loop, *self.after))

    @property
    def depth(self) -> Expr:
        """Number of main loop iterations of an output tile.

        If groups have their own k, the number depends on the tile's group, a coordinate that a
        `Locate` operation computes from a table.
        """
        return self.loop.stop

    @property
    def located(self) -> tuple[str, ...]:
        """Ids of the coordinates that a `Locate` operation sets around the operations on a tile."""
        return self.around.dims if self.around else ()

    def part(self, dim: str, stop: Expr, after: Body, *, first: Body = ()) -> Body:
        """Operations on some consecutive iterations of one output tile, followed by `after`.

        Args:
            dim: the dimension that counts these iterations, from 0.
            stop: the number of these iterations.
            after: operations that end the part, such as sending its sums to the tile's owner.
            first: operations to run before the accumulation; they may read the coordinates in
                `located`.
        """
        finish = SetCoordinate(dim, Integer(0), after)
        body = (*first, *self.before, self.accumulate(dim, stop), finish)
        if self.around is None:
            return body
        return (SetCoordinate(dim, Integer(0), self._located(body)),)

    def at(self, dim: str, body: Body) -> Body:
        """Run `body` once for an output tile, with the index of `dim` set to 0.

        The dimension `dim` counts the main loop iterations of the tile.
        """
        return (SetCoordinate(dim, Integer(0), self._located(body)),)

    def _located(self, body: Body) -> Body:
        """The operations `body` inside the `Locate` operation of the tile, if the tile has one."""
        return body if self.around is None else (replace(self.around, body=body),)

    def accumulate(self, dim: str, stop: Expr) -> For:
        """The main loop, with `stop` iterations that the dimension `dim` counts."""
        return For(dim, Integer(0), stop, body=self.loop.body)
