"""`Concatenate`: segments of different sizes as one index, `Ragged` upside down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sympy import Expr, Ge, Integer
from sympy.logic.boolalg import Boolean

from coordgraph.coordinates.edges.base import Edge, Law, Sizes
from coordgraph.coordinates.edges.radix import compose, decompose, product
from coordgraph.coordinates.edges.ragged import borders_of
from coordgraph.errors import NotInvertible, VerifyError
from coordgraph.integers import Ranges, floor_div, index_symbol, load, search
from coordgraph.tables import TableNeed

__all__ = ["Concatenate"]


@dataclass(frozen=True)
class Concatenate(Edge):
    """`Concatenate(G, I; O)`: forward `o = t[g] + i`, reverse `g = search(t, n_g, o)`.

    Then `i = o - t[g]`.

    The table t has n_g + 1 rising entries from 0: where each segment begins. Segment g has
    `t[g + 1] - t[g]` indices, perhaps none. Size: the table's last entry at least; what is behind
    that belongs to no segment, and reverse puts it behind the end of the last one.

    With operands between, `Concatenate(G, J0, …, I; O)`, a segment is a row-major block: it has its
    I for every J, `p = n_0·…` times as many indices, and begins at `p·t[g]`. Forward
    `o = p·t[g] + (j0·n_1 + …)·(t[g + 1] - t[g]) + i`; reverse `g = search(t, n_g, o div p)`, the
    rest by mod and div. So a `Flatten` whose last extent is another in every segment; none of them
    may be empty.

    With `extents`, one for each operand but the first, a segment begins at `t[g]`, and it is a
    row-major block of other extents in every segment: `x[g + 1] - x[g]` for the table x of that
    name, or, where there is none, the operand's size.
    """

    table: str = ""
    extents: tuple[str, ...] = ()

    arity = (None, 1)
    laws = frozenset({Law.REVERSE_UNDOES_FORWARD, Law.FORWARD_UNDOES_REVERSE})

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.upstream) < 2:
            raise VerifyError(f"{self}: needs a segment and what there is in it")
        if self.extents and len(self.extents) != len(self.upstream) - 1:
            raise VerifyError(f"{self}: needs an extent for each operand but the first, or none")

    def size_rule(self, sizes: Sizes) -> tuple[Boolean, ...]:
        (count, *_), (whole,), each = sizes.upstream, sizes.downstream, self._each(sizes)
        if count is None or whole is None or each is None:
            return ()
        return (Ge(whole, each * load(index_symbol(self.table), count)),)

    def table_needs(self, sizes: Sizes) -> tuple[TableNeed, ...]:
        borders = borders_of(sizes.upstream[0])
        extents = (TableNeed(name, borders) for name in self.extents if name)
        return (TableNeed(self.table, borders, from_zero=True), *extents)

    def reverse(
        self, indices: Sequence[Expr | None], sizes: Sizes, ranges: Ranges
    ) -> tuple[Expr, ...]:
        (index,), (count, *_) = indices, sizes.upstream
        assert index is not None
        if count is None:
            raise NotInvertible(f"{self}: needs the number of segments")
        starts, each = index_symbol(self.table), self._needed(sizes)
        segment = search(starts, count, floor_div(index, each))
        inside = index - each * load(starts, segment)
        return segment, *decompose(inside, self._extents(segment, sizes), self)

    def forward(self, indices: Sequence[Expr], sizes: Sizes, ranges: Ranges) -> tuple[Expr, ...]:
        segment, *inside = indices
        starts, each = index_symbol(self.table), self._needed(sizes)
        within = compose(inside, self._extents(segment, sizes), self)
        return (each * load(starts, segment) + within,)

    def _extents(self, segment: Expr, sizes: Sizes) -> tuple[Expr | None, ...]:
        """Of a segment along each of its operands."""
        _, *own = sizes.upstream
        tables = self.extents or (*("" for _ in own[:-1]), self.table)
        return tuple(
            _step(table, segment) if table else size
            for table, size in zip(tables, own, strict=True)
        )

    def _each(self, sizes: Sizes) -> Expr | None:
        """What entries of the table count in, None where that is not known."""
        return Integer(1) if self.extents else product(sizes.upstream[1:-1])

    def _needed(self, sizes: Sizes) -> Expr:
        each = self._each(sizes)
        if each is None:
            raise NotInvertible(f"{self}: needs the sizes of the operands between")
        return each


def _step(table: str, segment: Expr) -> Expr:
    """How far a table rises over a segment."""
    starts = index_symbol(table)
    return load(starts, segment + 1) - load(starts, segment)
