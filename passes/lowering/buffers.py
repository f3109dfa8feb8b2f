"""Operations on tiles as loops over the elements of buffers, clipped where tensors end.

How much of a tile lies inside a tensor comes from the coordinates: the extent less the place of
the tile's first element. Loops are clipped to it, so that their bodies need no guard; only what
fills a register block up is zeroed.
"""

from __future__ import annotations

from dataclasses import dataclass

from sympy import Eq, Expr, Integer

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
from coordgraph.control.operations import Assign, Body, For, If, Operation, Scope
from coordgraph.coordinates.graph import CoordinateEditor
from coordgraph.coordinates.traverse import Direction, solve
from coordgraph.integers import Minimum, ceil_div, index_symbol
from passes.lowering.blocking import ACCUMULATOR, Block

__all__ = ["Buffers"]

ELEMENT = "element"
"""The fragment of one element that passes through a register."""


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

    def zero(self, scope: Scoped) -> Operation:
        """Clear the accumulator, padding too."""
        known, rows, columns = self._axes(scope, "D")
        fill: Operation = FillElements(ACCUMULATOR)
        for dim in ("block.column", "block.row"):
            fill = For(dim, Integer(0), Integer(self.c[dim].fixed_size), body=(fill,))
        return Scope("zero", (*known, rows.blocks(columns.blocks(fill))))

    def pack(self, tensor: str, scope: Scoped) -> Operation:
        """Copy a tile of A or B into its buffer; the rest of its last block becomes zero."""
        name, across, along = ("rows", 0, 1) if tensor == "A" else ("columns", 1, 0)
        extent, depth = (
            _assign(name, tensor, across, scope),
            _assign("depth", tensor, along, scope),
        )
        axis = self._axis(name, extent.symbol)
        steps = For("block.k", Integer(0), depth.symbol)
        copy = CopyElements(tensor, f"{tensor}.shared")
        fill = FillElements(f"{tensor}.shared")
        # The innermost loop runs along the tensor's contiguous axis.
        if self.gemm.transpose_a if tensor == "A" else not self.gemm.transpose_b:
            body: Body = (steps.with_body(axis.elements(copy), axis.padding(fill)),)
        else:
            body = (
                axis.elements(steps.with_body(copy)),
                axis.padding(steps.with_body(fill)),
            )
        return Scope(f"pack {tensor}", (extent, depth, axis.blocks(*body)))

    def multiply(self, scope: Scoped) -> Operation:
        """The product of the packed tiles, block by block."""
        known, rows, columns = self._axes(scope, "D")
        depth = _assign("depth", "A", 1, scope)
        steps = For("block.k", Integer(0), depth.symbol)
        blocks = self.block.multiply(self.c, steps, self.instruction)
        return Scope("multiply", (*known, depth, columns.blocks(rows.blocks(*blocks))))

    def epilogue(self, tensor: str, scope: Scoped) -> Body:
        """`acc = alpha·acc + beta·C`."""
        scale = self._update("scale", scope, "D", ScaleFragment(ELEMENT, (), "alpha"))
        add = AccumulateFragment(ELEMENT, tensor, (), scale="beta")
        read = If(Eq(index_symbol("read_c"), 1), (self._update("add C", scope, "D", add),))
        return (scale, read)

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

    def _update(self, name: str, scope: Scoped, tensor: str, op: Operation) -> Operation:
        """Every element of the accumulator through a register, where `op` changes it."""
        load, store = LoadFragment(ELEMENT, ACCUMULATOR, ()), StoreFragment(ELEMENT, ACCUMULATOR, ())
        return self._each(name, scope, tensor, load, op, store)

    def _each(self, name: str, scope: Scoped, tensor: str, *body: Operation) -> Operation:
        """`body` for every element of the output tile that is inside the tensor, row by row."""
        known, rows, columns = self._axes(scope, tensor)
        row = columns.blocks(columns.elements(*body))
        return Scope(name, (*known, rows.blocks(rows.elements(row))))

    def _axes(self, scope: Scoped, tensor: str) -> tuple[Body, _Axis, _Axis]:
        """Rows and columns of the output tile, and the assignments that say how many there are."""
        rows, columns = _assign("rows", tensor, 0, scope), _assign("columns", tensor, 1, scope)
        axes = self._axis("rows", rows.symbol), self._axis("columns", columns.symbol)
        return (rows, columns), *axes

    def _axis(self, name: str, extent: Expr) -> _Axis:
        if name == "rows":
            return _Axis("block.m", "block.row", self.block.rows, extent)
        return _Axis("block.n", "block.column", self.block.columns, extent)


def _assign(name: str, tensor: str, axis: int, scope: Scoped) -> Assign:
    """Name how many elements of the tile at hand are inside a tensor; fewer than 1 where none."""
    index, whole = f"{tensor}.index.{axis}", f"{tensor}.{axis}"
    coordinates = scope.coordinates
    size, extent = coordinates.size(index), coordinates.size(whole)
    assert size is not None
    assert extent is not None
    known = {
        dim: value if value.is_Integer else coordinates.symbol(dim)
        for dim, value in scope.known.items()
    }
    try:
        start = {**known, index: Integer(0)}
        found = solve(coordinates, Direction.REVERSE, start, [whole], scope.ranges)
    except NoPath:
        # Which tile it is will be known only later: take all of it.
        return Assign(f"tile.{name}", size)
    return Assign(f"tile.{name}", Minimum(size, extent - found.values[0]))
