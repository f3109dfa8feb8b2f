"""`RowOrder`: the order in which all plans of a batch-invariant product reduce rows of D.

An output of an epilogue that reduces rows, by `sum` or `logsumexp`, is computed from the values of
a row in D. Each macro tile reduces its own columns of the row, and then the results of all tiles
along n are combined. So the bits depend on the number of columns of a tile, and on how its columns
are divided among the warps and lanes of a workgroup. Both must be the same for every m.
"""

from __future__ import annotations

from dataclasses import dataclass

from passes.choosing.plan import Plan
from passes.choosing.plan_table import Flag, Table
from passes.lowering import CONSUMERS, WGMMA
from passes.lowering.sm_80.architecture import MMA_SYNC
from passes.lowering.sm_80.fragments import warps_of
from passes.lowering.sm_90a.division import whole_rows

__all__ = ["RowOrder"]


def _warps(instructions: str, plan: Plan) -> int | None:
    """Number of warps that divide the columns of a tile; None if it is not known.

    The lanes of a warp divide the columns in one way for each number of warps. On the CPU one
    thread reduces a row.

    Args:
        instructions: the lowering's `Lowering.instructions`, such as `wgmma`; '' on the CPU.
        plan: the plan, whose tile and cluster decide how warps divide a tile.
    """
    rows, columns, _ = plan.tile
    if instructions == WGMMA.instructions:
        whole = whole_rows(rows // plan.cluster[0], CONSUMERS[plan.consumers])
        return 1 if whole and plan.cluster[1] == 1 else None
    if instructions == MMA_SYNC.instructions:
        grid = warps_of(rows, columns)
        return None if grid is None else grid[1]
    return None if instructions else 1


@dataclass(frozen=True)
class RowOrder:
    """The order in which the values of a row of D are reduced by an output of the epilogue.

    Args:
        columns: number of columns of B in a macro tile.
        warps: number of warps that divide these columns; None if it is not known, so that no plan
            is known to have the order.
    """

    columns: int
    warps: int | None = 1

    @classmethod
    def of(cls, instructions: str, plan: Plan) -> RowOrder:
        """The order of a plan whose kernel multiplies by `instructions`; '' is the CPU's."""
        return cls(plan.tile[1], _warps(instructions, plan))

    def __str__(self) -> str:
        whole = "" if self.warps in (None, 1) else f", which {self.warps} warps divide"
        return f"rows of D reduced by tiles of {self.columns} columns{whole}"

    def holds(self, table: Table) -> Flag:
        """For each plan of a table of wgmma plans, whether it reduces rows in this order."""
        whole = whole_rows(table.tile_m / table.cluster_m, table.turns) & (table.cluster_n == 1)
        return (table.tile_n == self.columns) & whole & (self.warps == 1)

    def why_not(self, instructions: str, plan: Plan) -> str | None:
        """Why a plan does not reduce rows of D in this order; None if it does.

        Args:
            instructions: the lowering's `Lowering.instructions`, such as `wgmma`; '' on the CPU.
            plan: the plan.
        """
        if plan.tile[1] != self.columns:
            return (
                f"the plan's tiles have {plan.tile[1]} columns, and those of the plans for other m "
                f"have {self.columns}, so that rows of D would be reduced in another order; choose "
                f"tiles of {self.columns} columns"
            )
        warps = _warps(instructions, plan)
        if warps is not None and warps == self.warps:
            return None
        rows = plan.tile[0] // plan.cluster[0]
        return (
            f"the warps of a workgroup divide the columns of its tile of {rows} rows in another "
            "way than the plans for other m, so that rows of D would be reduced in another order; "
            "choose tiles of 128 rows for each workgroup"
        )
