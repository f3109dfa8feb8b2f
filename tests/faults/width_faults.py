"""Catalogue of faults: index values that do not fit the 32 or 64 bits that kernels use."""

from __future__ import annotations

from tests.faults.bases import ALONG_M, LIST, PERSISTENT, SPLIT, STREAM
from tests.faults.fault import Fault

__all__ = ["BOUNDS", "EQUIVALENT"]


def without_assumptions(text: str) -> str:
    """Edit: remove the assumptions that bound products of launch arguments."""
    return "\n".join(line for line in text.split("\n") if not line.startswith("assume "))


BOUNDS = (
    Fault("number of workgroups past 32 bits", "bounds", "data-parallel", (without_assumptions,)),
    Fault(
        "number of pieces past 32 bits",
        "bounds",
        SPLIT,
        (
            without_assumptions,
            lambda text: text.replace("param share in 1..178956630", "param share in 1..715827882"),
        ),
    ),
    Fault(
        "entries of a table past 32 bits",
        "bounds",
        PERSISTENT,
        (("table offsets [groups + 1] <= m ", "table offsets [groups + 1] <= 4*m "),),
        ALONG_M,
    ),
    Fault(
        "borders of products past 32 bits",
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
        "products of sizes past 32 bits, which take 64",
        "",
        STREAM,
        (without_assumptions,),
    ),
)
