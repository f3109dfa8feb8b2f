"""Catalogue of faults of graphs for several products: batches, groups along an axis, lists."""

from __future__ import annotations

from tests.faults.bases import ALONG_K, ALONG_M, BATCH, LIST, PERSISTENT, SPLIT, STREAM, TWO_TILE
from tests.faults.fault import Fault

__all__ = ["BOUNDS", "COVER", "SIZES"]

SIZES = (
    Fault(
        "iterations of one product instead of the whole batch",
        "sizes",
        STREAM,
        (
            (
                "global: Linear size=batches*tiles_k*tiles_m*tiles_n",
                "global: Linear size=tiles_k*tiles_m*tiles_n",
            ),
        ),
        BATCH,
    ),
    Fault(
        "row stride of B in a batch: k instead of n",
        "sizes",
        SPLIT,
        (("strides=(stride_b, n, 1)", "strides=(stride_b, k, 1)"),),
        BATCH,
    ),
)
COVER = (
    Fault(
        "matrices of B read where those of A begin",
        "cover",
        STREAM,
        (
            (
                "edge Diagonal B -> group, B.0, B.1 table=b_starts",
                "edge Diagonal B -> group, B.0, B.1 table=a_starts",
            ),
        ),
        LIST,
    ),
    Fault(
        "last product of a batch left out",
        "cover",
        PERSISTENT,
        (("stop=(batches*tiles_m*tiles_n", "stop=((batches - 1)*tiles_m*tiles_n"),),
        BATCH,
    ),
    Fault(
        "one C for all products of a batch",
        "cover",
        STREAM,
        (
            ("strides=(stride_c, n, 1)", "strides=(0, n, 1)"),
            ("size=batches*stride_c + m*n - stride_c", "size=m*n"),
        ),
        BATCH,
    ),
    Fault(
        "every group multiplied by the first B",
        "well-formed",
        TWO_TILE,
        (
            ("B.0, B.1 strides=(k*n, n, 1)", "B.0, B.1 strides=(0, n, 1)"),
            ("dim B: User size=groups*k*n", "dim B: User size=k*n"),
            ("tensor B f32 [groups, k, n]", "tensor B f32 [k, n]"),
        ),
        ALONG_M,
    ),
    Fault(
        "groups of C begin at tile numbers instead of row numbers",
        "cover",
        PERSISTENT,
        (
            (
                "Ragged C.0 -> group, C.row table=offsets",
                "Ragged C.0 -> group, C.row table=tile_starts",
            ),
        ),
        ALONG_M,
    ),
    Fault(
        "a group's last k tile left out",
        "cover",
        STREAM,
        (
            (
                "value=min(iterations - for_tile, load(tile_starts, group + 1) - k_first",
                "value=min(iterations - for_tile, load(tile_starts, group + 1) - 1 - k_first",
            ),
        ),
        ALONG_K,
    ),
    Fault(
        "rows and columns of B exchanged in a list",
        "cover",
        STREAM,
        (("rows=k_offsets columns=n_offsets", "rows=n_offsets columns=k_offsets"),),
        LIST,
    ),
    Fault(
        "rows of A in a list padded to 4 elements instead of 8",
        "cover",
        STREAM,
        (("rows=m_offsets columns=k_offsets step=8", "rows=m_offsets columns=k_offsets step=4"),),
        LIST,
    ),
)
BOUNDS = (
    Fault(
        "table entry past the end read, though not used",
        "bounds",
        STREAM,
        (
            (
                "reads=(load(offsets, group), load(offsets, group + 1)",
                "reads=(load(offsets, group), load(offsets, group + 2)",
            ),
        ),
        ALONG_K,
    ),
    Fault(
        "table read before its beginning",
        "bounds",
        STREAM,
        (("- k_first - load(tile_starts, group))", "- k_first - load(tile_starts, group - 1))"),),
        ALONG_K,
    ),
)
