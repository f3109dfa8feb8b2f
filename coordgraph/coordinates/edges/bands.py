"""`Bands`: the places of a plane in an order that stays in narrow bands of rows."""

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
    """`Bands(I, J; O)`: bands of `width` rows, one after another, each column by column.

    With w the width, `b = i div w` the band and `h` its rows (w, but `(nᵢ - 1) mod w + 1` in the
    last band, so that nothing is padding):

    - forward: `o = b·w·nⱼ + j·h + i mod w`;
    - reverse: `b = o div (w·nⱼ)`, `r = o mod (w·nⱼ)`; `i = b·w + r mod h`, `j = r div h`.

    `snake`: every other band is walked from its last column, `nⱼ - 1 - j` for j where b is odd, so
    a band begins in the column in which the one before it ended. Size: the product.

    `h` is one of two values, and reverse divides by each and chooses: then sizes alone decide all
    divisors, and generated code multiplies instead.
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
            # The minimum changes nothing: the last band has `height` rows, and proofs see it so.
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
            raise NotInvertible(f"{self}: needs the sizes of both operands")
        return rows, columns

    def _is_whole(self, band: Expr, rows: Expr) -> Boolean:
        """Whether another band follows; the last one may have fewer rows."""
        return Lt((band + 1) * self.width, rows)

    def _last_height(self, rows: Expr) -> Expr:
        return floor_mod(rows - 1, self.width) + 1

    def _turned(self, column: Expr, band: Expr, columns: Expr) -> Expr:
        """The column counted from where its band begins; its own inverse."""
        if not self.snake:
            return column
        return select(equal(floor_mod(band, Integer(2)), 1), columns - 1 - column, column)
