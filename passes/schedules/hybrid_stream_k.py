"""`HybridStreamK`: Stream-K for tiles of the last, partial wave; other tiles are data-parallel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sympy import Expr

from coordgraph.integers import floor_div
from passes.base import Pass
from passes.schedules.partly_streamed import PartlyStreamed

__all__ = ["HybridStreamK"]


@dataclass(frozen=True)
class HybridStreamK(PartlyStreamed):
    """Full waves of output tiles are data-parallel; Stream-K divides the last, partial wave.

    With T output tiles of TK iterations each and W workgroups, the tiles of `T div W` waves are
    data-parallel: one workgroup computes each of them alone. The `(T mod W)·TK` iterations of the
    other tiles are divided into an equal contiguous share for each workgroup, less than one tile.
    Compared with `TwoTileStreamK`, more tiles are data-parallel, and more workgroups share each of
    the divided tiles: about `W / (T mod W)`, at least two. This schedule is "data-parallel +
    one-tile Stream-K" in Osama et al., Stream-K, arXiv:2301.03598.

    Before: dimensions of kind `MacroTileNumber` for m and n that no edge computes, and a loop over
    k tiles. After (`sk.tiles` numbers the iterations of the Stream-K tiles, `dp.tiles` those of the
    data-parallel tiles)::

        m, n, k_tile --Flatten--> global --Sunder--> sk.tiles, dp.tiles, selector
        sk.tiles --Tile--> workgroup, sk.local --Split{1, 1}--> ForTile, ForK
        dp.tiles --Tile--> dp.wave, workgroup, dp.local --PassThrough--> ForK
    """

    name = "hybrid-stream-k"

    @classmethod
    def variants(cls, tile: tuple[int, int, int]) -> tuple[Pass, ...]:
        return (cls(owner="last"),)

    def suits(self, tiles: Any, depth: Any, workgroups: Any) -> Any:
        # The schedule suits only problems whose last wave is at least half full; otherwise three or
        # more workgroups share each tile of that wave.
        return (tiles > workgroups) & (2 * (tiles % workgroups) >= workgroups)

    def whole_waves(self, tiles: Expr, workgroups: Expr) -> Expr:
        return floor_div(tiles, workgroups)
