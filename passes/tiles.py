"""What every schedule does with the precondition: find a tile's work, flatten the tile numbers."""

from __future__ import annotations

from dataclasses import dataclass

from sympy import Expr, Integer

from coordgraph import KernelGraph, PassError
from coordgraph.control.operations import Body, For, accumulates
from coordgraph.coordinates.dimensions import Dimension, Workgroup
from coordgraph.coordinates.edges import Flatten, PassThrough
from coordgraph.kernel import KernelEditor
from coordgraph.parameters import Parameter, Parameters

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
    """The control of one output tile: what precedes the accumulation, the loop, what follows."""

    before: Body
    loop: For
    after: Body

    @classmethod
    def of(cls, graph: KernelGraph) -> TileWork:
        """Take a problem-level graph apart."""
        loop, body = accumulation_loop(graph), graph.control.root.body
        at = body.index(loop)
        return cls(body[:at], loop, body[at + 1 :])

    def whole(self) -> Body:
        """One output tile from beginning to end."""
        return (*self.before, self.loop, *self.after)

    def accumulate(self, dim: str, stop: Expr) -> For:
        """The accumulation over `stop` iterations counted by another dimension."""
        return For(dim, Integer(0), stop, body=self.loop.body)


def number_of(dimensions: tuple[Dimension, ...]) -> Expr:
    """How many tiles the tile numbers count together."""
    total: Expr = Integer(1)
    for dimension in dimensions:
        if dimension.size is None:
            raise PassError(f"the tile number '{dimension.id}' has no size")
        total = total * dimension.size
    return total


def flatten_into(e: KernelEditor, above: tuple[Dimension, ...], below: str) -> None:
    """Tie several dimensions to one, row-major; a single one just passes through."""
    names = tuple(d.id for d in above)
    edge = PassThrough(names, (below,)) if len(names) == 1 else Flatten(names, (below,))
    e.coordinates.connect(edge)


def workgroup_count(e: KernelEditor, workgroups: int | None) -> Expr:
    """The size of the grid: a number, or the launch argument `workgroups`."""
    if workgroups is not None:
        count: Expr = Integer(workgroups)
    else:
        given = Parameter("workgroups", 1, MOST_WORKGROUPS, note="workgroups to launch")
        e.parameters = Parameters((*e.parameters.items, given), e.parameters.assumptions)
        count = given.symbol
    e.coordinates.add(Workgroup("workgroup", count))
    return count
