"""Tails: k tiles in which a group ends, where TMA cannot end a box.

It brings whole boxes, and where k of a group ends inside the tensor, what follows is the next
group's. So in the last k tile of an output tile the consumers store zeros over what of both
operands lies behind the end, before they multiply. Both: zero times what is no number is none. What
cuts a tile is read from the graph, as for boxes of D (see `cuts`).

That is so across the contiguous axis, where rows of a box are k. Along it boxes would have to begin
where groups do, and TMA begins at multiples of 16 bytes alone: on an H200 any other
place ends the launch with an illegal instruction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sympy import And, Expr, Integer
from sympy.logic.boolalg import Boolean

from coordgraph.control.asynchronous import FenceShared
from coordgraph.control.lowered import FillElements
from coordgraph.control.operations import Body, For, If, Inside, Locate, Operation
from coordgraph.coordinates.dimensions import Linear, Register, Unroll
from coordgraph.coordinates.edges import Flatten, Tile
from coordgraph.coordinates.graph import CoordinateEditor
from coordgraph.integers import equal, index_symbol
from passes.lowering.control import at
from passes.lowering.sm_90a.boxes import BoxedOperand
from passes.lowering.sm_90a.cuts import cuts, holds
from passes.lowering.sm_90a.division import RANK, Division

__all__ = ["Tails"]


class Tails:
    """What is done about the ends of groups inside k tiles of one shape, if groups part k.

    An operand's place in a stage is tied to the workitems that hold one product:
    row, chunk --Flatten--> vector --Tile--> pass, workitem.

    Args:
        c: the coordinates being built.
        division: of a macro tile.
        operands: A and B.
        located: the coordinates that are looked up for every output tile.
    """

    def __init__(
        self,
        c: CoordinateEditor,
        division: Division,
        operands: Sequence[BoxedOperand],
        located: tuple[str, ...],
    ) -> None:
        self.c, self.division, self.located = c, division, located
        graph, tiling = c.finish(), division.tiling
        # Also where maps end with the matrix: none ends before its first element.
        every = {x.tensor: cuts(graph, tiling, x.tensor, located, maps=False) for x in operands}
        axes = ((operand, every[operand.tensor].get(_axis(operand), ())) for operand in operands)
        self.cut = [(operand, guards) for operand, guards in axes if guards]
        for operand, _ in self.cut:
            self._tie(operand)

    def _tie(self, operand: BoxedOperand) -> None:
        c, own = self.c, self._own(operand)
        rows, columns = c[operand.row].fixed_size, c[operand.column].fixed_size
        width, workitems = operand.kind.chunk, self.division.workitems
        vectors = rows * columns // width
        chunk = c.add(Linear(own("tail.chunk"), Integer(columns // width), note="16-byte chunk"))
        element = c.add(Register(own("tail.element"), Integer(width)))
        vector = c.add(Linear(own("tail.vector"), Integer(vectors), note="chunks of a stage"))
        step = c.add(Unroll(own("tail.pass"), Integer(-(-vectors // workitems))))
        workitem = c.add(Linear(own("tail.workitem"), Integer(workitems)))
        c.connect(Tile(operand.column, (chunk.id, element.id)))
        c.connect(Flatten((operand.row, chunk.id), vector.id))
        c.connect(Tile(vector.id, (step.id, workitem.id)))
        c.connect(Tile(workitem.id, (self.division.warp_of_team, "lane")))

    def _own(self, operand: BoxedOperand) -> Callable[[str], str]:
        return lambda name: self.division.tiling.own(f"{operand.tensor}.{name}")

    def clear(self, loop: For) -> Body:
        """What precedes the multiplications of a step of the accumulation over `loop`."""
        if not self.cut:
            return ()
        tiling, graph = self.division.tiling, self.c.finish()
        numbers = tuple(tiling.number(x.tensor, x.k_axis) for x, _ in self.cut)
        known = [*self.located, *numbers, *((RANK,) if RANK in graph else ())]
        here: dict[str, Expr | int] = {dim: index_symbol(dim) for dim in known}
        ends: list[Boolean] = []
        for operand, guards in self.cut:
            own = self.division.own(operand.tensor, operand.k_axis)
            last = here | {own: self.c[own].fixed_size - 1}
            ends += (holds(graph, guard, last) for guard in guards)
        fills = (self._fill(operand) for operand, _ in self.cut)
        fill = (*fills, FenceShared(), self.division.barrier)
        cut = Locate(numbers, body=(If(And(*ends), (), fill),))
        return (If(equal(loop.symbol, loop.stop - 1), (cut,)),)

    def _fill(self, operand: BoxedOperand) -> Operation:
        """Zeros over the chunks behind the end."""
        own = self._own(operand)
        fill = Inside((_axis(operand),), (), (FillElements(operand.shared, operand.kind.chunk),))
        step = own("tail.pass")
        body = (at({own("tail.element"): 0}, fill),)
        return For(step, Integer(0), Integer(self.c[step].fixed_size), body=body)


def _axis(operand: BoxedOperand) -> str:
    """The coordinate of k in a tensor."""
    return f"{operand.tensor}.{operand.k_axis}"
