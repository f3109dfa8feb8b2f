"""Lowering of operations on tiles to loops over elements of buffers, clipped to the tensors.

The tile numbers are set once around all operations on a tile. Along an axis, the number of a tile's
elements that are inside a tensor is the tensor's extent minus the position of the tile's first
element, and at most the tile's extent. Loops end there, so their bodies need no bounds check. In a
buffer, only the padding in the last register block is filled with zeros.
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
from coordgraph.epilogue import Output
from coordgraph.gemm import PART_COLUMN, GemmProblem
from coordgraph.integers import ceil_div, index_symbol, minimum, operands
from coordgraph.tilings import Tiling
from passes.kit.reduce_scatter import SHARE, cut_otherwise
from passes.lowering.control import applied, at, read_if, stages, unrolled
from passes.lowering.host.blocking import ACCUMULATOR, Block

__all__ = ["Buffers"]

ELEMENT = "element"
"""The name of a register fragment of one element, which is loaded from a buffer, changed and
stored again."""
EXTENTS = {"m": "tile.rows", "n": "tile.columns", "k": "tile.depth", "t": "tile.parts"}
"""For each axis, the name of the variable that holds the number of the current tile's elements,
along the axis, that are inside the tensor."""


@dataclass(frozen=True)
class _Axis:
    """An axis of an output tile, divided into register blocks.

    Args:
        block: the coordinate that numbers the blocks along the axis.
        inside: the coordinate that numbers the elements of a block along the axis.
        step: elements of a block along the axis.
        extent: number of the tile's elements along the axis that are inside the tensor.
        only: the number of the single block to compute, if the operation is on a share of the tile;
            None for all blocks.
    """

    block: str
    inside: str
    step: int
    extent: Expr
    only: Expr | None = None

    @property
    def here(self) -> Expr:
        """Number of elements of the current register block, along the axis, inside the tensor."""
        return minimum(Integer(self.step), self.extent - self.step * index_symbol(self.block))

    def blocks(self, *body: Operation) -> Operation:
        """A loop over the register blocks that have an element inside the tensor."""
        blocks = ceil_div(self.extent, Integer(self.step))
        if self.only is not None:
            return If(Lt(self.only, blocks), (SetCoordinate(self.block, self.only, body),))
        return For(self.block, Integer(0), blocks, body=body)

    def elements(self, *body: Operation) -> Operation:
        """A loop over the elements of a register block that are inside the tensor."""
        return For(self.inside, Integer(0), self.here, body=body)

    def padding(self, *body: Operation) -> Operation:
        """A loop over the elements of a register block that are past the end of the tensor."""
        return For(self.inside, self.here, Integer(self.step), body=body)


@dataclass(frozen=True)
class _Piece:
    """A lowered operation, and the tensors whose tile numbers it needs.

    Args:
        tensors: names of these tensors; () for an operation that is not on tiles.
        op: the operation.
    """

    tensors: tuple[str, ...]
    op: Operation


@dataclass(frozen=True)
class Buffers:
    """Lowers the operations on tiles of one shape to loops over the buffers of a workgroup.

    Args:
        c: the coordinate graph under construction.
        gemm: the matrix product: element types, extents, layouts and epilogue.
        block: the register block for tiles of this shape.
        tiling: the tiles of A, B and D of one shape, and their dimensions.
        instruction: the name of the multiply-add instruction.
        share: whether the operations are on a share of a tile in a reduce-scatter: one row of
            register blocks.
    """

    c: CoordinateEditor
    gemm: GemmProblem
    block: Block
    tiling: Tiling
    instruction: str
    share: bool = False

    def cut_tiles(self) -> None:
        """Divide tiles into shares for a `scatter` reduction: a share is a row of register blocks.

        In this reduction, each workgroup with partial sums of a tile executes the epilogue of some
        of the tile's shares.
        """
        cut_otherwise(self.c, self.c[self.tiling.own("block.m")].fixed_size)

    def lower(self, body: Body, scope: Scoped) -> Iterator[Operation]:
        """Lower operations that run one after another, and yield the lowered operations.

        Operations that are not on tiles are yielded unchanged.

        Args:
            body: the operations to lower.
            scope: the coordinates and variables that are known where `body` runs.
        """
        here = replace(self, share=SHARE in scope.known)
        pieces = [piece for op in body for piece in here._pieces(op)]
        for on_tiles, group in groupby(pieces, lambda piece: bool(piece.tensors)):
            run = tuple(group)
            if on_tiles:
                yield _within(scope, self.tiling, self.gemm, run)
            else:
                yield from (piece.op for piece in run)

    def _pieces(self, op: Operation) -> tuple[_Piece, ...]:
        """The lowered operations that replace one operation."""
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
                return (self._each(f"store {op.tensor}", op.tensor, self._first(copy)),)
            case SendPartial():
                copy = CopyElements(self._total, "partials")
                signal = SignalFlag("flags", op.turn, op.readers)
                return (self._each("send", "D", self._sums(copy)), _Piece((), signal))
            case ReceivePartial():
                wait = _Piece((), WaitFlag("flags", op.turn))
                return (wait, self._add_partial(), _Piece((), ClearFlag("flags")))
            case AddPartial():
                return (self._add_partial(),)
            case AccumulatePartial():
                load = LoadFragment(ELEMENT, self._total, ())
                add = ReduceFragment(ELEMENT, "partials", ())
                send = self._each("send", "D", self._sums(load, add))
                return (send, _Piece((), RaiseFlag("flags")))
            case CollectPartial():
                wait = _Piece((), WaitFlag("flags", senders=op.senders))
                clear = self._each("clear", "D", self._sums(FillElements("partials")))
                return (wait, self._add_partial(), clear, _Piece((), ClearFlag("flags")))
            case _:
                return (_Piece((), op),)

    def _zero(self) -> _Piece:
        """The operations that set the accumulator buffer, including its padding, to 0."""
        fill: Operation = FillElements(self._total)
        for dim in map(self.tiling.own, (*self.block.inside[::-1], "block.row")):
            fill = For(dim, Integer(0), Integer(self.c[dim].fixed_size), body=(fill,))
        body = self._rows.blocks(self._columns.blocks(fill))
        return _Piece(("D",), Scope("zero", (body,)))

    def _pack(self, tensor: str) -> _Piece:
        """The copy of a tile of A or B to its buffer; padding of register blocks becomes 0."""
        axis = self._rows if tensor == "A" else self._columns
        buffer, depth = self.tiling.own(f"{tensor}.shared"), self._depth
        copy, fill = CopyElements(tensor, buffer), FillElements(buffer)
        # The innermost loop runs along the contiguous axis of the tensor.
        if self.gemm.transpose_a if tensor == "A" else not self.gemm.transpose_b:
            body = (depth.with_body(axis.elements(copy), axis.padding(fill)),)
        else:
            body = (axis.elements(depth.with_body(copy)), axis.padding(depth.with_body(fill)))
        body = self._sums(*body) if tensor == "B" else body
        return _Piece((tensor,), Scope(f"pack {tensor}", (axis.blocks(*body),)))

    def _multiply(self) -> _Piece:
        """The product of the tiles of A and B in the buffers, by register blocks of D."""
        block = self.block.multiply(self.c, self.tiling, self._depth, self.instruction)
        body = self._columns.blocks(self._rows.blocks(*block))
        return _Piece(("A", "B"), Scope("multiply", (body,)))

    def _add_partial(self) -> _Piece:
        """The addition of another workgroup's partial sums in the workspace to the accumulator."""
        add = AccumulateFragment(ELEMENT, "partials", ())
        return self._each("receive", "D", self._sums(*self._updated(add)))

    def _epilogue(self, op: Epilogue) -> tuple[_Piece, ...]:
        """Lower an epilogue: each of its stages loops over all elements of the tile."""
        pieces: list[_Piece] = []
        for stage in stages(self.gemm, op):
            sums = (self._part,) if len(stage.function.sums) > 1 else ()
            apply = applied(self.gemm, stage, ELEMENT, sums, part="".join(sums))
            reduced = [output for output in stage.function.outputs if output.reduce]
            pieces += (self._start(output) for output in reduced)
            load, *rest = self._updated(apply, sums)
            # If the stage does not store D, nothing reads the accumulator afterwards, so the
            # operation that stores the changed element back to the buffer is left out.
            rest = rest if stage.function.stores_d else rest[:-1]
            loads = unrolled(self.c, sums, load) if sums else self._first(load)[0]
            body: Body = (loads, *self._first(*rest))
            # In a tile, an output that reduces rows has one column, which all columns of D share.
            columns = {self.tiling.index(output.name, 1): 0 for output in reduced}
            body = (at(columns, *body),) if columns else body
            piece = self._each("epilogue", "D", body)
            tensors = ("D", *(t for t in (*apply.sources, *apply.stores) if self.gemm.axes[t]))
            pieces.append(_Piece(tensors, read_if(stage, piece.op)))
        return tuple(pieces)

    def _start(self, output: Output) -> _Piece:
        """Set an output that reduces rows to its neutral element, such as 0 for a sum.

        The output has one element for each row of a tile. The epilogue then combines it with the
        row's values, in ascending order of columns.
        """
        fill = FillElements(output.name, reduce=output.reduce)
        column = at({self.tiling.index(output.name, 1): 0}, fill)
        body = self._rows.blocks(self._rows.elements(column))
        return _Piece(("D", output.name), Scope(f"start {output.name}", (body,)))

    @property
    def _part(self) -> str:
        """The coordinate that numbers the sums of products (gate, up) of an element of D."""
        return self.tiling.own("block.vector")

    def _sums(self, *body: Operation) -> Body:
        """Operations that execute `body` once for each sum of an element of D."""
        if self.tiling.sums == 1:
            return body
        return (For(self._part, Integer(0), Integer(self.tiling.sums), body=body),)

    def _first(self, *body: Operation) -> Body:
        """Operations that execute `body` once for an element of D, at its first sum.

        The result of the epilogue replaces the first sum.
        """
        return body if self.tiling.sums == 1 else (at({self._part: 0}, *body),)

    @property
    def _total(self) -> str:
        """The coordinate of the buffer that holds the accumulators of the output tile."""
        return self.tiling.own(ACCUMULATOR)

    @property
    def _depth(self) -> For:
        """The loop over the k elements of the current tile that are inside the tensors."""
        return For(self.tiling.own("block.k"), Integer(0), index_symbol("tile.depth"))

    @property
    def _rows(self) -> _Axis:
        """The rows of the output tile in register blocks; one block in a reduce-scatter."""
        rows = self._axis("block.m", "block.row", self.block.rows, "tile.rows")
        return replace(rows, only=index_symbol(SHARE)) if self.share else rows

    @property
    def _columns(self) -> _Axis:
        """The columns of the output tile in register blocks."""
        inside, width = self.block.inside[-1], self.block.columns
        return self._axis("block.n", inside, width, "tile.columns")

    def _axis(self, block: str, inside: str, step: int, extent: str) -> _Axis:
        """An axis of the output tile; adds this tile shape's prefix to the names of coordinates.

        Args:
            block: the coordinate that numbers the blocks along the axis.
            inside: the coordinate that numbers the elements of a block along the axis.
            step: elements of a block along the axis.
            extent: the variable that holds the number of the tile's elements that are inside the
                tensor.
        """
        return _Axis(self.tiling.own(block), self.tiling.own(inside), step, index_symbol(extent))

    def _updated(self, op: Operation, registers: tuple[str, ...] = ()) -> Body:
        """Load an element of the accumulator buffer, change it by `op`, and store it back.

        Args:
            op: the operation on the fragment of one element.
            registers: the coordinates that number the fragment's registers.
        """
        load = LoadFragment(ELEMENT, self._total, registers)
        return load, op, StoreFragment(ELEMENT, self._total, registers)

    def _each(self, name: str, tensor: str, body: Body) -> _Piece:
        """Run `body` for every element of the output tile that is inside a tensor, row by row.

        Args:
            name: the name of the scope around the loops.
            tensor: the tensor whose extents bound the loops.
            body: the operations on one element of D, and on all its sums.
        """
        row = self._columns.blocks(self._columns.elements(*body))
        return _Piece((tensor,), Scope(name, (self._rows.blocks(self._rows.elements(row)),)))


