"""`Table`: problems and plans as columns of numbers, so that their costs are computed together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from coordgraph import Gemm, PassError, VerifyError
from coordgraph.gemm import GemmProblem
from coordgraph.tensors import dtype
from passes.base import Pass
from passes.choosing.counting import COUNTED_TILE, FIXUPS, Column, WorkCounter
from passes.choosing.known_schedules import adjacent_tiles, counter_of
from passes.choosing.plan import Plan
from passes.lowering import CONSUMERS
from passes.orders.rasterize import Rasterize
from passes.pipeline import Pipeline

__all__ = ["Column", "Flag", "Table", "extents", "schedule_in", "sizes", "stored_bytes"]

Flag = NDArray[np.bool_]
"""A column of truth values: a one-dimensional array with one entry for each row of a table."""


@dataclass(frozen=True)
class Table:
    """Problems and plans as columns of numbers; each row has one problem and one plan.

    Attributes:
        l: number of products in the batch, or of groups.
        m, n, k: extents of each product; if groups divide an axis, the average of their extents. If
            the epilogue has several sums, n counts the columns of B.
        ragged_m, ragged_k: 1 if groups divide the axis (a group may end inside a tile); else 0.
        turned_a, turned_b: 1 if A or B is given as its transpose; else 0.
        in_bytes: bytes of an element of A and B.
        out_bytes: bytes of an element of D, divided by the number of sums from which the epilogue
            computes the element; 0 if the epilogue does not store D.
        c_bytes: bytes of the widest element that the epilogue reads for every element of D; 0 if it
            reads none.
        operand_bytes: bytes of all operands that the epilogue reads and of its outputs besides D,
            summed over all products.
        row_cycles: cycles in which a warpgroup reduces one element per thread, summed over the
            epilogue's outputs that reduce rows; 0 if it has none.
        tile_m, tile_n, tile_k: elements of the macro tile along each axis.
        cluster_m, cluster_n, cluster_k: number of CTAs of a cluster along each axis.
        turns: number of pingpong warpgroups, which alternate between tiles; 1 if warpgroups are
            cooperative.
        workgroups: the grid, as a number of clusters. 0 if the schedule determines the grid: the
            number of tiles if every tile has its own workgroup, else the number of clusters that
            are resident on the device.
        width: number of rows of tiles in a band of `Rasterize`; 1 if tiles are visited in row-major
            order.
        schedule: index of the plan's schedule in `schedules`.
        schedules: the distinct schedules, with options for the macro tile `COUNTED_TILE`.
        alike: the number of a set of rows, for each row. Rows of one set have the same problem and
            plan, except for `width`. None if the sets are not known.
    """

    l: Column  # noqa: E741 - named like m, n and k
    m: Column
    n: Column
    k: Column
    ragged_m: Column
    ragged_k: Column
    turned_a: Column
    turned_b: Column
    in_bytes: Column
    out_bytes: Column
    c_bytes: Column
    operand_bytes: Column
    row_cycles: Column
    tile_m: Column
    tile_n: Column
    tile_k: Column
    cluster_m: Column
    cluster_n: Column
    cluster_k: Column
    turns: Column
    workgroups: Column
    width: Column
    schedule: Column
    schedules: tuple[Pass, ...]
    alike: NDArray[np.intp] | None = None

    @classmethod
    def of(cls, rows: Iterable[tuple[Gemm, Plan]], batches: int = 1) -> Table:
        """The table of some problems, each with a plan; their epilogues are assumed not to read C.

        Args:
            rows: problems with values for m, n and k, each with a plan.
            batches: number of products of each problem: of a batch, or of groups.

        Raises:
            VerifyError: m, n or k has no value.
            ValueError: the cost model does not know a plan's passes.
        """
        places: dict[Pass, int] = {}
        each = (_numbers(*row, batches, places) for row in rows)
        found = [[numbers[name] for name in _COLUMNS] for numbers in each]
        columns = np.array(found, np.float64).reshape(-1, len(_COLUMNS)).T
        return cls(*columns, schedules=tuple(places))

    def __len__(self) -> int:
        return len(self.tile_m)

    @cached_property
    def counters(self) -> tuple[WorkCounter, ...]:
        """The `WorkCounter` of each schedule in `schedules`."""
        found = tuple(map(counter_of, self.schedules))
        assert None not in found
        return cast(tuple[WorkCounter, ...], found)

    @cached_property
    def adjacent(self) -> Flag:
        """For each row, whether the workgroups n and n + 1 compute neighbouring output tiles."""
        return self.of_schedule([adjacent_tiles(schedule) for schedule in self.schedules]) > 0

    @cached_property
    def divided(self) -> Flag:
        """For each row, whether the plan divides some of its macro tiles into small tiles."""
        return self.small_m > 0

    @cached_property
    def small_m(self) -> Column:
        """For each row of the table, the extent along m of a small tile, in elements.

        The extent is 0 if all tiles of the plan have one shape.
        """
        return self._small(0, self.tile_m)

    @cached_property
    def small_n(self) -> Column:
        """For each row of the table, the extent along n of a small tile, in elements.

        The extent is 0 if all tiles of the plan have one shape.
        """
        return self._small(1, self.tile_n)

    @cached_property
    def loops(self) -> Flag:
        """For each row, whether a workgroup computes tiles, or pieces of tiles, in a loop."""
        return self.of_schedule([counter.loops for counter in self.counters]) > 0

    @cached_property
    def finishes_shares(self) -> Flag:
        """For each row, whether a workgroup computes one partial sum and then finishes shares.

        The partial sum is of one output tile, over a part of k. A share is a part of the tile: the
        workgroup adds up all partial sums of the share, and its threads store the result from
        registers. For kernel graphs, `passes.kit.reduce_scatter.finishes_shares` tells the same.
        """
        return (self.fixup == FIXUPS.index("scatter")) & ~self.loops

    @cached_property
    def streams(self) -> Flag:
        """For each row, whether workgroups of the plan send partial sums."""
        return self.fixup != FIXUPS.index("none")

    @cached_property
    def fixup(self) -> NDArray[np.intp]:
        """The kind of fix-up of each plan, as an index in `FIXUPS`."""
        return self.of_schedule([FIXUPS.index(counter.fixup) for counter in self.counters])

    @cached_property
    def interleaved(self) -> Flag:
        """For each row, whether the plan's schedule has `k_order=interleaved`.

        With this option, all workgroups are at nearly the same k at any time.
        """
        orders = [getattr(schedule, "k_order", "") for schedule in self.schedules]
        return self.of_schedule([order == "interleaved" for order in orders])

    @cached_property
    def backward(self) -> Flag:
        """For each row, whether workgroups run the segments of their share from last to first.

        A segment is the part of a workgroup's share of iterations that lies in one output tile.
        """
        owners = [getattr(schedule, "owner", "first") for schedule in self.schedules]
        scatter = self.fixup == FIXUPS.index("scatter")
        return self.of_schedule([owner == "last" for owner in owners]) & ~scatter

    def of_schedule(self, values: Sequence[float]) -> NDArray[Any]:
        """A column with one entry per row: the entry of `values` for the row's schedule."""
        return np.array(values)[self.schedule.astype(np.intp)]

    def _small(self, axis: int, extent: Column) -> Column:
        """Extent of a small tile along an axis in elements; 0 if all tiles have one shape.

        Args:
            axis: 0 for m, 1 for n.
            extent: extent of the macro tile along the axis.
        """
        parts = self.of_schedule([counter.small[axis] for counter in self.counters])
        other = self.of_schedule([counter.small[1 - axis] for counter in self.counters])
        return np.where(parts * other > 1, extent / parts, 0)

    def where(self, chosen: Flag | NDArray[np.intp]) -> Table:
        """A table of some of the rows, given as a mask or as row indices."""
        given = vars(self)
        alike = None if self.alike is None else self.alike[chosen]
        columns = [given[name][chosen] for name in _COLUMNS]
        found = Table(*columns, schedules=self.schedules, alike=alike)
        if "counters" in given:
            # `counters` is a cached property that depends only on `schedules`, which stay the same.
            vars(found)["counters"] = given["counters"]
        return found

    @cached_property
    def distinct(self) -> tuple[NDArray[np.intp], NDArray[np.intp]] | None:
        """Sets of rows that differ only in the order of tiles (equal `alike`), as two arrays.

        The first array has the first row of each set, the second the number of each row's set. The
        result is None if all entries of `alike` differ, or if `alike` is None.
        """
        if self.alike is None or not len(self):
            return None
        number = np.full(int(self.alike.max()) + 1, -1, np.intp)
        number[self.alike[::-1]] = np.arange(len(self))[::-1]
        first = number[number >= 0]
        number[self.alike[first]] = np.arange(len(first))
        return None if len(first) == len(self) else (first, number[self.alike])

    def plan(self, row: int) -> Plan:
        """The plan in a row of the table."""

        def numbers(*names: str) -> tuple[int, ...]:
            """The integers in the named columns of the row `row`."""
            return tuple(int(getattr(self, name)[row]) for name in names)

        tile = cast(tuple[int, int, int], numbers("tile_m", "tile_n", "tile_k"))
        cluster = cast(tuple[int, int, int], numbers("cluster_m", "cluster_n", "cluster_k"))
        grid, width, turns = numbers("workgroups", "width", "turns")
        schedule = self.schedules[int(self.schedule[row])].scaled(COUNTED_TILE, tile)
        order = "" if width == 1 else f"{Rasterize(width)},"
        return Plan(
            tile,
            cluster,
            f"{order}{schedule}",
            grid or None,
            next(name for name, count in CONSUMERS.items() if count == turns),
        )


