"""What a plan costs on a device: a sum of named terms, and floors that no plan gets under.

The busiest workgroup's way through its tiles is a sum: start, main loop, ends of tiles, fix-up. The
memory, the L2 cache and the power that the device may draw are floors under it. Whichever is the
largest bounds the plan; where several are close, they get in each other's way.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from passes.choosing.constants import Constants
from passes.choosing.schedules import FULL, SCATTER, TREE, TURNSTILE
from passes.choosing.shares import Work
from passes.choosing.table import Column, Flag, Table
from passes.lowering.hopper.division import MMA_M, MOST_COLUMNS, WARPGROUP, swapped
from passes.lowering.hopper.lower import (
    BARRIER_BYTES,
    ENOUGH_STAGES,
    MOST_ALONE,
    MOST_ALONE_STREAMED,
    MOST_STAGES,
)
from passes.lowering.hopper.stores import MOST_ELEMENTS, widths
from passes.lowering.machine import cuda_machine

__all__ = ["Cost", "Counts", "Shape", "cost"]

ELEMENT, ACCUMULATOR = 2, 4
"""Bytes of an element of A and B, and of a partial sum."""
MMA_K, UNIT_K = 16, 64
"""Depth of an instruction, and of a row of shared memory."""
LINE, SECTOR = 128, 32
SHARED = cuda_machine("sm_90a").shared_bytes - BARRIER_BYTES
"""Of a workgroup, for the ring, for D and for the sum over a cluster that divides k."""
ENOUGH = 4
"""Stages; with fewer, multiplications were measured to take longer."""
NEAR = 16
"""Workgroups that follow one another on the SMs of what is taken to be one GPC; see the notes."""
LOW = 32
"""Rows of a box along k; see `BoxedOperand`."""


@dataclass(frozen=True)
class Cost:
    """Seconds, one number a plan.

    Attributes:
        launch: until the first workgroup multiplies, and after the last one has ended.
        loop: the busiest workgroup's main loop.
        tiles: the ends of its tiles: the pipeline drains, D is stored.
        fixup: partial sums that it sends, waits for and adds.
        cluster: sums over a cluster that divides k.
        dram, l2: what these memories need for the traffic of all.
        power: what the power limit allows the multiplications and traffic of all.
        total: of everything.
    """

    launch: Column
    loop: Column
    tiles: Column
    fixup: Column
    cluster: Column
    dram: Column
    l2: Column
    power: Column
    total: Column

    def row(self, index: int) -> dict[str, float]:
        """The terms of one plan."""
        return {f.name: float(getattr(self, f.name)[index]) for f in fields(self)}


class Shape:
    """What follows from tiles, clusters and sizes alone; see `Division` for who multiplies what."""

    def __init__(self, t: Table, twins: Flag | bool = False) -> None:
        """`twins`: two warpgroups divide a part also where one had room for it."""
        self.workgroups = t.cluster_m * t.cluster_n * t.cluster_k
        self.rows, self.columns = t.tile_m / t.cluster_m, t.tile_n / t.cluster_n
        """Of a workgroup's part of the tile."""
        self.units = t.tile_k / t.cluster_k / UNIT_K
        self.tiles_m, self.tiles_n = np.ceil(t.m / t.tile_m), np.ceil(t.n / t.tile_n)
        self.tiles = self.tiles_m * self.tiles_n
        self.depth = np.ceil(t.k / t.tile_k)
        """Iterations of a tile."""
        left_b = swapped(self.rows, self.columns, t.turns)
        left = np.where(left_b, self.columns, self.rows)
        right = np.where(left_b, self.rows, self.columns)
        alone = np.where(t.streams, MOST_ALONE_STREAMED, MOST_ALONE) * WARPGROUP
        single = (t.turns > 1) | (self.rows * self.columns <= alone) & ~np.asarray(twins)
        self.consumers = np.where(single, 1, 2)
        """Warpgroups that divide the product."""
        divided = (left % (2 * MMA_M) != 0) & (self.consumers == 2)
        share = np.where(divided, right / 2, right)
        self.twins = left_b & (self.consumers == 2)
        """Where two warpgroups multiply parts of B by A, which was measured to be slower."""
        self.pieces = np.ceil(share / MOST_COLUMNS)
        self.mma_columns = share / self.pieces
        """Columns of an instruction."""
        self.blocks = left / MMA_M * np.where(divided, 2, 1)
        """Blocks of 64 rows, over all consumers, each with the columns of one."""
        self.operand_bytes = (self.rows + self.columns) * UNIT_K * ELEMENT * self.units
        """That an iteration brings into a workgroup's shared memory."""
        box = np.where(left_b, share, self._stored(t, share))
        self.stages = self._stages(t, box)
        """Of the ring."""
        boxes = np.where(left_b, 1, share / box)
        self.stores = self.blocks / self.consumers * boxes
        """Boxes in which a warpgroup stores a tile."""
        self.asked_bytes = (
            (self.rows / t.cluster_n + self.columns / t.cluster_m) * UNIT_K * ELEMENT * self.units
        )
        """Of them those that the workgroup itself asks the L2 cache for."""
        high, wide = _block(t, self.tiles_m, self.tiles_n, NEAR)
        once = (self.rows / wide + self.columns / high) / (self.rows + self.columns)
        self.merged = np.where(self.workgroups > 1, 0, 1 - once)
        """The share of them that a neighbour asks for, too: a GPC asks for it once. What comes by
        multicast is not put together with what others ask for."""
        row_a, row_b = np.where(t.turned_a == 1, t.m, t.k), np.where(t.turned_b == 1, t.k, t.n)
        rows_a, rows_b = self.rows / t.cluster_n, self.columns / t.cluster_m

        def astray(unit: int) -> Column:
            of_a, of_b = _astray(row_a, unit), _astray(row_b, unit)
            return (rows_a * of_a + rows_b * of_b) / (rows_a + rows_b)

        self.straddling = astray(LINE)
        """The share of them in rows that do not begin with a cache line, """
        self.split = astray(SECTOR)
        """and with a sector of one."""
        size_a, size_b = t.m * t.k, t.n * t.k
        apart = np.where(t.cluster_n > 1, size_b, np.where(t.cluster_m > 1, size_a, 0))
        self.cold = np.maximum(size_a, size_b) * ELEMENT
        """Bytes of the larger one of A and B, """
        self.asks = np.where(size_a > size_b, self.tiles_n, self.tiles_m)
        """and how many ask for each of them."""
        self.apart = apart / (size_a + size_b)
        """The share of A and B that workgroups of a cluster bring each for itself."""
        self.partial_bytes = self.rows * self.columns * ACCUMULATOR
        narrow = np.gcd(self.mma_columns.astype(int), UNIT_K)
        box_m = np.where(left_b, narrow, UNIT_K)
        self.box_n = np.where(left_b, UNIT_K, narrow)
        """Elements of a box of B along n, where that is the contiguous axis."""
        narrow_a = rows_a * ((t.turned_a == 1) & (box_m < UNIT_K))
        narrow_b = rows_b * ((t.turned_b == 0) & (self.box_n < UNIT_K))
        self.narrow = (narrow_a + narrow_b) / (rows_a + rows_b)
        """The share of what is asked for in boxes whose rows are less than a cache line."""
        high_a, high_b = (
            np.where(t.turned_a == 1, box_m, LOW),
            np.where(t.turned_b == 1, LOW, self.box_n),
        )
        outside_m, outside_n = _last(t.m, t.tile_m, self.rows), _last(t.n, t.tile_n, self.columns)
        self.outside = outside_m + outside_n
        """Rows and columns outside A and B of the workgroup that has the most of them, """
        self.filled = outside_m % high_a + outside_n % high_b
        """and those of them in boxes that begin inside: the others are not asked for."""
        self.copies = self.units * (
            np.where(t.turned_a == 1, self.rows / box_m, np.ceil(rows_a / LOW))
            + np.where(t.turned_b == 1, np.ceil(rows_b / LOW), self.columns / self.box_n)
        )
        """Boxes that the producer asks for in an iteration."""

    def _stored(self, t: Table, columns: Column) -> Column:
        """Elements along D of the boxes in which so many columns are stored; see `BoxedStore`."""
        narrow, wide = widths(columns.astype(int))
        enough = np.where(t.turns > 1, ENOUGH_STAGES["pingpong"], ENOUGH_STAGES["cooperative"])

        lost = np.minimum(self._stages(t, narrow), enough) > self._stages(t, wide)
        fits = (narrow < wide) & (wide <= MOST_ELEMENTS) & ~lost
        return np.where(fits, wide, narrow)

    def _stages(self, t: Table, box: Column) -> Column:
        """Stages of the ring beside D's boxes, of so many elements along D or its transpose."""
        beside = self.consumers * t.turns * MMA_M * box * ELEMENT
        beside = beside + (t.cluster_k - 1) * self.rows * self.columns * ACCUMULATOR
        return np.minimum((SHARED - beside) // self.operand_bytes, MOST_STAGES)


@dataclass(frozen=True)
class Part:
    """The tiles of one shape, on the rows of a table that have them.

    Attributes:
        rows: of the table.
        table: those rows, with tiles of this shape.
        tiles: of all workgroups.
        iterations: of the busiest workgroup, and `ends`, tiles that it finishes.
    """

    rows: NDArray[np.intp]
    table: Table
    shape: Shape
    tiles: Column
    iterations: Column
    ends: Column


class Counts:
    """What of plans' costs no figure of the device but its slots decides: it is counted once."""

    def __init__(self, table: Table, device: Constants) -> None:
        self.table = t = table
        self.shape = s = Shape(t)
        self.work = w = Work.of(t, s.tiles, s.depth, device.slots(s.workgroups))
        rows = np.flatnonzero(t.divided)
        parts = list[Part]()
        if len(rows):
            few = t.where(rows)
            few = replace(few, tile_m=few.small_m, tile_n=few.small_n)
            count = w.rest[rows] * (t.tile_m * t.tile_n)[rows] / (few.tile_m * few.tile_n)
            # Both shapes have the same warpgroups: two where the larger needs them.
            small = Shape(few, s.consumers[rows] > 1)
            parts = [Part(rows, few, small, count, w.small[rows] * s.depth[rows], w.small[rows])]
        every = np.arange(len(t))
        self.parts = [Part(every, t, s, s.tiles - w.rest, w.iterations, w.ends), *parts]


def cost(given: Table | Counts, c: Constants) -> Cost:
    """What each plan of a table costs."""
    counts = Counts(given, c) if isinstance(given, Table) else given
    t, s, w = counts.table, counts.shape, counts.work
    loop, end, sums, asked, inside, left = (np.zeros(len(t)) for _ in range(6))
    handed, drained = np.zeros(len(t)), np.zeros(len(t))
    for part in counts.parts:
        rows, shape = part.rows, part.shape
        step, tensor_bytes = _step(shape, c)
        tile, drain, summed = _end(part.table, shape, c)
        loop[rows] += part.iterations * step
        end[rows] += part.ends * tile
        sums[rows] += part.ends * summed
        handed[rows] += part.ends * c.handover_seconds
        left[rows] = np.where(part.ends > 0, tile, left[rows])
        drained[rows] = np.where(part.ends > 0, drain, drained[rows])
        workgroups = part.tiles * shape.depth * shape.workgroups
        merged = np.where(w.apart[rows], 0, c.merged * shape.merged)
        asked[rows] += workgroups * shape.asked_bytes * (1 - merged)
        inside[rows] += workgroups * tensor_bytes
    # Where warpgroups take turns, one stores while the other multiplies; the last store is left.
    end = np.where(t.turns > 1, np.minimum(left + handed - c.handover_seconds, end), end)
    # D's other tiles leave while the next ones are multiplied.
    end = end + drained
    fixup, partial = _fixup(t, s, w, c)
    launch = c.launch_seconds + np.where(s.workgroups > 1, c.cluster_seconds, 0)
    streams = w.streamed.share * w.grid
    traffic = _traffic(t, s, w.grid, asked, c, mixed=w.apart, streams=streams)
    stored = t.m * t.n * t.out_bytes
    rate = _memory_rate(t, s, w, c)
    # Asked for by several at the same time, while it is on its way.
    again = np.where(w.apart, 0, c.again * s.cold * np.log2(np.maximum(s.asks, 1)))
    dram = (traffic + again) / rate + stored / c.dram_rate + c.dram_seconds
    l2 = (asked + stored + 2 * partial) / c.l2_rate
    flops = 2 * s.tiles * t.tile_m * t.tile_n * s.depth * t.tile_k
    power = (
        flops / c.power_flops
        + inside / c.power_shared
        + asked / c.power_l2
        + traffic / c.power_dram
    )
    # While pieces are handed on and tiles end, the memory is not busy: that is not hidden under it.
    last = end + fixup + sums
    path = loop + (1 - c.exposed) * last
    # What follows waves of whole tiles was measured to take longer than it counts.
    follows = (t.whole == FULL) & (s.tiles % w.grid > 0)
    after = np.where(follows, np.where(t.divided, c.shapes, c.late), 1)
    total = launch + _largest((path, dram, l2, power), c.sharpness) * after + c.exposed * last
    return Cost(launch, loop, end, fixup, sums, dram, l2, power, total)


def _memory_rate(t: Table, s: Shape, w: Work, c: Constants) -> Column:
    """Bytes a second at which A and B come from memory.

    A few workgroups do not keep it busy, as those with whole tiles that have one more than others.
    """

    def rate(busy: Column) -> Column:
        readers = np.maximum(busy * s.workgroups, 1)
        # Why each gets twice as much where at most half of the SMs are busy is not known.
        pull = c.pull_rate * np.where(2 * readers <= c.processors, 2, 1)
        return np.minimum(c.dram_rate, pull * readers)

    uneven = (t.whole < FULL) & (s.tiles > w.grid)
    more = np.where(uneven, s.tiles % w.grid, 0)
    share = more / s.tiles
    return 1 / ((1 - share) / rate(w.busy) + share / rate(more))


def _end(t: Table, s: Shape, c: Constants) -> tuple[Column, Column, Column]:
    """Seconds of the end of a tile, until D has left, and of its sum over a cluster that divides k.
    """
    stored_bytes = s.rows * s.columns * t.out_bytes
    # Rows of D that begin inside sectors: the cache writes parts of them.
    partly = 1 + (c.split_store - 1) * _astray(t.n, SECTOR, t.out_bytes)
    tile, drain = c.tile_seconds + s.stores * c.box_seconds, stored_bytes / c.store_rate * partly
    received = s.partial_bytes * (t.cluster_k - 1)
    return tile, drain, np.where(t.cluster_k > 1, c.sum_seconds + received / c.sum_rate, 0)


def _fixup(t: Table, s: Shape, w: Work, c: Constants) -> tuple[Column, Column]:
    """Seconds of the fix-up on the busiest way, and bytes of partial sums that all send."""
    peers, sends = w.streamed.peers, w.streamed.sends
    send = c.send_seconds + s.partial_bytes / c.send_rate
    receive = c.receive_seconds + s.partial_bytes / c.receive_rate
    # In a tree, pieces are added level by level; each level waits for a piece to be sent.
    levels = np.ceil(np.log2(peers + 1))
    # Where all finish a share each, they read as much as they have sent.
    finish = c.scatter_seconds + s.partial_bytes / c.scatter_rate
    way = np.select(
        [t.reduction == TREE, t.reduction == TURNSTILE, t.reduction == SCATTER],
        # Through a turnstile a sum is handed on: a piece is sent after another is received.
        [
            send + levels * (receive + c.level_seconds),
            peers * (send + receive),
            sends * (send + finish),
        ],
        send + peers * receive,
    )
    fixup = np.where(sends > 0, way, 0)
    return fixup, w.streamed.partials * s.workgroups * s.partial_bytes


def _astray(row: Column, unit: Column | int, element: Column | int = ELEMENT) -> Column:
    """The share of rows of so many elements that do not begin with a unit of so many bytes."""
    return 1 - np.gcd((row * element).astype(int), unit) / unit


def _last(extent: Column, tile: Column, part: Column) -> Column:
    """Positions that are outside, of a part of the last tile that has most of them."""
    outside = np.ceil(extent / tile) * tile - extent
    return np.minimum(outside, part)


def _step(s: Shape, c: Constants) -> tuple[Column, Column]:
    """Seconds of an iteration, and bytes that its multiplications read from shared memory."""
    count = s.blocks * s.pieces * s.units * (UNIT_K / MMA_K)
    rows = (MMA_M + s.mma_columns) * MMA_K * ELEMENT
    clocks = np.maximum(s.mma_columns / 2, rows / c.shared_bytes)
    clocks = clocks * np.where(s.twins, c.twins, 1) * np.where(s.stages < ENOUGH, c.short, 1)
    multiply = count * clocks / c.clock + c.step_seconds
    # Rows that begin inside a cache line have one line more in each box.
    lines = 1 + (c.straddle - 1) * s.straddling + (c.split - 1) * s.split
    # In narrow boxes a request is for a part of a line.
    lines = lines * (1 + (c.narrow - 1) * s.narrow)
    asked = lines / c.ask_rate
    # What lies outside is not asked for; in boxes that begin inside it is filled, row by row.
    inside = np.maximum(s.asked_bytes - s.outside * s.units * UNIT_K * ELEMENT, 0)
    last = inside * asked + s.filled * s.units * c.empty_seconds
    bring = np.maximum(s.operand_bytes / c.ingest_rate, np.maximum(s.asked_bytes * asked, last))
    # A workgroup of a cluster waits for what delays the others, too.
    bring = bring * (1 + (c.coupled - 1) * s.apart)
    ask = s.copies * c.copy_seconds + c.turn_seconds
    # A stage is free when the one after it is begun; it must be full before those left are done.
    reach = c.reach_seconds / np.maximum(s.stages - 2, 0.5)
    return np.maximum(np.maximum(multiply, bring), np.maximum(ask, reach)), count * rows


def _traffic(
    t: Table, s: Shape, grid: Column, asked: Column, c: Constants, *, mixed: Flag, streams: Column
) -> Column:
    """Bytes of A and B that come from memory.

    Workgroups that are at the same depth of neighbouring tiles find in the L2 cache what another
    one asked for. What a wave of tiles reads is of use to the next as far as the cache holds it.
    """
    a, b = t.m * t.k * ELEMENT, t.n * t.k * ELEMENT
    together = np.minimum(grid, s.tiles)
    high, wide = _block(t, s.tiles_m, s.tiles_n, together)
    wave = (np.minimum(high * t.tile_m, t.m) + np.minimum(wide * t.tile_n, t.n)) * t.k * ELEMENT
    waves = np.maximum(s.tiles / together, 1)
    apart = np.maximum(waves * wave, a + b)
    # A band of rows is read once; all columns for every band, unless they stay in the cache.
    bands = np.ceil(s.tiles_m / high)
    kept = np.minimum(c.l2_bytes / (a + b), 1)
    banded = a + b * np.where(kept < 1, bands, 1)
    stay = np.minimum(c.l2_bytes / wave, 1)
    found = np.minimum(stay * banded + (1 - stay) * apart, apart)
    # Shares that begin anywhere are at different depths: they share by chance.
    part = np.minimum(streams / np.maximum(s.tiles * s.depth, 1), 1)
    chance = np.where(mixed, part * (1 - kept) * c.mixed_loss, 0)
    return found + chance * np.maximum(asked - found, 0)


def _block(
    t: Table, tiles_m: Column, tiles_n: Column, count: Column | int
) -> tuple[Column, Column]:
    """Rows and columns of tiles that so many consecutive workgroups have."""
    high = np.minimum(t.width, tiles_m)
    wide = np.minimum(np.ceil(count / high), tiles_n)
    return np.minimum(np.maximum(high, np.ceil(count / wide)), tiles_m), wide


def _largest(floors: tuple[Column, ...], sharpness: float) -> Column:
    """The largest, and more where others come close: a norm."""
    stacked = np.stack(np.broadcast_arrays(*floors))
    top = stacked.max(axis=0)
    return top * ((stacked / top) ** sharpness).sum(axis=0) ** (1 / sharpness)
