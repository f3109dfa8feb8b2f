"""`Balance`: divide an index into contiguous shares whose lengths differ by at most 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sympy import Expr, Ge, Integer, Le
from sympy.logic.boolalg import Boolean

from coordgraph.coordinates.edges.base import Edge, Law, Sizes
from coordgraph.coordinates.edges.radix import product
from coordgraph.errors import NotInvertible
from coordgraph.integers import Ranges, floor_div, floor_mod, less, minimum
from coordgraph.parameters import LARGEST_INDEX

__all__ = ["Balance"]


@dataclass(frozen=True)
class Balance(Edge):
    """`Balance(I; W, O)`: index i is index o of share w; lengths of shares differ by at most 1.

    With n = |I| indices and |W| shares, share w begins at `b(w) = w·n div |W|`, which is w·n/|W|
    rounded down, so longer and shorter shares are spread evenly. If the indices are those of t
    tiles of equal length, and |W| is a multiple of t, every tile begins where a share begins, and
    all tiles have equally many shares.

    - reverse: `i = b(w) + o`, where b(w) is computed as `w·(n div |W|) + w·(n mod |W|) div |W|`,
      which has smaller products than `w·n`;
    - forward: `w = ((i + 1)·|W| - 1) div n`, the last share that begins at i or before, and
      `o = i - b(w)`.

    Size rule: `|W|·|O| ≥ |I|`, so that |O| is at least the length of the longest share; and
    `|W|² < 2^31`, so that products fit 32 bits. Guard: `i < b(w + 1)`.
    """

    arity = (1, 2)
    laws = frozenset({Law.REVERSE_UNDOES_FORWARD, Law.FORWARD_UNDOES_REVERSE})
    consecutive = True

    def size_rule(self, sizes: Sizes) -> tuple[Boolean, ...]:
        (whole,), (count, _), covered = sizes.upstream, sizes.downstream, product(sizes.downstream)
        rules: list[Boolean] = []
        if whole is not None and covered is not None:
            rules.append(Ge(covered, whole))
        if count is not None:
            rules.append(Le(count**2, LARGEST_INDEX))
        return tuple(rules)

    def reverse(
        self, indices: Sequence[Expr | None], sizes: Sizes, ranges: Ranges
    ) -> tuple[Expr, ...]:
        share, inside = indices
        assert share is not None
        assert inside is not None
        return (self._begin(share, sizes) + inside,)

    def forward(self, indices: Sequence[Expr], sizes: Sizes, ranges: Ranges) -> tuple[Expr, ...]:
        (index,) = indices
        whole, count = self._counts(sizes)
        share = floor_div((index + 1) * count - 1, whole)
        return share, index - self._begin(share, sizes)

    def guard(
        self, upstream: Sequence[Expr], downstream: Sequence[Expr | None], sizes: Sizes
    ) -> tuple[Boolean, ...]:
        (index,), (share, _), whole = upstream, downstream, sizes.upstream[0]
        if share is None:
            return () if whole is None else (less(index, whole),)
        return (less(index, self._begin(share + 1, sizes)),)

    def _begin(self, share: Expr, sizes: Sizes) -> Expr:
        """The index of the divided dimension I at which share number `share` begins."""
        whole, count = self._counts(sizes)
        length, rest = floor_div(whole, count), floor_mod(whole, count)
        # The `minimum` does not change the product, which the size rule bounds. It shows code
        # generation that the dividend fits 32 bits.
        spread = minimum((share * rest).expand(), Integer(LARGEST_INDEX))
        return (share * length).expand() + floor_div(spread, count)

    def _counts(self, sizes: Sizes) -> tuple[Expr, Expr]:
        """(number of indices that the edge divides, number of shares that it divides them into)."""
        (whole,), (count, _) = sizes.upstream, sizes.downstream
        if whole is None or count is None:
            raise NotInvertible(
                f"{self}: the divided dimension or the dimension of shares has no size; give both "
                "a size, with size="
            )
        return whole, count