_COLUMNS = tuple(f.name for f in fields(Table) if f.name not in ("schedules", "alike"))
"""The names of the columns of a `Table`, in order."""


def sizes(problem: Gemm) -> tuple[int, int, int]:
    """The values of m, n and k of a problem.

    Raises:
        VerifyError: m, n or k has no value.
    """
    m, n, k = problem.m, problem.n, problem.k
    if m is None or n is None or k is None:
        raise VerifyError(
            "a plan is chosen for one size, and m, n or k has no value; give all three"
        )
    return m, n, k


def extents(problem: Gemm, batches: int) -> dict[str, float]:
    """The entries of a problem in the columns l, m, n, k, ragged_m and ragged_k of a `Table`.

    Args:
        problem: the problem, with values for m, n and k; if groups divide an axis, its value is the
            sum of the groups' extents.
        batches: number of products in a batch, or of groups.
    """
    found: dict[str, float] = {"l": batches}
    for axis, extent in zip("mnk", sizes(problem), strict=True):
        found[axis] = extent / batches if problem.ragged(axis) else extent
    found["n"] *= problem.sums
    return found | {"ragged_m": problem.ragged("m"), "ragged_k": problem.ragged("k")}


def schedule_in(plan: Plan) -> tuple[Pass, int] | None:
    """(plan's schedule, converted to tiles `COUNTED_TILE`; height of bands of tiles, in tiles).

    Returns None if the cost model does not know one of the plan's passes.
    """
    *orders, last = Pipeline.parse(plan.pipeline).passes
    width = 1
    for order in orders:
        if not isinstance(order, Rasterize) or order != Rasterize(order.width):
            return None
        width = order.width
    try:
        schedule = last.scaled(plan.tile, COUNTED_TILE)
    except PassError:
        return None
    return None if counter_of(schedule) is None else (schedule, width)


