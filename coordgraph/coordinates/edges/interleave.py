"""`Interleave`: sort the k tiles of output tiles by the time at which workgroups reach them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sympy import Expr, Integer, Lt, S
from sympy.logic.boolalg import Boolean

from coordgraph.coordinates.edges.base import Edge, Law, Sizes
from coordgraph.errors import NotInvertible
from coordgraph.integers import (
    Ranges,
    ceil_div,
    floor_div,
    floor_mod,
    maximum,
    minimum,
    select,
)
from coordgraph.validation import integer

__all__ = ["Interleave"]


@dataclass(frozen=True)
class Interleave(Edge):
    """`Interleave(Y, I; Y', O)`: number the k tiles of output tile y in the order of time.

    Tile y has d positions o, its k tiles. The positions of all tiles, `p = y·d + o`, are divided
    into contiguous shares of s positions, one for each workgroup. A workgroup reaches position p of
    its share `p div s` at time `t = p mod s`. Index i of position o is its rank among the positions
    of its tile, sorted by time and, at equal times, by share. If all workgroups advance at the same
    pace, then at time t all of them are at about index `d·t/s` of their tiles, wherever in a share
    a tile begins.

    The tile begins at time `a = y·d mod s` of its first share and has positions in
    `c = ⌈(a + d)/s⌉` shares; in the last one they end at time `e = a + d - (c - 1)·s`. At time t
    the tile has one position in each share between the first and the last, one in the first share
    if `t ≥ a`, and one in the last share if `t < e`.

    - reverse: with `j = p div s - y·d div s`, the share counted from the tile's first one,
      `i = (c - 2)·t + max(t - a, -1) + min(t, e) + j`;
    - forward: let `(l, h) = sort(a, e)`, and let r be the number of shares in the tile from time l
      to time h: c if `a ≤ e`, else c - 2. Then `t = i div (c - 1)` before time l;
      `t = l + (i - (c - 1)·l) div r` until time h; and at later times
      `t = h + (i - (c - 1)·l - r·(h - l)) div (c - 1)`. The remainder of the division is j, or
      j - 1 if `t < a`, and `o = j·s + t - a`.

    In both directions `y = y'`. Size rule: corresponding operands have equal sizes.

    Args:
        share: s, the number of positions of a share, at least 1.
    """

    share: Expr = S.One

    arity = (2, 2)
    laws = frozenset({Law.REVERSE_UNDOES_FORWARD, Law.FORWARD_UNDOES_REVERSE})

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "share", integer(self.share, f"{self}: share", least=1))

    def size_rule(self, sizes: Sizes) -> tuple[Boolean, ...]:
        return sizes.unchanged

    def reverse(
        self, indices: Sequence[Expr | None], sizes: Sizes, ranges: Ranges
    ) -> tuple[Expr, ...]:
        tile, place = indices
        assert tile is not None
        assert place is not None
        begin, count, end = self._tile(tile, sizes)
        first, depth = tile * self._depth(sizes), self._depth(sizes)
        time = floor_mod(first + place, self.share)
        number = floor_div(first + place, self.share) - floor_div(first, self.share)
        index = (count - 2) * time + maximum(time - begin, Integer(-1)) + minimum(time, end)
        # The `minimum` and the `maximum` never change the index; they make its bounds provable.
        return tile, maximum(minimum(index + number, depth - 1), Integer(0))

    def forward(self, indices: Sequence[Expr], sizes: Sizes, ranges: Ranges) -> tuple[Expr, ...]:
        tile, index = indices
        begin, count, end = self._tile(tile, sizes)
        low, high = minimum(begin, end), maximum(begin, end)
        between = select(begin <= end, count, count - 2)
        early = (count - 1) * low
        late = early + between * (high - low)
        # At each time, a number of shares have a position in the tile. This number is constant
        # before `low`, from `low` to `high`, and after `high`. `shares` is the number in the period
        # that contains `index`, or 1 instead of 0, because it is a divisor. `start` and `since` are
        # the first index and the first time of that period.
        before, after = Lt(index, early), Lt(index, late)
        start = select(before, S.Zero, select(after, early, late))
        since = select(before, S.Zero, select(after, low, high))
        shares = maximum(select(before, count - 1, select(after, between, count - 1)), Integer(1))
        time = since + floor_div(index - start, shares)
        number = floor_mod(index - start, shares) + select(Lt(time, begin), S.One, S.Zero)
        return tile, number * self.share + time - begin

    def _tile(self, tile: Expr, sizes: Sizes) -> tuple[Expr, Expr, Expr]:
        """Return (begin, count, end) of a tile, whose positions are in `count` workgroups' shares.

        The share of a workgroup is `self.share` consecutive positions. The tile begins at position
        `begin` of the first of its shares, and ends before position `end` of the last one.
        """
        depth = self._depth(sizes)
        begin = floor_mod(tile * depth, self.share)
        count = ceil_div(begin + depth, self.share)
        return begin, count, begin + depth - (count - 1) * self.share

    def _depth(self, sizes: Sizes) -> Expr:
        """The extent of a tile: how many positions the edge reorders within each tile."""
        depth = sizes.upstream[1]
        if depth is None:
            raise NotInvertible(
                f"{self}: the second upstream operand has no size; give that dimension a size"
            )
        return depth
