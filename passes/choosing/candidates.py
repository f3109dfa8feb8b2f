"""`candidates`: the table of all plans of a problem among which the cost model chooses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import lcm

import numpy as np
from numpy.typing import NDArray

from coordgraph import Gemm
from coordgraph.tensors import dtype
from passes.base import Pass
from passes.choosing.constants import Constants
from passes.choosing.counting import COUNTED_TILE, WorkCounter
from passes.choosing.exclusions import shared_bytes, slow, suits_large_clusters
from passes.choosing.kernel_shape import UNIT_K, along
from passes.choosing.kinds import (
    Kind,
    Tiled,
    divisible,
    interleaved_kinds,
    pinned_kinds,
    tuned_kinds,
    unusual_kinds,
)
from passes.choosing.known_schedules import adjacent_tiles, chosen_schedules, counter_of
from passes.choosing.operand_reads import OperandReads
from passes.choosing.plan import Plan
from passes.choosing.plan_table import Column, Flag, Table, extents, stored_bytes
from passes.choosing.summation_order import SummationOrder
from passes.choosing.tile_candidates import WIDE, More
from passes.choosing.tiling_columns import Columns, Kernels, tiling_columns
from passes.choosing.tuned_schedules import INTERLEAVED
from passes.lowering.sm_90a.division import (
    MMA_COLUMNS,
    MMA_M,
    MOST_ALONE_ADDING,
    WARPGROUP,
    swapped,
)
from passes.lowering.sm_90a.registers import MOST_ACCUMULATORS, too_many_rows
from passes.schedules.data_parallel import DataParallel

__all__ = ["candidates", "fallback"]

FEW_TILE, LEAST_ROWS = 64, 48
"""Limits on the number of rows of the macro tiles that are tried.

If m is at most FEW_TILE and groups do not divide m, a tile has at least m rows; else it has at
least LEAST_ROWS rows.
"""
GROUPED_ROWS = 128
"""Smallest number of rows of a CTA's part of a macro tile, in plans for grouped products."""
MOST_SLIM = 1 << 21
"""Largest number of elements of D for which tiles of 64 columns and the heights in `SLIM_HEIGHTS`
are tried."""
BANDS = (4, 8, 16)
"""Heights that are tried for the bands in which `Rasterize` visits tiles, in rows of tiles."""
TURNS_DEPTH = 1024
"""Smallest k, in elements, for which pingpong warpgroups are tried with B as the left operand of
wgmma. With smaller k, such plans were measured to take 1.05 to 1.2 times the predicted time (H200,
2026-11-27)."""


