"""Every fault of the catalogue is refuted by its check; correct graphs are not refuted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordgraph import CoordGraphError
from coordgraph.verification import CHECKS
from tests.faults.__main__ import examine
from tests.faults.catalogue import FAULTS
from tests.faults.equivalent_edits import EQUIVALENT
from tests.faults.fault import Fault
from tests.support.sampling import chosen, quick_cases

NAMES = [fault.name for fault in FAULTS]
BY_NAME = {fault.name: fault for fault in (*FAULTS, *EQUIVALENT)}
REFUSED = r"does not hold|break|is not the epilogue|does not fit|cut unequally|TakeTicket"
QUICK = (
    "Flatten of the size rows instead of rows·columns",
    "Sunder one iteration too long",
    "A stored column-major",
    "k fastest made slowest",
    "no store",
    "tables of rows and columns exchanged",
    "one wait too many where ends are aligned",
    "doubled signal",
    "two pieces of a workgroup share a slot",
    "tree without doubling",
    "waits before it sends",
    "workgroups wait for each other's piece",
    "table read past its end",
    "rows of a batch past the tensor",
    "operand of the epilogue subtracted",
    "workspace for one workgroup too few",
    "accumulator zeroed in every iteration",
    "every group multiplied by the first B",
    "slot before the workspace",
    "columns of B without an extent, so without a guard",
    "columns of B spread evenly over the tiles",
    "as many tiles in m as 64 rows need",
    "at most 64 iterations of a workgroup",
    "at most 100 k tiles of a segment",
    "a segment that begins at k tile 100 taken for the first",
    "at most 100 tiles in n of a group",
    "table read past its end before a tile that does not use the entry",
)


def test_names_are_unique_and_checks_exist():
    assert len({*NAMES}) == len(NAMES)
    assert {*QUICK} <= {*NAMES}
    assert {fault.check for fault in FAULTS} == {"well-formed", *CHECKS}


@quick_cases(4)
@pytest.mark.parametrize("name", chosen(QUICK, NAMES))
def test_the_named_check_refutes_the_fault(name: str):
    fault: Fault = BY_NAME[name]
    if fault.check == "well-formed":
        with pytest.raises(CoordGraphError, match=REFUSED):
            fault.graph().verify()
        return
    report = fault.graph().check()
    assert fault.check in {verdict.name for verdict in report.refuted}, report
    found = report[fault.check].counterexamples
    assert found
    assert all(example.launch is not None for example in found)


@quick_cases(2)
@pytest.mark.parametrize("fault", EQUIVALENT, ids=lambda fault: fault.name)
def test_edits_that_change_nothing_are_not_refuted(fault: Fault):
    assert not fault.graph().check().refuted


def test_the_catalogue_is_printed_with_counts(capsys: pytest.CaptureFixture[str]):
    shown = [BY_NAME["no store"], BY_NAME["bands of another width"]]
    missed = replace(BY_NAME["bands of another width"], name="missed", check="cover")
    assert not examine(shown)
    assert examine([*shown, missed])
    printed = capsys.readouterr().out
    assert "no store" in printed
    assert "1 of 1 faults refuted, 1 of 1 equivalent edits accepted" in printed
    assert "1 of 2 faults refuted" in printed
    assert "MISSED" in printed
