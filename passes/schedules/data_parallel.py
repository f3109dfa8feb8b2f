"""`DataParallel`: a schedule in which every output tile is computed by one workgroup alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from sympy import Integer

from coordgraph import KernelGraph
from coordgraph.control.operations import For
from coordgraph.coordinates.dimensions import ForLoop, Linear, Workgroup
from coordgraph.coordinates.edges import Tile
from coordgraph.integers import ceil_div
from coordgraph.parameters import LARGEST_INDEX
from passes.base import Pass, option
from passes.kit import (
    MOST_WORKGROUPS,
    TileWork,
    dynamic_loop,
    flatten_into,
    number_of,
    workgroup_count,
)

__all__ = ["DataParallel"]

Scheduler = Literal["static", "dynamic"]
"""How persistent workgroups get their output tiles: `static` assigns the tiles before the launch,
`dynamic` gives the next tile to the first workgroup that is free."""


@dataclass(frozen=True)
class DataParallel(Pass):
    """Assign each output tile to one workgroup: one tile each, or every W-th tile if persistent.

    Before: dimensions of kind `MacroTileNumber` for m and n that no edge computes. After::

        m, n --Flatten--> workgroup                          (persistent=false: one tile each)
        m, n --Flatten--> tile --Tile--> wave, workgroup     (persistent=true)
        m, n --Flatten--> tile                               (persistent=true,scheduler=dynamic)

    With W workgroups, persistent workgroup w computes tiles w, w + W, w + 2W and so on. With
    `scheduler=dynamic` it computes tile w, and then takes its next tile from a counter in device
    memory whenever it has finished one: a loop `DynamicFor` over `tile` with a `TakeTicket`.

    Args:
        persistent: launch `workgroups` workgroups, each of which loops over its tiles; otherwise
            launch one workgroup for each output tile.
        workgroups: number of workgroups W if persistent; None makes it a launch argument.
        scheduler: how persistent workgroups get their tiles: `static` assigns every W-th tile
            before the launch, `dynamic` gives the next tile to the first workgroup that is free.
    """

    persistent: bool = False
    workgroups: int | None = option(None, least=1, most=MOST_WORKGROUPS)
    scheduler: Scheduler = "static"

    name = "data-parallel"
    establishes = ("scheduled",)

    @classmethod
    def variants(cls, tile: tuple[int, int, int]) -> tuple[Pass, ...]:
        return (cls(), cls(persistent=True))

    def suits(self, tiles: Any, depth: Any, workgroups: Any) -> Any:
        return tiles > workgroups if self.persistent else tiles <= workgroups

    def why_not(self, graph: KernelGraph) -> str | None:
        tiles = number_of(graph, graph.dangling)
        if not self.persistent and not graph.parameters.known_to_host(tiles):
            return (
                "the number of output tiles is known only on the device, so it cannot be the size "
                "of the grid; set persistent=true"
            )
        if self.scheduler == "dynamic" and not self.persistent:
            return (
                "scheduler=dynamic has no effect without persistent=true, because every workgroup "
                "computes one tile; set persistent=true as well, or leave scheduler out"
            )
        if self.workgroups is None:
            return None
        if not self.persistent:
            return (
                f"workgroups={self.workgroups} has no effect without persistent=true; set "
                "persistent=true as well, or leave workgroups out"
            )
        return None

    def apply(self, graph: KernelGraph) -> KernelGraph:
        work, numbers = TileWork.of(graph), graph.dangling
        tiles = number_of(graph, numbers)
        with graph.edit(str(self)) as e:
            e.level = "scheduled"
            if not self.persistent:
                if not e.parameters.ranges().prove_nonnegative(LARGEST_INDEX - tiles):
                    e.assume(tiles)
                e.coordinates.add(Workgroup("workgroup", tiles))
                flatten_into(e, numbers, "workgroup")
                e.kernel(*work.whole(), workgroup="workgroup")
            elif self.scheduler == "dynamic":
                count = workgroup_count(e, self.workgroups)
                tile = e.coordinates.add(ForLoop("tile", tiles, name="Tile", note="output tiles"))
                flatten_into(e, numbers, tile.id)
                loop = dynamic_loop(e, tile.id, tiles, count, work.whole())
                e.kernel(loop, workgroup="workgroup")
            else:
                count = workgroup_count(e, self.workgroups)
                waves = e.parameter("waves", ceil_div(tiles, count), note="tiles per workgroup")
                e.assume(waves * count)
                tile = e.coordinates.add(Linear("tile", tiles, note="output tiles"))
                flatten_into(e, numbers, tile.id)
                wave = e.coordinates.add(ForLoop("wave", waves, name="Wave"))
                e.coordinates.connect(Tile(tile.id, (wave.id, "workgroup")))
                mine = ceil_div(tiles - e.coordinates["workgroup"].symbol, count)
                loop = For(wave.id, Integer(0), mine, body=work.whole())
                e.kernel(loop, workgroup="workgroup")
        return e.graph
