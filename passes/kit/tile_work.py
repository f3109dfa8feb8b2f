"""`TileWork`: the operations on one output tile, which schedules insert into their loops."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sympy import Expr, Integer

from coordgraph import KernelGraph, PassError
from coordgraph.control.operations import Body, For, Locate, SetCoordinate, accumulates

__all__ = ["TileWork", "accumulation_loop", "depth_is_data", "main_loops", "repeats_main_loop"]


def main_loops(graph: KernelGraph) -> list[For]:
    """The main loops of a kernel: loops over k tiles, whose bodies have a `MultiplyAccumulate`."""
    return [op for op in graph.control.operations if accumulates(op)]


def accumulation_loop(graph: KernelGraph) -> For:
    """The only loop whose body contains the `MultiplyAccumulate`: the main loop over k tiles.

    Raises:
        PassError: the graph has no such loop or several.
    """
    loops = main_loops(graph)
    if len(loops) != 1:
        raise PassError(
            f"the graph has {len(loops)} loops with a MultiplyAccumulate, and the pass needs "
            "exactly one; start from Gemm.graph()"
        )
    return loops[0]


def depth_is_data(graph: KernelGraph) -> bool:
    """Whether the kernel reads the number of k tiles of each output tile from a table.

    The kernel does so if the groups of a grouped product have different extents along k.
    """
    return graph.coordinates[accumulation_loop(graph).dim].size is None


def repeats_main_loop(graph: KernelGraph) -> bool:
    """Whether a workgroup may compute several output tiles, or pieces of them, one after another.

    It may if a main loop, which multiplies k tiles, is inside another loop.
    """
    outside = (op for op in graph.control.operations if isinstance(op, For))
    return any(accumulates(inner) for loop in outside for op in loop.body for inner in op.walk())


@dataclass(frozen=True)
class TileWork:
    """The operations on one output tile: its main loop, and operations before and after the loop.

    A schedule inserts `whole()` into its own loops if one workgroup computes a tile alone, and
    `part(…)` if a workgroup computes some of the tile's iterations.

    Args:
        before: operations that begin a tile: they set the sums to 0.
        loop: the loop over all iterations of the tile.
        after: operations that end a tile: the epilogue and the store of D.
        around: the `Locate` operation around all these operations, which computes coordinates of
            the tile from tables; None if there is none.
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
        """All operations on an output tile that one workgroup computes alone.

        Args:
            dim: the dimension that counts the iterations of the main loop; '' means the dimension
                that the main loop of the graph without a schedule counts.
        """
        loop = self.accumulate(dim, self.depth) if dim else self.loop
        return self._located((*self.before, loop, *self.after))

    @property
    def depth(self) -> Expr:
        """Number of main loop iterations of an output tile.

        If the groups of a grouped product have different extents along k, the number depends on
        the index of the tile's group, which the operation `around` computes.
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
            stop: the number of iterations of this part of the tile.
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
        """An operation that executes `body` once, at the first main loop iteration of a tile.

        Args:
            dim: the dimension that counts the tile's iterations; its index is set to 0.
            body: the operations to execute; they may read the coordinates in `located`.
        """
        return (SetCoordinate(dim, Integer(0), self._located(body)),)

    def _located(self, body: Body) -> Body:
        """Put `body` inside the operation `around`; return `body` itself if `around` is None."""
        return body if self.around is None else (replace(self.around, body=body),)

    def accumulate(self, dim: str, stop: Expr) -> For:
        """A copy of the main loop that has `stop` iterations, counted by the dimension `dim`."""
        return For(dim, Integer(0), stop, body=self.loop.body)
