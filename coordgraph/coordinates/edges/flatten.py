"""`Flatten`: combine several indices into one row-major index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sympy import Expr
from sympy.logic.boolalg import Boolean

from coordgraph.coordinates.edges.base import Edge, Law, Sizes
from coordgraph.coordinates.edges.radix import compose, decompose, product
from coordgraph.integers import Ranges, equal

__all__ = ["Flatten"]


@dataclass(frozen=True)
class Flatten(Edge):
    """`Flatten(I0, …, IR; O)`: combine several indices into one row-major index.

    - forward: `o = (i0·n1 + i1)·n2 + …`, where n0, n1, … are `|I0|`, `|I1|`, …;
    - reverse: by repeated mod and div; i0 is the last quotient.

    Size rule: `|O| = n0·n1·…`.
    """

    arity = (None, 1)
    laws = frozenset({Law.REVERSE_UNDOES_FORWARD, Law.FORWARD_UNDOES_REVERSE})
    consecutive = True

    def size_rule(self, sizes: Sizes) -> tuple[Boolean, ...]:
        (whole,), total = sizes.downstream, product(sizes.upstream)
        return () if whole is None or total is None else (equal(whole, total),)

    def reverse(
        self, indices: Sequence[Expr | None], sizes: Sizes, ranges: Ranges
    ) -> tuple[Expr, ...]:
        (index,) = indices
        assert index is not None
        return decompose(index, sizes.upstream, self)

    def forward(self, indices: Sequence[Expr], sizes: Sizes, ranges: Ranges) -> tuple[Expr, ...]:
        return (compose(indices, sizes.upstream, self),)
