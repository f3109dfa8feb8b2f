"""Collects the catalogue of faults of scheduled graphs, which checks must refute."""

from __future__ import annotations

from tests.faults import (
    epilogue_faults,
    message_faults,
    product_faults,
    sharing_faults,
    ticket_faults,
    width_faults,
    work_faults,
)
from tests.faults.fault import Fault

__all__ = ["FAULTS"]

FAULTS: tuple[Fault, ...] = (
    *work_faults.STRUCTURE,
    *sharing_faults.STRUCTURE,
    *epilogue_faults.STRUCTURE,
    *ticket_faults.STRUCTURE,
    *work_faults.SIZES,
    *sharing_faults.SIZES,
    *product_faults.SIZES,
    *epilogue_faults.SIZES,
    *work_faults.COVER,
    *sharing_faults.COVER,
    *product_faults.COVER,
    *epilogue_faults.COVER,
    *ticket_faults.COVER,
    *message_faults.FIX_UP,
    *sharing_faults.FIX_UP,
    *epilogue_faults.FIX_UP,
    *ticket_faults.FIX_UP,
    *message_faults.PROGRESS,
    *sharing_faults.PROGRESS,
    *work_faults.BOUNDS,
    *message_faults.BOUNDS,
    *sharing_faults.BOUNDS,
    *product_faults.BOUNDS,
    *width_faults.BOUNDS,
)
"""All faults of scheduled graphs, mostly in the order of the checks that must refute them."""
