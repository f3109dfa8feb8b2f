"""Edits of a kernel graph after which it computes the same D; checks must not refute them."""

from __future__ import annotations

from tests.faults import width_faults
from tests.faults.bases import (
    ALONG_K,
    ALONG_M,
    BANDS,
    HYBRID,
    INTERLEAVED,
    LAST,
    OPERANDS,
    PERSISTENT,
    SCATTER,
    STREAM,
    TILES_OF_TWO_SHAPES,
)
from tests.faults.fault import Fault

__all__ = ["EQUIVALENT"]

EQUIVALENT: tuple[Fault, ...] = (
    *width_faults.EQUIVALENT,
    Fault(
        "tile numbers of an operand listed in another order",
        "",
        PERSISTENT,
        (
            (
                "(bias.tile.0, residual.tile.0, residual.tile.1,",
                "(bias.tile.0, residual.tile.1, residual.tile.0,",
            ),
        ),
        OPERANDS,
    ),
    Fault(
        "a loop that receives no partial sum is entered",
        "",
        STREAM,
        (
            (
                "If condition=k_count + k_first < load(tile_starts, group + 1) - "
                "load(tile_starts, group) {",
                "If condition=k_count + k_first < tiles_k {",
            ),
        ),
        ALONG_K,
    ),
    Fault(
        "no guard at the end of D's tiles, where the group's rows have one",
        "",
        PERSISTENT,
        (
            (
                "edge Tile D.row -> D.tile.0, D.index.0",
                "edge Split D.row -> D.tile.0, D.index.0 strides=(4, 1)",
            ),
        ),
        ALONG_M,
    ),
    Fault(
        "small tiles visited column by column",
        "",
        TILES_OF_TWO_SHAPES,
        (
            (
                "rest.tiles, small.m, small.n -> small.tiles",
                "rest.tiles, small.n, small.m -> small.tiles",
            ),
        ),
    ),
    Fault("more tiles in m than rows need", "", STREAM, (("(m + 3) // 4", "m - 1"),)),
    Fault("bands of another width", "", BANDS, (("tile.raster width=2", "tile.raster width=3"),)),
    Fault(
        "rows of a tile divided among its workgroups in reverse order",
        "",
        SCATTER,
        (("start=workgroup - low stop=4", "start=low + peers - 1 - workgroup stop=4"),),
    ),
    Fault(
        "consecutive tiles for each workgroup instead of strided ones",
        "",
        HYBRID,
        (
            (
                "dp.tiles -> dp.wave, dp.workgroup, dp.local",
                "dp.tiles -> dp.workgroup, dp.wave, dp.local",
            ),
        ),
    ),
    Fault(
        "k interleaved as if shares had one more iteration",
        "",
        INTERLEAVED,
        (("sk.k share=share", "sk.k share=share + 1"),),
    ),
    Fault(
        "tiles visited column by column",
        "",
        STREAM,
        (("Flatten A.tile.0, B.tile.1, k_tile", "Flatten B.tile.1, A.tile.0, k_tile"),),
    ),
    Fault(
        "workgroups enter waves in which they have no tile",
        "",
        PERSISTENT,
        (("stop=(tiles_m*tiles_n - workgroup + workgroups - 1) // workgroups", "stop=waves"),),
    ),
    Fault(
        "idle workgroups enter a loop without iterations",
        "",
        STREAM,
        (
            (
                "If condition=share*workgroup < tiles_k*tiles_m*tiles_n {",
                "If condition=workgroup >= 0 {",
            ),
        ),
    ),
    Fault(
        "no slot for the last workgroup, which sends no partial sum",
        "",
        LAST,
        (
            ("partials: User size=16*workgroups", "partials: User size=16*workgroups - 16"),
            ("f32 [workgroups, 4, 4]", "f32 [workgroups - 1, 4, 4]"),
        ),
    ),
)
"""Edits that leave a graph correct, so that no check may refute it."""
