"""Zeroes the elements of a group's last k tile that follow the end of the group along k.

TMA clips a box only at the end of the tensor. If a group ends along k inside the tensor, the box of
the group's last k tile also contains elements of the next group. So before the consumers multiply
the last k tile, they overwrite these elements with zeros, in A and in B: zeros in one operand would
not suffice, because 0 times NaN is NaN. The coordinate graph says which tiles extend past the end
of a group, as for boxes of D (see `cuts`).

The method needs k to be the strided axis of A and B. If k were the contiguous axis, boxes would
have to begin where groups begin; but TMA needs addresses that are multiples of 16 bytes (on an
H200, any other address ends the launch with an illegal instruction).
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
    """Zeroes the elements past the end of a group in its last k tile, if groups divide k.

    Edges map positions in a stage to the threads that zero them, which are the threads that hold
    the accumulator of the tile: row, chunk --Flatten--> vector --Tile--> pass, workitem.

    Args:
        c: the coordinate graph under construction.
        division: how a macro tile is divided over workgroups and warpgroups.
        operands: the tiles of A and of B, whose stages in shared memory have such elements.
        located: the coordinates that the scheduled graph computes for every output tile, such as
            its group's number.
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
        # maps=False also returns the guards (conditions on k, past which threads must zero
        # elements) of matrices with their own tensor maps: TMA rejects an extent of 0, so the map
        # of an empty matrix has one element, which must be zeroed.
        every = {x.tensor: cuts(graph, tiling, x.tensor, located, maps=False) for x in operands}
        axes = ((operand, every[operand.tensor].get(_axis(operand), ())) for operand in operands)
        self.cut = [(operand, guards) for operand, guards in axes if guards]
        for operand, _ in self.cut:
            self._tie(operand)

    def _tie(self, operand: BoxedOperand) -> None:
        """Add the edges from each element of an operand's stage to the thread that may zero it.

        Elements past the end of a group must be zero, so that they add nothing to the sum.
        """
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
        """A function that names an operand's coordinates: `A.tail.pass` from `tail.pass`."""
        return lambda name: self.division.tiling.own(f"{operand.tensor}.{name}")

    def clear(self, loop: For) -> Body:
        """Zero the elements of A and B past a group's end, in the last iteration of `loop`.

        Args:
            loop: the loop over k tiles; wgmma reads the elements later in the same iteration.
        """
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
        """Store zeros in the 16-byte chunks of an operand's stage that follow the group's end."""
        own = self._own(operand)
        fill = Inside((_axis(operand),), (), (FillElements(operand.shared, operand.kind.chunk),))
        step = own("tail.pass")
        body = (at({own("tail.element"): 0}, fill),)
        return For(step, Integer(0), Integer(self.c[step].fixed_size), body=body)


def _axis(operand: BoxedOperand) -> str:
    """The coordinate of the position along k in the tensor A or B, such as `A.1`."""
    return f"{operand.tensor}.{operand.k_axis}"
