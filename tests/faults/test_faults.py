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
    "size of a Flatten: tiles_m instead of tiles_m·tiles_n",
    "Sunder: first segment one iteration too long",
    "A stored column-major",
    "k varies slowest instead of fastest",
    "no store",
    "tables of tiles in m and in n exchanged",
    "wait for one partial sum too many if a tile and a share end together",
    "partial sums sent twice",
    "two partial sums of a workgroup in one slot",
    "tree levels 1, 2, 3, … instead of 1, 2, 4, …",
    "workgroup waits for others before it sends its partial sums",
    "two workgroups wait for each other's partial sum",
    "table read past its end",
    "products of a batch read past the end of A",
    "operand of the epilogue subtracted instead of added",
    "workspace for one workgroup too few",
    "accumulator zeroed in every iteration",
    "every group multiplied by the first B",
    "slot numbers one too low, so that one is -1",
    "columns of B without an extent, so without a guard",
    "columns of B divided among tiles by Balance instead of Tile",
    "always 16 tiles in m, however many rows there are",
    "at most 64 iterations of a workgroup",
    "at most 100 k tiles of a segment",
    "a segment that begins at k tile 100 treated as its tile's first",
    "number of tiles in n limited to 100",
    "table entry past the end read, though not used",
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
