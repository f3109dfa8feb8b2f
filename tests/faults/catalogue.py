"""The catalogue of faults of scheduled graphs."""

from __future__ import annotations

from tests.faults.bases import (
    PERSISTENT,
    STREAM,
)
from tests.faults.fault import Fault
from tests.faults.message_faults import BOUNDS, FIX_UP, PROGRESS
from tests.faults.work_faults import COVER, SIZES, STRUCTURE

__all__ = ["EQUIVALENT", "FAULTS"]

FAULTS: tuple[Fault, ...] = (*STRUCTURE, *SIZES, *COVER, *FIX_UP, *PROGRESS, *BOUNDS)
"""Every fault of scheduled graphs, grouped by the check that must refute it."""

EQUIVALENT: tuple[Fault, ...] = (
    Fault(
        "columns of tiles before rows",
        "",
        STREAM,
        (("Flatten A.tile.0, B.tile.1, k_tile", "Flatten B.tile.1, A.tile.0, k_tile"),),
    ),
    Fault(
        "waves of padding are not left out",
        "",
        PERSISTENT,
        (("stop=(tiles_m*tiles_n - workgroup + workgroups - 1) // workgroups", "stop=waves"),),
    ),
    Fault(
        "idle workgroups are not stopped before a loop without iterations",
        "",
        STREAM,
        (
            (
                "If condition=share*workgroup < tiles_k*tiles_m*tiles_n {",
                "If condition=workgroup >= 0 {",
            ),
        ),
    ),
)
"""Edits that look like faults, and change nothing in what a kernel computes."""
