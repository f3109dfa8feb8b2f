"""`MainLoops`: the k tiles, panels and bytes of each main loop of a launch, as numpy columns.

A *panel* is the part of A that one row of output tiles reads, or the part of B that one column of
output tiles reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coordgraph.interpreter.lockstep import StepKind, Steps
from passes.simulation.work import TileWork

__all__ = ["MainLoops", "Ranges"]

SPARSE = 1 << 20
"""The different values of an array are found by a table instead of sorting if all values are less
than SPARSE, or less than 8 times the length of the array."""


class Ranges(NamedTuple):
    """The different ranges of k tiles of panels that the main loops of a launch read.

    A panel is the part of A that one row of output tiles reads, or the part of B that one column of
    output tiles reads.

    Attributes:
        of_a, of_b: for each main loop, the number of the range that it reads of its panel of A, and
            of its panel of B.
        panels: for each range, the number of its panel.
    """

    of_a: NDArray[np.int64]
    of_b: NDArray[np.int64]
    panels: NDArray[np.int64]


class MainLoops:
    """The main loops of a launch, as columns with an entry for each main loop.

    A panel is the part of A that one row of output tiles of the smallest shape reads, or the part
    of B that one column of them reads.

    Args:
        steps: the steps of all workgroups.
        works: for each tile shape, the seconds and bytes of work on one tile.
        spans: for each tile shape, its extents in m and n, divided by the extents of the smallest
            tile shape of the graph.
        sizes: an array with m, n and k of each product; one row if all products have the same
            sizes.
        element: bytes of an element of A and B.
        loaded_bytes: bytes that the epilogue of a macro tile of the first shape reads.

    Attributes:
        steps: the index of each main loop's step among all steps, ascending.
        tiling: the number of the tile shape.
        first, count: the first k tile, and the number of k tiles.
        panel_a, panel_b: the indices of the first panel of A and of B that the main loop reads.
        span_a, span_b: how many panels of A and of B the main loop reads.
        asked_a, asked_b: bytes of A and of B that are requested per k tile.
        bytes_a, bytes_b: bytes of A and of B that are read from DRAM per k tile if the L2 cache has
            none of them.
        stored: bytes of D that are stored, divided by the number of k tiles of the output tile.
    """

    def __init__(
        self,
        steps: Steps,
        works: Sequence[TileWork],
        spans: Sequence[tuple[int, int]],
        sizes: NDArray[np.int64],
        element: int,
        loaded_bytes: float = 0.0,
    ) -> None:
        self.steps = chosen = np.flatnonzero(steps.kind == StepKind.MULTIPLY)

        def of(name: str) -> NDArray[np.int64]:
            return getattr(steps, name)[chosen]

        def of_shape(name: str) -> NDArray[np.float64]:
            return np.array([getattr(work, name) for work in works])[self.tiling]

        self.tiling, self.first, self.count = of("tiling"), of("first"), of("count")
        product, m, n = of("product"), of("m"), of("n")
        shape = np.array([work.shape for work in works])[self.tiling]
        self.span_a, self.span_b = np.array(spans)[self.tiling].T
        own = sizes[np.minimum(product, len(sizes) - 1)]
        # A panel is the rows of A (or columns of B) that one row (or column) of output tiles of the
        # smallest shape reads. Panels are numbered by product, and in a product by position. Panels
        # of A have even numbers, panels of B odd numbers.
        place_m, place_n = m * self.span_a, n * self.span_b
        width_m, width_n = (int(x.max(initial=0)) + 1 for x in (place_m, place_n))
        self.panel_a = 2 * (product * width_m + place_m)
        self.panel_b = 2 * (product * width_n + place_n) + 1
        depth = np.maximum(-(-own[:, 2] // shape[:, 2]), 1)
        tiles_m, tiles_n = (int(n) for n in steps.tiles[-3:-1])
        part_m = _inside(own[:, 0], shape[:, 0], m, tiles_m // self.span_a)
        part_n = _inside(own[:, 1], shape[:, 1], n, tiles_n // self.span_b)
        there = 1 - of("padding")
        along_k = own[:, 2] / depth * element * there
        self.asked_a = of_shape("asked_a") * part_m * there
        self.asked_b = of_shape("asked_b") * part_n * there
        self.bytes_a = part_m * shape[:, 0] * along_k
        self.bytes_b = part_n * shape[:, 1] * along_k
        area = shape[:, 0] * shape[:, 1] / max(prod(works[0].shape[:2]), 1)
        stored = of_shape("stored_bytes") + loaded_bytes * area
        self.stored = stored * part_m * part_n / depth * there

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def requests(self) -> tuple[NDArray[Any], ...]:
        """What every main loop reads and stores, as arrays that are indexed by the main loop.

        The arrays: the indices of the first panel of A and of B (the part that one row or column
        of output tiles reads); how many panels of A and of B are read; the first k tile and the one
        after the last; and, per k tile, the bytes of A and of B requested from the L2 cache, the
        bytes of A and of B that would be read from DRAM if there were no L2 cache, and the
        bytes of D stored.
        """
        return (
            *(self.panel_a, self.panel_b, self.span_a, self.span_b),
            *(self.first, self.first + self.count),
            *(self.asked_a, self.asked_b, self.bytes_a, self.bytes_b, self.stored),
        )

    @cached_property
    def ranges(self) -> Ranges | None:
        """The different ranges of k tiles that main loops read; None if two of a panel overlap.

        A panel is the part of A (B) that one row (column) of output tiles reads. The result is
        None, too, if a main loop reads several panels of A or of B.
        """
        if not len(self) or np.any(self.span_a != 1) or np.any(self.span_b != 1):
            return None
        stop = np.tile(self.first + self.count, 2)
        width = int(stop.max()) + 1
        begins = np.concatenate([self.panel_a, self.panel_b]) * width + np.tile(self.first, 2)
        # `begin` has the different starts of ranges, sorted by panel and then by first k tile.
        begin, number = _different(begins)
        end = np.zeros(len(begin), np.int64)
        end[number] = stop
        panel, first = np.divmod(begin, width)
        same = panel[1:] == panel[:-1]
        if np.any(end[number] != stop) or np.any(same & (first[1:] < end[:-1])):
            return None
        return Ranges(number[: len(self)], number[len(self) :], panel)


def _different(values: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The different values in ascending order, and for each value its index among these."""
    most = int(values.max()) + 1
    if most > max(SPARSE, 8 * len(values)):
        return np.unique(values, return_inverse=True)
    occurs = np.zeros(most, bool)
    occurs[values] = True
    found = np.flatnonzero(occurs)
    places = np.zeros(most, np.int64)
    places[found] = np.arange(len(found))
    return found, places[values]


def _inside(
    extent: NDArray[np.int64],
    tile: NDArray[np.int64],
    number: NDArray[np.int64],
    tiles: NDArray[np.int64],
) -> NDArray[np.float64]:
    """For each tile, the fraction of its extent along an axis that lies inside the matrix.

    If groups end inside tiles, it is the mean fraction of all tiles.

    Args:
        extent: number of elements of the matrix along the axis.
        tile: number of elements of a tile along the axis.
        number: the index of the tile along the axis.
        tiles: number of tiles along the axis, more than the extent needs if groups end inside
            tiles.
    """
    ragged = tiles > -(-extent // tile) + 1
    left = np.clip(extent - number * tile, 0, tile) / tile
    return np.where(ragged, np.minimum(extent / (tiles * tile), 1), left)
