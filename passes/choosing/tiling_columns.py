"""`tiling_columns`: the tilings of candidate plans as columns, cached per kind of problem."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Protocol

import numpy as np

from passes.choosing.plan_table import Column, Flag, Table
from passes.choosing.tile_candidates import KMajor, More, small_tiles, sums, tilings
from passes.lowering.sm_90a.division import WARPGROUP

__all__ = ["Columns", "Kernels", "tiling_columns"]


class Kernels(Protocol):
    """A set of kernels to which candidate plans can be limited; `KernelFamily` implements it."""

    @property
    def tilings(self) -> frozenset[tuple[int, ...]]:
        """A tuple per kernel: tile m, n, k; cluster m, n, k; number of pingpong warpgroups."""
        ...

    def holds(self, table: Table) -> Flag:
        """For each row of a table, whether the set has the kernel of the row's plan."""
        ...


Columns = tuple[tuple[Column, ...], Column, Mapping[tuple[int, int], Flag]]
"""Type of a set of tilings: a tuple of three members, whose columns have one entry for each tiling.

The first member has columns of tile m, n, k, cluster m, n, k, and the number of pingpong
warpgroups. The second is a column: the number of accumulators that a thread has if workgroups send
and receive partial sums. The third is a dict: for each (number of small tiles in a macro tile along
m, along n), a column that says which tilings can have such small tiles.
"""


@lru_cache(maxsize=64)
def tiling_columns(
    c_bytes: int,
    row: int,
    k_major: KMajor,
    among: Kernels | None,
    more: frozenset[More],
) -> Columns:
    """A table with one row for each tiling: of all kernels, or of the kernels in `among`.

    Args:
        c_bytes: bytes of the widest element that the epilogue reads for every element of D, or 0.
        row: elements of A and B in a 128-byte row of shared memory.
        k_major: whether A, and whether B, is contiguous along k.
        among: the kernels whose tilings are returned; None returns all tilings.
        more: which further tilings to add; see `tilings`.
    """
    known = tilings(c_bytes, row, k_major=k_major, more=more)
    if among is not None:
        known = [tiling for tiling in known if tuple(tiling) in among.tilings]
    found = np.array(known, np.float64).reshape(-1, 7)
    part = found[:, :2] / found[:, 3:5]
    held = [
        rows * columns / WARPGROUP
        if turns > 1
        else sums(int(rows), int(columns), streamed=True, c_bytes=c_bytes, row=row, k_major=k_major)
        for (rows, columns), turns in zip(part, found[:, 6], strict=True)
    ]
    # Plans with small tiles and an epilogue that reads C were not measured, so they are left out.
    small = [
        {
            (tiling[0] // m, tiling[1] // n)
            for m, n in (() if c_bytes else small_tiles(tiling, row, k_major))
        }
        for tiling in known
    ]
    parts = sorted(set[tuple[int, int]]().union(*small))
    fits = {each: np.array([each in some for some in small]) for each in parts}
    return tuple(found.T), np.array(held, np.float64), fits