def candidates(
    problem: Gemm,
    device: Constants,
    *,
    batches: int = 1,
    reads_c: bool = False,
    all_kinds: bool = False,
    tuning: bool = False,
    large_clusters: bool = False,
    reused: bool = False,
    among: Kernels | None = None,
    order: SummationOrder | None = None,
) -> Table:
    """The table of plans that may be chosen for a problem.

    Args:
        problem: the problem, with values for m, n and k.
        device: the cost model's constants of the device, such as `constants_of` returns.
        batches: number of products in a batch, or of groups.
        reads_c: whether the epilogue reads C.
        all_kinds: whether to add schedules that are excluded from the choice, to measure them.
        tuning: whether to add plans that `codegen.matmul` chooses only if they were measured.
        large_clusters: whether to add clusters of more than two CTAs where the cost model never
            chooses them (see `exclusions.far`), to measure them.
        reused: whether few kernels must serve many sizes: persistent data-parallel kernels are then
            candidates also if all tiles fit on the device at once. It is implied by `among`.
        among: the kernels to which the plans are limited; the table is empty if none of them suits
            the problem. None sets no limit.
        order: the order of additions along k that the plans must have; None sets no limit.
    """
    out_bytes = stored_bytes(problem)
    same = extents(problem, batches)
    reads = OperandReads.of(problem, same, reads_c=reads_c)
    large = large_clusters or bool(suits_large_clusters(**same))
    more: dict[More, bool] = {
        "large clusters": large,
        "narrow": order is not None,
        "slim": same["m"] * same["n"] <= MOST_SLIM,
        "tuned": tuning or all_kinds or large_clusters,
    }
    added = frozenset(name for name, wanted in more.items() if wanted)
    k_major = not problem.transpose_a, problem.transpose_b
    row = dtype(problem.dtype).row
    known = tiling_columns(reads.element_bytes, row, k_major, among, added)
    cut = _cut(problem, same, device, known, large, large_clusters)
    kinds = [*_usual(cut, reused or among is not None), *(tuned_kinds(cut) if tuning else ())]
    kinds += unusual_kinds(cut) if all_kinds else ()
    if tuning or all_kinds:
        kinds += interleaved_kinds(cut, np.ones_like(cut.tiles, bool))
    else:
        each = same["l"] * same["k"] * dtype(problem.dtype).bytes
        shared = shared_bytes(each * same["m"], each * same["n"], cut.tiles_m, cut.tiles_n)
        kinds += interleaved_kinds(cut, shared > device.l2_bytes, INTERLEAVED[:1])
    if order is not None and order.segments > 1:
        kinds = [*pinned_kinds(cut, order.segments)]
    kinds = [kind for kind in kinds if _is_taken(problem, kind)]
    # If the epilogue reduces rows, a workgroup must hold all columns of a tile.
    rows = (cut.tiling[4] == 1) | (not problem.row_reductions)
    bands = {whole: _bands(cut, whole) for whole in (False, True)}
    parts: list[tuple[Kind, int, NDArray[np.intp]]] = []
    for kind in kinds:
        counter = counter_of(kind.schedule)
        assert counter is not None
        for band, suits in bands[counter.fixup == "none"].items():
            chosen = (kind.tried & suits & rows).nonzero()[0]
            if len(chosen):
                parts.append((kind, band, chosen))
    counts = [len(chosen) for _, _, chosen in parts]

    def spread(values: Sequence[float]) -> Column:
        """A column with one entry per plan, from one value for each entry of `parts`.

        An entry of `parts` is a schedule and a band height; all plans with this schedule and height
        get the entry's value.
        """
        return np.repeat(np.array(values, np.float64), counts)

    which = np.concatenate([np.zeros(0, np.intp), *(chosen for _, _, chosen in parts)])
    names = ("tile_m", "tile_n", "tile_k", "cluster_m", "cluster_n", "cluster_k", "turns")
    found = {name: column[which] for name, column in zip(names, cut.tiling, strict=True)}
    places = {kind.schedule: place for place, kind in enumerate(kinds)}
    found["schedule"] = spread([places[kind.schedule] for kind, _, _ in parts])
    grids = (kind.grid[chosen] for kind, _, chosen in parts)
    found["workgroups"] = np.concatenate([np.zeros(0), *grids])
    found["width"] = spread([band for _, band, _ in parts])
    same |= {"turned_a": problem.transpose_a, "turned_b": problem.transpose_b}
    same |= {
        "in_bytes": dtype(problem.dtype).bytes,
        "out_bytes": out_bytes,
        "c_bytes": reads.element_bytes,
    }
    same |= {"operand_bytes": reads.total_bytes, "row_cycles": reads.row_cycles}
    schedules = tuple(kind.schedule for kind in kinds)
    number = {id(kind): place * len(cut.tiles) for place, kind in enumerate(kinds)}
    firsts = np.repeat(np.array([number[id(kind)] for kind, _, _ in parts], np.intp), counts)
    columns = {name: np.full(len(which), float(v)) for name, v in same.items()}
    table = Table(**columns, **found, schedules=schedules, alike=firsts + which)
    if among is not None:
        table = table.where(among.holds(table))
    if order is not None:
        table = table.where(order.holds(table))
    kept = ~slow(table)
    return table.where(kept) if kept.any() and not kept.all() else table


def _bands(cut: Tiled, whole: bool) -> dict[int, Flag]:
    """The tilings to try with each height of the bands in which tiles are visited.

    A band of one row of tiles is row-major order.

    Args:
        cut: the tilings (tile and cluster) of a problem.
        whole: whether each tile is computed by one workgroup, not divided along k.
    """
    cluster_m, cluster_n, cluster_k = cut.tiling[3:6]
    # If no workgroup has two tiles, bands of several rows help CTAs without clusters: the CTAs of a
    # GPC then request data of neighbouring tiles at the same time, and the L2 cache merges equal
    # requests. They also help clusters along n (below).
    wide = (cut.several | cut.alone) & (cut.tiles_n > 2)
    # Clusters along n multicast A, so the L2 cache can merge only requests for B. It does if
    # consecutive clusters compute tiles in the same column: such plans take 1 to 9 % less time than
    # in row-major order (nine measurements, H100, 2026-11-27). Clusters along m multicast B; for
    # them row-major order is the faster one.
    down = (cluster_n > 1) & (cluster_m * cluster_k == 1) & ~cut.several
    down &= (cut.tiles_m > 1) & (cut.tiles_n > 1) & whole
    found = {1: ~down, **{band: wide & (cut.tiles_m > band) for band in BANDS}}
    found[BANDS[-1]] |= down
    return found


