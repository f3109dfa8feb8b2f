"""The page `docs/reference/checks.md` lists the checks and the faults of the catalogue."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from pathlib import Path

import pytest

from coordgraph.verification import CHECKS, Outcome
from tests.faults.catalogue import FAULTS
from tests.faults.equivalent_edits import EQUIVALENT
from tests.faults.fault import Fault

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "checks.md"


def table() -> str:
    """The faults by check, as a Markdown table."""
    rows = ["| check | fault | put into |", "|---|---|---|"]
    for check, faults in groupby(FAULTS, key=lambda fault: fault.check):
        rows += [
            f"| {f'`{check}`' if not number else ''} | {fault.name} | {_origin(fault)} |"
            for number, fault in enumerate(faults)
        ]
    return "\n".join(rows) + "\n"


def equivalent() -> str:
    """The edits that leave a graph correct, as a Markdown table."""
    rows = [f"| {fault.name} | {_origin(fault)} |" for fault in EQUIVALENT]
    return "\n".join(["| edit | put into |", "|---|---|", *rows]) + "\n"


def _origin(fault: Fault) -> str:
    """Text: the schedule whose graph a fault edits, and whether the GEMM is batched or grouped."""
    kinds = {"m": "groups along m", "k": "groups along k", "mnk": "a list of products"}
    if "batched" in fault.gemm:
        return f"`{fault.schedule}`, a batch"
    if "epilogue" in fault.gemm:
        return f"`{fault.schedule}`, an epilogue with operands"
    if "grouped" in fault.gemm:
        return f"`{fault.schedule}`, {kinds[fault.gemm.get('group_axis', 'm')]}"
    return f"`{fault.schedule}`"


@pytest.mark.parametrize(("name", "rows"), [("faults", table), ("equivalent", equivalent)])
def test_the_page_lists_every_fault(
    name: str, rows: Callable[[], str], request: pytest.FixtureRequest
):
    text = PAGE.read_text(encoding="utf-8")
    begin = f"<!-- {name} -->\n"
    start, end = text.index(begin) + len(begin), text.index(f"<!-- /{name} -->")
    if request.config.getoption("--update-golden"):
        PAGE.write_text(text[:start] + rows() + text[end:], encoding="utf-8")
        return
    assert text[start:end] == rows(), "pytest tests/faults --update-golden writes the table"


def test_the_page_explains_every_check_and_verdict():
    text = PAGE.read_text(encoding="utf-8")
    for check in CHECKS.values():
        assert f"| `{check.name}` | {check.states} |" in text
    for outcome in Outcome:
        assert f"\n| {outcome.value} | " in text
