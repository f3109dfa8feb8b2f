"""The products of a batched or grouped kernel: which dimension numbers them, and their extents.

A kernel may compute a batch of products, or groups with different extents. An output tile then has
several numbers: the number of its product, and its tile row and tile column in that product.
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
    """The attributes of a `KernelGraph` that the functions of `coordgraph.products` read.

    A protocol avoids an import cycle: `coordgraph.kernel` imports `coordgraph.products`.
    """

    @property
    def gemm(self) -> GemmProblem:
        """The matrix product that the kernel computes."""
        ...

    @property
    def coordinates(self) -> CoordinateGraph:
        """The coordinate graph with the dimensions that number products and tiles."""
        ...


def product_order(graph: HasProducts) -> Permute | None:
    """The `Permute` edge that reorders products; None if the graph has no such edge.

    Without the edge, products are computed in the order of their numbers.
    """
    leading = graph.gemm.leading
    below = graph.coordinates.edges_below(leading) if leading else ()
    return next((edge for edge in below if isinstance(edge, Permute)), None)


def product_dimension(graph: HasProducts) -> str:
    """The id of the dimension that numbers products in the order in which the kernel computes them.

    '' if the kernel computes a single product.
    """
    order = product_order(graph)
    return order.downstream[0] if order else graph.gemm.leading


def dangling_tiles(graph: HasProducts) -> tuple[Dimension, ...]:
    """The tile-number dimensions without an edge to a dimension nearer to workgroups or loops.

    The dimension that numbers products comes first, so that a schedule computes all tiles of one
    product before those of the next.
    """
    found, product = graph.coordinates.dangling(MacroTileNumber), product_dimension(graph)
    return tuple(sorted(found, key=lambda d: d.id != product))


def tile_plane(graph: HasProducts) -> tuple[Dimension, ...]:
    """The two unscheduled dimensions that number tile rows and tile columns of a product."""
    product = product_dimension(graph)
    return tuple(d for d in dangling_tiles(graph) if d.id != product)


def ragged_edge(graph: HasProducts, tiles: str) -> Ragged | None:
    """The `Ragged` edge whose table gives each product's number of tiles along one axis.

    None if all products have equally many tiles along that axis.

    Args:
        graph: the kernel graph.
        tiles: the id of the dimension that numbers tiles along that axis within one product: a tile
            number, or the loop over k tiles.
    """
    if graph.coordinates[tiles].size is not None:
        return None
    above = graph.coordinates.edges_above(tiles)
    return next((edge for edge in above if isinstance(edge, Ragged)), None)


def ragged_axes(graph: HasProducts) -> tuple[Ragged | None, Ragged | None, Ragged | None]:
    """For each of m, n and k, the `Ragged` edge whose table gives each product's number of tiles.

    None stands for an axis along which all products have equally many tiles. The edge for k is
    directly upstream of the dimension of the loop over k tiles.
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
