"""`computed_once`: the indices along k that the producer computes once for each k tile."""

from __future__ import annotations

from coordgraph.coordinates.graph import CoordinateGraph

__all__ = ["computed_once"]


def computed_once(graph: CoordinateGraph, loop: str, numbers: tuple[str, ...]) -> tuple[str, ...]:
    """The dimensions along k whose index the producer computes once for each k tile.

    The index of these dimensions is not just the index of the loop plus a constant, so its formula
    takes several instructions. To evaluate it again for each TMA box would take more time.

    Args:
        graph: the coordinates of a scheduled graph.
        loop: the dimension of the loop over k tiles.
        numbers: the dimensions that number tiles of A and B along k.
    """
    found: dict[str, None] = {}
    waiting, known = [loop], {loop}
    above = {loop, *graph.above(loop)}
    below = {*numbers}.union(*(graph.below(number) for number in numbers))
    while waiting:
        for edge in graph.edges_above(waiting.pop()):
            on_path = [name for name in edge.upstream if name in above and name in below]
            if not edge.consecutive:
                found |= dict.fromkeys(on_path)
            waiting += (name for name in on_path if name not in known)
            known.update(on_path)
    return tuple(found)
