"""`Concatenate`: segments of different sizes as one index, `Ragged` upside down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sympy import Expr, Ge
from sympy.logic.boolalg import Boolean

from coordgraph.coordinates.edges.base import Edge, Law, Sizes
from coordgraph.errors import NotInvertible
from coordgraph.integers import Ranges, index_symbol, load, search

__all__ = ["Concatenate"]


@dataclass(frozen=True)
class Concatenate(Edge):
    """`Concatenate(G, I; O)`: forward `o = t[g] + i`, reverse `g = search(t, n_g, o)`.

    Then `i = o - t[g]`.

    The table t has n_g + 1 rising entries from 0: where each segment begins. Segment g has
    `t[g + 1] - t[g]` indices, perhaps none. Size: the table's last entry at least; what is behind
    that belongs to no segment, and reverse puts it behind the end of the last one.
    """

    table: str = ""

    arity = (2, 1)
    laws = frozenset({Law.REVERSE_UNDOES_FORWARD, Law.FORWARD_UNDOES_REVERSE})

    def size_rule(self, sizes: Sizes) -> tuple[Boolean, ...]:
        (count, _), (whole,) = sizes.upstream, sizes.downstream
        if count is None or whole is None:
            return ()
        return (Ge(whole, load(index_symbol(self.table), count)),)

    def reverse(
        self, indices: Sequence[Expr | None], sizes: Sizes, ranges: Ranges
    ) -> tuple[Expr, ...]:
        (index,), count = indices, sizes.upstream[0]
        assert index is not None
        if count is None:
            raise NotInvertible(f"{self}: needs the number of segments")
        starts = index_symbol(self.table)
        segment = search(starts, count, index)
        return segment, index - load(starts, segment)

    def forward(self, indices: Sequence[Expr], sizes: Sizes, ranges: Ranges) -> tuple[Expr, ...]:
        segment, inside = indices
        return (load(index_symbol(self.table), segment) + inside,)
