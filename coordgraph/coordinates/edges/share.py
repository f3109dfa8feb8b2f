"""`Share`: divide an index into nearly equal shares whose borders are moved to nearby tile ends.

Stream-K divides iterations into shares for workgroups. A border that is near a tile's end is moved
to that end, so that no workgroup computes only a few iterations of a tile.
"""

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
    less,
    maximum,
    minimum,
    select,
)
from coordgraph.validation import integer

__all__ = ["Share"]


@dataclass(frozen=True)
class Share(Edge):
    """`Share(I; W, B, O)`: index i is index o of share w, which begins at index b.

    Before borders move, a share has s consecutive indices. A border moves to the end of a tile of d
    indices if it is at most `before` indices in front of that end, or at most `behind` indices
    after it. The border at x moves to c(x): with `e = (x + before) div d·d` (a tile's end),
    `c(x) = e` if `x ≤ e + behind`, else x. Share w begins at `b = c(w·s)`.

    - reverse: `i = b + o` if b is known, so that b can be computed once; else `i = c(w·s) + o`;
    - forward: `w = u(i) div s`, `b = c(w·s)`, `o = i - b`. Here
      `u(i) = i - r + min(max(r, behind), d - 1 - before)`, with `r = i mod d`, is the largest x
      with `c(x) ≤ i`.

    c and u are non-decreasing, and `c(x) ≤ i` exactly if `x ≤ u(i)`. Every index is therefore in
    exactly one share, even if some shares are empty because two borders moved to the same end.
    Guard: i is less than |I| and less than the border of share w + 1, and b is the border of share
    w. Size rule: `|W|·s ≥ |I|`, |I| is a multiple of d, `before + behind < d`, and
    `|O| ≥ s + before + behind`, the length of the longest share.

    Args:
        share: s, the length of a share before borders are moved, at least 1.
        tile: d, the length of a tile, at least 1.
        before, behind: the largest distances in front of and after a tile's end from which a border
            moves to that end.
    """

    share: Expr = S.One
    tile: Expr = S.One
    before: Expr = S.Zero
    behind: Expr = S.Zero

    arity = (1, 3)
    laws = frozenset({Law.REVERSE_UNDOES_FORWARD, Law.FORWARD_UNDOES_REVERSE})
    consecutive = True

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
        guards: list[Boolean] = [] if whole is None else [less(index, whole)]
        if share is not None:
            guards.append(less(index, self._border(share + 1)))
            if begin is not None:
                guards.append(equal(begin, self._border(share)))
        return tuple(guards)

    def reverse_needs(self, known: dict[str, Expr]) -> tuple[str, ...]:
        share, begin, inside = self.downstream
        return (begin if begin in known else share, inside)

    def _border(self, share: Expr) -> Expr:
        """The first index of a share: `share * self.share`, or the tile end that is near to it."""
        # Proofs compare the border with results of `CoordinateGraph.derivative`, which are
        # expanded sums, so it is expanded, too.
        border = (share * self.share).expand()
        end = floor_div(border + self.before, self.tile) * self.tile
        return select(Le(border, end + self.behind), end, border)
