"""Boxes: which shapes the copy engine moves of each tensor, and the arguments that say so."""

from __future__ import annotations

from coordgraph import KernelGraph
from coordgraph.control.asynchronous import CopyBox, StoreBox

__all__ = ["boxes_of", "map_argument"]


def boxes_of(graph: KernelGraph) -> dict[str, tuple[tuple[int, ...], ...]]:
    """The tensors that the copy engine moves, and the elements of each shape of box.

    Elements are along each axis, the contiguous one first.
    """
    moves = (*graph.control.of_kind(CopyBox), *graph.control.of_kind(StoreBox))
    return {
        tensor: tuple(dict.fromkeys(op.box for op in moves if op.tensor == tensor))
        for tensor in dict.fromkeys(op.tensor for op in moves)
    }


def map_argument(tensor: str, number: int) -> str:
    """The kernel argument that describes a tensor, and one shape of box, to the copy engine."""
    return f"{tensor}.map.{number}" if number else f"{tensor}.map"
