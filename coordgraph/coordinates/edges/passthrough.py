"""`PassThrough`: an edge between two dimensions that have the same index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sympy import Expr
from sympy.logic.boolalg import Boolean

from coordgraph.coordinates.edges.base import Edge, Law, Sizes
from coordgraph.integers import Ranges

__all__ = ["PassThrough"]


@dataclass(frozen=True)
class PassThrough(Edge):
    """`PassThrough(I; O)`: I and O have the same index, `i = o`. Size rule: `|I| = |O|`."""

    arity = (1, 1)
    laws = frozenset({Law.REVERSE_UNDOES_FORWARD, Law.FORWARD_UNDOES_REVERSE})
    consecutive = True

    def size_rule(self, sizes: Sizes) -> tuple[Boolean, ...]:
        return sizes.unchanged

    def reverse(
        self, indices: Sequence[Expr | None], sizes: Sizes, ranges: Ranges
    ) -> tuple[Expr, ...]:
        (index,) = indices
        assert index is not None
        return (index,)

    def forward(self, indices: Sequence[Expr], sizes: Sizes, ranges: Ranges) -> tuple[Expr, ...]:
        return (indices[0],)
