"""`TileOrder`: the order in which plans visit the output tiles of a product, as columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from passes.choosing.plan_table import Column

__all__ = ["TileOrder"]

Numbers = NDArray[np.float64]
"""An array whose last axis has an entry for each plan."""


@dataclass(frozen=True)
class TileOrder:
    """The order in which each plan visits output tiles, as `Rasterize` defines it.

    Bands of `width` rows of tiles are visited one after another, each band column by column.

    Attributes:
        width: number of rows of tiles in a band; 1 if tiles are visited in row-major order.
        tiles_m, tiles_n: numbers of output tiles of one product along m and n.
    """

    width: Column
    tiles_m: Column
    tiles_n: Column

    def number(self, row: Numbers, column: Numbers) -> Numbers:
        """The number, from 0, of the output tile in a given row and column of tiles."""
        first = np.floor(row / self.width) * self.width
        high = np.minimum(self.width, self.tiles_m - first)
        return first * self.tiles_n + column * high + row - first

    def place(self, number: Numbers) -> tuple[Numbers, Numbers]:
        """(row, column) of the output tile with a given number."""
        first = np.floor(number / (self.width * self.tiles_n)) * self.width
        high = np.minimum(self.width, self.tiles_m - first)
        behind = number - first * self.tiles_n
        column = np.floor(behind / high)
        return first + behind - column * high, column
