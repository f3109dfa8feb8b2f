"""`Grouped`: an order of output tiles in which Stream-K workgroups share operands in L2."""

from __future__ import annotations

from dataclasses import dataclass

from sympy import Integer

from coordgraph import KernelGraph
from coordgraph.coordinates.dimensions import MacroTileNumber
from coordgraph.coordinates.edges import Deal
from coordgraph.integers import floor_div
from coordgraph.products import tile_plane
from passes.base import Pass, option
from passes.kit import depth_is_data, flatten_into, number_of, number_of_iterations, why_no_plane

__all__ = ["Grouped"]

MOST_GROUPS = 8
"""The largest value of the option `groups`, the number of groups of output tiles: 8."""


@dataclass(frozen=True)
class Grouped(Pass):
    """Distribute output tiles round-robin to G groups, and visit one group after another.

    Tile `t·G + g` in row-major order becomes tile t of group g. The purpose is reuse in the L2
    cache with Stream-K: shares of workgroups are contiguous, so without groups the tiles at which W
    workgroups begin are far apart. With G groups and W workgroups, workgroup w and workgroup `w +
    W/G` compute tiles with equal t in their groups, and are at nearly the same k, so they compute
    neighbouring tiles at the same time (as CUTLASS's Stream-K groups do). Before: dimensions of
    kind `MacroTileNumber` for m and n that no edge computes. After (a schedule will compute
    `tile.grouped`)::

        m, n --Flatten--> tile.dealt --Deal(G)--> tile.grouped

    If G does not divide the number of tiles, the first groups have one tile more than the others.
    If G divides it, `Reorder(group=G)` gives the same order; otherwise that pass adds padding.

    Args:
        groups: number of groups G, at most 8; with 1, the pass does not change the graph.
    """

    groups: int = option(MOST_GROUPS, least=1, most=MOST_GROUPS)

    name = "grouped"
    establishes = ("problem",)

    def why_not(self, graph: KernelGraph) -> str | None:
        return why_no_plane(graph)

    def apply(self, graph: KernelGraph) -> KernelGraph:
        if self.groups == 1:
            return graph
        # If the groups of a grouped product differ in k, tiles are distributed within each product
        # separately.
        numbers = tile_plane(graph) if depth_is_data(graph) else graph.dangling
        tiles = number_of(graph, numbers)
        depth = number_of_iterations(graph, ())
        with graph.edit(str(self)) as e:
            c = e.coordinates
            # The host checks before a launch that the number of tiles of a group (the divisor in
            # the formulas of `Deal`) times the number of k tiles (by which the formulas are
            # multiplied) fits 32 bits.
            e.assume((floor_div(tiles, self.groups) + 1) * depth)
            dealt = numbers[0].id
            if len(numbers) > 1:
                dealt = c.add(MacroTileNumber(c.fresh("tile.dealt"), tiles, note="output tiles")).id
                flatten_into(e, numbers, dealt)
            last = c.add(MacroTileNumber(c.fresh("tile.grouped"), tiles, note="visiting order"))
            c.connect(Deal(dealt, last.id, Integer(self.groups)))
        return e.graph
