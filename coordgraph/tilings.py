"""Tilings: which macro tiles an accumulator is summed from, and how large they are.

A kernel may cut its tensors into tiles of several shapes. Each accumulator has one: that of the
tiles that are multiplied into it. What loads, finishes and stores says which tiles it means by the
numbers that it names, so the shape is a fact of the coordinate graph and stands nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import gcd
from typing import TypeVar

from coordgraph.control.graph import ControlGraph
from coordgraph.control.operations import (
    Epilogue,
    LoadTile,
    MultiplyAccumulate,
    Operation,
    StoreTile,
)
from coordgraph.coordinates.dimensions import Dimension, MacroTileIndex
from coordgraph.coordinates.graph import CoordinateGraph
from coordgraph.errors import VerifyError

__all__ = ["ACCUMULATOR", "Tiling", "Tilings", "macro_tile"]

ACCUMULATOR = "acc"
"""What a kernel's only accumulator is called."""
Axis = tuple[str, int]
"""A tensor, and which of its axes."""
FITTING: tuple[tuple[Axis, Axis], ...] = (
    (("A", 1), ("B", 0)),
    (("A", 0), ("C", 0)),
    (("A", 0), ("D", 0)),
    (("B", 1), ("C", 1)),
    (("B", 1), ("D", 1)),
)
"""Axes along which tiles have the same elements of m, n or k."""
T = TypeVar("T")


@dataclass(frozen=True)
class Tiling:
    """The tiles of one accumulator.

    Args:
        accumulator: its name.
        numbers: for each axis of A, B, D and operands the dimension that says which tile.
        indices: the dimension that says which element of the tile.
    """

    accumulator: str
    numbers: Mapping[Axis, str]
    indices: Mapping[Axis, Dimension]

    def number(self, tensor: str, axis: int) -> str:
        """Which tile along an axis of a tensor."""
        return self._along(self.numbers, tensor, axis)

    def index(self, tensor: str, axis: int) -> str:
        """The element inside a tile along an axis of a tensor."""
        return self._along(self.indices, tensor, axis).id

    def _along(self, found: Mapping[Axis, T], tensor: str, axis: int) -> T:
        if (tensor, axis) not in found:
            raise VerifyError(
                f"tiles of '{self.accumulator}' have no MacroTileIndex with tensor={tensor} "
                f"axis={axis} below a Tile edge"
            )
        return found[tensor, axis]

    @cached_property
    def shape(self) -> tuple[int, int, int]:
        """Elements of a macro tile in m, n and k."""
        axes = (("A", 0), ("B", 1), ("A", 1))
        m, n, k = (self._along(self.indices, *axis).fixed_size for axis in axes)
        return m, n, k

    def problems(self) -> Iterator[str]:
        """Sizes of A's and B's tiles that do not fit each other, or those of C and D."""
        for one, other in FITTING:
            a, b = self.indices.get(one), self.indices.get(other)
            if a is not None and b is not None and a.size != b.size:
                yield (
                    f"tiles of '{self.accumulator}' do not fit: '{a.id}' has the size {a.size}, "
                    f"'{b.id}' the size {b.size}; make them equal"
                )

    def own(self, name: str) -> str:
        """What a coordinate is called that every tiling has one of."""
        return name if self.accumulator == ACCUMULATOR else f"{self.accumulator}.{name}"


