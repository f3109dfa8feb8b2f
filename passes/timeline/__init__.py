"""Passes that instrument a kernel: they record when a workgroup does what.

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
    """A lowering whose result also records its timeline.

    Args:
        lowering: the lowering.
        most: how many records a role of a workgroup keeps; 0 gives the lowering itself.
    """
    if not most:
        return lowering
    mark, record = MarkActivities(), RecordTimeline(most)
    return lambda graph: record(lowering(mark(graph)))
