"""Choose the launches that checks examine: small ones with as many different cases as possible.

Candidates vary the numbers of tiles, the number of workgroups, and the extents of the last tile.
Each candidate has *features*: for each minimum or maximum, which argument is its value; for each
condition, whether it holds; for each remainder, whether it is 0, 1, or the divisor minus 1. The
features come from the expressions and parameters of the graph. Launches are ranked so that the
first ones have as many different features as possible.
"""

from __future__ import annotations

from coordgraph.kept_results import kept_results
from coordgraph.kernel import KernelGraph
from coordgraph.verification.launch import Launch
from coordgraph.verification.launch_candidates import launch_candidates
from coordgraph.verification.launch_features import LaunchFeatures

__all__ = ["ranked_launches"]


def ranked_launches(graph: KernelGraph, count: int, cost: int) -> tuple[Launch, ...]:
    """Choose the launches to examine, ordered so that the first few have most features.

    A feature is, for example, that the first argument of a minimum in the graph is the smaller one.

    Args:
        graph: a scheduled graph.
        count: the largest number of launches to return.
        cost: the largest cost of one launch: the estimated number of events in a trace of the
            launch.

    Returns:
        The launches; none if every launch that the graph allows costs more than `cost`.
    """
    left = [*_features(graph, cost)]
    chosen: list[Launch] = []
    seen = 0
    while left and len(chosen) < count:
        # Take the launch with the most features (cases of the graph's formulas) that no chosen
        # launch has; of several such launches, the cheapest.
        best = max(left, key=lambda pair: ((pair[1] & ~seen).bit_count(), -pair[0].cost))
        left.remove(best)
        # When the chosen launches have all features of the remaining ones, count features afresh:
        # from now on compare only with the launches chosen from here on.
        seen = seen | best[1] if best[1] & ~seen else best[1]
        chosen.append(best[0])
    return tuple(chosen)


def _features(graph: KernelGraph, cost: int) -> tuple[tuple[Launch, int], ...]:
    """The candidate launches whose cost is at most `cost`, each with its features as a bit set.

    The result is kept for the graph object, since a pass calls this function before
    `KernelGraph.check` calls it again.
    """
    kept, key = kept_results(graph), (_features, cost)
    if key not in kept:
        features = LaunchFeatures(graph)
        kept[key] = tuple(
            (launch, found)
            for launch in launch_candidates(graph)
            if launch.cost <= cost and (found := features.of(launch)) is not None
        )
    return kept[key]
