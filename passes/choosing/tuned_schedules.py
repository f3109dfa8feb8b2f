"""Schedules that are chosen only after they were measured.

Their work counters are kept in `work_counters.json`, beside those of the schedules that passes list
in `Pass.variants`.
"""

from __future__ import annotations

from passes.base import Pass
from passes.schedules.hybrid_stream_k import HybridStreamK
from passes.schedules.stream_k import StreamK
from passes.schedules.two_tile_stream_k import TwoTileStreamK

__all__ = ["INTERLEAVED", "SLIVER", "TUNED"]

SLIVER = 8
"""Value that is tried for the schedule option `least_segment`, in main loop iterations."""
INTERLEAVED: tuple[StreamK, ...] = tuple(
    StreamK(owner="first", reduction=reduction, k_order="interleaved")
    for reduction in ("peers", "scatter")
)
"""Stream-K schedules in which all workgroups are at nearly the same k at any time.

The first may be chosen without a measurement if the L2 cache does not hold what several output
tiles share of A and B.
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
