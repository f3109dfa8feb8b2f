"""Passes that make a kernel record when each workgroup multiplies, waits and so on.

`MarkActivities` marks activities in a scheduled graph; `RecordTimeline` makes the lowered graph
write a record for each mark.
"""

from collections.abc import Callable

from coordgraph import KernelGraph
from passes.base import Pass
from passes.timeline.marks import MarkActivities
from passes.timeline.record import MOST_RECORDS, TIMELINE, RecordTimeline

__all__ = ["MOST_RECORDS", "TIMELINE", "MarkActivities", "RecordTimeline", "with_timeline"]


def with_timeline(lowering: Pass, most: int) -> Callable[[KernelGraph], KernelGraph]:
    """Return a pass that lowers a graph, and makes the kernel record its timeline.

    Args:
        lowering: the lowering pass.
        most: the largest number of records that a role of a workgroup (its producer or a consumer)
            keeps; if it is 0, the function returns `lowering` itself.
    """
    if not most:
        return lowering
    mark, record = MarkActivities(), RecordTimeline(most)
    return lambda graph: record(lowering(mark(graph)))
