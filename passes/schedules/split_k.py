"""`SplitK`: a schedule in which several workgroups compute each output tile, each a range of k."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sympy import Integer

from coordgraph import KernelGraph
from coordgraph.coordinates.dimensions import Linear, Workgroup
from passes.base import Pass, option
from passes.kit import (
    MOST_WORKGROUPS,
    Owner,
    Reduction,
    SplitTiles,
    TileWork,
    depth_is_data,
    flatten_into,
    number_of,
)

__all__ = ["SplitK"]


@dataclass(frozen=True)
class SplitK(Pass):
    """Divide the iterations of each output tile into `splits` pieces, each for one workgroup.

    With TK iterations (k tiles) in a tile, a piece has `⌈TK/splits⌉` consecutive iterations; the
    last pieces of a tile may have fewer or none.

    Before: dimensions of kind `MacroTileNumber` for m and n that no edge computes, and a loop over
    k tiles. After::

        m, n --Flatten--> tile; k_tile --Tile--> piece, ForK
        tile, piece --Flatten--> workgroup

    Workgroups with pieces of the same tile have consecutive numbers. If a tile has fewer iterations
    than pieces, some workgroups have no iterations; they exit at once, and no other workgroup waits
    for them. With the reductions `turnstile` and `atomic` the workspace has one slot for each tile;
    pieces are added to the slot in the order of their numbers (`turn`)::

        partials --Tile--> slot, row, column
        slot --PassThrough--> tile; turn --PassThrough--> piece

    Args:
        splits: number of pieces of a tile, two or more.
        owner: the workgroup with the `first` or the `last` piece of a tile runs the epilogue. With
            `last`, workgroups wait only for workgroups of lower number, so that a grid of any size
            makes progress.
        reduction: how the partial sums of the pieces are added up. `peers`: the owner adds one
            after another. `tree`: sums are added in pairs, and pairs of pairs, at the same time.
            `turnstile`: the pieces are added to one slot of the workspace, one by one. `scatter`:
            every workgroup finishes a share of the tile, and waits for workgroups of higher and of
            lower number; `owner` has no effect. `atomic`: atomic additions to one slot, so the last
            bits differ from run to run. `turnstile` and `atomic` need a slot for each tile, the
            other reductions a slot for each piece.
    """

    splits: int = option(
        2, least=2, most=MOST_WORKGROUPS, hint="for undivided tiles use data-parallel"
    )
    owner: Owner = "last"
    reduction: Reduction = "turnstile"

    name = "split-k"
    establishes = ("scheduled",)

    def suits(self, tiles: Any, depth: Any, workgroups: Any) -> Any:
        return (self.splits * tiles <= workgroups) & (depth >= 2 * self.splits)

    def why_not(self, graph: KernelGraph) -> str | None:
        if not graph.parameters.known_to_host(number_of(graph, graph.dangling)):
            return (
                "the number of output tiles is known only on the device, so the grid cannot be a "
                "multiple of it; use stream-k, whose grid does not depend on it"
            )
        if depth_is_data(graph):
            return (
                "pieces need output tiles with equally many k tiles, and here groups have their "
                "own k; use stream-k, which divides the iterations of all groups evenly"
            )
        return None

    def apply(self, graph: KernelGraph) -> KernelGraph:
        work, numbers, splits = TileWork.of(graph), graph.dangling, Integer(self.splits)
        tiles = number_of(graph, numbers)
        with graph.edit(str(self)) as e:
            e.level = "scheduled"
            tile = e.coordinates.add(Linear("tile", tiles, note="output tiles"))
            e.coordinates.add(Workgroup("workgroup", tiles * splits))
            flatten_into(e, numbers, tile.id)
            split = SplitTiles(tile, "workgroup", numbers, work, splits, self.owner, self.reduction)
            split.tie(e, graph.gemm.accumulator)
            e.kernel(*split.control(e), workgroup="workgroup")
        return e.graph
