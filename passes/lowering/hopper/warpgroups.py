"""Warpgroups: consumers first, then the producer; and the accumulator layout of wgmma.

An m64nN result lies in a warpgroup as PTX ISA, "Register Fragments and Shared Memory Matrix
Layouts" of wgmma, says: warp w has rows 16w to 16w + 15, in each lane pairs of columns.
"""

from __future__ import annotations

from dataclasses import dataclass

from sympy import Integer

from coordgraph.control.lowered import Barrier
from coordgraph.coordinates.dimensions import Lane, Register, Warp, Warpgroup, Workitem
from coordgraph.coordinates.edges import Flatten, PassThrough, Tile
from coordgraph.coordinates.graph import CoordinateEditor
from passes.lowering.control import Accumulator

__all__ = ["MMA_M", "Consumers"]

MMA_M = 64
WARPGROUP = 128
REGISTERS = 65536
PRODUCER_REGISTERS = 40
CONSUMER_BARRIER = 1


@dataclass(frozen=True)
class Consumers:
    """`count` consumer warpgroups; each multiplies an equal part of the output tile's rows."""

    count: int

    @property
    def workitems(self) -> int:
        """Threads of the consumers."""
        return self.count * WARPGROUP

    @property
    def threads(self) -> int:
        """Threads of the workgroup: the producer is one more warpgroup."""
        return self.workitems + WARPGROUP

    @property
    def registers(self) -> int:
        """What the producer leaves each consumer, a multiple of 8 as setmaxnreg wants it."""
        left = REGISTERS - PRODUCER_REGISTERS * WARPGROUP
        return min(left // self.workitems // 8 * 8, 240)

    def add(self, c: CoordinateEditor) -> None:
        """The workitem as warpgroup, warp and lane; the last warpgroup is the producer."""
        c.add(Warpgroup("warpgroup", Integer(self.count + 1)))
        c.add(Warp("warp", Integer(4)))
        c.add(Lane("lane", Integer(32)))
        c.add(Workitem("workitem", Integer(self.threads)))
        c.connect(Flatten(("warpgroup", "warp", "lane"), "workitem"))

    def add_accumulator(self, c: CoordinateEditor) -> Accumulator:
        """Tie the tile positions of C and D to warpgroups, warps, lanes and registers."""
        m, n = c["D.index.0"].fixed_size, c["D.index.1"].fixed_size
        c.add(Register("acc.m", Integer(m // (self.count * MMA_M)), note="rows of 64"))
        c.add(Register("acc.n", Integer(n // 8), note="columns of 8"))
        c.add(Register("acc.half", Integer(2)))
        c.add(Register("acc.pair", Integer(2)))
        c.add(Lane("acc.row", Integer(8)))
        c.add(Lane("acc.quad", Integer(4)))
        c.connect(Tile("D.index.0", ("warpgroup", "acc.m", "warp", "acc.half", "acc.row")))
        c.connect(Tile("D.index.1", ("acc.n", "acc.quad", "acc.pair")))
        c.connect(Flatten(("acc.row", "acc.quad"), "lane"))
        c.connect(PassThrough("C.index.0", "D.index.0"))
        c.connect(PassThrough("C.index.1", "D.index.1"))
        barrier = Barrier(CONSUMER_BARRIER, self.workitems)
        return Accumulator(c, ("acc.m", "acc.n", "acc.half"), "acc.pair", barrier)
