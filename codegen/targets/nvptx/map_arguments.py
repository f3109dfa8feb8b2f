"""Kernel arguments that are TMA tensor maps: one for each tensor and each shape of its boxes."""

from __future__ import annotations

from coordgraph import KernelGraph
from coordgraph.control.asynchronous import CopyBox, StoreBox

__all__ = ["boxes_of", "map_argument"]


def boxes_of(graph: KernelGraph) -> dict[str, tuple[tuple[int, ...], ...]]:
    """For each tensor that TMA moves: the shapes of its boxes, in elements along each axis.

    The first axis of a box is the contiguous one, as TMA counts axes.
    """
    moves = (*graph.control.of_kind(CopyBox), *graph.control.of_kind(StoreBox))
    return {
        tensor: tuple(dict.fromkeys(op.box for op in moves if op.tensor == tensor))
        for tensor in dict.fromkeys(op.tensor for op in moves)
    }


def map_argument(tensor: str, number: int) -> str:
    """The name of the kernel argument for the tensor map of a tensor's box shape `number`."""
    return f"{tensor}.map.{number}" if number else f"{tensor}.map"
