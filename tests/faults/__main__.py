"""Examine every fault of the catalogue, and print which checks refute it: `make faults`."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from time import perf_counter

from tests.faults.catalogue import FAULTS
from tests.faults.equivalent_edits import EQUIVALENT
from tests.faults.fault import Fault

__all__ = ["examine"]


def examine(faults: Sequence[Fault]) -> int:
    """Print a row for each fault and the counts; returns how many verdicts were wrong."""
    wrong: list[Fault] = []
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
    sys.exit(bool(examine((*FAULTS, *EQUIVALENT))))
