"""Products of a kernel: the dimension that counts them, and which extents differ among them.

A kernel may compute a batch of products, or groups with extents of their own. Tiles are then
counted by several dimensions: one is the product's number, the others its tile's row and column.
"""

from __future__ import annotations

from typing import Protocol

from coordgraph.coordinates.dimensions import Dimension, ForLoop, MacroTileNumber
from coordgraph.coordinates.edges import Permute, Ragged
from coordgraph.coordinates.graph import CoordinateGraph
from coordgraph.gemm import GemmProblem

__all__ = [
    "dangling_tiles",
    "product_dimension",
    "product_order",
    "ragged_axes",
    "ragged_edge",
    "tile_plane",
]


class HasProducts(Protocol):
    """The attributes of a `KernelGraph` that the functions of this module read."""

    @property
    def gemm(self) -> GemmProblem:
        """The problem."""
        ...

    @property
    def coordinates(self) -> CoordinateGraph:
        """The dimensions that count products and tiles."""
        ...


def product_order(graph: HasProducts) -> Permute | None:
    """The edge that permutes the products, or None if they are computed in their own order."""
    leading = graph.gemm.leading
    below = graph.coordinates.edges_below(leading) if leading else ()
    return next((edge for edge in below if isinstance(edge, Permute)), None)


def product_dimension(graph: HasProducts) -> str:
    """The dimension that counts products in the order of their computation; '' if there is one."""
    order = product_order(graph)
    return order.downstream[0] if order else graph.gemm.leading


def dangling_tiles(graph: HasProducts) -> tuple[Dimension, ...]:
    """The tile numbers that no schedule has tied to workgroups and loops yet.

    The dimension that counts products comes first, so that tiles of one product are neighbours.
    """
    found, product = graph.coordinates.dangling(MacroTileNumber), product_dimension(graph)
    return tuple(sorted(found, key=lambda d: d.id != product))


def tile_plane(graph: HasProducts) -> tuple[Dimension, ...]:
    """The dangling tile numbers that count the tiles of one product: rows and columns of tiles."""
    product = product_dimension(graph)
    return tuple(d for d in dangling_tiles(graph) if d.id != product)


def ragged_edge(graph: HasProducts, tiles: str) -> Ragged | None:
    """The `Ragged` edge with each product's number of tiles on an axis; None if all are equal.

    Args:
        graph: the kernel.
        tiles: the dimension that counts tiles in one product: a tile number, or the loop over k.
    """
    if graph.coordinates[tiles].size is not None:
        return None
    above = graph.coordinates.edges_above(tiles)
    return next((edge for edge in above if isinstance(edge, Ragged)), None)


def ragged_axes(graph: HasProducts) -> tuple[Ragged | None, Ragged | None, Ragged | None]:
    """For m, n and k, the `Ragged` edge with each product's number of tiles; None if all are equal.

    Edges of m and n are those of the tile numbers, the edge of k that of the loop over k tiles.
    """
    coordinates = graph.coordinates
    rows, columns = (
        next(filter(None, (ragged_edge(graph, number.id) for number in numbers)), None)
        for numbers in (
            coordinates.of_kind(MacroTileNumber, tensor="A", axis=0),
            coordinates.of_kind(MacroTileNumber, tensor="B", axis=1),
        )
    )
    ragged = (edge for edge in coordinates.edges if isinstance(edge, Ragged))
    loops = (e for e in ragged if isinstance(coordinates[e.downstream[-1]], ForLoop))
    return rows, columns, next(loops, None)
