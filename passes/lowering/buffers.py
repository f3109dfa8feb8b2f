"""Operations on tiles as loops over the elements of buffers, clipped where tensors end.

The number of the tile is bound once around the loops. How much of the tile lies inside the tensor
is the extent less the place of its first element; loops are clipped to that, so their bodies need
no guard. Only what fills a register block up is zeroed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sympy import Eq, Expr, Integer
from sympy.logic.boolalg import true

from coordgraph import Gemm, NoPath
from coordgraph.control import Scoped
from coordgraph.control.lowered import (
    AccumulateFragment,
    ClearFlag,
    CopyElements,
    FillElements,
    LoadFragment,
    ScaleFragment,
    SignalFlag,
    StoreFragment,
    WaitFlag,
)
from coordgraph.control.operations import (
    Assign,
    Body,
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
from coordgraph.integers import Minimum, ceil_div, index_symbol
from passes.lowering.blocking import ACCUMULATOR, Block

__all__ = ["Buffers"]

ELEMENT = "element"
"""The fragment of one element that passes through a register."""
LEFT = {"tile.rows": ("A", 0), "tile.depth": ("A", 1)}
RIGHT = {"tile.depth": ("B", 0), "tile.columns": ("B", 1)}
OUTPUT = {"tile.rows": ("D", 0), "tile.columns": ("D", 1)}
"""How much of a tile is inside: name to tensor and axis."""
DEPTH = For("block.k", Integer(0), index_symbol("tile.depth"))


@dataclass(frozen=True)
class _Axis:
    """An axis of the output tile in blocks: `extent` elements of it are inside the tensor."""

    block: str
    inside: str
    step: int
    extent: Expr

    @property
    def here(self) -> Expr:
        """How many elements of the block at hand are inside."""
        return Minimum(Integer(self.step), self.extent - self.step * index_symbol(self.block))

    def blocks(self, *body: Operation) -> Operation:
        """Over the blocks with an element inside."""
        return For(self.block, Integer(0), ceil_div(self.extent, Integer(self.step)), body=body)

    def elements(self, *body: Operation) -> Operation:
        """Over the elements of a block that are inside."""
        return For(self.inside, Integer(0), self.here, body=body)

    def padding(self, *body: Operation) -> Operation:
        """Over the others."""
        return For(self.inside, self.here, Integer(self.step), body=body)


@dataclass(frozen=True)
class Buffers:
    """The buffers of a workgroup: what becomes of each operation on tiles."""

    c: CoordinateEditor
    gemm: Gemm
    block: Block
    instruction: str

    def lower(self, op: Operation, scope: Scoped) -> Body:
        """What becomes of an operation on tiles; any other stays."""
        match op:
            case InitAccumulator():
                return (self.zero(scope),)
            case LoadTile():
                return (self.pack(op.tensor, scope),)
            case MultiplyAccumulate():
                return (self.multiply(scope),)
            case SendPartial():
                return self.send(scope)
            case ReceivePartial():
                return self.receive(scope)
            case Epilogue():
                return self.epilogue(op.tensor, scope)
            case StoreTile():
                return (self.store(op.tensor, scope),)
            case _:
                return (op,)

    def zero(self, scope: Scoped) -> Operation:
        """Clear the accumulator, padding too."""
        fill: Operation = FillElements(ACCUMULATOR)
        for dim in ("block.column", "block.row"):
            fill = For(dim, Integer(0), Integer(self.c[dim].fixed_size), body=(fill,))
        return _within("zero", scope, OUTPUT, self._rows.blocks(self._columns.blocks(fill)))

    def pack(self, tensor: str, scope: Scoped) -> Operation:
        """Copy a tile of A or B into its buffer; the rest of its last block becomes zero."""
        axis, extents = (self._rows, LEFT) if tensor == "A" else (self._columns, RIGHT)
        copy = CopyElements(tensor, f"{tensor}.shared")
        fill = FillElements(f"{tensor}.shared")
        # The innermost loop runs along the tensor's contiguous axis.
        if self.gemm.transpose_a if tensor == "A" else not self.gemm.transpose_b:
            body = (DEPTH.with_body(axis.elements(copy), axis.padding(fill)),)
        else:
            body = (axis.elements(DEPTH.with_body(copy)), axis.padding(DEPTH.with_body(fill)))
        return _within(f"pack {tensor}", scope, extents, axis.blocks(*body))

    def multiply(self, scope: Scoped) -> Operation:
        """The product of the packed tiles, block by block."""
        block = self.block.multiply(self.c, DEPTH, self.instruction)
        body = self._columns.blocks(self._rows.blocks(*block))
        return _within("multiply", scope, {**LEFT, **RIGHT}, body)

    def epilogue(self, tensor: str, scope: Scoped) -> Body:
        """`acc = alpha·acc + beta·C`."""
        scale = self._update("scale", scope, "D", ScaleFragment(ELEMENT, (), "alpha"))
        add = AccumulateFragment(ELEMENT, tensor, (), scale="beta")
        read = self._update(f"add {tensor}", scope, tensor, add)
        return (scale, If(Eq(index_symbol("read_c"), 1), (read,)))

    def store(self, tensor: str, scope: Scoped) -> Operation:
        """Write the accumulator to a tensor."""
        return self._each(f"store {tensor}", scope, tensor, CopyElements(ACCUMULATOR, tensor))

    def send(self, scope: Scoped) -> Body:
        """Leave the accumulator in its slot."""
        copy = CopyElements(ACCUMULATOR, "partials")
        return (self._each("send", scope, "D", copy), SignalFlag("flags"))

    def receive(self, scope: Scoped) -> Body:
        """Add a slot to the accumulator."""
        add = AccumulateFragment(ELEMENT, "partials", ())
        return (WaitFlag("flags"), self._update("receive", scope, "D", add), ClearFlag("flags"))

    @property
    def _rows(self) -> _Axis:
        return _Axis("block.m", "block.row", self.block.rows, index_symbol("tile.rows"))

    @property
    def _columns(self) -> _Axis:
        return _Axis("block.n", "block.column", self.block.columns, index_symbol("tile.columns"))

    def _update(self, name: str, scope: Scoped, tensor: str, op: Operation) -> Operation:
        """Every element of the accumulator through a register, where `op` changes it."""
        load = LoadFragment(ELEMENT, ACCUMULATOR, ())
        store = StoreFragment(ELEMENT, ACCUMULATOR, ())
        return self._each(name, scope, tensor, load, op, store)

    def _each(self, name: str, scope: Scoped, tensor: str, *body: Operation) -> Operation:
        """`body` for every element of the output tile that is inside a tensor, row by row."""
        row = self._columns.blocks(self._columns.elements(*body))
        extents = {"tile.rows": (tensor, 0), "tile.columns": (tensor, 1)}
        return _within(name, scope, extents, self._rows.blocks(self._rows.elements(row)))


def _within(
    name: str, scope: Scoped, extents: Mapping[str, tuple[str, int]], *body: Operation
) -> Operation:
    """`body` where tile numbers are bound and `extents` named, left out where the tile is padding.

    Args:
        name: of the part.
        scope: what is bound around it.
        extents: name to the tensor and axis of which it tells how much of the tile is inside.
        body: what to do.
    """
    coordinates = scope.coordinates
    known = {
        dim: value if value.is_Integer else coordinates.symbol(dim)
        for dim, value in scope.known.items()
    }
    tiles = [f"{tensor}.tile.{axis}" for tensor, axis in extents.values()]
    try:
        found = solve(coordinates, Direction.REVERSE, known, tiles, scope.ranges)
    except NoPath:
        # Which tile it is will be known only later: take all of it.
        whole = (Assign(e, _size(scope, *place)[0]) for e, place in extents.items())
        return Scope(name, (*whole, *body))
    assigns: list[Operation] = []
    for extent, (tensor, axis) in extents.items():
        size, end = _size(scope, tensor, axis)
        first = {f"{tensor}.tile.{axis}": None, f"{tensor}.index.{axis}": 0}
        (start,) = coordinates.reverse(first, [f"{tensor}.{axis}"])
        assigns.append(Assign(extent, Minimum(size, end - start)))
    body = (*assigns, *body)
    for tile, value in zip(reversed(tiles), reversed(found.values), strict=True):
        body = (SetCoordinate(tile, value, body),)
    return Scope(name, body if found.guard == true else (If(found.guard, body),))


def _size(scope: Scoped, tensor: str, axis: int) -> tuple[Expr, Expr]:
    """The sizes of a tile and of the tensor along an axis."""
    tile = scope.coordinates.size(f"{tensor}.index.{axis}")
    whole = scope.coordinates.size(f"{tensor}.{axis}")
    assert tile is not None
    assert whole is not None
    return tile, whole
