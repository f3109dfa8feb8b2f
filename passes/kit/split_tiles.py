"""`SplitTiles`: output tiles that are split along k into pieces, one for each workgroup."""

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
"""Ids of dimensions.

PIECE: numbers the pieces (parts along k) into which a tile is split, one for each workgroup.
ACCUMULATE: the loop over the k tiles of a piece.
"""


@dataclass(frozen=True)
class SplitTiles:
    """Output tiles whose k tiles are split into equal contiguous pieces, one for each workgroup.

    A schedule that uses this class adds two dimensions. `tile` counts the split tiles, and edges
    lead from the tile numbers to `tile`. `pieces`, of size `tiles · splits`, counts the pieces of
    all tiles; it is the workgroup dimension or is connected to that dimension by edges. Then `tie`
    adds the other coordinates, and `control` returns the operations of a workgroup.

    Args:
        tile: the dimension that counts the split tiles.
        pieces: the id of the dimension that counts the pieces of all tiles. Piece number i must be
            computed by workgroup number i.
        numbers: the dimensions that number output tiles, from which edges lead to `tile`.
        work: the operations on one output tile; all tiles have equally many k tiles.
        splits: number of pieces of a tile.
        owner: the piece whose workgroup runs the epilogue, `first` or `last`; see `Pieces.finish`.
        reduction: how the partial sums of the pieces are added up; see `passes.kit.fixup`.
        fixed: indices of coordinates that are set around the operations, such as the selector of a
            `Sunder` edge, which separates a dimension into parts.
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
        """The number of output tiles that are split along k."""
        assert self.tile.size is not None
        return self.tile.size

    def tie(self, e: KernelEditor, accumulator: str) -> None:
        """Split the k tiles of each output tile into pieces, and add the workspace of the fix-up.

        Adds these edges. For reductions with one workspace slot for each tile, edges lead from
        `slot` to the tile and from `turn` to the piece, instead of the last edge::

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
        """The operations of a workgroup: the main loop of its piece of a tile, then the fix-up.

        If a tile has fewer iterations than pieces, workgroups without iterations exit at once, and
        no other workgroup waits for them.
        """
        graph, ranges, depth = e.snapshot(), e.parameters.ranges(), self.work.depth
        at = {**self.fixed, "workgroup": graph.symbol("workgroup"), ACCUMULATE: Integer(0)}
        names = [d.id for d in self.numbers]
        wanted = [*names, self.tile.id, self.work.loop.dim]
        *here, tile, k_first = graph.reverse(at, wanted, ranges)

        def holder(k: Expr) -> Expr:
            """The workgroup that computes iteration `k` of the current output tile."""
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
        """Number of iterations of a workgroup; the last workgroup of a tile may have fewer."""
        share = ceil_div(self.work.depth, self.splits)
        return e.parameter("share", share, note="iterations of a piece")
