"""`Grouped`: output tiles dealt to groups, so that workgroups far apart work on neighbours."""

from __future__ import annotations

from dataclasses import dataclass

from coordgraph import KernelGraph
from coordgraph.coordinates.dimensions import MacroTileNumber
from coordgraph.coordinates.edges import Deal
from coordgraph.integers import floor_div
from coordgraph.products import tile_plane
from passes.base import Pass, option
from passes.kit import depth_is_data, flatten_into, number_of, number_of_iterations, why_no_plane

__all__ = ["Grouped"]

MOST_GROUPS = 8


@dataclass(frozen=True)
class Grouped(Pass):
    """Tile `t·G + g` is tile t of group g; groups are visited one after another.

    Streamed shares are contiguous, so W workgroups begin at W places far apart, and share little in
    the L2 cache. With G groups, workgroups `W/G` apart are at the same t and nearly the same k:
    their tiles are G neighbours (CUTLASS's Stream-K groups). Before: dangling m and n. After (the
    last dimension dangles in their place)::

        m, n --Flatten--> tile.dealt --Deal(G)--> tile.grouped

    Groups are equal, but for one tile more in the first ones where G does not divide the tiles.
    `Reorder(group=G)` has the same order where it does, and padding where it does not.

    Args:
        groups: number of groups, G above; 1 leaves the graph as it is.
    """

    groups: int = option(MOST_GROUPS, least=1, most=MOST_GROUPS)

    name = "grouped"
    establishes = ("problem",)

    def why_not(self, graph: KernelGraph) -> str | None:
        return why_no_plane(graph)

    def apply(self, graph: KernelGraph) -> KernelGraph:
        if self.groups == 1:
            return graph
        # Products with depths of their own stay apart: those of each are dealt.
        numbers = tile_plane(graph) if depth_is_data(graph) else graph.dangling
        tiles = number_of(graph, numbers)
        depth = number_of_iterations(graph, ())
        with graph.edit(str(self)) as e:
            c = e.coordinates
            # Divisors of iterations: those of a group with one tile more.
            e.assume((floor_div(tiles, self.groups) + 1) * depth)
            dealt = numbers[0].id
            if len(numbers) > 1:
                dealt = c.add(MacroTileNumber(c.fresh("tile.dealt"), tiles, note="output tiles")).id
                flatten_into(e, numbers, dealt)
            last = c.add(MacroTileNumber(c.fresh("tile.grouped"), tiles, note="visiting order"))
            c.connect(Deal(dealt, last.id, self.groups))
        return e.graph
