"""`Rasterize`: an order of output tiles in bands, which improves reuse in the L2 cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from coordgraph import KernelGraph
from coordgraph.coordinates.dimensions import Linear, MacroTileNumber
from coordgraph.coordinates.edges import Bands, Curve
from coordgraph.parameters import LARGEST_INDEX
from coordgraph.products import tile_plane
from passes.base import Pass, option
from passes.kit import number_of, number_of_iterations, why_no_plane

__all__ = ["Rasterize"]


@dataclass(frozen=True)
class Rasterize(Pass):
    """Visit output tiles in bands of `width` rows: a band column by column, or along a curve.

    W workgroups that compute W consecutive tiles in this order read `width` tile rows of A and
    about `W / width` tile columns of B; in row-major order they would read one tile row and W tile
    columns. Before: dimensions of kind `MacroTileNumber` for m and n that no edge computes. After
    (a schedule will compute `tile.raster`)::

        m, n --Bands(width)--> tile.raster

    The last band may have fewer rows; the order has no padding. With a curve, each band is divided
    into squares of `width` x `width` tiles, and each square is visited along the curve. Columns at
    the end of a band that fill no square, and a last band with fewer rows, are visited column by
    column::

        m, n --Curve(order, width)--> raster.row, raster.column --Bands(width)--> tile.raster

    Along a curve, for every j, each run of 4^j consecutive tiles that begins at a multiple of 4^j
    fills a square of 2^j x 2^j tiles. So consecutive tiles share operands for any number of
    workgroups.

    Args:
        width: number of rows of tiles in a band.
        snake: visit the columns of every other band backwards, so that a band begins near the last
            tile of the previous band.
        along: `m` for bands of rows; `n` for bands of columns, each visited row by row.
        order: the order of the tiles in a band: `columns`, or the curve `hilbert` or `morton` in
            its squares. For a curve, `width` must be a power of two.
    """

    width: int = option(8, least=1, most=LARGEST_INDEX)
    snake: bool = False
    along: Literal["m", "n"] = "m"
    order: Literal["columns", "hilbert", "morton"] = "columns"

    name = "rasterize"
    establishes = ("problem",)

    def why_not(self, graph: KernelGraph) -> str | None:
        if self.curved and (self.width & (self.width - 1) or not 2 <= self.width <= Curve.MOST):
            return f"width={self.width}: a curve needs a power of two, 2 to {Curve.MOST}"
        if len(tile_plane(graph)) != 2:
            return (
                "it needs separate tile numbers for rows and columns, which an earlier pass has "
                "flattened; put rasterize before that pass"
            )
        return why_no_plane(graph)

    @property
    def curved(self) -> bool:
        """Whether the option `order` is a curve (`hilbert` or `morton`), not `columns`."""
        return self.order != "columns"

    def apply(self, graph: KernelGraph) -> KernelGraph:
        if (self.width, self.snake, self.along) == (1, False, "m"):
            return graph  # bands of one row are row-major order, the default of all schedules
        numbers = tile_plane(graph)
        across, walked = numbers if self.along == "m" else reversed(numbers)
        tiles, columns = number_of(graph, numbers), number_of_iterations(graph, (walked,))
        with graph.edit(str(self)) as e:
            e.assume(columns * self.width)
            c = e.coordinates
            order = MacroTileNumber(c.fresh("tile.raster"), tiles, note="visiting order")
            c.add(order)
            above = (across.id, walked.id)
            if self.curved:
                names = (c.fresh("raster.row"), c.fresh("raster.column"))
                for name, dim in zip(names, (across, walked), strict=True):
                    c.add(Linear(name, dim.size))
                c.connect(Curve(above, names, self.order, self.width))
                above = names
            c.connect(Bands(above, order.id, self.width, self.snake))
        return e.graph
