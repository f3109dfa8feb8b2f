"""Schedules beside those that the cost model always compares; most must be measured first.

The schedules that the cost model always compares are returned by `Pass.variants`. Counters of the
work of all these schedules (iterations, partial sums and so on) are kept in `work_counters.json`.
"""

from __future__ import annotations

from passes.base import Pass
from passes.schedules.hybrid_stream_k import HybridStreamK
from passes.schedules.split_k import SplitK
from passes.schedules.stream_k import StreamK
from passes.schedules.two_tile_stream_k import TwoTileStreamK

__all__ = ["INTERLEAVED", "PINNED", "RECORDED", "SEGMENTS", "SLIVER", "TUNED"]

SLIVER = 8
"""The value that is tried for the schedule option `least_segment`, the smallest number of main loop
iterations of a segment (a part of an output tile's k range)."""
INTERLEAVED: tuple[StreamK, ...] = tuple(
    StreamK(owner="first", reduction=reduction, k_order="interleaved")
    for reduction in ("peers", "scatter")
)
"""Stream-K schedules in which all workgroups are at nearly the same k at any time.

The first schedule may be chosen without a measurement if the L2 cache is too small for the parts of
A and B that several output tiles read.
"""
TUNED: tuple[Pass, ...] = (
    *(
        kind(owner="last", least_segment=SLIVER)
        for kind in (StreamK, TwoTileStreamK, HybridStreamK)
    ),
    StreamK(owner="last", reduction="tree"),
    HybridStreamK(owner="last", reduction="tree"),
    TwoTileStreamK(owner="first", reduction="scatter"),
    HybridStreamK(owner="first", reduction="scatter"),
    *INTERLEAVED,
)
"""Schedules that `codegen.matmul` may choose only after they were measured, by `tune=True`.

Each of these schedules was measured to be the fastest on some problem, although the cost model
predicts that others are faster.
"""
SEGMENTS = (2, 3, 4)
"""A batch-invariant product may divide k into these numbers of segments, or leave it undivided."""
PINNED: tuple[SplitK, ...] = tuple(SplitK(splits=segments) for segments in SEGMENTS)
"""Schedules that are chosen only for batch-invariant products, with a fixed number of segments of k
for each n and k; see `passes.choosing.pinned_orders`."""
RECORDED: tuple[StreamK, ...] = (
    StreamK(owner="last", shares="balanced"),
    StreamK(reduction="scatter", shares="balanced"),
)
"""Schedules that are no longer chosen, but to whose times the cost model is also fitted: Split-K
with `splits=none` divides tiles into as many pieces without a loop over tiles."""
