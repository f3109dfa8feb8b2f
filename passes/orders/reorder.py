"""`Reorder`: visits output tiles in column-major order, or with a stride between their numbers."""

from __future__ import annotations

from dataclasses import dataclass

from sympy import Integer

from coordgraph import KernelGraph
from coordgraph.coordinates.dimensions import Linear, MacroTileNumber
from coordgraph.coordinates.edges import Flatten, Join, Tile
from coordgraph.integers import ceil_div
from coordgraph.parameters import LARGEST_INDEX
from coordgraph.products import tile_plane
from passes.base import Pass, option
from passes.kit import number_of, why_no_plane

__all__ = ["Reorder"]


@dataclass(frozen=True)
class Reorder(Pass):
    """Visit output tiles in column-major order, or with a stride of `group` tiles, or both.

    Before: dimensions of kind `MacroTileNumber` for m and n that no edge computes. After (a
    schedule will compute `tile.order`, or `tile.flat` with `group=1`)::

        m, n --Flatten (n, m if swap=true)--> tile.flat
        tile.flat --Tile--> outer, inner(group); inner, outer --Join--> tile.order

    With `group=g`, tiles 0, g, 2g and so on come first, then 1, g + 1 and so on. If g does not
    divide the number of tiles, the order is padded with tile numbers that no tile has; workgroups
    skip them.

    Args:
        swap: visit tiles in column-major order, by exchanging the operands of the `Flatten`.
        group: difference between the numbers of tiles that are visited one after another; 1 adds no
            `Tile` and no `Join`.
    """

    swap: bool = False
    group: int = option(1, least=1, most=LARGEST_INDEX)

    name = "reorder"
    establishes = ("problem",)

    def why_not(self, graph: KernelGraph) -> str | None:
        if self.swap and len(tile_plane(graph)) < 2:
            return (
                "there is nothing to swap: the tile numbers are flattened already; put reorder "
                "before the pass that flattens them"
            )
        return why_no_plane(graph)

    def apply(self, graph: KernelGraph) -> KernelGraph:
        if not self.swap and self.group == 1:
            return graph
        numbers = tile_plane(graph)
        tiles = number_of(graph, numbers)
        order = tuple(reversed(numbers)) if self.swap else numbers
        with graph.edit(str(self)) as e:
            c = e.coordinates
            flat = c.fresh("tile.flat")
            kind = MacroTileNumber if self.group == 1 else Linear
            if self.group > 1 and len(order) == 1:
                flat = order[0].id
            else:
                c.add(kind(flat, tiles, note="output tiles"))
                c.connect(Flatten(tuple(d.id for d in order), flat))
            if self.group > 1:
                outer_size = ceil_div(tiles, Integer(self.group))
                outer = c.add(Linear(c.fresh("tile.outer"), outer_size))
                inner = c.add(Linear(c.fresh("tile.inner"), Integer(self.group)))
                padded = outer_size * self.group
                e.assume(padded)
                last = c.add(MacroTileNumber(c.fresh("tile.order"), padded, note="visiting order"))
                c.connect(Tile(flat, (outer.id, inner.id)))
                c.connect(Join((inner.id, outer.id), last.id, (outer_size, Integer(1))))
        return e.graph
