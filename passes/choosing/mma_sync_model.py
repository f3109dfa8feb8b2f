"""The cost model of kernels with mma.sync, from data-sheet rates of a GPU (`GpuFigures`).

The model has the terms of `passes.choosing.model.Cost` that apply to kernels with mma.sync: launch,
main loop, ends of tiles, fix-up, memory and L2 cache. There are no clusters, and no data sheet
says which rate the power limit allows, so the terms `cluster` and `power` are 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, reduce

import numpy as np

from passes.choosing.gpu_figures import GpuFigures
from passes.choosing.model import Cost
from passes.choosing.plan_table import Column, Flag, Table
from passes.choosing.traffic import traffic_of
from passes.choosing.work import Work
from passes.lowering.architectures import architecture_of
from passes.lowering.multiplying import REGISTER_BYTES
from passes.lowering.sm_80.fragments import LANES, warps_of
from passes.lowering.sm_80.lower import MOST_STAGES

__all__ = ["MmaShape", "cost"]

SHARED_RATE = 128
"""Bytes per cycle of an SM's shared memory: 32 banks of 4 bytes (CUDA C++ programming guide)."""
SM_REGISTERS, RESERVED_BYTES = 65536, 1024
"""SM_REGISTERS: 32-bit registers of an SM. RESERVED_BYTES: bytes of shared memory that CUDA
reserves for each workgroup (CUDA C++ programming guide, "Technical specifications per compute
capability")."""
OTHER_REGISTERS, STREAMED_REGISTERS, PER_SUM, MOST_REGISTERS = 66, 24, 1.25, 255
"""The registers of a thread are estimated as OTHER_REGISTERS + PER_SUM * accumulators, at most
MOST_REGISTERS, and STREAMED_REGISTERS more if workgroups exchange partial sums. For the tiles of
`passes.choosing.mma_sync` ptxas assigns from 4 more to 18 fewer registers."""
SHARPNESS = 4.0
"""Degree of the norm that approximates the maximum of times that overlap."""


@cache
def _warps(rows: int, columns: int) -> tuple[int, int]:
    """The grid of warps, along m and n, that divides an output tile."""
    found = warps_of(rows, columns)
    assert found is not None
    return found


