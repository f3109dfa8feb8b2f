"""What follows from tiles, clusters and sizes alone: how the lowering divides them, in numbers."""

from __future__ import annotations

import numpy as np

from passes.choosing.table import Column, Table
from passes.lowering.hopper.division import (
    MMA_M,
    MOST_COLUMNS,
    WARPGROUP,
    most_alone,
    registers_of,
    swapped,
)
from passes.lowering.hopper.lower import BARRIER_BYTES, ENOUGH_STAGES, MOST_STAGES
from passes.lowering.hopper.partials import steps_of
from passes.lowering.hopper.stores import MOST_ELEMENTS, MOST_SLOTS, widths
from passes.lowering.machine import cuda_machine

__all__ = ["ELEMENT", "LINE", "SECTOR", "UNIT_K", "Shape", "along", "astray", "block"]

ELEMENT, ACCUMULATOR = 2, 4
"""Bytes of an element of A and B, and of a partial sum."""
UNIT_K = 64
"""Depth of a row of shared memory."""
LINE, SECTOR, ALIGNED = 128, 32, 16
"""Bytes; rows of D that are no multiple of the last go without the copy engine."""
SHARED = cuda_machine("sm_90a").shared_bytes - BARRIER_BYTES
"""Of a workgroup, for the ring, for D and for the sum over a cluster that divides k."""
NEAR = 16
"""Workgroups that follow one another on the SMs of what is taken to be one GPC; see the notes."""
LOW = 32
"""Rows of a box along k; see `BoxedOperand`."""


