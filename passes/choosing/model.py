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
from passes.choosing.shape import ELEMENT, LINE, SECTOR, UNIT_K, Shape, astray, block
from passes.choosing.shares import Work
from passes.choosing.table import Column, Flag, Table
from passes.lowering.hopper.division import MMA_M

__all__ = ["Cost", "Counts", "cost"]

MMA_K = 16
"""Depth of an instruction."""
UNHURRIED = 4
"""Stages; with fewer, multiplications were measured to take longer."""


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
            small = Shape(few, Shape(t.where(rows)))
            parts = [Part(rows, few, small, count, w.small[rows] * s.depth[rows], w.small[rows])]
        every = np.arange(len(t))
        self.parts = [Part(every, t, s, s.tiles - w.rest, w.iterations, w.ends), *parts]


def cost(given: Table | Counts, c: Constants) -> Cost:
    """What each plan of a table costs."""
    counts = Counts(given, c) if isinstance(given, Table) else given
    t, s, w = counts.table, counts.shape, counts.work
    loop, end, sums, asked, inside, left = (np.zeros(len(t)) for _ in range(6))
    handed, drained, first = np.zeros(len(t)), np.zeros(len(t)), np.zeros(len(t))
    crowded = ~_few(w.busy * s.workgroups, c)
    for part in counts.parts:
        rows, shape = part.rows, part.shape
        step, alone, tensor_bytes = _step(shape, c, crowded[rows])
        tile, drain, summed = _end(part.table, shape, c)
        loop[rows] += part.iterations * step
        first[rows] = np.maximum(first[rows], alone)
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
    # Bands are divided out before the first box is asked for.
    launch = launch + np.where(t.width > 1, c.band_seconds, 0)
    # So is where a share begins. Tiles of another shape have a loop of their own.
    launch = launch + np.where(w.streamed.share > 0, c.stream_seconds, 0)
    follows = t.divided & (s.tiles % w.grid > 0)
    launch = launch + np.where(follows, c.shape_seconds, 0)
    streams = w.streamed.share * w.grid
    traffic = _traffic(t, s, w.grid, asked, c, mixed=w.apart, streams=streams)
    stored = t.l * t.m * t.n * t.out_bytes
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
    # The first iteration has nobody else's under which to hide.
    loop = loop + first + c.fill_seconds
    # While pieces are handed on and tiles end, the memory is not busy: no floor hides that.
    last = end + fixup + sums
    total = launch + _largest((loop, dram, l2, power), c.sharpness) + last
    return Cost(launch, loop, end, fixup, sums, dram, l2, power, total)


def _memory_rate(t: Table, s: Shape, w: Work, c: Constants) -> Column:
    """Bytes a second at which A and B come from memory.

    A few workgroups do not keep it busy, as those with whole tiles that have one more than others.
    """

    def rate(busy: Column) -> Column:
        readers = np.maximum(busy * s.workgroups, 1)
        each = np.where(_few(readers, c), c.lone_rate, c.pull_rate)
        return np.minimum(c.dram_rate, each * readers)

    uneven = (t.whole < FULL) & (s.tiles > w.grid)
    more = np.where(uneven, s.tiles % w.grid, 0)
    share = more / s.tiles
    return 1 / ((1 - share) / rate(w.busy) + share / rate(more))


def _end(t: Table, s: Shape, c: Constants) -> tuple[Column, Column, Column]:
    """Seconds of a tile's end, until D has left, and of its sum over a cluster that divides k."""
    stored_bytes = s.rows * s.columns * t.out_bytes
    # Rows of D that begin inside sectors: the cache writes parts of them.
    partly = 1 + (c.split_store - 1) * astray(t.n, SECTOR, t.out_bytes)
    partly = partly * (1 + (c.odd_store - 1) * s.odd * astray(t.n, LINE, t.out_bytes))
    stored_bytes = stored_bytes * partly
    tile = c.tile_seconds + s.stores * c.box_seconds + stored_bytes / c.slot_rate
    drain = stored_bytes / c.store_rate
    received = s.partial_bytes * (t.cluster_k - 1)
    return tile, drain, np.where(t.cluster_k > 1, c.sum_seconds + received / c.sum_rate, 0)


def _fixup(t: Table, s: Shape, w: Work, c: Constants) -> tuple[Column, Column]:
    """Seconds of the fix-up on the busiest way, and bytes of partial sums that all send."""
    peers, sends = w.streamed.peers, w.streamed.sends
    send = c.send_seconds + s.partial_bytes / c.send_rate
    receive = s.steps * c.receive_seconds + s.partial_bytes / c.receive_rate
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


