"""The check `fix-up`: each partial sum is added to its tile once, and flags end at 0.

A send must not overwrite a slot that another workgroup still reads, in any interleaving. So the
program order of each workgroup, and the rule that a partial sum is sent before it is received, must
imply that all receives from a slot come before the next send to the slot.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations

import networkx

from coordgraph.control.operations import AccumulatePartial
from coordgraph.interpreter.tracing import OutputTile, Receive, Send, Trace
from coordgraph.verification.evidence import Evidence
from coordgraph.verification.launch import Launch
from coordgraph.verification.named import Finding, enumerated, named_check
from coordgraph.verification.ordering import happens_before
from coordgraph.verification.verdicts import Counterexample

__all__ = ["fix_up"]

Part = tuple[int, OutputTile]
"""Type of a partial sum in a slot: its turn (how many partial sums were sent to the slot before
it), and its output tile."""


@named_check(
    "fix-up",
    "Every wait has its signal and every signal its wait; a partial sum is written before it is "
    "read, and not overwritten before its last read; flags and counters have the same values after "
    "a launch as before; each tile has one epilogue, which runs on the tile's whole sum over k.",
)
def fix_up(evidence: Evidence) -> Finding:
    """The check `fix-up`: awaited partial sums are sent, and read before they are overwritten."""
    return enumerated(evidence.traced_launches, "messages", _counterexamples(evidence))


def _counterexamples(evidence: Evidence) -> Iterator[Counterexample]:
    yield from evidence.counterexamples("fix-up")
    atomic = any(evidence.program.work(AccumulatePartial))
    for launch, found in evidence.traces:
        yield from _overwritten(launch, found, atomic=atomic)


def _overwritten(launch: Launch, found: Trace, *, atomic: bool) -> Iterator[Counterexample]:
    """Yield counterexamples: sends that may overwrite a partial sum before it is read.

    Args:
        launch: the launch arguments.
        found: the trace of the launch: what every workgroup sends and receives.
        atomic: whether workgroups add to a slot atomically; then sends for the same output tile
            need no order.
    """
    uses: dict[int, dict[Part, list[Send | Receive]]] = defaultdict(lambda: defaultdict(list))
    for event in (*found.sends, *found.receives):
        uses[event.slot][event.turn, event.tile].append(event)
    if all(len(parts) < 2 for parts in uses.values()):
        return
    order = happens_before(found)
    if not networkx.is_directed_acyclic_graph(order.graph):
        return  # a cycle of waits is reported by the check `progress`
    for slot, parts in uses.items():
        for one, other in combinations(sorted(parts), 2):
            sends = [e for part in (one, other) for e in parts[part] if isinstance(e, Send)]
            if len(sends) < 2 or (atomic and sends[0].tile == sends[1].tile):
                continue
            first, second = sends[:2]
            if not (order.before(parts[one], second) or order.before(parts[other], first)):
                yield Counterexample(
                    f"workgroup {first.workgroup} writes a partial sum of output tile {first.tile} "
                    f"to workspace slot {slot}, and workgroup {second.workgroup} one of output "
                    f"tile {second.tile}: the later one may overwrite the other before it is read",
                    launch,
                    (first.workgroup, second.workgroup),
                    second.tile,
                    {"slot": slot},
                )
