"""`Balance`: divide an index into contiguous shares whose lengths differ by at most 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sympy import Expr, Integer, Lt
from sympy.logic.boolalg import Boolean

from coordgraph.coordinates.edges.base import Edge, Law, Sizes
from coordgraph.coordinates.edges.radix import product
from coordgraph.errors import NotInvertible
from coordgraph.integers import Ranges, ceil_div, floor_div, floor_mod, maximum, minimum, select

__all__ = ["Balance"]


@dataclass(frozen=True)
class Balance(Edge):
    """`Balance(I; W, O)`: index i is index o of share w; lengths of shares differ by at most 1.

    With n = |I| indices and |W| shares, let `q = n div |W|` and `r = n mod |W|`. The first r shares
    have q + 1 indices, the other shares have q. If |W| is a multiple of a number of tiles of equal
    length, every tile begins where a share begins, whether or not the length can be divided evenly.

    - reverse: `i = w·q + min(w, r) + o`;
    - forward: with `e = r·(q + 1)`, the number of indices in the longer shares:
      `w = i div (q + 1)`, `o = i mod (q + 1)` if `i < e`; else `w = r + (i - e) div q`,
      `o = (i - e) mod q`.

    Size rule: `|W|·|O| ≥ |I|`, so that |O| is at least the length of the longest share. Guard: o is
    less than the length of share w.
    """

    arity = (1, 2)
    laws = frozenset({Law.REVERSE_UNDOES_FORWARD, Law.FORWARD_UNDOES_REVERSE})

    def size_rule(self, sizes: Sizes) -> tuple[Boolean, ...]:
        (whole,), covered = sizes.upstream, product(sizes.downstream)
        return () if whole is None or covered is None else (covered >= whole,)

    def reverse(
        self, indices: Sequence[Expr | None], sizes: Sizes, ranges: Ranges
    ) -> tuple[Expr, ...]:
        share, inside = indices
        assert share is not None
        assert inside is not None
        whole, count = self._counts(sizes)
        shorter, longer = floor_div(whole, count), floor_mod(whole, count)
        return ((share * shorter).expand() + minimum(share, longer) + inside,)

    def forward(self, indices: Sequence[Expr], sizes: Sizes, ranges: Ranges) -> tuple[Expr, ...]:
        (index,) = indices
        whole, count = self._counts(sizes)
        shorter, longer = floor_div(whole, count), floor_mod(whole, count)
        # The minima never change a value; they let proofs see that values fit 32 bits.
        index = minimum(index, whole - 1)
        # If all shares have `shorter` indices, `end` is 0; else the longest have one more.
        longest = ceil_div(whole, count)
        end = minimum(longer * longest, whole)
        early = Lt(index, end)
        # If the shorter shares have length 0, the maxima avoid a division by 0; that result is not
        # selected.
        late = maximum(index - end, Integer(0))
        least = maximum(shorter, Integer(1))
        share = select(early, floor_div(index, longest), longer + floor_div(late, least))
        inside = select(early, floor_mod(index, longest), floor_mod(late, least))
        return share, inside

    def guard(
        self, upstream: Sequence[Expr], downstream: Sequence[Expr | None], sizes: Sizes
    ) -> tuple[Boolean, ...]:
        share, inside = downstream
        whole = sizes.upstream[0]
        if share is None or inside is None:
            return () if whole is None else (Lt(upstream[0], whole),)
        whole, count = self._counts(sizes)
        longer = floor_mod(whole, count)
        length = floor_div(whole, count) + minimum(share + 1, longer) - minimum(share, longer)
        return (Lt(inside, length),)

    def _counts(self, sizes: Sizes) -> tuple[Expr, Expr]:
        """The number of indices, and the number of shares."""
        (whole,), (count, _) = sizes.upstream, sizes.downstream
        if whole is None or count is None:
            raise NotInvertible(
                f"{self}: the divided dimension and the shares must have sizes; give them some"
            )
        return whole, count
