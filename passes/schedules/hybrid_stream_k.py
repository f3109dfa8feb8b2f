"""`HybridStreamK`: only the last, ragged wave is streamed."""

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
    """All full waves are data-parallel; each workgroup streams less than one tile's worth.

    With T output tiles of TK iterations and W workgroups, `T div W` waves are data-parallel and
    `(T mod W)·TK` iterations are streamed. More tiles are whole than with `TwoTileStreamK`; those
    that are not have two contributors or more: about `W / (T mod W)` where that is large (the
    paper's "data-parallel + one-tile Stream-K", arXiv:2301.03598). Before: dangling m and n, a
    loop over k tiles. After, with `dp.tiles` all the full waves::

        m, n, k_tile --Flatten--> global --Sunder--> sk.tiles, dp.tiles, selector
        sk.tiles --Tile--> workgroup, sk.local --Split{1, 1}--> ForTile, ForK
        dp.tiles --Tile--> dp.wave, workgroup, dp.local --PassThrough--> ForK
    """

    name = "hybrid-stream-k"

    @classmethod
    def variants(cls, tile: tuple[int, int, int]) -> tuple[Pass, ...]:
        return (cls(owner="last"),)

    def suits(self, tiles: Any, depth: Any, workgroups: Any) -> Any:
        # With fewer tiles in the ragged wave each would have three pieces or more.
        return (tiles > workgroups) & (2 * (tiles % workgroups) >= workgroups)

    def whole_waves(self, tiles: Expr, workgroups: Expr) -> Expr:
        return floor_div(tiles, workgroups)
