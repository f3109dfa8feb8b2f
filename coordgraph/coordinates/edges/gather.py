"""`Gather`: read indices from a table of the caller, such as the rows of a gathered matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sympy import Expr
from sympy.logic.boolalg import Boolean

from coordgraph.coordinates.edges.base import Edge, Law, Sizes
from coordgraph.errors import NotInvertible
from coordgraph.integers import Ranges, index_symbol, load, minimum
from coordgraph.tables import ANY, TableNeed

__all__ = ["Gather"]


@dataclass(frozen=True)
class Gather(Edge):
    """`Gather(I; O)`: index i is the entry of a table t at position o.

    - reverse: `i = t[min(o, |O| - 1)]`; the minimum is o except in padding, where it keeps the read
      inside the table;
    - there is no forward formula: the table may hold an index i several times, or not at all.

    Size rule: none. The table has |O| entries in any order, each less than |I|.

    Args:
        table: the name of the table t.
    """

    table: str = ""

    arity = (1, 1)
    laws = frozenset[Law]()

    def size_rule(self, sizes: Sizes) -> tuple[Boolean, ...]:
        return ()

    def table_needs(self, sizes: Sizes) -> tuple[TableNeed, ...]:
        (whole,), (count,) = sizes.upstream, sizes.downstream
        return (TableNeed(self.table, count, ANY, below=whole),)

    def reverse(
        self, indices: Sequence[Expr | None], sizes: Sizes, ranges: Ranges
    ) -> tuple[Expr, ...]:
        (place,), (count,) = indices, sizes.downstream
        assert place is not None
        if count is None:
            raise NotInvertible(
                f"{self}: the downstream operand has no size; give that dimension the number of "
                "entries of the table as its size"
            )
        return (load(index_symbol(self.table), minimum(place, count - 1)),)

    def forward(self, indices: Sequence[Expr], sizes: Sizes, ranges: Ranges) -> tuple[Expr, ...]:
        raise NotInvertible(
            f"{self}: an index may occur several times in the table '{self.table}', or not at all; "
            "ask for the reverse direction"
        )
