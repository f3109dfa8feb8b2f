"""`Tile`: divide an index into the number of a tile and the position within the tile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sympy import Expr
from sympy.logic.boolalg import Boolean

from coordgraph.coordinates.edges.base import Edge, Law, Sizes
from coordgraph.coordinates.edges.radix import compose, decompose, product, same
from coordgraph.integers import Ranges, at_least, less

__all__ = ["Tile"]


@dataclass(frozen=True)
class Tile(Edge):
    """`Tile(I; O0, …, OR)`: divide an index into tiles, such as tile number o0 and position o1.

    - reverse: `i = (o0·n1 + o1)·n2 + …`;
    - forward: by repeated mod and div.

    Size rule: the tiles cover the dimension, `n0·n1·… >= |I|`. If the tiles reach past the end of
    the dimension (a partial tile, workgroups without work), the indices past the end are padding:
    the guard `i < |I|` does not hold.
    """

    arity = (1, None)
    laws = frozenset({Law.REVERSE_UNDOES_FORWARD, Law.FORWARD_UNDOES_REVERSE})
    consecutive = True

    def size_rule(self, sizes: Sizes) -> tuple[Boolean, ...]:
        (whole,), covered = sizes.upstream, product(sizes.downstream)
        return () if whole is None or covered is None else (at_least(covered, whole),)

    def reverse(
        self, indices: Sequence[Expr | None], sizes: Sizes, ranges: Ranges
    ) -> tuple[Expr, ...]:
        return (compose([i for i in indices if i is not None], sizes.downstream, self),)

    def forward(self, indices: Sequence[Expr], sizes: Sizes, ranges: Ranges) -> tuple[Expr, ...]:
        return decompose(indices[0], sizes.downstream, self)

    def guard(
        self, upstream: Sequence[Expr], downstream: Sequence[Expr | None], sizes: Sizes
    ) -> tuple[Boolean, ...]:
        (whole,), covered = sizes.upstream, product(sizes.downstream)
        if whole is None or (covered is not None and same(covered, whole)):
            return ()
        return (less(upstream[0], whole),)
