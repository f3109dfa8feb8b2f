"""`Table`: many ways to multiply, as columns of numbers, so that all are judged at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import cast

import numpy as np
from numpy.typing import NDArray

from coordgraph import Gemm
from coordgraph.tensors import dtype
from passes.base import Pass
from passes.choosing.plan import Plan
from passes.data_parallel import DataParallel
from passes.lowering import CONSUMERS
from passes.pipeline import Pipeline
from passes.rasterize import Rasterize
from passes.stream_k import StreamK
from passes.two_tile_stream_k import TwoTileStreamK

__all__ = ["SCHEDULES", "Column", "Flag", "Table", "sizes"]

Column = NDArray[np.float64]
Flag = NDArray[np.bool_]

SCHEDULES = (
    "data-parallel",
    "data-parallel{persistent=true}",
    "stream-k{owner=last}",
    "two-tile-stream-k{owner=last}",
    "stream-k{owner=last,reduction=tree}",
    "stream-k{reduction=scatter}",
)
"""The schedules that are judged; `Table.schedule` is a place in here."""
_KINDS: dict[tuple[type[Pass], str], int] = {
    (DataParallel, ""): 0,
    (DataParallel, "persistent"): 1,
    (StreamK, "peers"): 2,
    (TwoTileStreamK, "peers"): 3,
    (StreamK, "tree"): 4,
    (StreamK, "scatter"): 5,
}


@dataclass(frozen=True)
class Table:
    """Problems and plans, one a row.

    Attributes:
        m, n, k: of the problem.
        turned_a, turned_b: 1 where A or B is given as its transpose.
        out_bytes: of an element of C and D.
        tile_m, tile_n, tile_k: of the macro tile; cluster_m, cluster_n, cluster_k: who divide it.
        schedule: which of `SCHEDULES`.
        turns: warpgroups that take turns with whole tiles; 1 where they divide one.
        workgroups: the grid in clusters; that of the plain data-parallel schedule is not read.
        width: rows of a band of `Rasterize`; 1 where tiles are visited row by row.
    """

    m: Column
    n: Column
    k: Column
    turned_a: Column
    turned_b: Column
    out_bytes: Column
    tile_m: Column
    tile_n: Column
    tile_k: Column
    cluster_m: Column
    cluster_n: Column
    cluster_k: Column
    turns: Column
    schedule: Column
    workgroups: Column
    width: Column

    @classmethod
    def of(cls, rows: Iterable[tuple[Gemm, Plan]]) -> Table:
        """Rows of problems, whose sizes are given, and plans."""
        found = np.array([_numbers(*row) for row in rows], np.float64)
        return cls(*found.reshape(-1, len(fields(cls))).T)

    def __len__(self) -> int:
        return len(self.tile_m)

    def where(self, chosen: Flag | NDArray[np.intp]) -> Table:
        """Some of the rows."""
        return Table(*(cast(Column, getattr(self, f.name))[chosen] for f in fields(self)))

    def plan(self, row: int) -> Plan:
        """The plan of a row."""

        def numbers(*names: str) -> tuple[int, ...]:
            return tuple(int(getattr(self, name)[row]) for name in names)

        tile = numbers("tile_m", "tile_n", "tile_k")
        cluster = numbers("cluster_m", "cluster_n", "cluster_k")
        schedule, grid, width, turns = numbers("schedule", "workgroups", "width", "turns")
        order = "" if width == 1 else f"{Rasterize(width)},"
        return Plan(
            cast(tuple[int, int, int], tile),
            cast(tuple[int, int, int], cluster),
            order + SCHEDULES[schedule],
            None if schedule == 0 else grid,
            next(name for name, count in CONSUMERS.items() if count == turns),
        )


def sizes(problem: Gemm) -> tuple[int, int, int]:
    """m, n and k. ValueError where one is left open: plans are chosen for a size."""
    m, n, k = problem.m, problem.n, problem.k
    if m is None or n is None or k is None:
        raise ValueError("give m, n and k: plans are chosen for a size")
    return m, n, k


def _numbers(gemm: Gemm, plan: Plan) -> tuple[float, ...]:
    """A row. ValueError where the plan is of a kind that no model knows."""
    *orders, last = Pipeline.parse(plan.pipeline).passes
    persistent = "persistent" if getattr(last, "persistent", False) else ""
    kind = _KINDS.get((type(last), getattr(last, "reduction", persistent)))
    owner = getattr(last, "owner", "last")
    owned = getattr(last, "reduction", None) != "scatter"
    if (
        kind is None
        or (owned and owner != "last")
        or not all(isinstance(o, Rasterize) for o in orders)
    ):
        raise ValueError(f"no model knows '{plan.pipeline}'")
    width = 1
    for order in orders:
        assert isinstance(order, Rasterize)
        width = order.width
    out = dtype(gemm.out_dtype or gemm.dtype).bytes
    turned = (float(gemm.transpose_a), float(gemm.transpose_b))
    grid, turns = float(plan.workgroups or 0), CONSUMERS[plan.consumers]
    return (*sizes(gemm), *turned, out, *plan.tile, *plan.cluster, turns, kind, grid, width)
