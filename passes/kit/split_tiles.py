"""`SplitTiles`: output tiles whose iterations are split into pieces, a workgroup for each piece."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sympy import Expr, Integer, Lt

from coordgraph.control.operations import Assign, Body, If
from coordgraph.coordinates.dimensions import Dimension, ForLoop, Linear
from coordgraph.coordinates.edges import Flatten, PassThrough, Tile
from coordgraph.integers import ceil_div, minimum
from coordgraph.kernel import KernelEditor
from passes.kit.fixup import A_SLOT_A_TILE, SLOT, TURN, Pieces, add_workspace
from passes.kit.reduce_scatter import Scatter
from passes.kit.tile_work import TileWork

__all__ = ["SplitTiles"]

PIECE, ACCUMULATE = "piece", "for_k"


@dataclass(frozen=True)
class SplitTiles:
    """Output tiles whose k tiles are split into equal contiguous pieces, a workgroup for each.

    A schedule adds the dimension `tile`, ties tile numbers to it, and assigns pieces to workgroups:
    it adds the dimension `pieces`, of size `tiles · splits`, which is the workgroup or is tied to
    it. Then `tie` adds the other coordinates, and `control` returns the control of a workgroup.

    Args:
        tile: the dimension that counts the tiles that are split.
        pieces: the name of the dimension that counts all of their pieces. Piece i must be
            workgroup number i.
        numbers: the tile numbers above `tile`.
        work: the operations on one output tile; all tiles have the same depth.
        splits: number of pieces of a tile.
        owner: `first` or `last`: the piece whose workgroup runs the epilogue; see `Pieces.finish`.
        reduction: how pieces are added up; see `passes.kit.fixup`.
        fixed: values of coordinates that are set around the control: the selector of a `Sunder`.
    """

    tile: Linear
    pieces: str
    numbers: tuple[Dimension, ...]
    work: TileWork
    splits: Expr
    owner: str = "last"
    reduction: str = "turnstile"
    fixed: Mapping[str, Expr] = field(default_factory=dict[str, Expr])

    @property
    def tiles(self) -> Expr:
        """How many tiles are split."""
        assert self.tile.size is not None
        return self.tile.size

    def tie(self, e: KernelEditor, accumulator: str) -> None:
        """Split the k tiles of each output tile into pieces, and add the workspace of the fix-up.

        Adds these edges. Reductions with one slot for each tile instead tie `slot` to the tile and
        `turn` to the piece::

            k_tile --Tile--> piece, for_k; tile, piece --Flatten--> pieces
            partials --Tile--> slot, row, column; slot --PassThrough--> pieces

        Args:
            e: the kernel being built.
            accumulator: the element type of the sums.
        """
        e.assume(self.tiles * self.splits)
        share = self._share(e)
        e.assume(share * self.splits)
        c = e.coordinates
        c.add(Linear(PIECE, self.splits, note="pieces of a tile's iterations"))
        c.add(ForLoop(ACCUMULATE, share, name="K", note="iterations in this piece"))
        c.connect(Tile(self.work.loop.dim, (PIECE, ACCUMULATE)))
        c.connect(Flatten((self.tile.id, PIECE), self.pieces))
        if self.reduction in A_SLOT_A_TILE:
            add_workspace(e, self.tiles, accumulator, self.reduction)
            c.add(Linear(TURN, self.splits, note="pieces of the tile before this one"))
            c.connect(PassThrough(SLOT, self.tile.id))
            c.connect(PassThrough(TURN, PIECE))
        elif self.reduction == "scatter":
            Scatter.tie(e, self.tiles * self.splits, self.pieces, accumulator, ends=False)
        else:
            add_workspace(e, self.tiles * self.splits, accumulator, self.reduction)
            c.connect(PassThrough(SLOT, self.pieces))

    def control(self, e: KernelEditor) -> Body:
        """The control of a piece's workgroup: its accumulation, then the fix-up.

        If a tile has fewer iterations than pieces, workgroups without iterations exit at once, and
        no other workgroup waits for them.
        """
        graph, ranges, depth = e.snapshot(), e.parameters.ranges(), self.work.depth
        at = {**self.fixed, "workgroup": graph.symbol("workgroup"), ACCUMULATE: Integer(0)}
        names = [d.id for d in self.numbers]
        wanted = [*names, self.tile.id, self.work.loop.dim]
        *here, tile, k_first = graph.reverse(at, wanted, ranges)

        def holder(k: Expr) -> Expr:
            """The workgroup whose piece holds iteration `k` of this output tile."""
            place = {**dict(zip(names, here, strict=True)), self.work.loop.dim: k}
            return graph.forward(place, [self.pieces], ranges)[0]

        first = Assign("k_first", k_first)
        count = Assign("k_count", minimum(self._share(e), depth - first.symbol))
        low, high = holder(Integer(0)), holder(depth - 1)
        if self.reduction == "scatter":
            scatter = Scatter(low, high, ends=False)
            shared = (*scatter.send(), *scatter.finish(e, self.work.after))
            finish: Body = (If(Lt(count.symbol, depth), shared, self.work.after),)
        else:
            pieces = Pieces(low, high, first.symbol, count.symbol, depth, slot=tile)
            finish = pieces.finish(e, self.owner, self.reduction, self.work.after)
        piece = (count, *self.work.part(ACCUMULATE, count.symbol, finish))
        return (first, If(Lt(first.symbol, depth), piece))

    def _share(self, e: KernelEditor) -> Expr:
        """Iterations of a piece; the last piece of a tile may have fewer."""
        share = ceil_div(self.work.depth, self.splits)
        return e.parameter("share", share, note="iterations of a piece")
