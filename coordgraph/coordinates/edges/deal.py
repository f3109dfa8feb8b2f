"""`Deal`: an order that takes one of every so many, then the next of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sympy import Expr, Integer, Lt
from sympy.logic.boolalg import Boolean

from coordgraph.coordinates.edges.base import Edge, Law, Sizes
from coordgraph.errors import NotInvertible
from coordgraph.integers import Ranges, equal, floor_div, floor_mod, maximum, minimum, select
from coordgraph.validation import whole

__all__ = ["Deal"]


@dataclass(frozen=True)
class Deal(Edge):
    """`Deal(I; O)`: dealt to `groups` in turn, then group after group, as cards are.

    With G groups, `g = i mod G` is the group and `t = i div G` the place in it. Groups have
    `q = n div G` places, the first `r = n mod G` of them one more, so that there is no padding:

    - forward: `o = g·q + min(g, r) + t`;
    - reverse: `i = t·G + g`, where g and t are `o div (q + 1)` and `o mod (q + 1)` before
      `e = r·(q + 1)`, and `r + (o - e) div q`, `(o - e) mod q` from there on.

    Size: equal.
    """

    groups: int = 8

    arity = (1, 1)
    laws = frozenset({Law.REVERSE_UNDOES_FORWARD, Law.FORWARD_UNDOES_REVERSE})

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "groups", whole(self.groups, f"{self}: groups", least=1))

    def size_rule(self, sizes: Sizes) -> tuple[Boolean, ...]:
        (above,), (below,) = sizes.upstream, sizes.downstream
        return () if above is None or below is None else (equal(above, below),)

    def reverse(
        self, indices: Sequence[Expr | None], sizes: Sizes, ranges: Ranges
    ) -> tuple[Expr, ...]:
        (index,) = indices
        assert index is not None
        size, length, longer = self._sizes(sizes)
        end = longer * (length + 1)
        early = floor_mod(index, length + 1) * self.groups + floor_div(index, length + 1)
        # Where no group has a place besides the longer ones, this is not chosen.
        late, least = maximum(index - end, Integer(0)), maximum(length, Integer(1))
        later = floor_mod(late, least) * self.groups + floor_div(late, least) + longer
        # The minimum changes nothing: it tells proofs that there is no padding.
        return (minimum(select(Lt(index, end), early, later), size - 1),)

    def forward(self, indices: Sequence[Expr], sizes: Sizes, ranges: Ranges) -> tuple[Expr, ...]:
        (index,) = indices
        _, length, longer = self._sizes(sizes)
        group, place = floor_mod(index, self.groups), floor_div(index, self.groups)
        return (group * length + minimum(group, longer) + place,)

    def _sizes(self, sizes: Sizes) -> tuple[Expr, Expr, Expr]:
        """All places, those of the shorter groups, and how many groups are longer."""
        (size,) = sizes.upstream
        if size is None:
            raise NotInvertible(f"{self}: needs the size of its operand")
        return size, floor_div(size, self.groups), floor_mod(size, self.groups)
