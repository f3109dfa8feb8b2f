"""`Table`: many ways to multiply, as columns of numbers, so that all are judged at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import cast

import numpy as np
from numpy.typing import NDArray

from coordgraph import Gemm
from coordgraph.tensors import dtype
from passes.choosing.plan import Plan
from passes.choosing.schedules import FULL, NOTHING, numbers_of, schedule_of
from passes.lowering import CONSUMERS
from passes.pipeline import Pipeline
from passes.rasterize import Rasterize

__all__ = ["Column", "Flag", "Table", "columns_of", "extents", "sizes"]

Column = NDArray[np.float64]
Flag = NDArray[np.bool_]


@dataclass(frozen=True)
class Table:
    """Problems and plans, one a row.

    Attributes:
        l: products: of a batch, or groups.
        m, n, k: of each product; what groups part is what they have on average.
        ragged_m, ragged_k: 1 where groups part the axis, and end inside tiles.
        turned_a, turned_b: 1 where A or B is given as its transpose.
        out_bytes: of an element of D; c_bytes: of one of C where it is added, else 0.
        tile_m, tile_n, tile_k: of the macro tile; cluster_m, cluster_n, cluster_k: who divide it.
        turns: warpgroups that take turns with whole tiles; 1 where they divide one.
        workgroups: the grid in clusters; 0 is as many as there are tiles where each tile has one,
            else as many as the device holds.
        width: rows of a band of `Rasterize`; 1 where tiles are visited row by row.
        whole: which tiles stay whole; see `passes.choosing.schedules`.
        small_m, small_n: of the tiles into which the others are divided; 0 where they are streamed.
        owner, reduction: how pieces of a streamed tile come together: places in `passes.fixup`'s
            `OWNERS` and `REDUCTIONS`.
        least, least_segment: iterations of a share and of a piece, at least; see `Stream`.
        first: 1 where whole tiles come before the streamed ones.
    """

    l: Column  # noqa: E741 - as m, n and k
    m: Column
    n: Column
    k: Column
    ragged_m: Column
    ragged_k: Column
    turned_a: Column
    turned_b: Column
    out_bytes: Column
    c_bytes: Column
    tile_m: Column
    tile_n: Column
    tile_k: Column
    cluster_m: Column
    cluster_n: Column
    cluster_k: Column
    turns: Column
    workgroups: Column
    width: Column
    whole: Column
    small_m: Column
    small_n: Column
    owner: Column
    reduction: Column
    least: Column
    least_segment: Column
    first: Column

    @classmethod
    def of(cls, rows: Iterable[tuple[Gemm, Plan]], batches: int = 1) -> Table:
        """Rows of problems, whose sizes are given and which add no C, and plans.

        Each problem is so many products, which are alike or groups.

        Raises:
            ValueError: a size is left open, or a plan is of a kind that no model knows.
        """
        names = [f.name for f in fields(cls)]
        each = (_numbers(*row, batches) for row in rows)
        found = [[numbers[name] for name in names] for numbers in each]
        return cls(*np.array(found, np.float64).reshape(-1, len(names)).T)

    def __len__(self) -> int:
        return len(self.tile_m)

    @property
    def divided(self) -> Flag:
        """Where tiles that are not whole become small ones."""
        return self.small_m > 0

    @property
    def streams(self) -> Flag:
        """Where tiles that are not whole are streamed."""
        return (self.whole >= FULL) & ~self.divided

    def where(self, chosen: Flag | NDArray[np.intp]) -> Table:
        """Some of the rows."""
        return Table(*(cast(Column, getattr(self, f.name))[chosen] for f in fields(self)))

    def plan(self, row: int) -> Plan:
        """The plan of a row."""

        def numbers(*names: str) -> tuple[int, ...]:
            return tuple(int(getattr(self, name)[row]) for name in names)

        tile = cast(tuple[int, int, int], numbers("tile_m", "tile_n", "tile_k"))
        cluster = cast(tuple[int, int, int], numbers("cluster_m", "cluster_n", "cluster_k"))
        grid, width, turns = numbers("workgroups", "width", "turns")
        of_schedule = ("whole", *NOTHING)
        values = dict(zip(of_schedule, numbers(*of_schedule), strict=True))
        order = "" if width == 1 else f"{Rasterize(width)},"
        return Plan(
            tile,
            cluster,
            f"{order}{schedule_of(values, tile)}",
            grid or None,
            next(name for name, count in CONSUMERS.items() if count == turns),
        )


def sizes(problem: Gemm) -> tuple[int, int, int]:
    """m, n and k. ValueError where one is left open: plans are chosen for a size."""
    m, n, k = problem.m, problem.n, problem.k
    if m is None or n is None or k is None:
        raise ValueError("give m, n and k: plans are chosen for a size")
    return m, n, k


def extents(problem: Gemm, batches: int) -> dict[str, float]:
    """The columns that say how much there is to multiply.

    Args:
        problem: with m, n and k; what groups part is that of all together.
        batches: products of a batch, or groups.
    """
    found: dict[str, float] = {"l": batches}
    for axis, extent in zip("mnk", sizes(problem), strict=True):
        found[axis] = extent / batches if problem.ragged(axis) else extent
    return found | {"ragged_m": problem.ragged("m"), "ragged_k": problem.ragged("k")}


def columns_of(plan: Plan) -> dict[str, float] | None:
    """The columns of a plan, or None where it is of a kind that no model knows."""
    *orders, last = Pipeline.parse(plan.pipeline).passes
    schedule, width = numbers_of(last, plan.tile), 1
    for order in orders:
        if not isinstance(order, Rasterize) or order != Rasterize(order.width):
            return None
        width = order.width
    if schedule is None:
        return None
    grid = {"turns": CONSUMERS[plan.consumers], "workgroups": plan.workgroups or 0, "width": width}
    found: dict[str, float] = {**grid, **schedule}
    for axis, extent, count in zip("mnk", plan.tile, plan.cluster, strict=True):
        found[f"tile_{axis}"], found[f"cluster_{axis}"] = extent, count
    return found


def _numbers(gemm: Gemm, plan: Plan, batches: int) -> dict[str, float]:
    """A row. ValueError where the plan is of a kind that no model knows."""
    found = columns_of(plan)
    if found is None:
        raise ValueError(f"no model knows '{plan.pipeline}'")
    return {
        **found,
        **extents(gemm, batches),
        "turned_a": gemm.transpose_a,
        "turned_b": gemm.transpose_b,
        "out_bytes": dtype(gemm.out_dtype or gemm.dtype).bytes,
        "c_bytes": 0,
    }
