"""`SplitK`: the K range of every output tile in pieces, a workgroup for each."""

from __future__ import annotations

from dataclasses import dataclass

from sympy import Expr, Integer, Lt

from coordgraph import KernelGraph
from coordgraph.control.operations import Assign, Body, If
from coordgraph.coordinates.dimensions import ForLoop, Linear, Workgroup
from coordgraph.coordinates.edges import Flatten, PassThrough, Tile
from coordgraph.integers import ceil_div, minimum
from coordgraph.kernel import KernelEditor
from passes.base import Pass
from passes.fixup import A_SLOT_A_TILE, SLOT, TURN, Pieces, add_workspace, unknown_option
from passes.scatter import Scatter
from passes.tiles import MOST_WORKGROUPS, TileWork, depth_is_data, flatten_into, number_of

__all__ = ["SplitK"]

ACCUMULATE = "for_k"


@dataclass(frozen=True)
class SplitK(Pass):
    """Every output tile's iterations in `splits` contiguous pieces of `⌈TK/splits⌉`.

    Before: dangling m and n, a loop over k tiles. After::

        m, n --Flatten--> tile; k_tile --Tile--> piece, ForK
        tile, piece --Flatten--> workgroup

    The pieces of a tile are neighbours in the grid, and are added in the order of k. Where there
    are fewer iterations than pieces, workgroups without any leave at once; nobody waits for them.
    With a `turnstile`, and with `atomic`, the slot is the tile and the turn is the piece::

        partials --Tile--> slot, row, column
        slot --PassThrough--> tile; turn --PassThrough--> piece

    Args:
        splits: pieces of a tile, two or more.
        owner: `first` or `last` piece of a tile runs the epilogue. With `last` workgroups wait for
            lower numbers alone, so that any grid makes progress.
        reduction: how pieces are added up; see `passes.fixup`. A `turnstile` needs a slot for each
            tile, as does `atomic`, which has other bits in every run; the others need one for each
            piece. With `scatter` nobody owns a tile: every workgroup finishes a share of it, waits
            for higher and for lower numbers, and `owner` means nothing.
    """

    splits: int = 2
    owner: str = "last"
    reduction: str = "turnstile"

    name = "split-k"
    establishes = ("scheduled",)

    def why_not(self, graph: KernelGraph) -> str | None:
        if not 2 <= self.splits <= MOST_WORKGROUPS:
            whole = "; data-parallel has whole tiles" if self.splits == 1 else ""
            return f"splits={self.splits} is outside 2..{MOST_WORKGROUPS}{whole}"
        if not graph.parameters.known_to_host(number_of(graph, graph.dangling)):
            return "how many tiles there are is data, the grid is not; stream-k shares them"
        if depth_is_data(graph):
            return (
                "pieces of a tile are parts of one depth, and here how deep a tile is is data; "
                "stream-k shares the iterations of all groups"
            )
        return unknown_option(self.owner, self.reduction)

    def apply(self, graph: KernelGraph) -> KernelGraph:
        work, numbers = TileWork.of(graph), graph.dangling
        k_tile = graph.coordinates[work.loop.dim]
        tiles, depth, splits = number_of(graph, numbers), k_tile.size, Integer(self.splits)
        assert depth is not None
        with graph.edit(str(self)) as e:
            e.level = "scheduled"
            e.assume(tiles * splits)
            share = e.parameter("share", ceil_div(depth, splits), note="iterations of a piece")
            e.assume(share * splits)
            c = e.coordinates
            c.add(Linear("tile", tiles, note="output tiles"))
            c.add(Linear("piece", splits, note="pieces of a tile's iterations"))
            c.add(ForLoop(ACCUMULATE, share, name="K", note="iterations in this piece"))
            c.add(Workgroup("workgroup", tiles * splits))
            flatten_into(e, numbers, "tile")
            c.connect(Tile(k_tile.id, ("piece", ACCUMULATE)))
            c.connect(Flatten(("tile", "piece"), "workgroup"))
            accumulator = graph.gemm.accumulator
            if self.reduction in A_SLOT_A_TILE:
                add_workspace(e, tiles, accumulator, self.reduction)
                c.add(Linear(TURN, splits, note="pieces of the tile before this one"))
                c.connect(PassThrough(SLOT, "tile"))
                c.connect(PassThrough(TURN, "piece"))
            elif self.reduction == "scatter":
                Scatter.tie(e, tiles * splits, "workgroup", accumulator, ends=False)
            else:
                add_workspace(e, tiles * splits, accumulator, self.reduction)
                c.connect(PassThrough(SLOT, "workgroup"))
            names = tuple(d.id for d in numbers)
            e.kernel(*self._control(e, work, names, depth, share), workgroup="workgroup")
        return e.graph

    def _control(
        self, e: KernelEditor, work: TileWork, numbers: tuple[str, ...], depth: Expr, share: Expr
    ) -> Body:
        """One piece: its accumulation, then the fix-up."""
        graph, ranges = e.snapshot(), e.parameters.ranges()
        at = {"workgroup": graph.symbol("workgroup"), ACCUMULATE: Integer(0)}
        wanted = [*numbers, "tile", work.loop.dim]
        *here, tile, k_first = graph.reverse(at, wanted, ranges)

        def holder(k: Expr) -> Expr:
            """The workgroup whose piece holds iteration `k` of this output tile."""
            place = {**dict(zip(numbers, here, strict=True)), work.loop.dim: k}
            return graph.forward(place, ["workgroup"], ranges)[0]

        first = Assign("k_first", k_first)
        count = Assign("k_count", minimum(share, depth - first.symbol))
        low, high = holder(Integer(0)), holder(depth - 1)
        if self.reduction == "scatter":
            scatter = Scatter(low, high, ends=False)
            shared = (*scatter.send(), *scatter.finish(e, work.after))
            finish: Body = (If(Lt(count.symbol, depth), shared, work.after),)
        else:
            pieces = Pieces(low, high, first.symbol, count.symbol, depth, slot=tile)
            finish = pieces.finish(e, self.owner, self.reduction, work.after)
        piece = (count, *work.part(ACCUMULATE, count.symbol, finish))
        return (first, If(Lt(first.symbol, depth), piece))
