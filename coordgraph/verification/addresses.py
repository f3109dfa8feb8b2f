"""The check `bounds`: no access leaves its tensor, its workspace or its table."""

from __future__ import annotations

from coordgraph.verification.evidence import Evidence
from coordgraph.verification.named import Finding, enumerated, named_check

__all__ = ["bounds"]


@named_check(
    "bounds",
    "No index leaves its tensor, its workspace or its table.",
)
def bounds(evidence: Evidence) -> Finding:
    """Compute the addresses of all elements that some launches access."""
    found = evidence.counterexamples("bounds")
    return enumerated(evidence.run_launches, "addresses of all elements", found)
