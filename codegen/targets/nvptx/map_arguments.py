"""Tensor maps as kernel arguments: one for each tensor that TMA moves and each shape of box."""

from __future__ import annotations

from coordgraph import KernelGraph
from coordgraph.control.asynchronous import CopyBox, StoreBox

__all__ = ["boxes_of", "map_argument"]


def boxes_of(graph: KernelGraph) -> dict[str, tuple[tuple[int, ...], ...]]:
    """The tensors that TMA moves, and for each the shapes of its boxes in elements.

    The contiguous axis of a box comes first.
    """
    moves = (*graph.control.of_kind(CopyBox), *graph.control.of_kind(StoreBox))
    return {
        tensor: tuple(dict.fromkeys(op.box for op in moves if op.tensor == tensor))
        for tensor in dict.fromkeys(op.tensor for op in moves)
    }


def map_argument(tensor: str, number: int) -> str:
    """The name of the argument that holds the tensor map of a tensor's box shape `number`."""
    return f"{tensor}.map.{number}" if number else f"{tensor}.map"