def stored_bytes(gemm: GemmProblem) -> float:
    """Bytes of D that a kernel stores for each column of B in a row of D; see `Table.out_bytes`."""
    kind = dtype(gemm.out_dtype or gemm.dtype)
    return kind.bytes / gemm.sums if gemm.epilogue.stores_d else 0


def _numbers(gemm: Gemm, plan: Plan, batches: int, places: dict[Pass, int]) -> dict[str, float]:
    """The entries of a table's row for a problem and a plan, by name of the column.

    Args:
        gemm: the problem.
        plan: the plan.
        batches: number of products in a batch, or of groups.
        places: the index of each schedule in `Table.schedules`; a new schedule is added.

    Raises:
        ValueError: the cost model does not know one of the plan's passes.
    """
    known = schedule_in(plan)
    if known is None:
        raise ValueError(
            f"the cost of the passes '{plan.pipeline}' cannot be predicted, because the cost model "
            "does not know them; use a schedule of chosen_schedules(), after at most one Rasterize"
        )
    schedule, width = known
    found: dict[str, float] = {
        "turns": CONSUMERS[plan.consumers],
        "workgroups": plan.workgroups or 0,
        "width": width,
        "schedule": places.setdefault(schedule, len(places)),
    }
    for axis, extent, count in zip("mnk", plan.tile, plan.cluster, strict=True):
        found[f"tile_{axis}"], found[f"cluster_{axis}"] = extent, count
    return {
        **found,
        **extents(gemm, batches),
        "turned_a": gemm.transpose_a,
        "turned_b": gemm.transpose_b,
        "in_bytes": dtype(gemm.dtype).bytes,
        "out_bytes": stored_bytes(gemm),
        "c_bytes": 0,
        "operand_bytes": 0,
        "row_cycles": 0,
    }
