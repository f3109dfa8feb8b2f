"""`StreamK`: the whole tile space in equal contiguous shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from coordgraph import KernelGraph
from coordgraph.coordinates.dimensions import Linear
from coordgraph.parameters import LARGEST_INDEX
from passes.base import Pass, option
from passes.kit import (
    MOST_WORKGROUPS,
    Owner,
    Reduction,
    Stream,
    TileWork,
    add_loops,
    depth_is_data,
    flatten_iterations,
    number_of_iterations,
    workgroup_count,
)

__all__ = ["StreamK", "least_segment_refusal"]


MOST_PIECES = 64
"""Pieces of a tile with which a reduce-scatter is worth considering."""


def least_segment_refusal(least_segment: int, graph: KernelGraph) -> str | None:
    """Why borders of shares cannot be moved to the ends of a graph's tiles, or None."""
    if least_segment > 1 and depth_is_data(graph):
        return (
            f"least_segment={least_segment} moves borders to the ends of tiles of one depth, "
            "and here how deep a tile is is data; least=… holds there, too"
        )
    return None


@dataclass(frozen=True)
class StreamK(Pass):
    """Every workgroup streams `⌈T·TK/W⌉` iterations of the global tile space (arXiv:2301.03598).

    Before: dangling `MacroTileNumber`s m and n, a loop over k tiles. After::

        m, n, k_tile --Flatten--> global --Tile--> workgroup, local
        local --Split{1, 1}--> ForTile, ForK

    An outer loop over output tiles and an inner one over k; tiles that several workgroups share
    are put together by the owner of the tile's first (or last) segment. With `least_segment` the
    `Tile` is a `Share`, whose borders leave no slivers of tiles::

        global --Share--> workgroup, begin, local

    Args:
        workgroups: the grid; None makes it a launch argument.
        owner: which piece of a shared tile is that of its owner, who adds the others and runs the
            epilogue: the `first` along k, which waits for workgroups of higher number, or the
            `last`, which waits for those of lower number. `reduction=scatter` has no owner.
        least: smallest number of iterations in a share. Where fewer fall to a workgroup, some
            workgroups get no share and exit at once.
        least_segment: smallest number of iterations of one tile in a share, unless the tile has
            fewer. Where the border of a share would leave fewer, it moves to the end of the tile.
        reduction: how the pieces of a shared tile are added up. `peers`: the owner adds one piece
            after another. `tree`: pieces are added in pairs, and pairs of pairs, at the same time.
            `turnstile`: the pieces pass one slot of the workspace, one by one. `scatter`: every
            workgroup with a piece finishes a share of the tile. `atomic`: atomic additions to one
            slot, so the last bits differ from run to run.
    """

    workgroups: int | None = option(None, least=1, most=MOST_WORKGROUPS)
    owner: Owner = "first"
    least: int = option(1, least=1, most=LARGEST_INDEX)
    least_segment: int = option(1, least=1, most=LARGEST_INDEX)
    reduction: Reduction = "peers"

    name = "stream-k"
    establishes = ("scheduled",)

    @classmethod
    def variants(cls, tile: tuple[int, int, int]) -> tuple[Pass, ...]:
        return (cls(owner="last"), cls(reduction="scatter"))

    def suits(self, tiles: Any, depth: Any, workgroups: Any) -> Any:
        if self.reduction != "scatter":
            return tiles % workgroups != 0
        # A reduce-scatter pays where every tile is cut into equal pieces.
        even = (workgroups % tiles == 0) & (depth * tiles % workgroups == 0)
        several = (tiles < workgroups) & (workgroups <= MOST_PIECES * tiles)
        return even & several & (depth * tiles >= 2 * workgroups)

    def why_not(self, graph: KernelGraph) -> str | None:
        return least_segment_refusal(self.least_segment, graph)

    def apply(self, graph: KernelGraph) -> KernelGraph:
        work, numbers = TileWork.of(graph), graph.dangling
        with graph.edit(str(self)) as e:
            e.level = "scheduled"
            total = number_of_iterations(graph, numbers)
            e.assume(total)
            count = workgroup_count(e, self.workgroups)
            space = e.coordinates.add(Linear("global", total, note="global M/N/K tiles"))
            flatten_iterations(e, graph, numbers, space.id)
            add_loops(e)
            stream = Stream(
                space,
                numbers,
                work,
                count,
                self.owner,
                {},
                least=self.least,
                least_segment=self.least_segment,
                reduction=self.reduction,
            )
            stream.tie(e, graph.gemm.accumulator)
            e.kernel(*stream.control(e), workgroup="workgroup")
        return e.graph