@dataclass(frozen=True)
class Tilings:
    """All tilings of a kernel, by accumulator, in the order in which it multiplies."""

    by_accumulator: Mapping[str, Tiling]

    @classmethod
    def of(cls, control: ControlGraph, coordinates: CoordinateGraph) -> Tilings:
        """Found from what is multiplied into each accumulator, and from what becomes of it.

        Raises:
            VerifyError: tiles of two shapes are added to one accumulator.
        """
        found: dict[str, Tiling] = {}
        loaded: dict[str, tuple[str, ...]] = {}
        for op in control.operations:
            match op:
                case LoadTile():
                    loaded[op.tensor] = op.tile
                    continue
                case MultiplyAccumulate():
                    named = {t: loaded.get(t, ()) for t in (op.a, op.b)}
                case Epilogue():
                    named = dict.fromkeys(op.operands, op.operand_tiles) | {op.output: op.tile}
                case StoreTile():
                    named = {op.tensor: op.tile}
                case _:
                    continue
            here = _axes(coordinates, named)
            before = found.get(op.accumulator)
            numbers = {axis: number for axis, (number, _) in here.items()}
            indices = {axis: index for axis, (_, index) in here.items()}
            if before is not None:
                for axis, index in indices.items():
                    if before.indices.get(axis, index) != index:
                        raise VerifyError(
                            f"{op.kind}: '{index.id}' and '{before.indices[axis].id}' are inside "
                            f"tiles of one accumulator, '{op.accumulator}'"
                        )
                numbers, indices = {**numbers, **before.numbers}, {**indices, **before.indices}
            found[op.accumulator] = Tiling(op.accumulator, numbers, indices)
        return cls(found)

    def __iter__(self) -> Iterator[Tiling]:
        return iter(self.by_accumulator.values())

    def __len__(self) -> int:
        """How many there are; 0 where nothing is multiplied."""
        return len(self.by_accumulator)

    @cached_property
    def unit(self) -> tuple[int, int]:
        """Elements in m and n of the largest tile that divides those of every shape."""
        shapes = [tiling.shape for tiling in self]
        return gcd(*(m for m, _, _ in shapes)), gcd(*(n for _, n, _ in shapes))

    def span(self, tiling: Tiling) -> tuple[int, int]:
        """How many units a tile is in m and n."""
        (m, n, _), unit = tiling.shape, self.unit
        return m // unit[0], n // unit[1]

    def of_operation(self, op: Operation) -> Tiling:
        """The tiling that an operation on tiles means.

        Raises:
            VerifyError: nothing is multiplied of it.
        """
        if isinstance(op, LoadTile):
            for tiling in self:
                own = {number for (t, _), number in tiling.numbers.items() if t == op.tensor}
                if len(self) == 1 or own <= {*op.tile}:
                    return tiling
            raise VerifyError(f"{op.kind}: nothing multiplies tiles {', '.join(op.tile)}")
        name = str(getattr(op, "accumulator", ""))
        if name not in self.by_accumulator:
            raise VerifyError(f"{op.kind}: nothing is multiplied into the accumulator '{name}'")
        return self.by_accumulator[name]

    def others(self, tiling: Tiling) -> frozenset[str]:
        """The dimensions inside tiles that only other tilings have."""
        found = {dim.id for other in self for dim in other.indices.values()}
        return frozenset(found - {dim.id for dim in tiling.indices.values()})


def _axes(
    coordinates: CoordinateGraph, named: Mapping[str, tuple[str, ...]]
) -> dict[Axis, tuple[str, Dimension]]:
    """(number, index) for each axis of tensors: of a number that is named, else the first."""
    found: dict[Axis, tuple[str, Dimension]] = {}
    for tensor, tile in named.items():
        for axis in (0, 1):
            pairs = [
                (edge.downstream[0], index)
                for index in coordinates.of_kind(MacroTileIndex, tensor=tensor, axis=axis)
                for edge in coordinates.edges_above(index)
            ]
            if pairs:
                found[tensor, axis] = next((p for p in pairs if p[0] in tile), pairs[0])
    return found


def macro_tile(coordinates: CoordinateGraph) -> tuple[int, int, int]:
    """Elements in m, n and k of a kernel's macro tile: of the first one, where there are several.

    Raises:
        VerifyError: A or B is not tiled.
    """
    extents: list[int] = []
    for tensor, axis in (("A", 0), ("B", 1), ("A", 1)):
        inside = coordinates.of_kind(MacroTileIndex, tensor=tensor, axis=axis)
        if not inside:
            raise VerifyError(f"axis {axis} of {tensor} has no MacroTileIndex: it is not tiled")
        extents.append(inside[0].fixed_size)
    m, n, k = extents
    return m, n, k
