"""`Ragged`: divide an index into parts whose borders a table gives when the kernel runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sympy import Expr
from sympy.logic.boolalg import Boolean

from coordgraph.coordinates.edges.base import Edge, Law, Sizes
from coordgraph.errors import NotInvertible
from coordgraph.integers import Ranges, index_symbol, less, load, search
from coordgraph.tables import TableNeed

__all__ = ["Ragged", "borders_of"]


def borders_of(segments: Expr | None) -> Expr | None:
    """The number of borders of `segments` consecutive parts: each part's start, and the last end.

    The result is None if `segments` is None.
    """
    return None if segments is None else segments + 1


@dataclass(frozen=True)
class Ragged(Edge):
    """`Ragged(I; G, O)`: index i is index o of part g, with the parts' borders in a table.

    - reverse: `i = t[g] + o`;
    - forward: `g = search(t, n_g, i)`, the part with `t[g] <= i < t[g + 1]`; `o = i - t[g]`.

    The table t has n_g + 1 non-decreasing entries; part g has the indices
    `t[g] .. t[g + 1] - 1`, possibly none. The first part may begin after 0, and the last may end
    before |I|. Guard: `i < t[g + 1]`, which does not hold if o is past the part's end. There is
    no size rule, because the parts' lengths are known only when the kernel runs.

    Args:
        table: the name of the table t.
    """

    table: str = ""

    arity = (1, 2)
    laws = frozenset({Law.REVERSE_UNDOES_FORWARD, Law.FORWARD_UNDOES_REVERSE})
    consecutive = True

    def size_rule(self, sizes: Sizes) -> tuple[Boolean, ...]:
        return ()

    def table_needs(self, sizes: Sizes) -> tuple[TableNeed, ...]:
        return (TableNeed(self.table, borders_of(sizes.downstream[0])),)

    def reverse(
        self, indices: Sequence[Expr | None], sizes: Sizes, ranges: Ranges
    ) -> tuple[Expr, ...]:
        segment, inside = indices
        assert segment is not None
        assert inside is not None
        return (load(index_symbol(self.table), segment) + inside,)

    def forward(self, indices: Sequence[Expr], sizes: Sizes, ranges: Ranges) -> tuple[Expr, ...]:
        (index,), count = indices, sizes.downstream[0]
        if count is None:
            raise NotInvertible(
                f"{self}: the first downstream operand has no size; give that dimension the number "
                "of parts as its size"
            )
        borders = index_symbol(self.table)
        segment = search(borders, count, index)
        return segment, index - load(borders, segment)

    def guard(
        self, upstream: Sequence[Expr], downstream: Sequence[Expr | None], sizes: Sizes
    ) -> tuple[Boolean, ...]:
        segment = downstream[0]
        assert segment is not None
        return (less(upstream[0], load(index_symbol(self.table), segment + 1)),)
