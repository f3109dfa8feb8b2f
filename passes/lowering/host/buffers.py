"""Operations on tiles as loops over the elements of buffers, clipped where tensors end.

Around the operations on one tile its numbers are bound once. How much of the tile lies inside the
tensor is the extent less the place of its first element; loops are clipped to that, so their bodies
need no guard. Only what fills a register block up is zeroed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce
from itertools import groupby

from sympy import Expr, Integer, Lt
from sympy.logic.boolalg import And, true

from coordgraph import NoPath, PassError
from coordgraph.control import Scoped
from coordgraph.control.lowered import (
    AccumulateFragment,
    ClearFlag,
    CopyElements,
    FillElements,
    LoadFragment,
    RaiseFlag,
    ReduceFragment,
    SignalFlag,
    StoreFragment,
    WaitFlag,
)
from coordgraph.control.operations import (
    AccumulatePartial,
    AddPartial,
    Assign,
    Body,
    CollectPartial,
    Epilogue,
    For,
    If,
    InitAccumulator,
    LoadTile,
    MultiplyAccumulate,
    Operation,
    ReceivePartial,
    Scope,
    SendPartial,
    SetCoordinate,
    StoreTile,
)
from coordgraph.coordinates.graph import CoordinateEditor
from coordgraph.coordinates.traverse import Direction, solve
from coordgraph.gemm import GemmProblem
from coordgraph.integers import ceil_div, index_symbol, minimum, operands
from coordgraph.tilings import Tiling
from passes.kit.reduce_scatter import SHARE, cut_otherwise
from passes.lowering.control import applied, read_if, stages
from passes.lowering.host.blocking import ACCUMULATOR, Block

__all__ = ["Buffers"]

ELEMENT = "element"
"""The fragment of one element that passes through a register."""
EXTENTS = {"m": "tile.rows", "n": "tile.columns", "k": "tile.depth"}
"""What is named along each axis: how many elements of the tile at hand are inside."""


@dataclass(frozen=True)
class _Axis:
    """An axis of the output tile in blocks: `extent` elements of it are inside the tensor."""

    block: str
    inside: str
    step: int
    extent: Expr
    only: Expr | None = None
    """The one block to take, where a share of the tile is worked on."""

    @property
    def here(self) -> Expr:
        """How many elements of the block at hand are inside."""
        return minimum(Integer(self.step), self.extent - self.step * index_symbol(self.block))

    def blocks(self, *body: Operation) -> Operation:
        """Over the blocks with an element inside."""
        blocks = ceil_div(self.extent, Integer(self.step))
        if self.only is not None:
            return If(Lt(self.only, blocks), (SetCoordinate(self.block, self.only, body),))
        return For(self.block, Integer(0), blocks, body=body)

    def elements(self, *body: Operation) -> Operation:
        """Over the elements of a block that are inside."""
        return For(self.inside, Integer(0), self.here, body=body)

    def padding(self, *body: Operation) -> Operation:
        """Over the others."""
        return For(self.inside, self.here, Integer(self.step), body=body)


@dataclass(frozen=True)
class _Piece:
    """A lowered operation, and the tensors whose tiles must be bound around it."""

    tensors: tuple[str, ...]
    op: Operation


@dataclass(frozen=True)
class Buffers:
    """The buffers of a workgroup: what becomes of each operation on tiles of one shape."""

    c: CoordinateEditor
    gemm: GemmProblem
    block: Block
    tiling: Tiling
    instruction: str
    share: bool = False
    """The operations are on a share of a tile: one row of blocks."""

    def cut_tiles(self) -> None:
        """Cut tiles into shares of a row of blocks."""
        cut_otherwise(self.c, self.c[self.tiling.own("block.m")].fixed_size)

    def lower(self, body: Body, scope: Scoped) -> Iterator[Operation]:
        """Operations in a row, those on tiles lowered; what is no operation on tiles stays."""
        here = replace(self, share=SHARE in scope.known)
        pieces = [piece for op in body for piece in here._pieces(op)]
        for on_tiles, group in groupby(pieces, lambda piece: bool(piece.tensors)):
            run = tuple(group)
            if on_tiles:
                yield _within(scope, self.tiling, self.gemm, run)
            else:
                yield from (piece.op for piece in run)

    def _pieces(self, op: Operation) -> tuple[_Piece, ...]:
        match op:
            case InitAccumulator():
                return (self._zero(),)
            case LoadTile():
                return (self._pack(op.tensor),)
            case MultiplyAccumulate():
                return (self._multiply(),)
            case Epilogue():
                return self._epilogue(op)
            case StoreTile():
                copy = CopyElements(self._total, op.tensor)
                return (self._each(f"store {op.tensor}", op.tensor, copy),)
            case SendPartial():
                copy = CopyElements(self._total, "partials")
                signal = SignalFlag("flags", op.turn, op.readers)
                return (self._each("send", "D", copy), _Piece((), signal))
            case ReceivePartial():
                wait = _Piece((), WaitFlag("flags", op.turn))
                return (wait, self._add_partial(), _Piece((), ClearFlag("flags")))
            case AddPartial():
                return (self._add_partial(),)
            case AccumulatePartial():
                load = LoadFragment(ELEMENT, self._total, ())
                add = ReduceFragment(ELEMENT, "partials", ())
                return (self._each("send", "D", load, add), _Piece((), RaiseFlag("flags")))
            case CollectPartial():
                wait = _Piece((), WaitFlag("flags", senders=op.senders))
                clear = self._each("clear", "D", FillElements("partials"))
                return (wait, self._add_partial(), clear, _Piece((), ClearFlag("flags")))
            case _:
                return (_Piece((), op),)

    def _zero(self) -> _Piece:
        """Clear the accumulator, padding too."""
        fill: Operation = FillElements(self._total)
        for dim in map(self.tiling.own, ("block.column", "block.row")):
            fill = For(dim, Integer(0), Integer(self.c[dim].fixed_size), body=(fill,))
        body = self._rows.blocks(self._columns.blocks(fill))
        return _Piece(("D",), Scope("zero", (body,)))

    def _pack(self, tensor: str) -> _Piece:
        """Copy a tile of A or B into its buffer; the rest of its last block becomes zero."""
        axis = self._rows if tensor == "A" else self._columns
        buffer, depth = self.tiling.own(f"{tensor}.shared"), self._depth
        copy, fill = CopyElements(tensor, buffer), FillElements(buffer)
        # The innermost loop runs along the tensor's contiguous axis.
        if self.gemm.transpose_a if tensor == "A" else not self.gemm.transpose_b:
            body = (depth.with_body(axis.elements(copy), axis.padding(fill)),)
        else:
            body = (axis.elements(depth.with_body(copy)), axis.padding(depth.with_body(fill)))
        return _Piece((tensor,), Scope(f"pack {tensor}", (axis.blocks(*body),)))

    def _multiply(self) -> _Piece:
        """The product of the packed tiles, block by block."""
        block = self.block.multiply(self.c, self.tiling, self._depth, self.instruction)
        body = self._columns.blocks(self._rows.blocks(*block))
        return _Piece(("A", "B"), Scope("multiply", (body,)))

    def _add_partial(self) -> _Piece:
        """Add what another workgroup has left."""
        return self._update("receive", "D", AccumulateFragment(ELEMENT, "partials", ()))

    def _epilogue(self, op: Epilogue) -> tuple[_Piece, ...]:
        """Every stage on all elements, one after another."""
        pieces: list[_Piece] = []
        for stage in stages(self.gemm, op):
            apply = applied(self.gemm, stage, ELEMENT, ())
            piece = self._update("epilogue", "D", apply)
            tensors = ("D", *(t for t in apply.sources if self.gemm.axes[t]))
            pieces.append(_Piece(tensors, read_if(stage, piece.op)))
        return tuple(pieces)

    @property
    def _total(self) -> str:
        """The buffer of the sums."""
        return self.tiling.own(ACCUMULATOR)

    @property
    def _depth(self) -> For:
        """The loop along k inside the tile at hand."""
        return For(self.tiling.own("block.k"), Integer(0), index_symbol("tile.depth"))

    @property
    def _rows(self) -> _Axis:
        rows = self._axis("block.m", "block.row", self.block.rows, "tile.rows")
        return replace(rows, only=index_symbol(SHARE)) if self.share else rows

    @property
    def _columns(self) -> _Axis:
        return self._axis("block.n", "block.column", self.block.columns, "tile.columns")

    def _axis(self, block: str, inside: str, step: int, extent: str) -> _Axis:
        return _Axis(self.tiling.own(block), self.tiling.own(inside), step, index_symbol(extent))

    def _update(self, name: str, tensor: str, op: Operation) -> _Piece:
        """Every element of the accumulator through a register, where `op` changes it."""
        load = LoadFragment(ELEMENT, self._total, ())
        store = StoreFragment(ELEMENT, self._total, ())
        return self._each(name, tensor, load, op, store)

    def _each(self, name: str, tensor: str, *body: Operation) -> _Piece:
        """`body` for every element of the output tile that is inside a tensor, row by row."""
        row = self._columns.blocks(self._columns.elements(*body))
        return _Piece((tensor,), Scope(name, (self._rows.blocks(self._rows.elements(row)),)))


def _within(
    scope: Scoped, tiling: Tiling, gemm: GemmProblem, pieces: tuple[_Piece, ...]
) -> Operation:
    """Pieces where the numbers of their tiles are bound, left out where the tile is padding."""
    coordinates = scope.coordinates
    tensors = dict.fromkeys(t for piece in pieces for t in piece.tensors)
    axes = [(t, i) for t in tensors for i in range(len(gemm.axes[t]))]
    named = {(t, i): EXTENTS[gemm.axes[t][i]] for t, i in axes}
    sizes = {named[at]: coordinates.size(tiling.index(*at)) for at in axes}
    body = tuple(piece.op for piece in pieces)
    known = {
        dim: value if value.is_Integer else coordinates.symbol(dim)
        for dim, value in scope.known.items()
    }
    tiles = [tiling.number(t, axis) for t, axis in axes]
    try:
        found = solve(coordinates, Direction.REVERSE, known, tiles, scope.ranges)
    except NoPath:
        # Which tile it is will be known only later: take all of it.
        whole = (Assign(name, size) for name, size in sizes.items() if size is not None)
        return Scope("tile", (*whole, *body))
    assigns: list[Operation] = []
    for (t, axis), tile in zip(axes, tiles, strict=True):
        name = named[t, axis]
        if sizes.pop(name, None) is not None:
            assigns.append(Assign(name, _inside(scope, t, axis, tile, tiling.index(t, axis))))
    body = (*assigns, *body)
    # Tensors share tile numbers: what has a name already is not worked out again.
    names: dict[Expr, Expr] = {}
    bound: list[tuple[str, Expr]] = []
    for tile, value in zip(tiles, found.values, strict=True):
        bound.append((tile, names.get(value, value)))
        names.setdefault(value, coordinates.symbol(tile))
    for tile, value in reversed(bound):
        body = (SetCoordinate(tile, value, body),)
    return Scope("tile", body if found.guard == true else (If(found.guard, body),))


def _inside(scope: Scoped, tensor: str, axis: int, tile: str, index: str) -> Expr:
    """How many elements of a tile along an axis, from the first on, the guard lets through."""
    coordinates = scope.coordinates
    # What is located here keeps its symbol; what is not comes from the tile's number.
    located = {dim for dim, value in scope.known.items() if value == coordinates.symbol(dim)}
    known = [*(located - {tile, index}), tile, index]
    found = solve(coordinates, Direction.REVERSE, known, [f"{tensor}.{axis}"])
    symbol = coordinates.symbol(index)
    ends: list[Expr] = []
    for part in operands(found.guard) if isinstance(found.guard, And) else (found.guard,):
        if symbol in part.free_symbols:
            left, right = operands(part)
            first = (right - left).xreplace({symbol: Integer(0)})
            if not isinstance(part, Lt) or (right - left + symbol - first).expand() != 0:
                raise PassError(f"loops over '{index}' cannot be clipped to {part}")
            ends.append(first.expand())
    size = coordinates.size(index)
    assert size is not None
    return reduce(minimum, ends, size)
