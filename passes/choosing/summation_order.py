"""`SummationOrder`: the order in which all plans of a batch-invariant product add along k.

The bits of an element of D depend on the order in which its products are added. If all plans that
may be chosen for given n and k have the same order, the bits of a row of D depend neither on m nor
on the rows around it (batch invariance; He et al., Defeating Nondeterminism in LLM Inference,
Thinking Machines Lab, 2025). Tiles, clusters along m and n, and the order of tiles may differ.

Three things fix the order: the borders of the segments of k that are added up separately, the order
in which the sums of the segments are added (here always that of k), and the multiply instruction,
which adds the products of its own k elements. If the epilogue reduces rows of D, a fourth thing is
the order in which it does so (`passes.choosing.row_order`).

That an instruction gives the same bits whatever tile it belongs to is an assumption about the
hardware: tests on tensor cores found that an instruction's result depends only on its addends (Fasi
et al., Numerical behavior of NVIDIA tensor cores, PeerJ Computer Science 7:e330, 2021).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from passes.choosing.plan_table import Flag, Table
from passes.choosing.row_order import RowOrder
from passes.schedules.split_k import SplitK

__all__ = ["SummationOrder", "split_schedule"]


def split_schedule(segments: int) -> SplitK:
    """The schedule that divides k into two or more `segments`, and adds their sums in order."""
    return SplitK(splits=segments, owner="last", reduction="turnstile")


@dataclass(frozen=True)
class SummationOrder:
    """The order in which the products of an element of D are added.

    The products of a segment of k are added one instruction after another in ascending order of k,
    beginning with zero. Then the sums of the segments are added, `((s0 + s1) + s2) + …`; the
    epilogue is applied to the result.

    Args:
        instructions: the lowering's `Lowering.instructions`, such as `wgmma`; '' on the CPU.
        segment: number of elements of k in a segment; the last segment may have fewer.
        depth: number of elements of k that are added, including the zeros with which the last k
            tile is padded.
        rows: the order in which rows of D are reduced; None if the epilogue reduces no rows.
    """

    instructions: str
    segment: int
    depth: int
    rows: RowOrder | None = None

    @classmethod
    def of(cls, instructions: str, k: int, unit: int, segments: int = 1) -> SummationOrder:
        """The order of adding `k` elements in at most `segments` segments, all but the last equal.

        The borders of segments are multiples of `unit` elements, so the last segment may be
        shorter, and there may be fewer segments.
        """
        depth = -(-k // unit) * unit
        return cls(instructions, -(-depth // (segments * unit)) * unit, depth)

    @property
    def segments(self) -> int:
        """Number of segments of k whose sums are computed separately and then added."""
        return -(-self.depth // self.segment)

    @property
    def borders(self) -> tuple[int, ...]:
        """The borders of the segments along k in elements, from 0 to `depth`."""
        return (*range(0, self.depth, self.segment), self.depth)

    @property
    def pipeline(self) -> str:
        """Text of a schedule that adds in this order; each workgroup adds one segment of a tile."""
        return "data-parallel" if self.segments == 1 else str(split_schedule(self.segments))

    def __str__(self) -> str:
        borders = ", ".join(map(str, self.borders))
        count = f"{self.segments} segment{'s' if self.segments > 1 else ''} of k"
        by = f", added by {self.instructions}" if self.instructions else ""
        rows = "" if self.rows is None else f"; {self.rows}"
        return f"{count} with the borders {borders}{by}, their sums added in the order of k{rows}"

    def holds(self, table: Table) -> Flag:
        """For each plan of a table, whether it adds along k, and reduces rows, in this order."""
        tiles = np.ceil(table.k / table.tile_k)
        found = (tiles * table.tile_k == self.depth) & (table.cluster_k == 1)
        if self.rows is not None:
            found &= self.rows.holds(table)
        if self.segments == 1:
            return found & ~table.streams
        splits = split_schedule(self.segments)
        split = table.of_schedule([schedule == splits for schedule in table.schedules])
        share = np.ceil(tiles / self.segments) * table.tile_k
        return found & split.astype(bool) & (share == self.segment)
