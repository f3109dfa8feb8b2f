"""`Rasterize`: output tiles in bands, so that those in flight share operands in the cache."""

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
    """Visit output tiles in bands of `width` rows, column by column or along a curve in a band.

    W workgroups that work on neighbours in this order read `width` tile rows of A and about
    `W / width` tile columns of B, instead of one row and W columns. Before: dangling m and n.
    After (the last dimension dangles in their place)::

        m, n --Bands(width)--> tile.raster

    The last band may be narrower; the order has no padding. With a curve a band is cut into squares
    of `width` x `width`, each walked along the curve; what is left of the columns, and a last band
    that is narrower, go column by column::

        m, n --Curve(order, width)--> raster.row, raster.column --Bands(width)--> tile.raster

    So of any number of workgroups those that work on neighbours in the order are close in the
    plane: 4^k of them within a square of 2^k rows and columns.

    Args:
        width: number of tiles across a band.
        snake: walk every other band's columns backwards, so that a band begins where the one
            before it ended.
        along: `m` for bands of rows, each walked column by column; `n` for bands of columns, each
            walked row by row.
        order: the order of the tiles in a band: `columns`, or along the curve of `hilbert` or
            `morton` in each of its squares, whose width must be a power of two.
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
            return "it needs a row and a column; put it before passes that flatten them"
        return why_no_plane(graph)

    @property
    def curved(self) -> bool:
        """Squares of a band are walked along a curve."""
        return self.order != "columns"

    def apply(self, graph: KernelGraph) -> KernelGraph:
        if (self.width, self.snake, self.along) == (1, False, "m"):
            return graph  # row by row, as every schedule does by itself
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
