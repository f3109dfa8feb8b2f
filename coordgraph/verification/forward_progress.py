"""The check `progress`: workgroups do not wait for each other for ever."""

from __future__ import annotations

from collections.abc import Iterator

from coordgraph.interpreter.tracing import Receive, Send, Trace
from coordgraph.progress import WaitDirection, wait_direction
from coordgraph.verification.evidence import Evidence
from coordgraph.verification.launch import Launch
from coordgraph.verification.named import Finding, enumerated, named_check
from coordgraph.verification.ordering import happens_before
from coordgraph.verification.verdicts import Counterexample, Outcome

__all__ = ["progress"]

NEEDS: dict[WaitDirection, str] = {
    "none": "no workgroup waits",
    "lower": "waits for lower workgroups: needs dispatch in order",
    "higher": "waits for higher workgroups: needs all workgroups resident",
    "mixed": "waits both ways: needs all workgroups resident",
}
"""By direction of the kernel's waits: a phrase for verdicts, which states the direction (waits for
workgroups of lower or of higher number) and what the launcher must guarantee: that workgroups are
dispatched in order, or that all are resident."""


@named_check(
    "progress",
    "Workgroups do not wait in a circle, given the launch guarantee that the graph needs: dispatch "
    "in order, or all workgroups resident.",
)
def progress(evidence: Evidence) -> Finding:
    """The check `progress`: prove in which direction all workgroups wait, else search for cycles.

    If every workgroup waits only for lower-numbered ones (or only for higher-numbered ones), the
    wait relation has no cycle, whatever the sizes are.
    """
    direction = wait_direction(evidence.graph)
    found = enumerated(
        evidence.traced_launches, "cycles of messages", _counterexamples(evidence, direction)
    )
    if found.outcome is Outcome.REFUTED:
        return found
    if direction != "mixed":
        return Finding(Outcome.PROVED, "interval proof", NEEDS[direction])
    return found._replace(detail=NEEDS[direction])


def _counterexamples(evidence: Evidence, direction: WaitDirection) -> Iterator[Counterexample]:
    for launch, found in evidence.traces:
        if cycle := happens_before(found).cycle():
            yield _circle(launch, cycle)
        yield from _wrong_direction(launch, found, direction)


def _circle(launch: Launch, cycle: tuple[Send | Receive, ...]) -> Counterexample:
    """The counterexample for a cycle of waits: each workgroup waits for the previous one."""
    steps = [
        f"workgroup {event.workgroup} "
        + ("waits for" if isinstance(event, Receive) else "then sends")
        + f" slot {event.slot}"
        for event in cycle
    ]
    workgroups = tuple(dict.fromkeys(event.workgroup for event in cycle))
    message = f"workgroups wait in a circle: {', '.join(steps)}"
    return Counterexample(message, launch, workgroups, cycle[0].tile)


def _wrong_direction(
    launch: Launch, found: Trace, direction: WaitDirection
) -> Iterator[Counterexample]:
    """Counterexamples: waits in a trace that `direction` excludes.

    If `direction` is `lower` (or `higher`), launchers rely on it that every workgroup waits only
    for workgroups of lower (or higher) number.
    """
    for receiver, sender in sorted(found.wait_edges()):
        wrong = {
            "none": sender != receiver,
            "lower": sender > receiver,
            "higher": sender < receiver,
            "mixed": False,
        }[direction]
        if wrong:
            message = (
                f"workgroup {receiver} waits for workgroup {sender}, but the launch relies on "
                f"this: {NEEDS[direction]}"
            )
            yield Counterexample(message, launch, (receiver, sender))