def _within(
    scope: Scoped, tiling: Tiling, gemm: GemmProblem, pieces: tuple[_Piece, ...]
) -> Operation:
    """Set tile numbers around lowered operations, and skip tiles that are entirely padding.

    Args:
        scope: the coordinates that are known where the operations run.
        tiling: the tiles of A, B and D of one shape, and their dimensions.
        gemm: the matrix product: element types, extents, layouts and epilogue.
        pieces: the lowered operations, with the tensors whose tile numbers they need.
    """
    coordinates = scope.coordinates
    tensors = dict.fromkeys(t for piece in pieces for t in piece.tensors)
    axes = [(t, i) for t in tensors for i in range(len(gemm.axes[t]))]
    named = {(t, i): EXTENTS[gemm.axes[t][i]] for t, i in axes}
    sizes = {named[at]: coordinates.size(tiling.index(*at)) for at in axes}
    body = tuple(_unless_empty(pieces, gemm))
    known = {
        dim: value if value.is_Integer else coordinates.symbol(dim)
        for dim, value in scope.known.items()
    }
    tiles = [tiling.number(t, axis) for t, axis in axes]
    try:
        found = solve(coordinates, Direction.REVERSE, known, tiles, scope.ranges)
    except NoPath:
        # The indices in `scope` do not say which tile is meant, so loops run over a whole tile.
        whole = (Assign(name, size) for name, size in sizes.items() if size is not None)
        return Scope("tile", (*whole, *(piece.op for piece in pieces)))
    assigns: list[Operation] = []
    for (t, axis), tile in zip(axes, tiles, strict=True):
        name = named[t, axis]
        if sizes.pop(name, None) is not None:
            assigns.append(Assign(name, _inside(scope, t, axis, tile, tiling.index(t, axis))))
    body = (*assigns, *body)
    # Several tensors have the same tile numbers, so each number is computed once and read by name.
    names: dict[Expr, Expr] = {}
    bound: list[tuple[str, Expr]] = []
    for tile, value in zip(tiles, found.values, strict=True):
        bound.append((tile, names.get(value, value)))
        names.setdefault(value, coordinates.symbol(tile))
    for tile, value in reversed(bound):
        body = (SetCoordinate(tile, value, body),)
    return Scope("tile", body if found.guard == true else (If(found.guard, body),))


