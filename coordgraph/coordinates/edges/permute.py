"""`Permute`: permute indices by a table that is computed when the kernel runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sympy import Expr
from sympy.logic.boolalg import Boolean

from coordgraph.coordinates.edges.base import Edge, Law, Sizes
from coordgraph.errors import NotInvertible
from coordgraph.integers import Ranges, index_symbol, load
from coordgraph.tables import SORTS, TableNeed

__all__ = ["Permute"]


@dataclass(frozen=True)
class Permute(Edge):
    """`Permute(I; O)`: permute indices by a table t.

    - reverse: `i = t[o]`;
    - forward: `o = s[i]`, where s is the inverse permutation of t; forward raises `NotInvertible`
      if `inverse` is ''. Code generation uses only reverse.

    Size rule: `|I| = |O|`.

    Args:
        table: the name of the table t, a permutation of all indices.
        inverse: the name of the table s, or '' if forward is not needed.
    """

    table: str = ""
    inverse: str = ""

    arity = (1, 1)
    laws = frozenset({Law.REVERSE_UNDOES_FORWARD, Law.FORWARD_UNDOES_REVERSE})

    def size_rule(self, sizes: Sizes) -> tuple[Boolean, ...]:
        return sizes.unchanged

    def table_needs(self, sizes: Sizes) -> tuple[TableNeed, ...]:
        (above,), (below,) = sizes.upstream, sizes.downstream
        size = below if above is None else above
        order = TableNeed(self.table, size, SORTS)
        back = TableNeed(self.inverse, size, SORTS, inverse_of=self.table)
        return (order, back) if self.inverse else (order,)

    def reverse(
        self, indices: Sequence[Expr | None], sizes: Sizes, ranges: Ranges
    ) -> tuple[Expr, ...]:
        (place,) = indices
        assert place is not None
        return (load(index_symbol(self.table), place),)

    def forward(self, indices: Sequence[Expr], sizes: Sizes, ranges: Ranges) -> tuple[Expr, ...]:
        if not self.inverse:
            raise NotInvertible(
                f"{self}: the forward direction needs a table with the inverse permutation, and "
                "none is named; name it in 'inverse'"
            )
        return (load(index_symbol(self.inverse), indices[0]),)