@dataclass(frozen=True)
class MmaShape:
    """How the lowering to mma.sync divides the tiles of each plan of a table.

    Attributes:
        tiles_m, tiles_n: numbers of output tiles of one product along m and n.
        tiles: number of output tiles of the whole batch.
        depth: number of iterations of the main loop for one output tile.
        stages: number of pipeline stages in shared memory.
        resident: number of workgroups that an SM runs at the same time.
        loaded_bytes: bytes of A and B that a workgroup loads in one iteration.
        shared_bytes: bytes of shared memory that an iteration writes and reads.
        partial_bytes: bytes of a partial sum of a tile.
    """

    tiles_m: Column
    tiles_n: Column
    tiles: Column
    depth: Column
    stages: Column
    resident: Column
    loaded_bytes: Column
    shared_bytes: Column
    partial_bytes: Column

    @classmethod
    def of(cls, t: Table, g: GpuFigures) -> MmaShape:
        """Compute the shapes of all plans of a table on a GPU."""
        tiles_m, tiles_n = np.ceil(t.m / t.tile_m), np.ceil(t.n / t.tile_n)
        loaded = (t.tile_m + t.tile_n) * t.tile_k * t.in_bytes
        room = architecture_of(g.architecture).shared_bytes
        stages = np.minimum(room // loaded, MOST_STAGES)
        extents = zip(t.tile_m.astype(int), t.tile_n.astype(int), strict=True)
        warps = np.array([_warps(int(m), int(n)) for m, n in extents], np.float64).reshape(-1, 2).T
        # Each warp reads its rows of A and its columns of B.
        read = (t.tile_m * warps[1] + t.tile_n * warps[0]) * t.tile_k * t.in_bytes
        threads = warps[0] * warps[1] * LANES
        registers = OTHER_REGISTERS + PER_SUM * t.tile_m * t.tile_n / threads
        registers = np.minimum(registers + STREAMED_REGISTERS * t.streams, MOST_REGISTERS)
        by_shared = g.sm_shared_bytes // (stages * loaded + RESERVED_BYTES)
        by_registers = SM_REGISTERS // (np.ceil(registers / 8) * 8 * threads)
        return cls(
            tiles_m=tiles_m,
            tiles_n=tiles_n,
            tiles=t.l * tiles_m * tiles_n,
            depth=np.ceil(t.k / t.tile_k),
            stages=stages,
            resident=np.maximum(np.minimum(by_shared, by_registers), 1),
            loaded_bytes=loaded,
            shared_bytes=loaded + read,
            partial_bytes=t.tile_m * t.tile_n * REGISTER_BYTES,
        )

    @property
    def fits(self) -> Flag:
        """For each plan, whether two pipeline stages fit in shared memory."""
        return self.stages >= 2


def cost(t: Table, g: GpuFigures, shape: MmaShape | None = None) -> Cost:
    """The predicted seconds of each plan of a table on a GPU, by term of the cost model.

    Args:
        t: a table with one problem and one plan in each row.
        g: the published rates and sizes of the GPU.
        shape: how the plans' tiles are divided among warps and pipeline stages; None computes this.
    """
    s, late = shape or MmaShape.of(t, g), g.latencies
    w = Work.of(t, s.tiles, s.depth, g.processors * s.resident)
    each = np.ceil(w.grid / g.processors)
    # An SM computes whole tiles, or, if the number of workgroups can be chosen, as many iterations
    # as its workgroups have together.
    chosen = t.of_schedule([counter.chosen_grid for counter in t.counters])
    whole = np.ceil(s.tiles / g.processors) * s.depth
    of_sm = np.where(chosen, w.iterations * each, whole)
    ends = np.where(chosen, w.ends * each, np.ceil(s.tiles / g.processors))
    # While one workgroup of an SM stores its tile, others multiply.
    stored = np.where(s.resident > 1, np.minimum(ends, s.resident), ends)
    # The warps of a workgroup wait for each other in every iteration; only other workgroups of the
    # SM multiply in the meantime. A tile is requested `stages - 1` iterations before it is used.
    step = _iteration(t, s, g)
    alone = w.iterations * (step + late.iteration_seconds)
    waits = w.iterations * late.reach_seconds / (s.stages - 1)
    loop = _largest(of_sm * step, alone, waits)
    asked = s.tiles * s.depth * s.loaded_bytes
    streams = w.streamed * w.grid
    traffic = traffic_of(t, s, w.grid, g.kept_bytes, mixed=w.apart, streams=streams)
    moved = t.l * t.m * t.n * t.out_bytes + t.operand_bytes
    sends = w.counts.all_sends * s.partial_bytes
    dram = (traffic + moved) / g.reached_dram_rate + late.dram_seconds
    l2 = (asked + moved + 2 * sends) / g.reached_l2_rate
    tiles = stored * t.tile_m * t.tile_n * t.out_bytes / late.store_rate
    fixup = _fixup(s, w, each, g)
    launch = late.launch_seconds + np.where(t.streams, late.stream_seconds, 0)
    none = np.zeros(len(t))
    total = launch + _largest(loop, dram, l2) + tiles + fixup
    return Cost(launch, loop, tiles, fixup, none, dram, l2, none, none, total)


def _iteration(t: Table, s: MmaShape, g: GpuFigures) -> Column:
    """Seconds of a main loop iteration of a workgroup that has an SM's tensor cores for itself.

    The result is about the longest of three times: those of the tensor cores, of shared memory, and
    of the SM's share of the L2 cache's rate.
    """
    flops = 2 * t.tile_m * t.tile_n * t.tile_k * (t.in_bytes / 2)
    multiply = flops / (g.flops_per_clock * g.clock)
    shared = s.shared_bytes / (SHARED_RATE * g.clock)
    load = s.loaded_bytes * g.processors / g.reached_l2_rate
    return _largest(multiply, shared, load)


def _fixup(s: MmaShape, w: Work, each: Column, g: GpuFigures) -> Column:
    """Seconds of sending, awaiting and adding partial sums, for the workgroup with most sums."""
    late, counts = g.latencies, w.counts
    send = each * s.partial_bytes / late.partial_rate
    receive = late.receive_seconds + send
    return np.where(counts.sends > 0, send + counts.receives * receive, 0)


def _largest(*times: Column) -> Column:
    """A smooth maximum of columns: the p-norm, which exceeds the largest if others are near it."""
    top = reduce(np.maximum, times)
    return top * reduce(np.add, [(x / top) ** SHARPNESS for x in times]) ** (1 / SHARPNESS)
