"""Launches that are examined by enumeration: small ones, around the borders of a graph's sizes.

Candidates vary the numbers of tiles, the number of workgroups, and the extents of the last tile.
Each candidate has *features*: which argument of a minimum or maximum decides, whether a condition
holds, whether a remainder is 0, 1 or the largest one, how one size fits into another. The features
come from the expressions and parameters of the graph, so the borders are the graph's. Launches are
ranked so that the first ones have as many different features as possible.
"""

from __future__ import annotations

from coordgraph.kernel import KernelGraph
from coordgraph.verification.launch import Launch
from coordgraph.verification.launch_candidates import launch_candidates
from coordgraph.verification.launch_features import LaunchFeatures

__all__ = ["ranked_launches"]


def ranked_launches(graph: KernelGraph, count: int, cost: int) -> tuple[Launch, ...]:
    """The launches to examine: small, and the first ones with as many features as possible.

    Args:
        graph: a scheduled graph.
        count: the largest number of launches.
        cost: the largest cost of one launch, see `Launch`.

    Returns:
        The launches; none if every launch that the graph allows costs more than `cost`.
    """
    features = LaunchFeatures(graph)
    left: list[tuple[Launch, int]] = []
    for launch in launch_candidates(graph):
        if launch.cost <= cost and (found := features.of(launch)) is not None:
            left.append((launch, found))
    chosen: list[Launch] = []
    seen = 0
    while left and len(chosen) < count:
        # A launch is worth its new features; of several equal ones the cheapest is taken.
        best = max(left, key=lambda pair: ((pair[1] & ~seen).bit_count(), -pair[0].cost))
        left.remove(best)
        # When all features have occurred, a second round begins.
        seen = seen | best[1] if best[1] & ~seen else best[1]
        chosen.append(best[0])
    return tuple(chosen)
