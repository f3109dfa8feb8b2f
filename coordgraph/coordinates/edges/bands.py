"""`Bands`: number the points of a grid band by band; a band is `width` consecutive rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sympy import Expr, Integer, Lt
from sympy.logic.boolalg import Boolean

from coordgraph.coordinates.edges.base import Edge, Law, Sizes
from coordgraph.coordinates.edges.radix import product
from coordgraph.errors import NotInvertible
from coordgraph.integers import Ranges, equal, floor_div, floor_mod, minimum, select
from coordgraph.validation import flag, whole

__all__ = ["Bands"]


@dataclass(frozen=True)
class Bands(Edge):
    """`Bands(I, J; O)`: number the points (i, j) of a grid in bands of rows, column by column.

    The rows are divided into bands of `width` rows; the bands follow one another, and the points of
    a band are numbered column by column. Let w be the width, `b = i div w` the band of the point,
    and h the number of rows of the band: w, except `(nᵢ - 1) mod w + 1` in the last band, so there
    is no padding.

    - forward: `o = b·w·nⱼ + j·h + i mod w`;
    - reverse: `b = o div (w·nⱼ)`, `r = o mod (w·nⱼ)`; `i = b·w + r mod h`, `j = r div h`.

    With `snake`, bands with odd b are numbered from their last column: `nⱼ - 1 - j` replaces j. A
    band then begins in the column in which the previous band ends. Size rule: `|O| = nᵢ·nⱼ`.

    h has two possible values. `reverse` divides by both values and selects one of the results, so
    every divisor depends on sizes only, and generated code can multiply by a precomputed reciprocal
    instead.
    """

    width: int = 8
    snake: bool = False

    arity = (2, 1)
    laws = frozenset({Law.REVERSE_UNDOES_FORWARD, Law.FORWARD_UNDOES_REVERSE})

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "width", whole(self.width, f"{self}: width", least=1))
        object.__setattr__(self, "snake", flag(self.snake, f"{self}: snake"))

    def size_rule(self, sizes: Sizes) -> tuple[Boolean, ...]:
        (whole,), total = sizes.downstream, product(sizes.upstream)
        return () if whole is None or total is None else (equal(whole, total),)

    def reverse(
        self, indices: Sequence[Expr | None], sizes: Sizes, ranges: Ranges
    ) -> tuple[Expr, ...]:
        (index,) = indices
        assert index is not None
        rows, columns = self._sizes(sizes)
        band, rest = floor_div(index, self.width * columns), floor_mod(index, self.width * columns)
        row = band * self.width + floor_mod(rest, self.width)
        column = floor_div(rest, self.width)
        height = self._last_height(rows)
        if height != self.width:
            whole = self._is_whole(band, rows)
            row = select(whole, row, rows - height + floor_mod(rest, height))
            # The `minimum` does not change the column; it shows proofs that the column is less
            # than the number of columns.
            last = minimum(floor_div(rest, height), columns - 1)
            column = select(whole, column, last)
        return row, self._turned(column, band, columns)

    def forward(self, indices: Sequence[Expr], sizes: Sizes, ranges: Ranges) -> tuple[Expr, ...]:
        row, column = indices
        rows, columns = self._sizes(sizes)
        band = floor_div(row, self.width)
        height = select(self._is_whole(band, rows), self.width, self._last_height(rows))
        place = self._turned(column, band, columns) * height + floor_mod(row, self.width)
        return (band * self.width * columns + place,)

    def _sizes(self, sizes: Sizes) -> tuple[Expr, Expr]:
        rows, columns = sizes.upstream
        if rows is None or columns is None:
            raise NotInvertible(
                f"{self}: an upstream operand has no size; give both upstream dimensions a size"
            )
        return rows, columns

    def _is_whole(self, band: Expr, rows: Expr) -> Boolean:
        """Whether another band follows band number `band`.

        Only the last band may have fewer than `width` rows.
        """
        return Lt((band + 1) * self.width, rows)

    def _last_height(self, rows: Expr) -> Expr:
        return floor_mod(rows - 1, self.width) + 1

    def _turned(self, column: Expr, band: Expr, columns: Expr) -> Expr:
        """The column, counted from the right in odd bands if `snake` is set.

        The function is its own inverse.
        """
        if not self.snake:
            return column
        return select(equal(floor_mod(band, Integer(2)), 1), columns - 1 - column, column)
