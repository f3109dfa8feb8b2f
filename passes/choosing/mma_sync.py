"""Rank plans of kernels with mma.sync by times predicted from data-sheet rates of the GPU."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import product

import numpy as np

from coordgraph import Gemm
from coordgraph.elements import dtype
from passes.base import Pass
from passes.choosing.fixed_rules import ROWS
from passes.choosing.gpu_figures import GpuFigures
from passes.choosing.mma_sync_model import MmaShape, cost
from passes.choosing.operand_reads import OperandReads
from passes.choosing.plan_table import Column, Flag, Table, extents, stored_bytes
from passes.choosing.ranking import Choice
from passes.schedules.data_parallel import DataParallel
from passes.schedules.stream_k import StreamK

__all__ = ["TILES", "choices", "covers", "ranked"]

TILES = ((128, 256), (256, 128), (128, 128), (256, 64), (64, 256), (128, 64), (64, 128), (64, 64))
"""Rows and columns of the output tiles that are tried."""
SCHEDULES: tuple[Pass, ...] = (DataParallel(), StreamK(owner="last"))
EACH, STREAMED = range(len(SCHEDULES))
"""Indices of the data-parallel schedule and of Stream-K in SCHEDULES. Two-tile Stream-K is left
out: on an H200, with mma.sync, it was measured to be at most 1.2 % faster than Stream-K, and up to
9 % slower (`benchmarks/results/gemm-h200-sm_80-2026-11-21.json`)."""
BANDS = (1, 8)
"""Heights of the bands of output tiles that are tried; 1 visits tiles in row-major order."""
LEAST_DEPTH = 4
"""Smallest number of iterations of an output tile that is divided along k, and of each of the
tile's shares on average."""
MOST_PIECES = 16
"""Largest number of workgroups among which an output tile is divided along k."""


def covers(problem: Gemm) -> bool:
    """Whether the cost model of kernels with mma.sync describes a problem.

    The model describes no groups, no epilogues that reduce rows, and no epilogues that combine
    products of A with several matrices, such as that of a gated layer.
    """
    return not problem.grouped and not problem.row_reductions and problem.sums == 1


def choices(
    problem: Gemm, figures: GpuFigures, *, batches: int = 1, reads_c: bool = False
) -> Iterator[Choice]:
    """Yield every candidate plan for a problem, in the order of predicted times.

    Args:
        problem: a problem that `covers` accepts, with values for m, n and k.
        figures: the published rates and sizes of the GPU.
        batches: number of products in a batch.
        reads_c: whether the epilogue reads C.
    """
    table = _candidates(problem, figures, batches, reads_c)
    found = cost(table, figures)
    for row in np.argsort(found.total, kind="stable"):
        terms = found.row(int(row))
        yield Choice(table.plan(int(row)), terms.pop("total"), terms)


@lru_cache(maxsize=256)
def ranked(
    problem: Gemm, figures: GpuFigures, count: int, *, batches: int = 1, reads_c: bool = False
) -> tuple[Choice, ...]:
    """The `count` plans for a problem with the shortest predicted times, the best first.

    `figures` has published rates and sizes of the GPU, `batches` is the number of products of a
    batch, and `reads_c` says whether the epilogue reads C.
    """
    found = choices(problem, figures, batches=batches, reads_c=reads_c)
    return tuple(choice for choice, _ in zip(found, range(count), strict=False))


def _candidates(problem: Gemm, figures: GpuFigures, batches: int, reads_c: bool) -> Table:
    """The table of plans that may be chosen for a problem."""
    kind, same = dtype(problem.dtype), extents(problem, batches)
    operands = OperandReads.of(problem, same, reads_c=reads_c)
    pieces = range(2, MOST_PIECES + 1)
    grids = ((EACH, 0), (STREAMED, 0), *((STREAMED, piece) for piece in pieces))
    rows = [(*tile, *grid, width) for tile, grid, width in product(TILES, grids, BANDS)]
    tile_m, tile_n, schedule, piece, width = np.array(rows, np.float64).T
    same |= {
        **{"turned_a": problem.transpose_a, "turned_b": problem.transpose_b},
        **{"in_bytes": kind.bytes, "out_bytes": stored_bytes(problem)},
        **{"c_bytes": operands.element_bytes, "operand_bytes": operands.total_bytes},
        **{"row_cycles": operands.row_cycles},
        **{"tile_k": kind.row // ROWS, "cluster_m": 1, "cluster_n": 1, "cluster_k": 1, "turns": 1},
    }
    columns = {name: np.full(len(rows), float(value)) for name, value in same.items()}
    columns |= {"tile_m": tile_m, "tile_n": tile_n, "schedule": schedule, "width": width}
    table = Table(**columns, workgroups=np.zeros(len(rows)), schedules=SCHEDULES)
    shape = MmaShape.of(table, figures)
    slots = figures.processors * shape.resident
    grid = np.where(schedule == EACH, 0, np.where(piece > 0, piece * shape.tiles, slots))
    table.workgroups[:] = grid
    return table.where(_suits(table, shape, slots, piece))


def _suits(t: Table, s: MmaShape, slots: Column, piece: Column) -> Flag:
    """For each plan, whether it fits the GPU and the problem.

    Args:
        t: a table with one problem and one plan in each row.
        s: how each plan's tiles are divided among warps and pipeline stages.
        slots: number of workgroups that the GPU runs at the same time.
        piece: number of workgroups that share each tile; 0 for plans that do not fix this number:
            data-parallel ones, and Stream-K with one workgroup for each slot.
    """
    pieces = np.where(piece > 0, piece, np.maximum(slots / np.maximum(s.tiles, 1), 1))
    deep = (s.depth >= LEAST_DEPTH) & (s.depth >= LEAST_DEPTH * pieces) & (pieces <= MOST_PIECES)
    # A plan with as many pieces as slots is the plan with one workgroup for each slot.
    streams = deep & np.where(piece > 0, piece * s.tiles < slots, s.tiles % slots != 0)
    suits = np.where(t.schedule == STREAMED, streams, True)
    bands = (t.width == 1) | ((s.tiles_m > t.width) & (s.tiles_n > 2))
    return s.fits & suits & bands
