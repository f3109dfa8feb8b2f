"""Faulty edits of a kernel graph: wrong extents, wrong operands, and wrong stores."""

from __future__ import annotations

from tests.faults.bases import (
    ALONG_K,
    ALONG_M,
    BATCH,
    INTERLEAVED,
    LIST,
    PERSISTENT,
    SCATTER,
    SPLIT,
    STORE,
    STREAM,
    TILES_OF_TWO_SHAPES,
    TWO_TILE,
)
from tests.faults.fault import Fault

__all__ = ["BOUNDS", "COVER", "SIZES", "STRUCTURE"]

STRUCTURE = (
    Fault(
        "Sunder: first segment one iteration too long",
        "well-formed",
        TWO_TILE,
        (("sk.tiles: Linear size=sk_tiles*tiles_k", "sk.tiles: Linear size=sk_tiles*tiles_k + 1"),),
    ),
    Fault(
        "columns of B divided among tiles by Balance instead of Tile",
        "well-formed",
        TWO_TILE,
        (("edge Tile B.1 -> B.tile.1", "edge Balance B.1 -> B.tile.1"),),
    ),
    Fault(
        "one k tile too many in an interleaved order of k",
        "well-formed",
        INTERLEAVED,
        (("sk.k: Linear size=tiles_k", "sk.k: Linear size=tiles_k + 1"),),
    ),
)
SIZES = (
    Fault(
        "always 16 tiles in m, however many rows there are",
        "sizes",
        SPLIT,
        (("(m + 3) // 4", "16"),),
    ),
    Fault(
        "number of tiles in n limited to 100",
        "sizes",
        PERSISTENT,
        (("(n + 3) // 4", "min(100, (n + 3) // 4)"),),
        ALONG_M,
    ),
    Fault(
        "size of a Flatten: tiles_m instead of tiles_m·tiles_n",
        "sizes",
        PERSISTENT,
        (("dim tile: Linear size=tiles_m*tiles_n", "dim tile: Linear size=tiles_m"),),
    ),
    Fault(
        "size of a Flatten: number of iterations without tiles_n",
        "sizes",
        STREAM,
        (("global: Linear size=tiles_k*tiles_m*tiles_n", "global: Linear size=tiles_k*tiles_m"),),
    ),
    Fault(
        "tiles in n computed from the extent m",
        "sizes",
        STREAM,
        (("= (n + 3) // 4", "= (m + 3) // 4"),),
    ),
    Fault(
        "floor instead of ceiling: tiles in m",
        "sizes",
        STREAM,
        (("(m + 3) // 4", "max(1, m // 4)"),),
    ),
    Fault(
        "floor instead of ceiling: tiles in n",
        "sizes",
        SPLIT,
        (("(n + 3) // 4", "max(1, n // 4)"),),
    ),
    Fault(
        "floor instead of ceiling: k tiles", "sizes", STREAM, (("(k + 3) // 4", "max(1, k // 4)"),)
    ),
    Fault(
        "floor instead of ceiling: iterations per workgroup",
        "sizes",
        STREAM,
        (
            (
                "(tiles_k*tiles_m*tiles_n - 1) // workgroups + 1",
                "max(1, tiles_k*tiles_m*tiles_n // workgroups)",
            ),
        ),
    ),
    Fault(
        "floor instead of ceiling: waves",
        "sizes",
        PERSISTENT,
        (("(tiles_m*tiles_n - 1) // workgroups + 1", "max(1, tiles_m*tiles_n // workgroups)"),),
    ),
    Fault(
        "floor instead of ceiling: iterations of a segment",
        "sizes",
        SPLIT,
        (("(tiles_k + 2) // 3", "max(1, tiles_k // 3)"),),
    ),
    Fault(
        "floor instead of ceiling: small tiles",
        "sizes",
        TILES_OF_TWO_SHAPES,
        (("(n + 1) // 2", "max(1, n // 2)"),),
    ),
    Fault(
        "row stride of A: m instead of k",
        "sizes",
        STREAM,
        (("A.1 strides=(k, 1)", "A.1 strides=(m, 1)"),),
    ),
    Fault(
        "row stride of D: always 14 instead of n",
        "sizes",
        PERSISTENT,
        (("D.1 strides=(n, 1)", "D.1 strides=(14, 1)"),),
    ),
    Fault(
        "workspace for tiles_m partial tiles instead of tiles_m·tiles_n",
        "sizes",
        SPLIT,
        (("tensor partials f32 [tiles_m*tiles_n, 4, 4]", "tensor partials f32 [tiles_m, 4, 4]"),),
    ),
    Fault(
        "one flag for all slots of the workspace",
        "sizes",
        STREAM,
        (("tensor flags i32 [workgroups]", "tensor flags i32 [1]"),),
    ),
    Fault(
        "Sunder: first segment one wave too short",
        "sizes",
        TILES_OF_TWO_SHAPES,
        (
            (
                "full.tiles: Linear size=full_waves*workgroups",
                "full.tiles: Linear size=max(0, full_waves - 1)*workgroups",
            ),
        ),
    ),
    Fault(
        "row and column numbers of C's tiles exchanged",
        "sizes",
        STREAM,
        (
            ("C.tile.0 -> A.tile.0", "C.tile.0 -> B.tile.1"),
            ("C.tile.1 -> B.tile.1", "C.tile.1 -> A.tile.0"),
        ),
    ),
    Fault(
        "no guard against rows of D past the last",
        "sizes",
        PERSISTENT,
        (
            (
                "edge Tile D.0 -> D.tile.0, D.index.0",
                "edge Split D.0 -> D.tile.0, D.index.0 strides=(4, 1)",
            ),
        ),
    ),
)
COVER = (
    Fault(
        "main loop as long as the vector of the elements of B",
        "cover",
        STREAM,
        (("dim=for_k start=0 stop=k_count", "dim=for_k start=0 stop=elements_b step=k_count"),),
        LIST,
    ),
    Fault(
        "interleaved k varies slowest instead of fastest",
        "cover",
        INTERLEAVED,
        (("Flatten sk.tile, sk.k -> global", "Flatten sk.k, sk.tile -> global"),),
    ),
    Fault(
        "at most 64 iterations of a workgroup",
        "cover",
        STREAM,
        (("value=min(share, ", "value=min(min(share, 64), "),),
    ),
    Fault(
        "at most 100 k tiles of a segment",
        "cover",
        STREAM,
        (("For dim=for_k start=0 stop=k_count", "For dim=for_k start=0 stop=min(k_count, 100)"),),
    ),
    Fault(
        "a segment that begins at k tile 100 treated as its tile's first",
        "cover",
        STREAM,
        (("If condition=k_first > 0 {", "If condition=k_first % 100 > 0 {"),),
    ),
    Fault(
        "partial tiles with 3 rows instead of 4",
        "cover",
        STREAM,
        (
            ("partials: User size=16*workgroups", "partials: User size=12*workgroups"),
            ("f32 [workgroups, 4, 4]", "f32 [workgroups, 3, 4]"),
        ),
    ),
    Fault(
        "A stored column-major", "cover", STREAM, (("A.1 strides=(k, 1)", "A.1 strides=(1, m)"),)
    ),
    Fault("B stored column-major", "cover", SPLIT, (("B.1 strides=(n, 1)", "B.1 strides=(1, k)"),)),
    Fault(
        "C stored column-major", "cover", STREAM, (("C.1 strides=(n, 1)", "C.1 strides=(1, m)"),)
    ),
    Fault(
        "D stored column-major",
        "cover",
        PERSISTENT,
        (("D.1 strides=(n, 1)", "D.1 strides=(1, m)"),),
    ),
    Fault(
        "segments of a Sunder exchanged",
        "cover",
        TWO_TILE,
        (("Sunder global -> sk.tiles, dp.tiles,", "Sunder global -> dp.tiles, sk.tiles,"),),
    ),
    Fault(
        "Sunder: segments divided one iteration too late",
        "cover",
        TWO_TILE,
        (
            (
                "sk.tiles: Linear size=sk_tiles*tiles_k",
                "sk.tiles: Linear size=sk_tiles*tiles_k + 1",
            ),
            (
                "dp.tiles: Linear size=dp_waves*tiles_k*workgroups",
                "dp.tiles: Linear size=dp_waves*tiles_k*workgroups - 1",
            ),
        ),
    ),
    Fault(
        "Sunder: both segments selected by 0",
        "cover",
        TWO_TILE,
        (("dim=selector value=1", "dim=selector value=0"),),
    ),
    Fault(
        "k varies slowest instead of fastest",
        "cover",
        STREAM,
        (("Flatten A.tile.0, B.tile.1, k_tile", "Flatten k_tile, A.tile.0, B.tile.1"),),
    ),
    Fault(
        "row and column numbers of A's tiles exchanged",
        "cover",
        STREAM,
        (("tensor=A tile=(A.tile.0, A.tile.1)", "tensor=A tile=(A.tile.1, A.tile.0)"),),
    ),
    Fault(
        "last k tile left out",
        "cover",
        STREAM,
        (("dim=for_k start=0 stop=k_count", "dim=for_k start=0 stop=k_count - 1"),),
    ),
    Fault(
        "one k tile too many",
        "cover",
        STREAM,
        (("dim=for_k start=0 stop=k_count", "dim=for_k start=0 stop=k_count + 1"),),
    ),
    Fault(
        "first k tile left out",
        "cover",
        SPLIT,
        (("dim=for_k start=0 stop=k_count", "dim=for_k start=1 stop=k_count"),),
    ),
    Fault("first wave left out", "cover", PERSISTENT, (("dim=wave start=0", "dim=wave start=1"),)),
    Fault(
        "floor instead of ceiling: tiles of a workgroup",
        "cover",
        PERSISTENT,
        (
            (
                "(tiles_m*tiles_n - workgroup + workgroups - 1) // workgroups",
                "tiles_m*tiles_n // workgroups",
            ),
        ),
    ),
    Fault(
        "every segment counted as all iterations of a tile",
        "cover",
        STREAM,
        (
            (
                "step=min(iterations - for_tile, tiles_k - (share*workgroup + for_tile) % tiles_k)",
                "step=tiles_k",
            ),
        ),
    ),
    Fault(
        "segments not cut at the tile's end", "cover", STREAM, (("tiles_k - k_first)", "tiles_k)"),)
    ),
    Fault(
        "gaps of one k tile between the segments of a tile",
        "cover",
        SPLIT,
        (("k_first value=share*(workgroup % 3)", "k_first value=(share + 1)*(workgroup % 3)"),),
    ),
    Fault("no store", "cover", STREAM, ((STORE, ""),)),
    Fault("doubled store", "cover", TWO_TILE, ((STORE, STORE + STORE),)),
    Fault(
        "doubled multiplication",
        "cover",
        PERSISTENT,
        (("MultiplyAccumulate\n", "MultiplyAccumulate\nMultiplyAccumulate\n"),),
    ),
    Fault(
        "rows of a tile finished by several workgroups",
        "cover",
        SCATTER,
        (("stop=4 step=peers", "stop=4 step=1"),),
    ),
    Fault(
        "first rows of a tile finished by no workgroup",
        "cover",
        SCATTER,
        (("start=workgroup - low stop=4", "start=workgroup - low + 1 stop=4"),),
    ),
    Fault(
        "first wave of small tiles left out",
        "cover",
        TILES_OF_TWO_SHAPES,
        (("small.wave start=0", "small.wave start=1"),),
    ),
    Fault(
        "floor instead of ceiling: tiles of a group",
        "cover",
        PERSISTENT,
        (
            (
                "load(offsets, tile_starts.at)) + 3) // 4 ",
                "load(offsets, tile_starts.at)) + 0) // 4 ",
            ),
        ),
        ALONG_M,
    ),
    Fault(
        "no k tile for an empty group",
        "cover",
        STREAM,
        (("sums (max(1, ", "sums (max(0, "),),
        ALONG_K,
    ),
    Fault(
        "tables of tiles in m and in n exchanged",
        "cover",
        STREAM,
        (("extents=(m_tile_starts, n_tile_starts, ", "extents=(n_tile_starts, m_tile_starts, "),),
        LIST,
    ),
    Fault(
        "every product of a batch multiplied with the first A",
        "cover",
        STREAM,
        (
            ("strides=(stride_a, k, 1)", "strides=(0, k, 1)"),
            ("size=batches*stride_a + k*m - stride_a", "size=k*m"),
        ),
        BATCH,
    ),
    Fault(
        "matrices of D placed as if their rows were not padded",
        "cover",
        STREAM,
        (
            (
                "8*((load(n_offsets, d_starts.at + 1) - load(n_offsets, d_starts.at) + 7) // 8)",
                "(load(n_offsets, d_starts.at + 1) - load(n_offsets, d_starts.at))",
            ),
        ),
        LIST,
    ),
)
BOUNDS = (
    Fault(
        "columns of B without an extent, so without a guard",
        "bounds",
        "data-parallel",
        (("dim B.1: SubDimension size=n", "dim B.1: SubDimension"),),
        {"transpose_a": True, "transpose_b": True},
    ),
)
