"""`TwoTileStreamK`: Stream-K for one to two tiles per workgroup; others are data-parallel."""

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
    """Each workgroup streams one to two output tiles' iterations; other tiles are data-parallel.

    With T output tiles of TK iterations and W workgroups, `T div W - 1` waves are data-parallel,
    all of them where W divides T, none where T < W; `((T mod W) + W)·TK` iterations are streamed.
    So a tile has two contributors at most. Before: dangling m and n, a loop over k tiles. After::

        m, n, k_tile --Flatten--> global --Sunder--> sk.tiles, dp.tiles, selector
        sk.tiles --Tile--> workgroup, sk.local --Split{1, 1}--> ForTile, ForK
        dp.tiles --Tile--> dp.wave, workgroup, dp.local --PassThrough--> ForK

    The options are those of `PartlyStreamed`.
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
