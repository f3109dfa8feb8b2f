"""Check every faulty graph of the catalogue, and print which checks refute it: `make faults`."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

from tests.faults.catalogue import FAULTS
from tests.faults.equivalent_edits import EQUIVALENT
from tests.faults.fault import Fault
from tests.faults.memory_fault import MemoryFault
from tests.faults.memory_faults import MEMORY_FAULTS
from tests.faults.vector_faults import VECTOR_FAULTS

__all__ = ["examine"]


@dataclass(frozen=True)
class LoweredFault:
    """A fault of a lowered graph, which the check that the fault names must refute.

    Args:
        fault: how to make the faulty graph, and a text that the counterexample must contain.
    """

    fault: MemoryFault

    @property
    def check(self) -> str:
        """The name of the check that must refute the faulty graph."""
        return self.fault.check

    @property
    def name(self) -> str:
        """The fault's name: a phrase that says what is wrong with the graph."""
        return self.fault.name

    @property
    def schedule(self) -> str:
        """The pipeline that schedules the graph, and the target for which the graph is lowered."""
        return f"{self.fault.schedule} on {self.fault.target}"

    def refuted_by(self) -> tuple[str, ...]:
        """The names of the checks that refute the graph."""
        return tuple(verdict.name for verdict in self.fault.graph().check().refuted)


def examine(faults: Sequence[Fault | LoweredFault]) -> int:
    """Check each faulty graph and print a row for it; return the number of wrong verdicts."""
    wrong: list[Fault | LoweredFault] = []
    start = perf_counter()
    for fault in faults:
        found = fault.refuted_by()
        right = fault.check in found if fault.check else not found
        if not right:
            wrong.append(fault)
        names = ", ".join(sorted(found, key=lambda name: name != fault.check)) or "equivalent"
        print(f"{names if right else f'MISSED: {names}':40} {fault.schedule:40} {fault.name}")
    counts = Counter(bool(fault.check) for fault in faults)
    missed = Counter(bool(fault.check) for fault in wrong)
    print(
        f"{counts[True] - missed[True]} of {counts[True]} faults refuted, "
        f"{counts[False] - missed[False]} of {counts[False]} equivalent edits accepted, "
        f"in {perf_counter() - start:.0f} s"
    )
    by_check = Counter(fault.check for fault in faults if fault.check)
    print(", ".join(f"{check}: {count}" for check, count in by_check.items()))
    return len(wrong)


if __name__ == "__main__":
    lowered = map(LoweredFault, (*MEMORY_FAULTS, *VECTOR_FAULTS))
    sys.exit(bool(examine((*FAULTS, *lowered, *EQUIVALENT))))
