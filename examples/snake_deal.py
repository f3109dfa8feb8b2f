"""`SnakeDeal`: an example schedule that reverses the order of workgroups in every second wave.

The schedule is written outside the library, with `passes.kit`.
"""

from __future__ import annotations

from dataclasses import dataclass

from sympy import Integer

from coordgraph import KernelGraph
from coordgraph.control.operations import Assign, For
from coordgraph.coordinates.dimensions import ForLoop, Linear, Workgroup
from coordgraph.coordinates.edges import PassThrough, Swizzle, Tile
from coordgraph.integers import ceil_div, equal, floor_div, floor_mod, select
from passes import Pass, kit, option


@dataclass(frozen=True)
class SnakeDeal(Pass):
    """Even waves assign output tiles to workgroups 0, …, W - 1, odd waves to W - 1, …, 0.

    The alternation balances load if tiles are sorted by their extent in k (the pass
    `longest-first`, for groups of different k): the workgroup with the longest tile of one wave
    gets the shortest of the next. `data-parallel{persistent=true}` would give workgroup 0 the
    longest tile of every wave. Every tile is computed by one workgroup, so there are no partial
    sums. Before: tile numbers that dangle (no schedule has tied them to workgroups). After::

        m, n --Flatten--> tile --Tile--> deal.wave, seat
        deal.wave, seat --Swizzle(snake)--> wave, dealt; dealt --PassThrough--> workgroup

    Args:
        workgroups: the number of workgroups of a launch; None makes it a launch argument.
    """

    workgroups: int | None = option(None, least=1, most=kit.MOST_WORKGROUPS)

    name = "snake-deal"
    establishes = ("scheduled",)

    def apply(self, graph: KernelGraph) -> KernelGraph:
        work, numbers = kit.TileWork.of(graph), graph.dangling
        tiles = kit.number_of(graph, numbers)
        with graph.edit(str(self)) as e:
            e.level, c = "scheduled", e.coordinates
            count = kit.workgroup_count(e, self.workgroups)
            waves = e.parameter("waves", ceil_div(tiles, count), note="tiles per workgroup")
            e.assume(waves * count)
            c.add(Linear("tile", tiles, note="output tiles"))
            c.add(Linear("deal.wave", waves))
            c.add(Linear("seat", count, note="position of a tile in its wave"))
            c.add(ForLoop("wave", waves, name="Wave"))
            c.add(Workgroup("dealt", count))
            kit.flatten_into(e, numbers, "tile")
            c.connect(Tile("tile", ("deal.wave", "seat")))
            c.connect(Swizzle(("deal.wave", "seat"), ("wave", "dealt"), function="snake"))
            c.connect(PassThrough("dealt", "workgroup"))
            # Workgroup w takes the tile with position `seat_of_last` in the last wave, which may be
            # partial. If there is no such tile, the workgroup has one tile less than others.
            full, workgroup = floor_div(tiles, count), c["workgroup"].symbol
            backwards = equal(floor_mod(full, Integer(2)), 1)
            seat = Assign("seat_of_last", select(backwards, count - 1 - workgroup, workgroup))
            mine = Assign("my_tiles", ceil_div(tiles - seat.symbol, count))
            e.kernel(
                seat,
                mine,
                For("wave", Integer(0), mine.symbol, body=work.whole()),
                workgroup="workgroup",
            )
        return e.graph
