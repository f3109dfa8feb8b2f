"""`MarkActivities`: marks where workgroups begin to multiply, send, and finish a tile."""

from __future__ import annotations

from dataclasses import dataclass, replace

from coordgraph import KernelGraph
from coordgraph.control.operations import (
    AccumulatePartial,
    Body,
    Epilogue,
    For,
    LoadTile,
    Operation,
    SendPartial,
    SetCoordinate,
    accumulates,
)
from coordgraph.control.timeline import Begin
from passes.base import Pass
from passes.kit.reduce_scatter import SHARE

__all__ = ["MarkActivities"]


@dataclass(frozen=True)
class MarkActivities(Pass):
    """Mark where a workgroup begins a main loop, sends a partial sum, or finishes a tile.

    Before: `For k`, `SendPartial`, `Epilogue`. After: a `Begin` before each of them. The mark of a
    main loop names its range of k tiles, the other marks name the output tile. Since the mark of a
    main loop does not name the tile, tile numbers that only the epilogue needs are still computed
    after the main loop.
    """

    name = "mark-activities"
    requires = ("scheduled",)
    establishes = ()

    def why_not(self, graph: KernelGraph) -> str | None:
        return None

    def apply(self, graph: KernelGraph) -> KernelGraph:
        marks = _Marks(graph)
        with graph.edit(str(self)) as e:
            e.kernel(*marks.body(graph.control.root.body), workgroup=graph.control.root.workgroup)
        return e.graph


class _Marks:
    """Inserts `Begin` operations (marks) into a scheduled graph, one where each activity begins."""

    def __init__(self, graph: KernelGraph) -> None:
        self.tilings = graph.tilings
        loads = graph.control.of_kind(LoadTile)
        self.tiles = {self.tilings.of_operation(op).accumulator: op.tile for op in loads}
        ends = graph.control.of_kind(Epilogue)
        self.outputs = {op.accumulator: op.tile for op in ends}

    def body(self, body: Body) -> Body:
        """The operations of `body`, with a `Begin` operation where an activity begins."""
        return tuple(new for op in body for new in self._marked(op))

    def _marked(self, op: Operation) -> Body:
        match op:
            case For() if accumulates(op):
                return (self._loop(op), op)
            case For(dim=dim) if dim == SHARE:
                return (*(self._tile("finish", x.accumulator) for x in _epilogues(op)[:1]), op)
            case SendPartial() | AccumulatePartial():
                return (self._tile("send", op.accumulator), op)
            case Epilogue():
                return (self._tile("finish", op.accumulator), op)
            case _:
                bodies = {name: self.body(getattr(op, name)) for name in op.BODIES}
                return (replace(op, **bodies),) if bodies else (op,)

    def _loop(self, loop: For) -> Operation:
        """The `Begin` operation of a main loop, with its first k tile and number of k tiles."""
        k = next(op.tile[-1] for op in loop.body if isinstance(op, LoadTile) and op.tensor == "A")
        mark = Begin("multiply", first=k, count=(loop.stop - loop.start).expand())
        return SetCoordinate(loop.dim, loop.start, (mark,))

    def _tile(self, activity: str, accumulator: str) -> Operation:
        """The `Begin` operation of an activity on the output tile that the accumulator holds."""
        span = (1, 1)
        if len(self.tilings) > 1:
            (tiling,) = (t for t in self.tilings if t.accumulator == accumulator)
            span = self.tilings.span(tiling)
        return Begin(activity, self.outputs[accumulator], span)


def _epilogues(op: Operation) -> list[Epilogue]:
    return [inner for inner in op.walk() if isinstance(inner, Epilogue)]
