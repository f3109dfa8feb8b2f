"""The cost model: predicted seconds of a plan on a device, as a sum of named terms.

The time of the workgroup with most work is the sum of the times of launch, main loop, ends of
tiles, fix-up and sums over a cluster. The traffic of memory, the traffic of the L2 cache and the
power limit give lower bounds of the main loop's time. The model takes the largest of the main
loop's time and these bounds, and adds a little if another of them is almost as large. The sum is
multiplied by a factor that is learned from errors of such sums (`passes.choosing.correction`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from coordgraph.elements import ROW_BYTES
from passes.choosing.constants import Constants
from passes.choosing.correction import MOST, Correction, correctable, features
from passes.choosing.counting import FIXUPS
from passes.choosing.kernel_shape import (
    FITTED,
    INSTRUCTION_BYTES,
    LINE,
    SECTOR,
    Shape,
    astray,
)
from passes.choosing.plan_table import Column, Flag, Table
from passes.choosing.traffic import traffic_of
from passes.choosing.work import Work
from passes.lowering.sm_90a.division import MMA_M, WARPGROUP

__all__ = ["Cost", "Counts", "cost", "iteration", "shared_terms", "tile_end"]

UNHURRIED = 4
"""With fewer pipeline stages (buffers in shared memory for A and B of one iteration) than this
number, multiplications were measured to take longer."""
MANY_BLOCKS = 4
"""If the warpgroups of a CTA multiply at least this many blocks of 64 rows of wgmma's left operand
(see `Shape.blocks`), multiplications were measured to take longer."""
FIRST = 32
"""With `nearest`, the correction is first computed for this many plans, those whose times without a
correction are shortest; the best of them limits which other plans can still be faster."""
LINE_OF_CTAS = 4
"""Largest number of CTAs in a cluster along one axis for which `large_seconds` is not added."""


@dataclass(frozen=True)
class Cost:
    """Predicted seconds of plans: each field is a column with one entry per plan.

    Attributes:
        launch: what a launch adds to the time of its workgroups. The wait for their first loads is
            in `loop`.
        loop: main loop of the workgroup with most work.
        tiles: ends of the tiles of the workgroup with most work: the pipeline drains, D is stored.
        fixup: sending, awaiting and adding partial sums, for the workgroup with most fix-up. In a
            reduce-scatter this includes the wait for the slowest workgroup of the tile.
        cluster: sums over a cluster whose CTAs divide k.
        dram, l2: traffic of all workgroups at the rates of memory and of the L2 cache.
        power: multiplications and traffic of all workgroups at the power limit.
        correction: what the learned `Correction` adds to the sum of the other terms; often less
            than 0.
        total: the predicted time of the plan.
    """

    launch: Column
    loop: Column
    tiles: Column
    fixup: Column
    cluster: Column
    dram: Column
    l2: Column
    power: Column
    correction: Column
    total: Column

    def row(self, index: int) -> dict[str, float]:
        """Predicted seconds of the plan in row `index`, by name of the term, such as `loop`."""
        return {f.name: float(getattr(self, f.name)[index]) for f in fields(self)}


@dataclass(frozen=True)
class Part:
    """The tiles of one shape (macro tiles or small tiles) of those plans that have them.

    Attributes:
        rows: row numbers, in the table of all plans, of the plans that have tiles of this shape.
        table: problems and plans of `rows`; the columns `tile_m` and `tile_n` have the extents of
            this shape.
        shape: how the lowering divides tiles of this shape.
        tiles: number of tiles of this shape.
        iterations: number of iterations on such tiles of the workgroup with most work.
        ends: number of such tiles that the workgroup with most work finishes.
    """

    rows: NDArray[np.intp]
    table: Table
    shape: Shape
    tiles: Column
    iterations: Column
    ends: Column


class Counts:
    """Work counts of the plans in a table, from which `cost` predicts seconds.

    Work counts depend on the device only by its number of resident workgroups, so a fit of a
    device's other constants computes the work counts once.
    """

    def __init__(self, table: Table, device: Constants) -> None:
        self.table = t = table
        self.shape = s = Shape.of(t)
        self.work = w = Work.of(t, s.tiles, s.depth, device.slots(s.workgroups))
        (rows,) = t.divided.nonzero()
        parts = list[Part]()
        if len(rows):
            few = t.where(rows)
            few = replace(few, tile_m=few.small_m, tile_n=few.small_n)
            count = w.rest[rows] * (t.tile_m * t.tile_n)[rows] / (few.tile_m * few.tile_n)
            small = Shape(few, s.where(rows))
            parts = [Part(rows, few, small, count, w.small[rows] * s.depth[rows], w.small[rows])]
        every = np.arange(len(t))
        self.parts = [Part(every, t, s, s.tiles - w.rest, w.iterations, w.ends), *parts]


def cost(
    given: Table | Counts, c: Constants, *, corrected: bool = True, nearest: bool = False
) -> Cost:
    """The predicted seconds of each plan of a table on a device, by term of the cost model.

    Args:
        given: a table of plans, or its work counts.
        c: the cost model's constants of the device.
        corrected: whether to add the learned correction; a fit of constants leaves it out.
        nearest: whether to correct only plans that can be the fastest of the table, whose rows must
            then be of one problem; the correction of other plans is then 0. This takes less time.
    """
    counts = Counts(given, c) if isinstance(given, Table) else given
    t, s, w = counts.table, counts.shape, counts.work
    loop, end, sums, asked, inside, left = (np.zeros(len(t)) for _ in range(6))
    handed, drained, first = np.zeros(len(t)), np.zeros(len(t)), np.zeros(len(t))
    crowded = ~_few(w.busy * s.workgroups, c)
    for part in counts.parts:
        rows, shape = part.rows, part.shape
        step, alone, tensor_bytes = iteration(shape, c, crowded[rows])
        tile, drain, summed = tile_end(part.table, shape, c)
        loop[rows] += part.iterations * step
        first[rows] = np.maximum(first[rows], alone)
        end[rows] += part.ends * tile
        sums[rows] += part.ends * summed
        handed[rows] += part.ends * c.handover_seconds
        left[rows] = np.where(part.ends > 0, tile, left[rows])
        drained[rows] = np.where(part.ends > 0, drain, drained[rows])
        workgroups = part.tiles * shape.depth * shape.workgroups
        # Pieces of one tile have no request in common.
        alike = ~w.divides[rows] | t.adjacent[rows]
        merged = np.where(alike, c.merged * shape.merged, 0)
        asked[rows] += workgroups * shape.asked_bytes * (1 - merged)
        inside[rows] += workgroups * tensor_bytes
    # With pingpong warpgroups, one warpgroup stores its tile while the other multiplies, so only
    # the last store of a workgroup adds time.
    end = np.where(t.turns > 1, np.minimum(left + handed - c.handover_seconds, end), end)
    # A workgroup waits only for the store of its last tile; earlier stores overlap with the next
    # tile's multiplications.
    end = end + drained
    fixup, partial = _fixup(t, s, w, c)
    launch = c.launch_seconds + np.where(s.workgroups > 1, c.cluster_seconds, 0)
    large = (s.multicasts > 1) | (s.workgroups > LINE_OF_CTAS)
    launch = launch + np.where(large, c.large_seconds, 0)
    # If tiles are visited in bands, add the time of the integer divisions that find the first tile.
    launch = launch + np.where(t.width > 1, c.band_seconds, 0)
    # If a workgroup's share of the iterations may have pieces of several tiles, add the time of the
    # integer divisions that find its start. If macro tiles are divided into small tiles, add that
    # of the second main loop's start.
    launch = launch + np.where((w.streamed > 0) & t.loops, c.stream_seconds, 0)
    follows = t.divided & (s.tiles % w.grid > 0)
    launch = launch + np.where(follows, c.shape_seconds, 0)
    streams = w.streamed * w.grid
    traffic = traffic_of(t, s, w.grid, c.kept_bytes, mixed=w.apart, streams=streams)
    stored = t.l * t.m * t.n * t.out_bytes
    rate = _memory_rate(t, s, w, c)
    # Add time for requests of data that an earlier request, such as that of another workgroup, is
    # still reading from memory.
    again = np.where(w.apart, 0, c.again * s.cold * np.log2(np.maximum(s.asks, 1)))
    moved = stored + t.operand_bytes
    dram = (traffic + again) / rate + moved / c.dram_rate + c.dram_seconds
    l2 = (asked + moved + 2 * partial) / c.l2_rate
    # An instruction on 8-bit operands does twice as many operations as one on 16-bit operands, in
    # the same time and at the same power.
    flops = 2 * s.tiles * t.tile_m * t.tile_n * s.depth * t.tile_k * (t.in_bytes / FITTED.bytes)
    power = (
        flops / c.power_flops
        + inside / c.power_shared
        + asked / c.power_l2
        + traffic / c.power_dram
    )
    # Add the extra time of a workgroup's first iteration: its loads do not overlap with
    # multiplications.
    loop = loop + first + c.fill_seconds
    # In a reduce-scatter all workgroups of a tile wait for the slowest of them.
    scattered = (t.fixup == FIXUPS.index("scatter")) & (w.counts.sends > 0)
    fixup = fixup + np.where(scattered, c.skew * loop, 0)
    # Fix-ups, sums over a cluster and the ends of tiles do not overlap with the traffic of A and B,
    # so their times are added.
    last = end + fixup + sums
    total = launch + _largest((loop, dram, l2, power), c.sharpness) + last
    found = Cost(launch, loop, end, fixup, sums, dram, l2, power, np.zeros(len(t)), total)
    known = correctable(t)
    if not (corrected and known.any()):
        return found
    columns = features(t, s, w, shared_terms(found), total)
    more = np.zeros(len(t))

    def correct(rows: NDArray[np.intp]) -> None:
        some = {name: column[rows] for name, column in columns.items()}
        more[rows] = total[rows] * np.expm1(Correction.known().logarithms(some))

    (rows,) = known.nonzero()
    if nearest and len(rows) > FIRST:
        rows = rows[np.argpartition(total[rows], FIRST)]
        correct(rows[:FIRST])
        # Other plans can be faster than these only if their time without correction is close.
        least = (total + more)[rows[:FIRST]].min()
        rows = rows[FIRST:]
        rows = rows[total[rows] <= np.exp(MOST) * least]
    correct(rows)
    return replace(found, correction=more, total=total + more)


def shared_terms(predicted: Cost) -> dict[str, Column]:
    """The terms of predicted times whose shares a `Correction` may depend on, by name.

    The term `cluster` is left out, because few of the measured plans have it.
    """
    names = ("launch", "loop", "tiles", "fixup", "dram", "l2", "power")
    return {name: getattr(predicted, name) for name in names}


def _memory_rate(t: Table, s: Shape, w: Work, c: Constants) -> Column:
    """Bytes per second at which A and B are read from memory.

    Few workgroups cannot saturate the memory. If workgroups do not divide the tiles evenly, some
    workgroups have one tile more than others, and only these workgroups read in the last wave.
    """

    def rate(busy: Column) -> Column:
        readers = np.maximum(busy * s.workgroups, 1)
        each = np.where(_few(readers, c), c.lone_rate, c.pull_rate)
        return np.minimum(c.dram_rate, each * readers)

    uneven = ~t.streams & ~t.divided & (s.tiles > w.grid)
    more = np.where(uneven, s.tiles % w.grid, 0)
    share = more / s.tiles
    return 1 / ((1 - share) / rate(w.busy) + share / rate(more))


def tile_end(t: Table, s: Shape, c: Constants) -> tuple[Column, Column, Column]:
    """Three columns of seconds that are spent at the end of a tile, with one entry for each plan.

    The columns are the time to reduce rows and to copy D out of the registers; the time to store D
    in memory, which overlaps with the next tile's main loop; and the time of the sum over a cluster
    whose CTAs divide k (0 for other plans).

    Args:
        t: a table with one problem and one plan in each row.
        s: how each plan's tiles are divided among warpgroups, pipeline stages and TMA boxes.
        c: the cost model's constants of the device.
    """
    stored_bytes = s.rows * s.columns * t.out_bytes
    # If a row of D begins inside a 32-byte sector, the L2 cache must write a part of the sector,
    # which takes longer.
    partly = 1 + (c.split_store - 1) * astray(t.n, SECTOR, t.out_bytes)
    partly = partly * (1 + (c.odd_store - 1) * s.odd * astray(t.n, LINE, t.out_bytes))
    stored_bytes = stored_bytes * partly
    tile = c.tile_seconds + s.stores * c.box_seconds + stored_bytes / c.slot_rate
    # The four warps of a warpgroup run at the same time, on the four warp schedulers of an SM.
    tile = tile + s.rows * s.columns / WARPGROUP * t.row_cycles / c.clock
    drain = stored_bytes / c.store_rate
    received = s.partial_bytes * (t.cluster_k - 1)
    return tile, drain, np.where(t.cluster_k > 1, c.sum_seconds + received / c.sum_rate, 0)


def _fixup(t: Table, s: Shape, w: Work, c: Constants) -> tuple[Column, Column]:
    """(seconds of the longest fix-up of a workgroup, bytes of all partial sums of the launch).

    Args:
        t: a table with one problem and one plan in each row.
        s: how each plan's tiles are divided among warpgroups, pipeline stages and TMA boxes.
        w: the largest work counts of any workgroup, such as iterations, of each plan.
        c: the cost model's constants of the device.
    """
    counts = w.counts
    send = c.send_seconds + s.partial_bytes / c.send_rate
    receive = s.steps * c.receive_seconds + s.partial_bytes / c.receive_rate
    # If the shares of a tile are divided evenly among the workgroups of a reduce-scatter, each
    # workgroup reads as many bytes of partial sums as it has written.
    pieces = np.maximum(s.depth / np.maximum(w.streamed, 1), 1)
    uneven = pieces * np.ceil(s.shares / pieces) / s.shares
    finish = c.scatter_seconds + s.partial_bytes * uneven / c.scatter_rate
    way = np.select(
        [t.fixup == FIXUPS.index(kind) for kind in ("tree", "turnstile", "scatter")],
        [
            # In a `tree` reduction partial sums are added level by level; on each level a workgroup
            # waits until another one has sent its sum.
            send + counts.receives * (receive + c.level_seconds),
            # In a `turnstile` reduction workgroups add to one sum one after another: each receives
            # the sum of all earlier workgroups before it sends its own sum.
            counts.chain * (send + receive),
            counts.sends * (send + finish),
        ],
        send + counts.receives * receive,
    )
    fixup = np.where(counts.sends > 0, w.rounds * way, 0)
    return fixup, counts.all_sends * s.workgroups * s.partial_bytes


def _few(readers: Column, c: Constants) -> Flag:
    """For each plan, whether at most half of the SMs are busy, so that none shares a path to L2.

    Args:
        readers: number of CTAs that read A and B.
        c: the cost model's constants of the device.
    """
    return 2 * readers <= c.processors


def iteration(s: Shape, c: Constants, crowded: Flag) -> tuple[Column, Column, Column]:
    """Three columns: the time of an iteration, extra time of the first one, bytes of shared memory.

    Times are in seconds. The bytes are those that wgmma reads from shared memory in one iteration.

    The longest of five times determines the time of an iteration: those of the tensor cores, of
    the requests to the L2 cache, of the arriving data, of the producer warp, and of refilling a
    pipeline stage. In the first iteration, multiplication does not overlap with loads. Times vary
    from iteration to iteration, so a resource that is nearly the slowest delays some iterations
    too; therefore a smooth maximum (`_largest`) is taken.

    Args:
        s: how each plan's tiles are divided among warpgroups, pipeline stages and TMA boxes.
        c: the cost model's constants of the device.
        crowded: whether more than half of the SMs are busy, so that two SMs share a path to the L2
            cache.
    """
    count = s.blocks * s.pieces * s.units * (ROW_BYTES / INSTRUCTION_BYTES)
    rows = (MMA_M + s.mma_columns) * INSTRUCTION_BYTES
    clocks = np.maximum(s.mma_columns / 2, rows / c.shared_bytes)
    clocks = clocks * np.where(s.twins, c.twins, 1) * np.where(s.stages < UNHURRIED, c.short, 1)
    clocks = clocks * np.where(s.blocks >= MANY_BLOCKS, c.tall, 1)
    multiply = count * clocks / c.clock + c.step_seconds
    # If a row of a TMA box begins inside a cache line, the request for the row touches one more
    # line.
    lines = 1 + (c.straddle - 1) * s.straddling + (c.split - 1) * s.split
    # If the rows of a TMA box are shorter than a cache line, a request covers a part of a line.
    lines = lines * (1 + (c.narrow - 1) * s.narrow)
    paired = np.where(crowded, c.paired, np.where(s.workgroups > 1, c.beside, 1))
    asked = lines / c.ask_rate * paired
    # TMA does not request data outside A and B. In a box that lies partly outside a matrix, TMA
    # fills the outer rows with zeros, row by row.
    inside = np.maximum(s.asked_bytes - s.outside * s.units * ROW_BYTES, 0)
    last = inside * asked + s.filled * s.units * c.empty_seconds
    ask, ingest = np.maximum(s.asked_bytes * asked, last), s.operand_bytes / c.ingest_rate * paired
    issue = s.copies * c.copy_seconds + c.turn_seconds
    # A pipeline stage is released one iteration after its use began, and must be full again when
    # the other stages have been used.
    # TMA multicasts an operand to a stage only when all CTAs that receive it have released the
    # stage.
    released = c.reach_seconds + c.meet_seconds * s.multicasts
    reach = released / np.maximum(s.stages - 2, 0.5)
    step = _largest((multiply, ask, ingest, issue, reach), c.evenness)
    return step, np.minimum(multiply, np.maximum(ask, ingest)), count * rows


def _largest(floors: tuple[Column, ...], sharpness: float) -> Column:
    """A smooth maximum of columns: the p-norm, which exceeds the largest if others are near it.

    Args:
        floors: columns of positive numbers.
        sharpness: the degree p of the norm.
    """
    top = reduce(np.maximum, floors)
    powers = [(floor / top) ** sharpness for floor in floors]
    return top * reduce(np.add, powers) ** (1 / sharpness)
