"""`chooseable`: whether `codegen.matmul` may choose a plan, by rules that measurements gave.

A plan that a rule excludes may still be measured, by `benchmarks sweep` or by `tune=True`.
"""

from __future__ import annotations

import numpy as np

from passes.choosing.constants import Constants
from passes.choosing.counting import FIXUPS
from passes.choosing.kernel_shape import Shape
from passes.choosing.model import Counts
from passes.choosing.plan_table import Column, Flag, Table

__all__ = [
    "chooseable",
    "crowded",
    "far",
    "needless",
    "shared_bytes",
    "slow",
    "suits_large_clusters",
    "unusual",
]

CLUSTERED_EXTENT, CLUSTERED_DEPTH = 48, 640
"""The cost model may choose clusters of more than two CTAs for products whose m and n are at least
CLUSTERED_EXTENT and whose k is at least CLUSTERED_DEPTH, in elements. On 11 sizes with m of 48 or
64, k of 640 to 1023, or k of more than 32768 (12 measurements), the best plans with such clusters
take 0.93 times as long as the best plans without (geometric mean, H100 and H200, 2026-11-27).
"""
NARROWEST = 32
"""Smallest extent along n, in elements, of a TMA box of B in plans that may be chosen."""


def slow(table: Table) -> Flag:
    """For each plan, whether it is slow because its TMA boxes of B are narrower than NARROWEST.

    Plans with narrower boxes were measured to take 1.2 to 1.5 times as long as plans for a B that
    is given as its transpose.
    """
    found = table.turned_b == 0
    if found.any():
        found[found] = Shape(table.where(found)).box_n < NARROWEST
    return found


def crowded(table: Table, device: Constants) -> Flag:
    """For each plan, whether it launches more workgroups than the device holds at a time."""
    return Counts(table, device).work.rounds > 1


def unusual(table: Table) -> Flag:
    """For each plan, whether `chooseable` excludes it for its `reduction` or `least_segment`.

    Excluded are the reduction `turnstile`, limits `least_segment` > 1 on iterations of a segment,
    and the reduction `scatter` unless all tiles are divided among equally many workgroups. The cost
    model never prefers such plans: benchmarks measure them, and `tune=True` some of them.
    """
    streamed = table.of_schedule([counter.all_streamed for counter in table.counters])
    evenly = streamed & (table.workgroups % Shape(table).tiles == 0)
    uneven = (table.fixup == FIXUPS.index("scatter")) & ~evenly
    slivers = [getattr(schedule, "least_segment", 1) for schedule in table.schedules]
    turnstile = table.fixup == FIXUPS.index("turnstile")
    return uneven | turnstile | (table.of_schedule(slivers) > 1)


def far(table: Table, device: Constants) -> Flag:
    """For each plan, whether it has clusters of more than two CTAs and must not be chosen.

    Larger clusters are chosen only for single products that have no more output tiles than clusters
    are resident on the device. On 14 such products (H200, 2026-11-23), the fastest of eight plans
    with larger clusters takes 0.89 times as long (geometric mean) as the plan that is chosen
    without them; on two it takes 7 % longer, and for these the model chooses smaller clusters.
    """
    workgroups = table.cluster_m * table.cluster_n
    suits = suits_large_clusters(table.l, table.m, table.n, table.k, table.ragged_m, table.ragged_k)
    few = Shape(table).tiles <= device.slots(workgroups)
    return (workgroups > 2) & (table.cluster_k == 1) & ~(suits & few)


def suits_large_clusters(
    l: Column | float,  # noqa: E741
    m: Column | float,
    n: Column | float,
    k: Column | float,
    ragged_m: Column | float,
    ragged_k: Column | float,
) -> Flag:
    """Whether a problem is a single product that is large enough for clusters of four and eight.

    The arguments are the columns of a `Table` with these names, or their entries for one problem.
    """
    single = (l == 1) & (np.equal(ragged_m, 0) & np.equal(ragged_k, 0))
    return single & (k >= CLUSTERED_DEPTH) & (np.minimum(m, n) >= CLUSTERED_EXTENT)


def needless(table: Table, device: Constants) -> Flag:
    """For each plan, whether it has `k_order=interleaved` although A and B fit in the L2 cache.

    Only operands that several output tiles read need to fit. If these operands fit, interleaved
    plans were measured to take 0.97 to 1.15 times as long as with contiguous k.
    """
    s = Shape(table)
    a, b = (table.l * extent * table.k * table.in_bytes for extent in (table.m, table.n))
    return table.interleaved & (shared_bytes(a, b, s.tiles_m, s.tiles_n) <= device.l2_bytes)


def chooseable(table: Table, device: Constants) -> Flag:
    """For each plan, whether `codegen.matmul` may choose it.

    A plan may be chosen if none of `slow`, `crowded`, `unusual`, `far` and `needless` is true for
    it.
    """
    refused = slow(table) | crowded(table, device) | unusual(table) | far(table, device)
    return ~(refused | needless(table, device))


def shared_bytes(a: Column | float, b: Column | float, tiles_m: Column, tiles_n: Column) -> Column:
    """Bytes of the operands (A, B or both) that more than one output tile reads.

    Several output tiles read A if tiles_n > 1, and B if tiles_m > 1.

    Args:
        a, b: bytes of A and of B.
        tiles_m, tiles_n: number of output tiles of a product along m and n.
    """
    return a * (tiles_n > 1) + b * (tiles_m > 1)
