"""The check `cover`: every (m, n, k) iteration is done once, every output element stored once."""

from __future__ import annotations

from math import prod

from coordgraph.control.tickets import DynamicFor
from coordgraph.ticket_checks import unproved_loops
from coordgraph.verification.evidence import Evidence
from coordgraph.verification.named import Finding, enumerated, named_check
from coordgraph.verification.verdicts import Outcome

__all__ = ["cover"]


@named_check(
    "cover",
    "Every (m, n, k) iteration of every product is done once; every output element is stored once, "
    "with the right value, and nothing else is stored.",
)
def cover(evidence: Evidence) -> Finding:
    """The check `cover`: trace small launches to find iterations and stores that are not done once.

    The interpreter also computes D in some of the launches, and D is compared with a reference. If
    no fault is found, the verdict's field `detail` states how many launches were too large to
    trace, and how many output tiles lie outside D.

    Workgroups take the indices of a dynamic loop from a counter (tickets), and a trace has only one
    order of tickets. The verdict is valid for all orders if it is proved that no operation of the
    loop depends on the workgroup; without that proof, the outcome is `UNKNOWN`.
    """
    found = evidence.counterexamples("cover")
    runs = len(evidence.run_launches)
    what = f"tiles, and elements of {runs}," if runs else "tiles"
    finding = enumerated(evidence.traced_launches, what, found)
    if finding.outcome is Outcome.REFUTED:
        return finding
    notes = [finding.detail]
    if evidence.graph.control.of_kind(DynamicFor):
        if unproved := [*unproved_loops(evidence.graph, evidence.program.nodes)]:
            return Finding(Outcome.UNKNOWN, "enumeration", unproved[0])
        notes.append("valid for every order in which workgroups take tickets")
    if count := evidence.left_out:
        notes.append(
            f"{count} {'launch' if count == 1 else 'launches'} left out, whose tiles or loop "
            "iterations are too many"
        )
    outside, every = _tiles_outside(evidence)
    if outside:
        notes.append(f"{outside} of {every} output tiles lie outside D")
    return finding._replace(detail="; ".join(notes))


def _tiles_outside(evidence: Evidence) -> tuple[int, int]:
    """Return (number of output tiles outside D, number of output tiles) of all traced launches.

    A graph with too many output tiles is correct, because no element outside a tensor is loaded or
    stored, but it computes tiles that are never stored. Launches of grouped products are not
    counted.
    """
    outside = every = 0
    gemm, unit = evidence.graph.gemm, evidence.graph.tilings.unit
    for launch, found in evidence.traces:
        if found.shapes:
            continue
        extents = (getattr(gemm, axis) or launch.values[axis] for axis in ("m", "n"))
        rows, columns = (-(-length // size) for length, size in zip(extents, unit, strict=True))
        *batch, m, n, _ = found.tiles
        count = prod((*batch, m, n))
        every += count
        outside += count - prod((*batch, min(m, rows), min(n, columns)))
    return outside, every
