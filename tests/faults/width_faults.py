"""Catalogue of faults: index values that do not fit the 32 or 64 bits that kernels use."""

from __future__ import annotations

from tests.faults.bases import ALONG_M, LIST, PERSISTENT, SPLIT, STREAM
from tests.faults.fault import Fault

__all__ = ["BOUNDS", "EQUIVALENT"]


def without_assumptions(text: str) -> str:
    """Edit: remove the assumptions that bound products of launch arguments."""
    return "\n".join(line for line in text.split("\n") if not line.startswith("assume "))


BOUNDS = (
    Fault(
        "more workgroups than 32 bits can number", "bounds", "data-parallel", (without_assumptions,)
    ),
    Fault(
        "more segments of tiles than 32 bits can number",
        "bounds",
        SPLIT,
        (
            without_assumptions,
            lambda text: text.replace("param share in 1..178956630", "param share in 1..715827882"),
        ),
    ),
    Fault(
        "table entries larger than 32 bits",
        "bounds",
        PERSISTENT,
        (("table offsets [groups + 1] <= m ", "table offsets [groups + 1] <= 4*m "),),
        ALONG_M,
    ),
    Fault(
        "offsets of products larger than 32 bits",
        "bounds",
        STREAM,
        (
            (
                "table m_offsets [groups + 1] <= 1073741824",
                "table m_offsets [groups + 1] <= 4294967296",
            ),
        ),
        LIST,
    ),
)
EQUIVALENT = (
    Fault(
        "products of sizes larger than 32 bits, computed with 64",
        "",
        STREAM,
        (without_assumptions,),
    ),
)
