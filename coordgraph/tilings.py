"""Tilings: shapes and dimensions of the macro tiles whose products an accumulator sums.

A kernel may cut its tensors into tiles of several shapes; an accumulator sums products of tiles of
one shape. Operations on tiles name the dimensions that number the tiles. From such a dimension, the
coordinate graph leads to the dimension that numbers elements inside the tile, whose size is the
tile's extent. Tile shapes are stored nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import gcd
from typing import TypeVar

from sympy import Expr

from coordgraph.control.graph import ControlGraph
from coordgraph.control.operations import (
    Epilogue,
    LoadTile,
    MultiplyAccumulate,
    Operation,
    StoreTile,
)
from coordgraph.coordinates.dimensions import Dimension, MacroTileIndex
from coordgraph.coordinates.edges import Edge
from coordgraph.coordinates.graph import CoordinateGraph
from coordgraph.errors import CoordGraphError, VerifyError
from coordgraph.gemm import PART
from coordgraph.integers import Ranges, index_symbol

__all__ = ["ACCUMULATOR", "Tiling", "Tilings", "macro_tile"]

ACCUMULATOR = "acc"
"""The name of the accumulator in a kernel with a single accumulator."""
Axis = tuple[str, int]
"""The name of a tensor, and the position of one of its axes (0 for rows)."""
FITTING: tuple[tuple[Axis, Axis], ...] = (
    (("A", 1), ("B", 0)),
    (("A", 0), ("C", 0)),
    (("A", 0), ("D", 0)),
    (("B", 1), ("C", 1)),
    (("B", 1), ("D", 1)),
)
"""Pairs of tensor axes that are both m, both n or both k, so that tile extents must be equal."""
TILE, ELEMENT = index_symbol("t"), index_symbol("i")
T = TypeVar("T")


@dataclass(frozen=True)
class Tiling:
    """The macro tiles of A, B, D, epilogue operands and outputs that belong to one accumulator.

    Args:
        accumulator: the name of the accumulator.
        numbers: for each axis of A, B, D and the epilogue's operands and outputs, the id of the
            dimension that numbers tiles along the axis.
        indices: for each of these axes, the id of the dimension that numbers elements inside a tile
            along the axis.
        sums: number of accumulated sums from which the epilogue computes one element of D. Each sum
            belongs to one part of the columns of B, and all parts have equally many columns.
    """

    accumulator: str
    numbers: Mapping[Axis, str]
    indices: Mapping[Axis, Dimension]
    sums: int = 1

    def number(self, tensor: str, axis: int) -> str:
        """The id of the dimension that numbers tiles along axis `axis` of the tensor `tensor`."""
        return self._along(self.numbers, tensor, axis)

    def index(self, tensor: str, axis: int) -> str:
        """The id of the dimension that numbers elements inside a tile along `axis` of `tensor`."""
        return self._along(self.indices, tensor, axis).id

    def _along(self, found: Mapping[Axis, T], tensor: str, axis: int) -> T:
        if (tensor, axis) not in found:
            raise VerifyError(
                f"tiles of the accumulator '{self.accumulator}' have no MacroTileIndex with "
                f"tensor={tensor} axis={axis} below a Tile edge; cut that axis by a Tile edge"
            )
        return found[tensor, axis]

    @cached_property
    def shape(self) -> tuple[int, int, int]:
        """The extents of a macro tile in m, n and k, in elements."""
        axes = (("A", 0), ("B", 1), ("A", 1))
        m, n, k = (self._along(self.indices, *axis).fixed_size for axis in axes)
        return m, n, k

    @property
    def summed(self) -> tuple[int, int, int]:
        """The extents in m, n and k of the product that the accumulator holds, in elements.

        The extent in n is that of a tile of D, multiplied by the number of sums from which the
        epilogue computes one element of D.
        """
        m, n, k = self.shape
        return m, n * self.sums, k

    def problems(self) -> Iterator[str]:
        """An error message for each pair of axes (k of A and of B, …) with unequal tile extents."""
        for one, other in FITTING:
            a, b = self.indices.get(one), self.indices.get(other)
            if a is not None and b is not None and a.size != b.size:
                yield (
                    f"tiles of the accumulator '{self.accumulator}' differ in extent: '{a.id}' has "
                    f"the size {a.size}, '{b.id}' the size {b.size}; make them equal"
                )

    def cuts(self, coordinates: CoordinateGraph) -> Iterator[str]:
        """An error message for each pair of axes (k of A and k of B, …) that tiles cut differently.

        Element i of tile t must be at the same position along both axes.
        """
        for one, other in FITTING:
            a, b = self.indices.get(one), self.indices.get(other)
            if a is None or b is None:
                continue
            first, second = _cut(coordinates, a), _cut(coordinates, b)
            if first and second and first[1] != second[1]:
                yield (
                    f"tiles of the accumulator '{self.accumulator}' are cut unequally: {first[0]} "
                    f"puts element i of tile t at {first[1]}, and {second[0]} at {second[1]}; cut "
                    "both axes by the same kind of edge"
                )

    def own(self, name: str) -> str:
        """The id for a dimension that every accumulator has separately, derived from `name`.

        The id is `name` for the accumulator `acc`, and `x.name` for another accumulator `x`.
        """
        return name if self.accumulator == ACCUMULATOR else f"{self.accumulator}.{name}"


@dataclass(frozen=True)
class Tilings:
    """All tilings of a kernel, in the order in which the kernel first uses their accumulators."""

    by_accumulator: Mapping[str, Tiling]

    @classmethod
    def of(cls, control: ControlGraph, coordinates: CoordinateGraph) -> Tilings:
        """Derive the tilings from the operations that load, multiply and store tiles.

        Epilogues, which change a tile before the tile is stored, name dimensions of tiles, too.

        Raises:
            VerifyError: tiles of different shapes are multiplied into one accumulator.
        """
        found: dict[str, Tiling] = {}
        sums = coordinates[PART].fixed_size if PART in coordinates else 1
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
                    named |= dict.fromkeys(op.stores, op.store_tiles)
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
                            f"{op.kind}: the accumulator '{op.accumulator}' would mix tiles along "
                            f"the dimensions '{index.id}' and '{before.indices[axis].id}'; use one "
                            "accumulator for each of the two tile shapes"
                        )
                numbers, indices = {**numbers, **before.numbers}, {**indices, **before.indices}
            found[op.accumulator] = Tiling(op.accumulator, numbers, indices, sums)
        return cls(found)

    def __iter__(self) -> Iterator[Tiling]:
        return iter(self.by_accumulator.values())

    def __len__(self) -> int:
        """The number of accumulators of the kernel, each of which holds tiles of one shape."""
        return len(self.by_accumulator)

    @cached_property
    def unit(self) -> tuple[int, int]:
        """The extents in m and n of a unit tile, in elements.

        A unit tile is the largest tile that divides the tiles of all accumulators.
        """
        shapes = [tiling.shape for tiling in self]
        return gcd(*(m for m, _, _ in shapes)), gcd(*(n for _, n, _ in shapes))

    def span(self, tiling: Tiling) -> tuple[int, int]:
        """The extents of a macro tile in m and n, counted in unit tiles (see `unit`)."""
        (m, n, _), unit = tiling.shape, self.unit
        return m // unit[0], n // unit[1]

    def of_operation(self, op: Operation) -> Tiling:
        """The tiling of the macro tile that an operation loads, multiplies, changes or stores.

        Raises:
            VerifyError: no `MultiplyAccumulate` uses that tile or its accumulator.
        """
        if isinstance(op, LoadTile):
            for tiling in self:
                own = {number for (t, _), number in tiling.numbers.items() if t == op.tensor}
                if len(self) == 1 or own <= {*op.tile}:
                    return tiling
            raise VerifyError(
                f"{op.kind}: no MultiplyAccumulate uses the loaded tile ({', '.join(op.tile)}); "
                "remove the load, or multiply the tile"
            )
        name = str(getattr(op, "accumulator", ""))
        if name not in self.by_accumulator:
            raise VerifyError(
                f"{op.kind}: no MultiplyAccumulate has the accumulator '{name}'; multiply into it, "
                "or name another one"
            )
        return self.by_accumulator[name]

    def others(self, tiling: Tiling) -> frozenset[str]:
        """Ids of dimensions that number elements in tiles of other tilings, but not of `tiling`."""
        found = {dim.id for other in self for dim in other.indices.values()}
        return frozenset(found - {dim.id for dim in tiling.indices.values()})


def _axes(
    coordinates: CoordinateGraph, named: Mapping[str, tuple[str, ...]]
) -> dict[Axis, tuple[str, Dimension]]:
    """For each tensor axis, the dimensions that number its tiles and the elements in a tile.

    If an axis is cut into tiles of several shapes, the tile number that the operation names selects
    a shape; if the operation names no tile number of that axis, the shape that was added to the
    graph first is selected.

    Args:
        coordinates: the coordinate graph.
        named: by tensor name, the ids of the tile-number dimensions that an operation names.
    """
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


def _cut(coordinates: CoordinateGraph, index: Dimension) -> tuple[Edge, Expr] | None:
    """The edge that cuts an axis into tiles, and the position of element i of tile t on the axis.

    The position is an expression. The result is None if no edge divides the axis into exactly two
    dimensions, the tile number and the index in the tile.
    """
    edges = coordinates.edges_above(index)
    if len(edges) != 1 or (len(edges[0].upstream), len(edges[0].downstream)) != (1, 2):
        return None
    (edge,) = edges
    try:
        (place,) = edge.reverse((TILE, ELEMENT), coordinates.sizes(edge), Ranges())
    except CoordGraphError:
        return None
    return edge, place.expand()


def macro_tile(coordinates: CoordinateGraph) -> tuple[int, int, int]:
    """The extents in m, n and k of a kernel's macro tile, in elements.

    If the kernel has tiles of several shapes, the result is the shape that was added to the graph
    first.

    Raises:
        VerifyError: an axis of A or B is not cut into tiles.
    """
    extents: list[int] = []
    for tensor, axis in (("A", 0), ("B", 1), ("A", 1)):
        inside = coordinates.of_kind(MacroTileIndex, tensor=tensor, axis=axis)
        if not inside:
            raise VerifyError(
                f"axis {axis} of {tensor} has no MacroTileIndex; cut the axis into tiles with a "
                "Tile edge"
            )
        extents.append(inside[0].fixed_size)
    m, n, k = extents
    return m, n, k