def _is_taken(problem: Gemm, kind: Kind) -> bool:
    """Whether a schedule, and the lowering for GPUs, accept a problem.

    Problems without groups and without reductions of rows are not checked, since candidate
    schedules accept them.
    """
    rows = bool(problem.row_reductions)
    if not (problem.grouped or rows) or not kind.tried.any():
        return True
    if rows and getattr(kind.schedule, "reduction", "") == "scatter":
        return False
    schedule = kind.schedule.scaled(COUNTED_TILE, fallback().tile)
    return _takes(replace(problem, m=None, n=None, k=None), schedule)


@cache
def _takes(gemm: Gemm, schedule: Pass) -> bool:
    """Whether a schedule accepts a problem; the answer is the same for every macro tile."""
    return schedule.why_not(gemm.graph(fallback(row=dtype(gemm.dtype).row).tile)) is None


def _cut(
    problem: Gemm,
    size: Mapping[str, float],
    device: Constants,
    columns: Columns,
    large_clusters: bool,
    any_tiles: bool,
) -> Tiled:
    """The tilings (tile and cluster) that suit a size.

    Args:
        problem: the problem.
        size: `extents(…)`: number of products `l`, `m`, `n`, `k`, and whether groups divide m or k.
        device: the cost model's constants of the device.
        columns: the tilings (tile and cluster) to select from.
        large_clusters: whether the tilings have clusters of more than two CTAs.
        any_tiles: whether to keep tilings with clusters of more than two CTAs even if there are
            more output tiles than clusters that are resident on the device at a time.
    """
    m, n, k = (size[axis] for axis in "mnk")
    known, held, small = columns
    few, most = (m if m <= FEW_TILE else 0), (GROUPED_ROWS if problem.grouped else MMA_M)
    if problem.ragged("m"):  # m is the mean number of rows of a group; some groups have more rows
        few = 0
    keep = (known[0] >= (few or LEAST_ROWS)) & ((known[0] < 2 * m) | (known[0] <= most))
    part_m, part_n = known[0] / known[3], known[1] / known[4]
    # Multiples of WIDE are faster along an axis that is contiguous in memory; see WIDE. If groups
    # divide m, other extents were not measured.
    wide_m = WIDE if problem.ragged("m") or problem.transpose_a else MMA_COLUMNS
    wide_n = WIDE if problem.ragged("m") or not problem.transpose_b else MMA_COLUMNS
    keep &= part_m % wide_m == 0
    keep &= part_n % lcm(problem.sums * MMA_COLUMNS, wide_n) == 0
    keep &= known[1] < 2 * max(n, UNIT_K)
    if problem.sums > 1:
        # A must be the left operand of wgmma, and an instruction has 8 columns or more of each sum,
        # also where two warpgroups halve the columns.
        halved = (part_m % (2 * MMA_M) > 0) & (known[6] == 1)
        halved &= part_m * part_n > MOST_ALONE_ADDING * WARPGROUP
        keep &= part_m % MMA_M == 0
        keep &= ~halved | (part_n % (2 * problem.sums * MMA_COLUMNS) == 0)
    if problem.row_reductions:
        left_b = swapped(part_m, part_n, known[6])
        alone = part_m * part_n <= MOST_ACCUMULATORS * WARPGROUP
        accumulators = part_m * part_n / WARPGROUP / np.where(alone | (known[6] > 1), 1, 2)
        keep &= ~left_b | ~too_many_rows(problem, accumulators, part_m)
    if k < TURNS_DEPTH:
        keep &= (known[6] == 1) | (part_m % MMA_M == 0)
    if problem.grouped:
        # The cost model has no term for the end of a group. Tiles with few rows, and pingpong
        # consumers, were measured to take up to 1.5 times the predicted time, so they are left out.
        keep &= (known[6] == 1) & (part_m >= GROUPED_ROWS)
        # Left out: TMA boxes with rows shorter than a cache line took 1.15 times as long.
        if problem.ragged("k"):
            keep &= (part_m % UNIT_K == 0) & (part_n % UNIT_K == 0)
    if large_clusters and not any_tiles:
        workgroups = known[3] * known[4]
        tiles = np.ceil(m / known[0]) * np.ceil(n / known[1])
        keep &= (workgroups <= 2) | (tiles <= device.slots(workgroups))
    tiling = tuple(column[keep] for column in known)
    tile_m, tile_n, tile_k, *cluster = tiling[:6]
    return Tiled(
        tiling,
        few,
        held[keep],
        {parts: fits[keep] for parts, fits in small.items()},
        device.slots(np.prod(cluster, axis=0)),
        size["l"],
        not problem.ragged("m"),
        not problem.ragged("k"),
        not problem.grouped or _takes(replace(problem, m=None, n=None, k=None), DataParallel()),
        along(m, tile_m, size["ragged_m"]),
        along(n, tile_n),
        np.ceil(along(k, tile_k, size["ragged_k"])),
    )