def _unless_empty(pieces: tuple[_Piece, ...], gemm: GemmProblem) -> Iterator[Operation]:
    """Yield the lowered operations, each in an `If` that skips tiles past a tensor's end."""
    for tensors, group in groupby(pieces, lambda piece: piece.tensors):
        axes = dict.fromkeys(EXTENTS[axis] for t in tensors for axis in gemm.axes[t])
        some = And(*(Lt(Integer(0), index_symbol(name)) for name in axes))
        yield If(some, tuple(piece.op for piece in group))


def _inside(scope: Scoped, tensor: str, axis: int, tile: str, index: str) -> Expr:
    """Expression for the number of elements of a tile, along an axis, that are inside the tensor.

    The number is negative for a tile that begins past the end of the tensor: a graph may have more
    tiles than the tensor needs.

    Args:
        scope: the coordinates that are known where the operations on the tile run.
        tensor, axis: the name of a tensor, and the number of its axis.
        tile, index: the coordinates that number the tiles along the axis, and the elements of a
            tile.

    Raises:
        PassError: the condition that an element is inside the tensor cannot be written as an upper
            bound of `index`.
    """
    coordinates = scope.coordinates
    # The indices that an enclosing `Locate` computed are symbols here; the other indices on the
    # path to the axis are computed from `tile` and `index`.
    located = {dim for dim, value in scope.known.items() if value == coordinates.symbol(dim)}
    known = [*(located - {tile, index}), tile, index]
    whole = f"{tensor}.{axis}"
    if (tensor, axis) == ("B", 1) and PART_COLUMN in coordinates:
        whole = PART_COLUMN
    found = solve(coordinates, Direction.REVERSE, known, [whole])
    symbol = coordinates.symbol(index)
    ends: list[Expr] = []
    for part in operands(found.guard) if isinstance(found.guard, And) else (found.guard,):
        if symbol in part.free_symbols:
            left, right = operands(part)
            first = (right - left).xreplace({symbol: Integer(0)})
            if not isinstance(part, Lt) or (right - left + symbol - first).expand() != 0:
                raise PassError(
                    f"loops over '{index}' cannot be clipped to the condition {part}, which is no "
                    f"upper bound of '{index}'; connect axis {axis} of {tensor} by edges whose "
                    "guards are upper bounds"
                )
            ends.append(first.expand())
    size = coordinates.size(index)
    assert size is not None
    return reduce(minimum, ends, size)
