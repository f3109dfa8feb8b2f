"""`Diagonal`: the offsets of matrices of different shapes that are stored one after another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sympy import Expr, Ge, Integer, Lt
from sympy.logic.boolalg import Boolean

from coordgraph.coordinates.edges.base import Edge, Law, Sizes
from coordgraph.coordinates.edges.ragged import borders_of
from coordgraph.errors import NotInvertible, VerifyError
from coordgraph.integers import (
    Ranges,
    ceil_div,
    floor_div,
    floor_mod,
    index_symbol,
    load,
    maximum,
    search,
)
from coordgraph.tables import TableNeed

__all__ = ["Diagonal", "row_pitch"]


def row_pitch(columns: Expr, step: int) -> Expr:
    """The leading dimension of a row-major matrix whose rows are aligned, in elements.

    The leading dimension is `columns` rounded up to a multiple of `step`.

    Args:
        columns: the number of elements of a row.
        step: the alignment of rows, in elements.
    """
    return ceil_div(columns, Integer(step)) * step


@dataclass(frozen=True)
class Diagonal(Edge):
    """`Diagonal(I; G, R, C)`: the offset in memory of an element of a block-diagonal matrix.

    The R x C matrix is zero outside the blocks on its diagonal. Block g has the rows
    `rows[g] .. rows[g + 1] - 1` and the columns `columns[g] .. columns[g + 1] - 1`. Memory holds
    the blocks one after another, row-major; block g begins at element `t[g]`. The leading dimension
    of block g is `p = ⌈(columns[g + 1] - columns[g])/step⌉·step` elements.

    - reverse: `i = t[g] + (r - rows[g])·p + c - columns[g]`;
    - forward: `g = search(t, n_g, i)`, the block with `t[g] <= i < t[g + 1]`; then r and c by div
      and mod.

    Guard: r and c are a row and a column of block g. There is no size rule, because the blocks'
    shapes are known only when the kernel runs.

    Args:
        table: the name of the table t with the first element of each block.
        rows, columns: the names of the tables with each block's first row and first column.
        step: the alignment of a block's rows, in elements.
    """

    table: str = ""
    rows: str = ""
    columns: str = ""
    step: int = 1

    arity = (1, 3)
    laws = frozenset({Law.FORWARD_UNDOES_REVERSE})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.step < 1:
            raise VerifyError(f"{self}: step={self.step} is too small; it must be at least 1")

    def size_rule(self, sizes: Sizes) -> tuple[Boolean, ...]:
        return ()

    def table_needs(self, sizes: Sizes) -> tuple[TableNeed, ...]:
        borders = borders_of(sizes.downstream[0])
        return tuple(TableNeed(name, borders) for name in (self.table, self.rows, self.columns))

    def reverse(
        self, indices: Sequence[Expr | None], sizes: Sizes, ranges: Ranges
    ) -> tuple[Expr, ...]:
        block, row, column = indices
        assert block is not None
        assert row is not None
        assert column is not None
        within = (row - self._first(self.rows, block)) * self.pitch(block)
        return (
            self._first(self.table, block) + within + column - self._first(self.columns, block),
        )

    def forward(self, indices: Sequence[Expr], sizes: Sizes, ranges: Ranges) -> tuple[Expr, ...]:
        (index,), count = indices, sizes.downstream[0]
        if count is None:
            raise NotInvertible(
                f"{self}: the first downstream operand has no size; give that dimension the number "
                "of blocks as its size"
            )
        block = search(index_symbol(self.table), count, index)
        within = index - self._first(self.table, block)
        # For an offset outside all blocks the leading dimension may be 0; then divide by 1.
        pitch = maximum(self.pitch(block), Integer(1))
        row = self._first(self.rows, block) + floor_div(within, pitch)
        return block, row, self._first(self.columns, block) + floor_mod(within, pitch)

    def guard(
        self, upstream: Sequence[Expr], downstream: Sequence[Expr | None], sizes: Sizes
    ) -> tuple[Boolean, ...]:
        block, *place = downstream
        assert block is not None
        found: list[Boolean] = []
        for index, table in zip(place, (self.rows, self.columns), strict=True):
            assert index is not None
            found += (
                Ge(index, self._first(table, block)),
                Lt(index, self._first(table, block + 1)),
            )
        return tuple(found)

    def extent(self, table: str, block: Expr) -> Expr:
        """The number of rows or columns of a block: `table[block + 1] - table[block]`."""
        return self._first(table, block + 1) - self._first(table, block)

    def pitch(self, block: Expr) -> Expr:
        """The leading dimension of a block: elements from the start of a row to the next."""
        return row_pitch(self.extent(self.columns, block), self.step)

    @staticmethod
    def _first(table: str, block: Expr) -> Expr:
        return load(index_symbol(table), block)
