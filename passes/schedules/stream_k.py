"""`StreamK`: a schedule that gives each workgroup an equal share of all main loop iterations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from coordgraph import KernelGraph
from coordgraph.coordinates.dimensions import Linear
from coordgraph.coordinates.edges import Flatten, Interleave
from coordgraph.kernel import KernelEditor
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
    flatten_into,
    flatten_iterations,
    number_of,
    number_of_iterations,
    workgroup_count,
)

__all__ = ["StreamK", "least_segment_refusal"]

Shares = Literal["equal", "balanced"]
"""Type of the option `shares` of `StreamK`: how many iterations each workgroup gets. `equal`: the
mean rounded up, so that the last workgroups may get fewer; `balanced`: the numbers differ by at
most 1."""
KOrder = Literal["contiguous", "interleaved"]
"""Type of the option `k_order` of `StreamK`: whether a workgroup that computes a part of an output
tile has consecutive k tiles, or k tiles that alternate with those of other workgroups."""
ORDERED_TILE, ORDER = "sk.tile", "sk.k"
"""Ids of the dimensions that number the iterations of all tiles if `k_order` is `interleaved`.

ORDERED_TILE: the number of the output tile. ORDER: the number of an iteration among the iterations
of its tile, in the order in which workgroups execute them.
"""


def least_segment_refusal(least_segment: int, graph: KernelGraph) -> str | None:
    """Why a schedule of `graph` cannot have this value of the option `least_segment`, or None.

    Args:
        least_segment: smallest number of iterations of one tile in a workgroup's share.
        graph: the graph before the schedule.
    """
    if least_segment > 1 and depth_is_data(graph):
        return (
            f"least_segment={least_segment} needs output tiles with equally many k tiles, and here "
            "groups have their own k; use `least`, which bounds a workgroup's whole share"
        )
    return None


@dataclass(frozen=True)
class StreamK(Pass):
    """Divide the iterations of all output tiles into one contiguous share for each workgroup.

    With T output tiles of TK iterations each and W workgroups, a share has `⌈T·TK/W⌉` iterations if
    `shares` is `equal` (Osama et al., Stream-K, arXiv:2301.03598). Before: dimensions of kind
    `MacroTileNumber` for m and n that no edge computes, and a loop over k tiles. After::

        m, n, k_tile --Flatten--> global --Tile--> workgroup, local
        local --Split{1, 1}--> ForTile, ForK

    A workgroup runs an outer loop over the output tiles in its share and an inner loop over the k
    tiles of each. If several workgroups have a segment of one tile, the workgroup with the tile's
    first (or last) segment adds up their partial sums and runs the epilogue. If `least_segment` is
    more than 1, a `Share` edge replaces the `Tile` edge and moves the ends of shares so that no
    segment has fewer iterations::

        global --Share--> workgroup, begin, local

    Args:
        workgroups: number of workgroups in the grid; None makes it a launch argument.
        owner: the workgroup that adds up the pieces (partial sums) of a shared tile and runs the
            epilogue: the one with the tile's `first` piece along k, which waits for workgroups of
            higher number, or with the `last` piece, which waits for workgroups of lower number.
            Without effect for `reduction=scatter`.
        least: smallest number of iterations in a share. If equal shares would be smaller, some
            workgroups get no share and exit at once.
        least_segment: smallest number of iterations of one tile in a share, unless the tile has
            fewer. If the end of a share would leave fewer, the end moves to the begin or end of the
            tile.
        reduction: how the pieces (partial sums) of a shared tile are added up. `peers`: the owner
            adds one piece after another. `tree`: pieces are added in pairs, and pairs of pairs, at
            the same time.
            `turnstile`: the pieces are added to one slot of the workspace, one by one. `scatter`:
            every workgroup with a piece adds up some rows of all pieces and finishes these rows.
            `atomic`: atomic additions to one slot, so the last bits differ from run to run.
        shares: how many iterations a share has. `equal`: `⌈T·TK/W⌉`, so that the last workgroups
            may have fewer or none. `balanced`: `⌊T·TK/W⌋` or one more; if W is a multiple of T,
            every tile is divided into W/T whole shares. The coordinates are then
            `global --Balance--> workgroup, local`, and `least` and `least_segment` must be 1.
        k_order: which k tiles of an output tile a piece has. `contiguous`: consecutive k tiles, so
            that workgroups that need the same rows of A or columns of B are at different k at any
            time, unless W is a multiple of T. `interleaved`: at any time, all workgroups are at
            nearly the same k, so that each k tile of A and B is read from memory about once. The
            numbers and lengths of shares and pieces are the same as with `contiguous`. Needs
            `shares=equal`, `least_segment=1`, and output tiles with equally many k tiles. The
            coordinates are then::

                m, n --Flatten--> tile; tile, k_tile --Interleave--> sk.tile, sk.k
                sk.tile, sk.k --Flatten--> global
    """

    workgroups: int | None = option(None, least=1, most=MOST_WORKGROUPS)
    owner: Owner = "first"
    least: int = option(1, least=1, most=LARGEST_INDEX)
    least_segment: int = option(1, least=1, most=LARGEST_INDEX)
    reduction: Reduction = "peers"
    shares: Shares = "equal"
    k_order: KOrder = "contiguous"

    name = "stream-k"
    establishes = ("scheduled",)

    @classmethod
    def variants(cls, tile: tuple[int, int, int]) -> tuple[Pass, ...]:
        return (cls(owner="last"),)

    def suits(self, tiles: Any, depth: Any, workgroups: Any) -> Any:
        return tiles % workgroups != 0

    def why_not(self, graph: KernelGraph) -> str | None:
        if self.shares == "balanced" and max(self.least, self.least_segment) > 1:
            return (
                "shares=balanced has no smallest share or segment; leave out `least` and "
                "`least_segment`, or use shares=equal"
            )
        if self.k_order == "interleaved":
            if self.shares == "balanced" or self.least_segment > 1:
                return (
                    "k_order=interleaved needs shares of equal length; leave out `shares` and "
                    "`least_segment`, or use k_order=contiguous"
                )
            if depth_is_data(graph):
                return (
                    "k_order=interleaved needs output tiles with equally many k tiles, and here "
                    "groups have their own k; use k_order=contiguous"
                )
        return least_segment_refusal(self.least_segment, graph)

    def apply(self, graph: KernelGraph) -> KernelGraph:
        work, numbers = TileWork.of(graph), graph.dangling
        with graph.edit(str(self)) as e:
            e.level = "scheduled"
            total = number_of_iterations(graph, numbers)
            e.assume(total)
            count = workgroup_count(e, self.workgroups)
            space = e.coordinates.add(Linear("global", total, note="global M/N/K tiles"))
            along = ""
            if self.k_order == "interleaved":
                numbers, along = (_add_order(e, graph, work, space.id),), ORDER
            else:
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
                balanced=self.shares == "balanced",
                along=along,
            )
            share = stream.tie(e, graph.gemm.accumulator)
            if along:
                below = (ORDERED_TILE, ORDER)
                e.coordinates.connect(Interleave(("tile", work.loop.dim), below, share))
            e.kernel(*stream.control(e), workgroup="workgroup")
        return e.graph


def _add_order(e: KernelEditor, graph: KernelGraph, work: TileWork, space: str) -> Linear:
    """Add the dimensions and edges from tile numbers to iterations, for `k_order=interleaved`.

    The edge `Interleave` is not added, because it needs the length of a share.

    Args:
        e: the editor of `graph`.
        graph: the graph before the schedule.
        work: the operations on an output tile.
        space: the dimension that counts the iterations of all tiles.

    Returns:
        The dimension that numbers output tiles downstream of the `Interleave` edge.
    """
    c, tiles = e.coordinates, number_of(graph, graph.dangling)
    c.add(Linear("tile", tiles, note="output tiles"))
    flatten_into(e, graph.dangling, "tile")
    below = c.add(Linear(ORDERED_TILE, tiles, note="output tiles"))
    c.add(Linear(ORDER, work.depth, note="a tile's iterations in the order of the stream"))
    c.connect(Flatten((ORDERED_TILE, ORDER), space))
    return below
