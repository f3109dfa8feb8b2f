"""Kernel arguments that are TMA tensor maps: one for each tensor and each shape of TMA box."""

from __future__ import annotations

from coordgraph import KernelGraph
from coordgraph.control.asynchronous import CopyBox, StoreBox

__all__ = ["boxes_of", "map_argument"]


def boxes_of(graph: KernelGraph) -> dict[str, tuple[tuple[int, ...], ...]]:
    """For each tensor that TMA copies, by name: the shapes of its TMA boxes, in elements.

    The first extent of a shape is along the contiguous axis, as in TMA's order of axes.
    """
    moves = (*graph.control.of_kind(CopyBox), *graph.control.of_kind(StoreBox))
    return {
        tensor: tuple(dict.fromkeys(op.box for op in moves if op.tensor == tensor))
        for tensor in dict.fromkeys(op.tensor for op in moves)
    }


def map_argument(tensor: str, number: int) -> str:
    """The name of the kernel argument that is a tensor map of `tensor`.

    Args:
        tensor: the name of the tensor.
        number: the number of the map's box shape among the box shapes of the tensor.
    """
    return f"{tensor}.map.{number}" if number else f"{tensor}.map"
