"""The check `cover`: every iteration is done once, and every element of D is stored once."""

from __future__ import annotations

from coordgraph.verification.evidence import Evidence
from coordgraph.verification.named import Finding, enumerated, named_check

__all__ = ["cover"]


@named_check(
    "cover",
    "Every (m, n, k) iteration of every product is done once; every element of D is stored once, "
    "with the right value, and nothing else is stored.",
)
def cover(evidence: Evidence) -> Finding:
    """The check `cover`: trace the tiles of all examined launches, and compute D of some."""
    found = evidence.counterexamples("cover")
    runs = len(evidence.run_launches)
    what = f"tiles, and elements of {runs}," if runs else "tiles"
    return enumerated(evidence.traced_launches, what, found)
