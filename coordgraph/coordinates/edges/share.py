"""`Share`: one index in equal contiguous shares whose borders leave no slivers of tiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sympy import Expr, Le, Lt, S
from sympy.logic.boolalg import Boolean

from coordgraph.coordinates.edges.base import Edge, Law, Sizes
from coordgraph.integers import (
    Ranges,
    equal,
    floor_div,
    floor_mod,
    maximum,
    minimum,
    select,
)
from coordgraph.validation import integer

__all__ = ["Share"]


@dataclass(frozen=True)
class Share(Edge):
    """`Share(I; W, B, O)`: reverse `i = b + o` or `c(w·s) + o`, forward `w = u(i) div s`.

    `b = c(w·s)` is where the share begins and `o = i - b`. Reverse takes b where it is known, so
    that it can be worked out once, and works it out of w where it is not.

    A `Tile` by s whose borders move to the ends of tiles of d indices that are near: of at most
    `before` indices in front of an end, and of at most `behind` after it.

    - the border `c(x)` is e where `x ≤ e + behind`, else x; `e = (x + before) div d·d`;
    - `u(i) = i - r + min(max(r, behind), d - 1 - before)`, `r = i mod d`: the last x that moves to
      i or stays in front of it.

    Both rise, and `c(x) ≤ i` just where `x ≤ u(i)`: so every index is in one share, also where
    shares are empty because two borders met. Guard: i is inside I and in front of the next border,
    and b is that of w. Sizes: `|W|·s ≥ |I|`, I is whole tiles, `before + behind < d`, and |O| is at
    least the longest share, `s + before + behind`.

    Args:
        share: s, the length of shares before borders are moved.
        tile: d.
        before, behind: how far from the end of a tile a border moves to it.
    """

    share: Expr = S.One
    tile: Expr = S.One
    before: Expr = S.Zero
    behind: Expr = S.Zero

    arity = (1, 3)
    laws = frozenset({Law.REVERSE_UNDOES_FORWARD, Law.FORWARD_UNDOES_REVERSE})

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (("share", 1), ("tile", 1), ("before", 0), ("behind", 0)):
            value = integer(getattr(self, name), f"{self}: {name}", least=least)
            object.__setattr__(self, name, value)

    def size_rule(self, sizes: Sizes) -> tuple[Boolean, ...]:
        (whole,), (count, _, inside) = sizes.upstream, sizes.downstream
        rules: list[Boolean] = [Lt(self.before + self.behind, self.tile)]
        if whole is not None:
            rules.append(equal(floor_mod(whole, self.tile), 0))
            if count is not None:
                rules.append(Le(whole, count * self.share))
        if inside is not None:
            rules.append(Le(self.share + self.before + self.behind, inside))
        return tuple(rules)

    def reverse(
        self, indices: Sequence[Expr | None], sizes: Sizes, ranges: Ranges
    ) -> tuple[Expr, ...]:
        share, begin, inside = indices
        assert inside is not None
        if begin is None:
            assert share is not None
            begin = self._border(share)
        return (begin + inside,)

    def forward(self, indices: Sequence[Expr], sizes: Sizes, ranges: Ranges) -> tuple[Expr, ...]:
        (index,) = indices
        place = floor_mod(index, self.tile)
        last = minimum(maximum(place, self.behind), self.tile - 1 - self.before)
        share = floor_div(index - place + last, self.share)
        begin = self._border(share)
        return share, begin, index - begin

    def guard(
        self, upstream: Sequence[Expr], downstream: Sequence[Expr | None], sizes: Sizes
    ) -> tuple[Boolean, ...]:
        (index,), (share, begin, _), whole = upstream, downstream, sizes.upstream[0]
        guards: list[Boolean] = [] if whole is None else [Lt(index, whole)]
        if share is not None:
            guards.append(Lt(index, self._border(share + 1)))
            if begin is not None:
                guards.append(equal(begin, self._border(share)))
        return tuple(guards)

    def reverse_needs(self, known: dict[str, Expr]) -> tuple[str, ...]:
        share, begin, inside = self.downstream
        return (begin if begin in known else share, inside)

    def _border(self, share: Expr) -> Expr:
        """Where a share begins."""
        border = (share * self.share).expand()  # as derivatives have it, for proofs
        end = floor_div(border + self.before, self.tile) * self.tile
        return select(Le(border, end + self.behind), end, border)
