"""`Shape`: how kernels of the sm_90a lowering divide tiles among warpgroups, stages, TMA boxes.

The fields of a `Shape` are columns with one entry for each plan of a table, for the cost model.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from coordgraph.elements import DTYPES, ROW_BYTES
from passes.choosing.plan_table import Column, Table
from passes.lowering.architectures import architecture_of
from passes.lowering.multiplying import REGISTER_BYTES
from passes.lowering.sm_90a.boxes import (
    FEW_ROWS,
    FEW_ROWS_OF_SEVERAL,
    GROUP_ROWS,
    box_rows,
    few_rows,
    in_boxes,
)
from passes.lowering.sm_90a.division import (
    MMA_M,
    MOST_COLUMNS,
    WARPGROUP,
    most_alone,
    registers_of,
    swapped,
)
from passes.lowering.sm_90a.partials import steps_of
from passes.lowering.sm_90a.shared_room import (
    BARRIER_BYTES,
    ENOUGH_FOR_PIECES,
    ENOUGH_STAGES,
    MOST_OF_LEFT_B,
    MOST_STAGES,
)
from passes.lowering.sm_90a.stores import (
    MATRIX_BITS,
    MOST_ELEMENTS,
    MOST_SLOTS,
    STORED_BYTES,
    STORED_CHUNK,
    STORED_ROW,
    widths,
)
from passes.lowering.sm_90a.warpgroups import VECTOR

__all__ = [
    "FITTED",
    "INSTRUCTION_BYTES",
    "LINE",
    "SECTOR",
    "UNIT_K",
    "Shape",
    "along",
    "astray",
    "block",
]

FITTED = DTYPES["bf16"]
"""The element type of A and B with which the constants of devices were measured."""
INSTRUCTION_BYTES = 32
"""Number of bytes along k of one operand of a wgmma instruction: 16 elements of 16 bits, or 32 of 8
bits."""
UNIT_K = FITTED.row
"""Number of bf16 elements in a 128-byte row of shared memory: the smallest k of a macro tile."""
LINE, SECTOR, ALIGNED = 128, 32, 16
"""Numbers of bytes. LINE: a cache line. SECTOR: a sector of a cache line. ALIGNED: D is stored by
TMA only if the length of its rows is a multiple of ALIGNED bytes."""
SHARED = architecture_of("sm_90a").shared_bytes - BARRIER_BYTES
"""Number of bytes of shared memory that a CTA has for A, B and D, and for sums over a cluster whose
CTAs divide k."""
NEAR = 16
"""Number of consecutive workgroups that are assumed to run on the SMs of one GPC."""
PREFERRED = range(FEW_ROWS, FEW_ROWS_OF_SEVERAL + 1, GROUP_ROWS)
HEIGHTS = np.array([[box_rows(max(n, 1), few) for n in range(1025)] for few in PREFERRED], float)
"""Number of rows of a TMA box of A or B if k is the contiguous axis, by the preferred number of
rows (`PREFERRED`, `few_rows`) and the number of rows that a CTA loads for each pipeline stage; see
`BoxedOperand`."""


class Shape:
    """How the lowering to sm_90a divides the tiles of each plan; see `Division` for warpgroups.

    Pipeline stages are buffers in shared memory, each of which holds A and B of one iteration.
    """

    def __init__(self, t: Table, larger: Shape | None = None) -> None:
        """Compute the fields: columns with one entry for each plan of the table.

        Args:
            t: a table with one problem and one plan in each row.
            larger: if `t` has the small tiles of kernels with two tile sizes, the shape of the
                macro tiles, which use the same warpgroups and pipeline stages; else None.
        """
        self.workgroups = t.cluster_m * t.cluster_n * t.cluster_k
        self.rows, self.columns = t.tile_m / t.cluster_m, t.tile_n / t.cluster_n
        """rows, columns: extents of a CTA's part of the macro tile along m and n, in elements."""
        self.multicasts = (t.cluster_m > 1).astype(float) + (t.cluster_n > 1)
        """multicasts: number of operands (A, B) that TMA multicasts to several CTAs of a cluster: B
        if the cluster has several CTAs along m, A if it has several along n."""
        row = ROW_BYTES / t.in_bytes
        """Number of elements of A and B in a 128-byte row of shared memory."""
        self.units = t.tile_k / t.cluster_k / row
        """units: extent along k of a CTA's part of the tile, in 128-byte rows of shared memory."""
        self.tiles_m, self.tiles_n = along(t.m, t.tile_m, t.ragged_m), along(t.n, t.tile_n)
        """tiles_m, tiles_n: numbers of output tiles of one product along m and n."""
        self.tiles = np.ceil(t.l * self.tiles_m * self.tiles_n)
        """tiles: number of output tiles of the whole batch."""
        self.depth = np.ceil(along(t.k, t.tile_k, t.ragged_k))
        """depth: number of iterations of the main loop for one output tile."""
        left_b = self.left_b = swapped(self.rows, self.columns, t.turns)
        """left_b: whether B is the left operand of wgmma."""
        left = np.where(left_b, self.columns, self.rows)
        right = np.where(left_b, self.rows, self.columns)
        alone = most_alone(t.streams | (t.cluster_k > 1), t.c_bytes, left_b) * WARPGROUP
        single = (t.turns > 1) | (self.rows * self.columns <= alone)
        self.consumers = np.where(single, 1, 2) if larger is None else larger.consumers
        """consumers: number of warpgroups that together multiply the CTA's part of a tile."""
        workitems = self.consumers * WARPGROUP
        self._sums = self.rows * self.columns / workitems
        """_sums: number of accumulators of a consumer's thread."""
        divided = (left % (2 * MMA_M) != 0) & (self.consumers == 2)
        share = np.where(divided, right / 2, right)
        self.twins = left_b & (self.consumers == 2)
        """twins: whether B is the left operand of wgmma and two warpgroups divide a CTA's part of a
        tile; such kernels were measured to be slower."""
        self.pieces = np.ceil(share / MOST_COLUMNS)
        """pieces: number of wgmma instructions that cover the columns of a warpgroup."""
        self.mma_columns = share / self.pieces
        """mma_columns: the extent n of a wgmma instruction."""
        self.blocks = left / MMA_M * np.where(divided, 2, 1)
        """blocks: number of blocks of 64 rows of the left operand, summed over the warpgroups; each
        is multiplied by the columns of one warpgroup."""
        size = t.in_bytes.astype(int)
        loaded_m = np.where(t.turned_a == 1, in_boxes(self.rows, size), self.rows)
        loaded_n = np.where(t.turned_b == 1, self.columns, in_boxes(self.columns, size))
        self.operand_bytes = (loaded_m + loaded_n) * ROW_BYTES * self.units
        """operand_bytes: bytes of A and B that reach a CTA's shared memory in one iteration."""
        self._enough = np.where(
            t.turns > 1, ENOUGH_STAGES["pingpong"], ENOUGH_STAGES["cooperative"]
        )
        self._ring_bytes = self.operand_bytes if larger is None else larger.operand_bytes
        self._boxed = (8 * t.out_bytes == MATRIX_BITS) & (t.n * t.out_bytes % ALIGNED == 0)
        box = np.where(left_b, share, self._stored(t, share))
        self.odd = self._boxed & ~left_b & (box % STORED_ROW != 0)
        """odd: whether TMA boxes of D are not swizzled, because their rows are not whole cache
        lines."""
        self.stores = self.blocks / self.consumers * np.where(left_b, 1, share / box)
        """stores: number of TMA boxes in which a warpgroup stores its part of a tile."""
        self.stages = self._left(t, box) if larger is None else larger.stages
        """stages: number of pipeline stages; a stage is a buffer for A and B of one iteration."""
        self.asked_bytes = (
            (loaded_m / t.cluster_n + loaded_n / t.cluster_m) * ROW_BYTES * self.units
        )
        """asked_bytes: bytes of `operand_bytes` that the CTA itself requests from the L2 cache; the
        remaining bytes arrive by multicast from other CTAs of its cluster."""
        self.merged = self._merged(t)
        """merged: share of `asked_bytes` that a CTA on a neighbouring SM requests at the same time.
        The L2 cache merges the share `Constants.merged` of these. 0 for clusters: the model ignores
        merges of their requests without multicast."""
        row_a, row_b = np.where(t.turned_a == 1, t.m, t.k), np.where(t.turned_b == 1, t.k, t.n)
        rows_a, rows_b = self.rows / t.cluster_n, self.columns / t.cluster_m

        def rows_astray(unit: int) -> Column:
            """Share of the requested bytes of A and B in rows not aligned to `unit` bytes."""
            of_a, of_b = astray(row_a, unit, t.in_bytes), astray(row_b, unit, t.in_bytes)
            return (rows_a * of_a + rows_b * of_b) / (rows_a + rows_b)

        self.straddling = rows_astray(LINE)
        """straddling: share of `asked_bytes` in rows that begin inside a 128-byte cache line."""
        self.split = rows_astray(SECTOR)
        """split: share of `asked_bytes` in rows that begin inside a sector of 32 bytes."""
        size_a, size_b = t.m * t.k, t.n * t.k
        self.cold = t.l * np.maximum(size_a, size_b) * t.in_bytes
        """cold: bytes of the larger of A and B, summed over all products of a batch."""
        self.asks = np.where(size_a > size_b, self.tiles_n, self.tiles_m)
        """asks: number of output tiles that need the same element of the larger of A and B."""
        self.partial_bytes = self.rows * self.columns * REGISTER_BYTES
        """partial_bytes: bytes of a CTA's partial sums of one tile."""
        registers = registers_of(self.consumers * t.turns)
        room = np.maximum(self.rows, self.columns) * ROW_BYTES * self.units // REGISTER_BYTES
        self.steps = steps_of(self._sums, registers, room, workitems)
        """steps: number of steps in which a CTA reads another workgroup's partial sum of a tile.

        The data of one step fit in the registers; see `passes.lowering.sm_90a.partials`.
        """
        self.shares = np.maximum(self._sums // VECTOR, 1)
        """Number of shares into which a `scatter` reduction (reduce-scatter) divides an output
        tile."""
        narrow = np.gcd(in_boxes(self.mma_columns, size).astype(int), row.astype(int))
        box_m = np.where(left_b, narrow, row)
        self.box_n = np.where(left_b, row, narrow)
        """box_n: extent of a TMA box of B along n in elements; used if B is contiguous along n."""
        narrow_a = rows_a * ((t.turned_a == 1) & (box_m < row))
        narrow_b = rows_b * ((t.turned_b == 0) & (self.box_n < row))
        self.narrow = (narrow_a + narrow_b) / (rows_a + rows_b)
        """narrow: share of `asked_bytes` in TMA boxes whose rows are shorter than a cache line."""
        sharers, along_k = (t.cluster_n, t.cluster_m), (1 - t.turned_a, t.turned_b)
        few = few_rows((self.rows, self.columns), sharers, along_k)
        preferred = ((few - FEW_ROWS) // GROUP_ROWS).astype(int)
        most = HEIGHTS.shape[1] - 1
        low_a, low_b = (
            HEIGHTS[preferred, np.minimum(rows, most).astype(int)] for rows in (rows_a, rows_b)
        )
        high_a = np.where(t.turned_a == 1, box_m, low_a)
        high_b = np.where(t.turned_b == 1, low_b, self.box_n)
        outside_m, outside_n = _last(t.m, t.tile_m, self.rows), _last(t.n, t.tile_n, self.columns)
        # The rows after the last row of a group are rows of the next group, so they are inside A.
        outside_m = np.where(t.ragged_m == 1, 0, outside_m)
        self.outside = outside_m + outside_n
        """outside: number of rows of A and columns of B past the end of the matrix, in the part of
        a tile of the CTA that has most of them.
        """
        self.filled = outside_m % high_a + outside_n % high_b
        """filled: number of the rows and columns in `outside` that lie in a TMA box which begins
        inside the matrix, so that TMA fills them with zeros. Boxes that lie entirely outside the
        matrix are not requested.
        """
        self.copies = self.units * (
            np.where(t.turned_a == 1, loaded_m / box_m, np.ceil(rows_a / low_a))
            + np.where(t.turned_b == 1, np.ceil(rows_b / low_b), loaded_n / self.box_n)
        )
        """copies: number of TMA boxes of A and B that the producer warp requests in one
        iteration."""

    @classmethod
    def of(cls, t: Table) -> Shape:
        """The shapes of all plans of a table.

        Plans that differ only in the order of tiles (`width`) have equal shapes, which are computed
        once. Only the column `merged` (requests that the L2 cache may merge) is computed for each.
        """
        if t.distinct is None:
            return cls(t)
        first, number = t.distinct
        shape = cls(t.where(first)).where(number)
        shape.merged = shape._merged(t)
        return shape

    def where(self, rows: NDArray[np.intp]) -> Shape:
        """The shapes of some plans of the table, given their row numbers."""
        found = object.__new__(Shape)
        found.__dict__ = {name: column[rows] for name, column in vars(self).items()}
        return found

    def _merged(self, t: Table) -> Column:
        """For each plan, the share of requests that L2 may merge with those of a neighbouring CTA.

        The share depends on the order of tiles, unlike all other columns of a shape.
        """
        high, wide = block(t, self.tiles_m, self.tiles_n, NEAR)
        once = (self.rows / wide + self.columns / high) / (self.rows + self.columns)
        return np.where(self.workgroups > 1, 0, 1 - once)

    def _stored(self, t: Table, columns: Column) -> Column:
        """Extent along n of the TMA boxes in which D is stored; see `BoxedStore`.

        Args:
            t: a table with one problem and one plan in each row.
            columns: number of columns of D that a warpgroup stores.
        """
        narrow, wide = widths(columns.astype(int))
        needed = np.minimum(self._stages(t, narrow), self._enough) - (narrow == STORED_CHUNK)
        fits = (narrow < wide) & (wide <= MOST_ELEMENTS) & (self._stages(t, wide) >= needed)
        return np.where(fits, wide, narrow)

    def _left(self, t: Table, box: Column) -> Column:
        """Number of pipeline stages that fit in shared memory beside the output slots for D.

        A warpgroup has as many output slots (each the buffer of one TMA box of D) as fit without
        leaving too few stages; see `BoxedStore.all`. Plans of which each workgroup finishes shares
        of a tile have none where that gives one of the first stages; see `SharedRoom.stores`.

        Args:
            t: a table with one problem and one plan in each row.
            box: number of columns of a TMA box of D.
        """
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
        without = t.finishes_shares & (~self.left_b | (self._sums <= MOST_OF_LEFT_B))
        alone = self._stages(t, np.zeros(len(t)))
        return np.where(without & (found < np.minimum(alone, ENOUGH_FOR_PIECES)), alone, found)

    def _stages(self, t: Table, box: Column) -> Column:
        """Number of pipeline stages that fit in shared memory together with the buffers for D.

        Args:
            t: a table with one problem and one plan in each row.
            box: number of columns of D that a warpgroup has buffers for, in elements of 16 bits.
        """
        beside = self.consumers * t.turns * MMA_M * box * STORED_BYTES * self._boxed
        beside = beside + (t.cluster_k - 1) * self.rows * self.columns * REGISTER_BYTES
        return np.minimum((SHARED - beside) // self._ring_bytes, MOST_STAGES)


def along(extent: Column | float, tile: Column, ragged: Column | float = 0) -> Column:
    """Number of tiles along an axis; if groups divide the axis, an average, not a whole number.

    Args:
        extent: extent of the axis; if groups divide the axis, the average of the groups' extents.
        tile: extent of a tile.
        ragged: 1 if groups divide the axis, else 0. A group ends anywhere in its last tile, on
            average in the middle, so on average it has half a tile more than it fills, and at least
            one tile.
    """
    filled = extent / tile
    return np.where(ragged == 1, np.maximum(filled + 0.5, 1), np.ceil(filled))


def astray(row: Column, unit: Column | int, element: Column | int) -> Column:
    """The share of rows of a matrix whose address is not a multiple of `unit` bytes.

    Args:
        row: number of elements of a row; rows are contiguous in memory, and the first row is
            aligned.
        unit: a number of bytes.
        element: number of bytes of an element.
    """
    return 1 - np.gcd((row * element).astype(int), unit) / unit


def _last(extent: Column, tile: Column, part: Column) -> Column:
    """Largest number of rows (or columns) outside the matrix in any CTA's part of a macro tile.

    Args:
        extent: extent of the matrix.
        tile: extent of a macro tile.
        part: extent of a CTA's part of a macro tile.
    """
    outside = np.ceil(extent / tile) * tile - extent
    return np.minimum(outside, part)


def block(t: Table, tiles_m: Column, tiles_n: Column, count: Column | int) -> tuple[Column, Column]:
    """(rows, columns), in tiles, of the block of output tiles that consecutive workgroups compute.

    Args:
        t: problems and plans, with the order of tiles.
        tiles_m, tiles_n: numbers of output tiles of one product along m and n.
        count: number of consecutive workgroups, each of which computes one tile.
    """
    high = np.minimum(t.width, tiles_m)
    wide = np.minimum(np.ceil(count / high), tiles_n)
    return np.minimum(np.maximum(high, np.ceil(count / wide)), tiles_m), wide
