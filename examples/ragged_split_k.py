"""`RaggedSplitK`: an example schedule that splits only the tiles of the last, partial wave along k.

The schedule is written outside the library, with `passes.kit`. docs/how-to/write-a-schedule.md
explains it.
"""

from __future__ import annotations

from dataclasses import dataclass

from sympy import Integer, Lt

from coordgraph import KernelGraph
from coordgraph.control.operations import For, If, Scope, SetCoordinate
from coordgraph.coordinates.dimensions import Linear, Selector
from coordgraph.coordinates.edges import Sunder
from coordgraph.integers import floor_div, maximum
from passes import Pass, kit, option


@dataclass(frozen=True)
class RaggedSplitK(Pass):
    """Full waves compute whole output tiles; the tiles of the last wave are split along k.

    With T output tiles and W workgroups, there are T div W full waves, in which every workgroup
    computes one tile. Each of the R = T mod W remaining tiles is split along k into W div R pieces,
    one workgroup per piece, so the last wave takes about 1 / (W div R) of the time of a full one.
    Before: tile numbers m and n that dangle (no schedule has tied them to workgroups), and a loop
    over k tiles. After::

        m, n --Flatten--> tile --Sunder--> full, rest, selector
        full --Tile--> full.wave, workgroup
        rest, piece --Flatten--> pieces --Tile--> rest.wave, workgroup
        k_tile --Tile--> piece, for_k

    Args:
        workgroups: the number of workgroups of a launch; None makes it a launch argument.
        owner: which piece's workgroup finishes a split tile, the `first` or the `last` along k.
        reduction: how partial sums of a split tile are added, such as `peers` or `tree`; see
            `passes.kit.Reduction`.
    """

    workgroups: int | None = option(None, least=1, most=kit.MOST_WORKGROUPS)
    owner: kit.Owner = "last"
    reduction: kit.Reduction = "peers"

    name = "ragged-split-k"
    establishes = ("scheduled",)

    def why_not(self, graph: KernelGraph) -> str | None:
        return (
            "it needs one k for all tiles; use data-parallel" if kit.depth_is_data(graph) else None
        )

    def apply(self, graph: KernelGraph) -> KernelGraph:
        work, numbers = kit.TileWork.of(graph), graph.dangling
        tiles = kit.number_of(graph, numbers)
        with graph.edit(str(self)) as e:
            e.level, c = "scheduled", e.coordinates
            count = kit.workgroup_count(e, self.workgroups)
            waves = e.parameter("full_waves", floor_div(tiles, count), minimum=0)
            left = e.parameter("rest_tiles", tiles - waves * count, minimum=0)
            splits = e.parameter("splits", floor_div(count, maximum(left, 1)))
            e.assume(waves * count + left)
            tile = c.add(Linear("tile", tiles, note="output tiles"))
            full = c.add(Linear("full", waves * count, note="tiles of the full waves"))
            rest = c.add(Linear("rest", left, note="tiles of the ragged wave"))
            c.add(Linear("pieces", left * splits, note="pieces of the ragged wave"))
            c.add(Selector("selector", Integer(2)))
            kit.flatten_into(e, numbers, tile.id)
            c.connect(Sunder(tile.id, (full.id, rest.id, "selector")))
            full_wave = kit.add_waves(e, "full", full.id, waves, count)
            rest_wave = kit.add_waves(e, "rest", "pieces", Integer(1), count)
            fixed = {"selector": Integer(1), rest_wave: Integer(0)}
            split = kit.SplitTiles(
                rest, "pieces", numbers, work, splits, self.owner, self.reduction, fixed
            )
            split.tie(e, graph.gemm.accumulator)
            whole = For(full_wave, Integer(0), waves, body=work.whole())
            busy = If(Lt(c["workgroup"].symbol, left * splits), split.control(e))
            ragged = SetCoordinate(rest_wave, Integer(0), (busy,))
            e.kernel(
                SetCoordinate("selector", Integer(0), (Scope("full waves", (whole,)),)),
                SetCoordinate("selector", Integer(1), (Scope("ragged wave", (ragged,)),)),
                workgroup="workgroup",
            )
        return e.graph
