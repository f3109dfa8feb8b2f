"""`SplitK`: a schedule in which several workgroups compute each output tile, each a range of k."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from sympy import Expr, Integer

from coordgraph import KernelGraph
from coordgraph.coordinates.dimensions import Linear, Workgroup
from coordgraph.integers import floor_div, maximum
from coordgraph.kernel import KernelEditor
from coordgraph.parameters import LARGEST_INDEX
from passes.base import Pass, option
from passes.kit import (
    MOST_WORKGROUPS,
    Owner,
    Reduction,
    SplitTiles,
    TileWork,
    depth_is_data,
    flatten_into,
    given_workgroups,
    number_of,
    renumbered,
)

__all__ = ["SplitK"]

Adjacent = Literal["pieces", "tiles"]
"""Type of the option `adjacent`: whether workgroups that are launched one after another have
consecutive pieces of a tile, or the same piece of consecutive tiles."""
MOST_PIECES = 64
"""Largest number of workgroups that share an output tile, with the reduction `scatter`, for which
`codegen.matmul` may choose this schedule."""


@dataclass(frozen=True)
class SplitK(Pass):
    """Divide the iterations of each output tile into `splits` pieces, each for one workgroup.

    With TK iterations (k tiles) in a tile, a piece has `⌈TK/splits⌉` consecutive iterations; the
    last pieces of a tile may have fewer or none.

    Before: dimensions of kind `MacroTileNumber` for m and n that no edge computes, and a loop over
    k tiles. After::

        m, n --Flatten--> tile; k_tile --Tile--> piece, ForK
        tile, piece --Flatten--> workgroup

    Workgroups with pieces of the same tile have consecutive numbers. They are launched in the order
    of their numbers unless `adjacent` is `tiles`. If a tile has fewer iterations
    than pieces, some workgroups have no iterations; they exit at once, and no other workgroup waits
    for them. With the reductions `turnstile` and `atomic` the workspace has one slot for each tile;
    pieces are added to the slot in the order of their numbers (`turn`)::

        partials --Tile--> slot, row, column
        slot --PassThrough--> tile; turn --PassThrough--> piece

    Args:
        splits: number of pieces of a tile, two or more. None takes it from the launch argument
            `workgroups`, so that one kernel serves all numbers: `max(1, ⌊W/T⌋)` with W the argument
            and T the number of tiles. The grid has that number times T workgroups: at most W, but
            T if W is less than T.
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
        adjacent: which workgroups are launched one after another, and so run at about the same
            time. `pieces`: those of one tile, which are at different k, so that they have no rows
            of A or columns of B in common. `tiles`: those with the same piece of consecutive tiles.
            They request the same rows of A or columns of B at the same time, and the L2 cache can
            merge such requests. All workgroups must then be resident, whatever the reduction, since
            it is not proved that they wait only for lower numbers of launch. The edge
            `workgroup --Deal(splits)--> launched` is added.
    """

    splits: int | None = option(
        2,
        least=2,
        most=MOST_WORKGROUPS,
        hint="none takes the number from the grid; for undivided tiles use data-parallel",
    )
    owner: Owner = "last"
    reduction: Reduction = "turnstile"
    adjacent: Adjacent = "pieces"

    name = "split-k"
    establishes = ("scheduled",)

    @classmethod
    def variants(cls, tile: tuple[int, int, int]) -> tuple[Pass, ...]:
        return (
            cls(splits=None, reduction="peers"),
            cls(splits=None, reduction="scatter"),
            cls(splits=None, reduction="scatter", adjacent="tiles"),
        )

    def suits(self, tiles: Any, depth: Any, workgroups: Any) -> Any:
        if self.splits is not None:
            return (self.splits * tiles <= workgroups) & (depth >= 2 * self.splits)
        # All tiles get equally many workgroups; if the grid is no multiple of the tiles, the others
        # are idle.
        even = (workgroups % tiles == 0) & (tiles < workgroups)
        most = MOST_PIECES if self.reduction == "scatter" else LARGEST_INDEX
        return even & (workgroups <= most * tiles) & (depth * tiles >= 2 * workgroups)

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
        work, numbers = TileWork.of(graph), graph.dangling
        tiles = number_of(graph, numbers)
        with graph.edit(str(self)) as e:
            e.level = "scheduled"
            splits = self._splits(e, tiles)
            tile = e.coordinates.add(Linear("tile", tiles, note="output tiles"))
            e.coordinates.add(Workgroup("workgroup", tiles * splits))
            flatten_into(e, numbers, tile.id)
            split = SplitTiles(tile, "workgroup", numbers, work, splits, self.owner, self.reduction)
            split.tie(e, graph.gemm.accumulator)
            body, numbered = split.control(e), "workgroup"
            if self.adjacent == "tiles":
                body, numbered = renumbered(e, body, tiles * splits, splits)
            e.kernel(*body, workgroup=numbered)
        return e.graph

    def _splits(self, e: KernelEditor, tiles: Expr) -> Expr:
        """Number of pieces of a tile: `splits`, or if None, from the argument `workgroups`."""
        if self.splits is not None:
            return Integer(self.splits)
        given = given_workgroups(e, "workgroups to divide among tiles")
        pieces = maximum(floor_div(given, tiles), Integer(1))
        return e.parameter("splits", pieces, note="pieces of a tile")