def _few(readers: Column, c: Constants) -> Flag:
    """Where so many workgroups are so few that each has the way of two SMs for itself."""
    return 2 * readers <= c.processors


def _step(s: Shape, c: Constants, crowded: Flag) -> tuple[Column, Column, Column]:
    """Seconds of an iteration, what one alone takes longer, and bytes that it reads.

    Those are bytes that its multiplications read from shared memory. Iterations follow each other
    as fast as the slowest of those who take part; the first one's are done one after another. Times
    vary, and who is nearly as slow as the slowest delays it now and then: hence a norm.

    Args:
        crowded: where two SMs share their way to the L2 cache.
    """
    count = s.blocks * s.pieces * s.units * (UNIT_K / MMA_K)
    rows = (MMA_M + s.mma_columns) * MMA_K * ELEMENT
    clocks = np.maximum(s.mma_columns / 2, rows / c.shared_bytes)
    clocks = clocks * np.where(s.twins, c.twins, 1) * np.where(s.stages < UNHURRIED, c.short, 1)
    multiply = count * clocks / c.clock + c.step_seconds
    # Rows that begin inside a cache line have one line more in each box.
    lines = 1 + (c.straddle - 1) * s.straddling + (c.split - 1) * s.split
    # In narrow boxes a request is for a part of a line.
    lines = lines * (1 + (c.narrow - 1) * s.narrow)
    paired = np.where(crowded, c.paired, np.where(s.workgroups > 1, c.beside, 1))
    asked = lines / c.ask_rate * paired
    # What lies outside is not asked for; in boxes that begin inside it is filled, row by row.
    inside = np.maximum(s.asked_bytes - s.outside * s.units * UNIT_K * ELEMENT, 0)
    last = inside * asked + s.filled * s.units * c.empty_seconds
    ask, ingest = np.maximum(s.asked_bytes * asked, last), s.operand_bytes / c.ingest_rate * paired
    issue = s.copies * c.copy_seconds + c.turn_seconds
    # A stage is free when the one after it is begun; it must be full before those left are done.
    reach = c.reach_seconds / np.maximum(s.stages - 2, 0.5)
    step = _largest((multiply, ask, ingest, issue, reach), c.evenness)
    return step, np.minimum(multiply, np.maximum(ask, ingest)), count * rows


def _traffic(
    t: Table, s: Shape, grid: Column, asked: Column, c: Constants, *, mixed: Flag, streams: Column
) -> Column:
    """Bytes of A and B that come from memory.

    Workgroups that are at the same depth of neighbouring tiles find in the L2 cache what another
    one asked for. What a wave of tiles reads is of use to the next as far as the cache holds it.
    """
    a, b = t.l * t.m * t.k * ELEMENT, t.l * t.n * t.k * ELEMENT
    together = np.minimum(grid, s.tiles)
    high, wide = block(t, s.tiles_m, s.tiles_n, together)
    wave = (np.minimum(high * t.tile_m, t.m) + np.minimum(wide * t.tile_n, t.n)) * t.k * ELEMENT
    waves = np.maximum(s.tiles / together, 1)
    apart = np.maximum(waves * wave, a + b)
    # A band of rows is read once; all columns for every band, unless they stay in the cache.
    bands = np.ceil(s.tiles_m / high)
    kept = np.minimum(c.l2_bytes / (a + b), 1)
    # Products of a batch share nothing, and those of several bands are worked on one by one.
    stays = c.l2_bytes >= (a + b) / t.l
    banded = a + b * np.where(stays, 1, bands)
    stay = np.minimum(c.l2_bytes / wave, 1)
    found = np.minimum(stay * banded + (1 - stay) * apart, apart)
    # Shares that begin anywhere are at different depths: they share by chance.
    part = np.minimum(streams / np.maximum(s.tiles * s.depth, 1), 1)
    chance = np.where(mixed, part * (1 - kept) * c.mixed_loss, 0)
    return found + chance * np.maximum(asked - found, 0)


def _largest(floors: tuple[Column, ...], sharpness: float) -> Column:
    """The largest, and more where others come close: a norm."""
    stacked = np.stack(np.broadcast_arrays(*floors))
    top = stacked.max(axis=0)
    return top * ((stacked / top) ** sharpness).sum(axis=0) ** (1 / sharpness)