class Shape:
    """What follows from tiles, clusters and sizes alone; see `Division` for who multiplies what."""

    def __init__(self, t: Table, larger: Shape | None = None) -> None:
        """`larger`: of other tiles in the same kernels, with whose warpgroups and ring they do."""
        self.workgroups = t.cluster_m * t.cluster_n * t.cluster_k
        self.rows, self.columns = t.tile_m / t.cluster_m, t.tile_n / t.cluster_n
        """Of a workgroup's part of the tile."""
        self.units = t.tile_k / t.cluster_k / UNIT_K
        self.tiles_m, self.tiles_n = along(t.m, t.tile_m, t.ragged_m), along(t.n, t.tile_n)
        """Of a product, """
        self.tiles = np.ceil(t.l * self.tiles_m * self.tiles_n)
        """and of all."""
        self.depth = np.ceil(along(t.k, t.tile_k, t.ragged_k))
        """Iterations of a tile."""
        left_b = swapped(self.rows, self.columns, t.turns)
        left = np.where(left_b, self.columns, self.rows)
        right = np.where(left_b, self.rows, self.columns)
        alone = most_alone(t.streams | (t.cluster_k > 1), t.c_bytes, left_b) * WARPGROUP
        single = (t.turns > 1) | (self.rows * self.columns <= alone)
        self.consumers = np.where(single, 1, 2) if larger is None else larger.consumers
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
        self._enough = np.where(
            t.turns > 1, ENOUGH_STAGES["pingpong"], ENOUGH_STAGES["cooperative"]
        )
        self._ring_bytes = self.operand_bytes if larger is None else larger.operand_bytes
        self._boxed = (t.out_bytes == ELEMENT) & (t.n * t.out_bytes % ALIGNED == 0)
        box = np.where(left_b, share, self._stored(t, share))
        self.odd = self._boxed & ~left_b & (box % UNIT_K != 0)
        """Where D's boxes are not swizzled, and their rows are not whole cache lines."""
        self.stores = self.blocks / self.consumers * np.where(left_b, 1, share / box)
        """Boxes in which a warpgroup stores a tile."""
        self.stages = self._left(t, box) if larger is None else larger.stages
        """Of the ring."""
        self.asked_bytes = (
            (self.rows / t.cluster_n + self.columns / t.cluster_m) * UNIT_K * ELEMENT * self.units
        )
        """Of them those that the workgroup itself asks the L2 cache for."""
        high, wide = block(t, self.tiles_m, self.tiles_n, NEAR)
        once = (self.rows / wide + self.columns / high) / (self.rows + self.columns)
        self.merged = np.where(self.workgroups > 1, 0, 1 - once)
        """The share of them that a neighbour asks for, too: a GPC asks for it once. What comes by
        multicast is not put together with what others ask for."""
        row_a, row_b = np.where(t.turned_a == 1, t.m, t.k), np.where(t.turned_b == 1, t.k, t.n)
        rows_a, rows_b = self.rows / t.cluster_n, self.columns / t.cluster_m

        def rows_astray(unit: int) -> Column:
            of_a, of_b = astray(row_a, unit), astray(row_b, unit)
            return (rows_a * of_a + rows_b * of_b) / (rows_a + rows_b)

        self.straddling = rows_astray(LINE)
        """The share of them in rows that do not begin with a cache line, """
        self.split = rows_astray(SECTOR)
        """and with a sector of one."""
        size_a, size_b = t.m * t.k, t.n * t.k
        self.cold = t.l * np.maximum(size_a, size_b) * ELEMENT
        """Bytes of the larger one of A and B, """
        self.asks = np.where(size_a > size_b, self.tiles_n, self.tiles_m)
        """and how many ask for each of them."""
        self.partial_bytes = self.rows * self.columns * ACCUMULATOR
        workitems, registers = self.consumers * WARPGROUP, registers_of(self.consumers * t.turns)
        sums = self.rows * self.columns / workitems
        room = np.maximum(self.rows, self.columns) * UNIT_K * self.units * ELEMENT // ACCUMULATOR
        self.steps = steps_of(sums, registers, room, workitems)
        """In which a partial sum is received; see `passes.lowering.hopper.partials`."""
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
        # What is behind the rows of a group are those of the next one.
        outside_m = np.where(t.ragged_m == 1, 0, outside_m)
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
        needed = np.minimum(self._stages(t, narrow), self._enough)
        fits = (narrow < wide) & (wide <= MOST_ELEMENTS) & (self._stages(t, wide) >= needed)
        return np.where(fits, wide, narrow)

    def _left(self, t: Table, box: Column) -> Column:
        """Stages beside as many slots for D as cost none that is needed; see `BoxedStore.all`."""
        found = one = self._stages(t, box)
        prime = np.ones(len(t), bool)
        for slots in range(2, MOST_SLOTS + 1):
            evenly = self.stores % slots == 0
            prime = prime & ~evenly
            stages = self._stages(t, slots * box)
            fits = (evenly | prime & (slots <= self.stores)) & (
                np.minimum(stages, self._enough) == np.minimum(one, self._enough)
            )
            found = np.where(fits, stages, found)
        return found

    def _stages(self, t: Table, box: Column) -> Column:
        """Stages beside so many elements of D, of 16 bits, for each of 64 rows of a warpgroup."""
        beside = self.consumers * t.turns * MMA_M * box * ELEMENT * self._boxed
        beside = beside + (t.cluster_k - 1) * self.rows * self.columns * ACCUMULATOR
        return np.minimum((SHARED - beside) // self._ring_bytes, MOST_STAGES)


def along(extent: Column | float, tile: Column, ragged: Column | float = 0) -> Column:
    """Tiles along an axis.

    Where groups part it, `extent` is what they have on average. Each ends anywhere in its last
    tile, on average in the middle: so a group has half a tile more than it fills, and one at least.
    """
    filled = extent / tile
    return np.where(ragged == 1, np.maximum(filled + 0.5, 1), np.ceil(filled))


def astray(row: Column, unit: Column | int, element: Column | int = ELEMENT) -> Column:
    """The share of rows of so many elements that do not begin with a unit of so many bytes."""
    return 1 - np.gcd((row * element).astype(int), unit) / unit


def _last(extent: Column, tile: Column, part: Column) -> Column:
    """Positions that are outside, of a part of the last tile that has most of them."""
    outside = np.ceil(extent / tile) * tile - extent
    return np.minimum(outside, part)


def block(t: Table, tiles_m: Column, tiles_n: Column, count: Column | int) -> tuple[Column, Column]:
    """Rows and columns of tiles that so many consecutive workgroups have."""
    high = np.minimum(t.width, tiles_m)
    wide = np.minimum(np.ceil(count / high), tiles_n)
    return np.minimum(np.maximum(high, np.ceil(count / wide)), tiles_m), wide
