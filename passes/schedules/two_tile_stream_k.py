"""`TwoTileStreamK`: Stream-K for one to two tiles per workgroup; other tiles are data-parallel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sympy import Expr, Integer

from coordgraph.integers import equal, floor_div, floor_mod, maximum, select
from passes.base import Pass
from passes.schedules.partly_streamed import PartlyStreamed

__all__ = ["TwoTileStreamK"]


@dataclass(frozen=True)
class TwoTileStreamK(PartlyStreamed):
    """If the last wave of tiles is partial, divide it and one full wave by Stream-K.

    With T output tiles and W workgroups, if T > W and W does not divide T, `T div W - 1` waves of W
    tiles are data-parallel, and the other `(T mod W) + W` tiles are divided by Stream-K. If W
    divides T, all tiles are data-parallel; if T < W, all tiles are divided by Stream-K.

    With S Stream-K tiles of TK iterations (k tiles) each, a workgroup's share is `ceil(S·TK/W)`
    iterations. If T > W, a share has at least TK iterations, so at most two workgroups work on a
    tile. If T < W, a share may have fewer iterations, and up to `ceil((TK - 1)/share) + 1`
    workgroups work on a tile.

    Before: dimensions of kind `MacroTileNumber` for m and n that no edge computes, and a loop over
    k tiles. After (`sk.tiles` numbers the iterations of the Stream-K tiles, `dp.tiles` those of the
    data-parallel tiles)::

        m, n, k_tile --Flatten--> global --Sunder--> sk.tiles, dp.tiles, selector
        sk.tiles --Tile--> workgroup, sk.local --Split{1, 1}--> ForTile, ForK
        dp.tiles --Tile--> dp.wave, workgroup, dp.local --PassThrough--> ForK
    """

    name = "two-tile-stream-k"

    @classmethod
    def variants(cls, tile: tuple[int, int, int]) -> tuple[Pass, ...]:
        return (cls(owner="last"),)

    def suits(self, tiles: Any, depth: Any, workgroups: Any) -> Any:
        return (tiles > workgroups) & (tiles % workgroups != 0)

    def whole_waves(self, tiles: Expr, workgroups: Expr) -> Expr:
        fit = floor_div(tiles, workgroups)
        fewer = maximum(fit - 1, Integer(0))
        return select(equal(floor_mod(tiles, workgroups), 0), fit, fewer)