def _usual(cut: Tiled, reused: bool) -> Iterator[Kind]:
    """Yield the schedules that passes list in `Pass.variants`, with suitable tilings and grids.

    Args:
        cut: the tilings (tile and cluster) of a problem.
        reused: whether few kernels must serve many sizes; see `candidates`.
    """
    for schedule in chosen_schedules():
        counter = counter_of(schedule)
        assert counter is not None
        tried = _possible(cut, counter)
        if tried is None:
            continue
        if counter.fixup == "scatter":
            # Multicast requests of clusters are not merged with others, so only CTAs without
            # clusters are launched such that neighbours have adjacent tiles.
            tried = tried & (cut.alone == adjacent_tiles(schedule))
        suits = schedule.suits(cut.tiles, cut.depth, cut.slots)
        if not counter.chosen_grid:
            yield Kind(schedule, tried & suits, np.zeros_like(cut.tiles))
            continue
        grid = cut.slots
        if counter.fixup == "none" and (reused or not cut.each):
            # The persistent data-parallel schedule is tried with every tiling: kernels are reused,
            # or no schedule with one workgroup for each tile accepts this problem.
            suits = np.ones_like(tried)
            grid = np.minimum(cut.tiles, cut.slots) if cut.counted else cut.slots
        yield Kind(schedule, tried & suits, grid)
        # Grids that divide all tiles equally need no loop over pieces of several tiles.
        if counter.all_streamed and not counter.loops and cut.counted:
            for grid in cut.split_grids:
                several = (grid > cut.tiles) & (grid != cut.slots)
                suits = schedule.suits(cut.tiles, cut.depth, np.maximum(grid, 1))
                yield Kind(schedule, tried & several & suits, grid)


def _possible(cut: Tiled, counter: WorkCounter) -> Flag | None:
    """For each tiling, whether to try a schedule with it; None to try the schedule with no tiling.

    Args:
        cut: a problem with every tiling that suits it.
        counter: the `WorkCounter` of the schedule.
    """
    # Pingpong warpgroups alternate between tiles, so they need more than one tile per workgroup.
    tried = cut.several | (cut.tiling[6] == 1)
    if not counter.chosen_grid and not cut.each:
        return None
    if counter.fixup == "scatter" and not cut.counted:
        return None
    if counter.fixup != "none":
        tried = tried & divisible(cut)
    if counter.small != (1, 1):
        if counter.small not in cut.small:
            return None
        pieces = counter.small[0] * counter.small[1]
        sooner = np.ceil(cut.rest * pieces / cut.slots) < pieces
        high = cut.tiling[0] / counter.small[0] >= cut.few
        tried = tried & cut.small[counter.small] & sooner & high
    return tried


def fallback(persistent: bool = False, row: int = UNIT_K) -> Plan:
    """A plan that can be lowered for every problem but is not fast.

    Args:
        persistent: whether to launch a fixed number of workgroups; grouped products need that.
        row: extent of the tile along k: the number of elements of A and B in 128 bytes.
    """
    return Plan((128, 128, row), pipeline=str(DataParallel(persistent=persistent)))
