"""`Deal`: a permutation that deals indices to groups (round robin), then orders them by group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sympy import Expr, Integer, Lt
from sympy.logic.boolalg import Boolean

from coordgraph.coordinates.edges.base import Edge, Law, Sizes
from coordgraph.errors import NotInvertible
from coordgraph.integers import Ranges, floor_div, floor_mod, maximum, minimum, select
from coordgraph.validation import integer

__all__ = ["Deal"]

EIGHT = Integer(8)
"""The default number of groups."""


@dataclass(frozen=True)
class Deal(Edge):
    """`Deal(I; O)`: deal n indices out to G groups (round robin), then list the groups.

    Index i is dealt to group `g = i mod G` and has position `t = i div G` in the group. Let
    `q = n div G` and `r = n mod G`. The first r groups have q + 1 members and the other groups have
    q, so there is no padding. O lists group 0, then group 1, and so on.

    - forward: `o = g·q + min(g, r) + t`;
    - reverse: `i = t·G + g`. With `e = r·(q + 1)`, the number of members of the first r groups:
      `g = o div (q + 1)`, `t = o mod (q + 1)` if `o < e`; else `g = r + (o - e) div q`,
      `t = (o - e) mod q`.

    Size rule: `|I| = |O|`.

    Args:
        groups: the number G of groups, at least 1; it may depend on the launch's sizes.
    """

    groups: Expr = EIGHT

    arity = (1, 1)
    laws = frozenset({Law.REVERSE_UNDOES_FORWARD, Law.FORWARD_UNDOES_REVERSE})

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "groups", integer(self.groups, f"{self}: groups", least=1))

    def size_rule(self, sizes: Sizes) -> tuple[Boolean, ...]:
        return sizes.unchanged

    def reverse(
        self, indices: Sequence[Expr | None], sizes: Sizes, ranges: Ranges
    ) -> tuple[Expr, ...]:
        (index,) = indices
        assert index is not None
        size, length, longer = self._sizes(sizes)
        end = longer * (length + 1)
        early = floor_mod(index, length + 1) * self.groups + floor_div(index, length + 1)
        # The shorter groups have `length` members. If `length` is 0, `least` = 1 is the divisor
        # instead, to avoid a division by 0; the result `later` is then not selected.
        late, least = maximum(index - end, Integer(0)), maximum(length, Integer(1))
        later = floor_mod(late, least) * self.groups + floor_div(late, least) + longer
        # The `minimum` does not change the index; it shows proofs that the index is below the size.
        return (minimum(select(Lt(index, end), early, later), size - 1),)

    def forward(self, indices: Sequence[Expr], sizes: Sizes, ranges: Ranges) -> tuple[Expr, ...]:
        (index,) = indices
        _, length, longer = self._sizes(sizes)
        group, place = floor_mod(index, self.groups), floor_div(index, self.groups)
        return (group * length + minimum(group, longer) + place,)

    def _sizes(self, sizes: Sizes) -> tuple[Expr, Expr, Expr]:
        """The number of indices n, the length q of a shorter group, the number r of longer groups.

        Longer groups have q + 1 members.
        """
        (size,) = sizes.upstream
        if size is None:
            raise NotInvertible(
                f"{self}: the upstream operand has no size; give that dimension a size"
            )
        return size, floor_div(size, self.groups), floor_mod(size, self.groups)
