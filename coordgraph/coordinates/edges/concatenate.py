"""`Concatenate`: segments of different sizes as one index, `Ragged` upside down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sympy import Expr, Ge
from sympy.logic.boolalg import Boolean

from coordgraph.coordinates.edges.base import Edge, Law, Sizes
from coordgraph.coordinates.edges.radix import compose, decompose, product
from coordgraph.errors import NotInvertible, VerifyError
from coordgraph.integers import Ranges, floor_div, index_symbol, load, search

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
    """

    table: str = ""

    arity = (None, 1)
    laws = frozenset({Law.REVERSE_UNDOES_FORWARD, Law.FORWARD_UNDOES_REVERSE})

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.upstream) < 2:
            raise VerifyError(f"{self}: needs a segment and what there is in it")

    def size_rule(self, sizes: Sizes) -> tuple[Boolean, ...]:
        (count, *_), (whole,), each = sizes.upstream, sizes.downstream, self._each(sizes)
        if count is None or whole is None or each is None:
            return ()
        return (Ge(whole, each * load(index_symbol(self.table), count)),)

    def reverse(
        self, indices: Sequence[Expr | None], sizes: Sizes, ranges: Ranges
    ) -> tuple[Expr, ...]:
        (index,), (count, *between, _) = indices, sizes.upstream
        assert index is not None
        if count is None:
            raise NotInvertible(f"{self}: needs the number of segments")
        starts, each = index_symbol(self.table), self._needed(sizes)
        segment = search(starts, count, floor_div(index, each))
        inside = index - each * load(starts, segment)
        if not between:
            return segment, inside
        return segment, *decompose(inside, (*between, self._extent(segment)), self)

    def forward(self, indices: Sequence[Expr], sizes: Sizes, ranges: Ranges) -> tuple[Expr, ...]:
        (segment, *inside), (_, *between, _) = indices, sizes.upstream
        starts, each = index_symbol(self.table), self._needed(sizes)
        within = compose(inside, (*between, self._extent(segment)), self)
        return (each * load(starts, segment) + within,)

    def _extent(self, segment: Expr) -> Expr:
        """Indices along the last operand in a segment."""
        starts = index_symbol(self.table)
        return load(starts, segment + 1) - load(starts, segment)

    @staticmethod
    def _each(sizes: Sizes) -> Expr | None:
        """Indices of a segment for each along its last operand, None where that is not known."""
        return product(sizes.upstream[1:-1])

    def _needed(self, sizes: Sizes) -> Expr:
        each = self._each(sizes)
        if each is None:
            raise NotInvertible(f"{self}: needs the sizes of the operands between")
        return each
