"""`StreamK`: the whole tile space in equal contiguous shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from coordgraph import KernelGraph
from coordgraph.coordinates.dimensions import Linear
from coordgraph.parameters import LARGEST_INDEX
from passes.base import Pass
from passes.fixup import unknown_option
from passes.streaming import Stream, add_loops
from passes.tiles import (
    MOST_WORKGROUPS,
    TileWork,
    depth_is_data,
    flatten_iterations,
    number_of_iterations,
    workgroup_count,
)

__all__ = ["StreamK", "check_stream_options"]


class StreamOptions(Protocol):
    """The options that all Stream-K schedules share."""

    @property
    def workgroups(self) -> int | None: ...
    @property
    def owner(self) -> str: ...
    @property
    def least(self) -> int: ...
    @property
    def least_segment(self) -> int: ...
    @property
    def reduction(self) -> str: ...


def check_stream_options(given: StreamOptions, graph: KernelGraph) -> str | None:
    """Why the options that all Stream-K schedules share are wrong for a graph, or None."""
    if given.workgroups is not None and not 1 <= given.workgroups <= MOST_WORKGROUPS:
        return f"workgroups={given.workgroups} is outside 1..{MOST_WORKGROUPS}"
    for name in ("least", "least_segment"):
        if not 1 <= (count := getattr(given, name)) <= LARGEST_INDEX:
            return f"{name}={count} is outside 1..{LARGEST_INDEX}"
    if given.least_segment > 1 and depth_is_data(graph):
        return (
            f"least_segment={given.least_segment} moves borders to the ends of tiles of one depth, "
            "and here how deep a tile is is data; least=… holds there, too"
        )
    return unknown_option(given.owner, given.reduction)


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
        owner: `first` or `last` segment of a shared tile runs the epilogue; see `Stream`.
        least: iterations in a share, at least; see `Stream`.
        least_segment: iterations of a tile that a share has, at least; see `Stream`.
        reduction: how a shared tile's pieces are added up; see `Stream`.
    """

    workgroups: int | None = None
    owner: str = "first"
    least: int = 1
    least_segment: int = 1
    reduction: str = "peers"

    name = "stream-k"
    establishes = ("scheduled",)

    def why_not(self, graph: KernelGraph) -> str | None:
        return check_stream_options(self, graph)

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
