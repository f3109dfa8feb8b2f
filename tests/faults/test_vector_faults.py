"""The check `vectors` refutes every faulty lowered graph of its catalogue."""

from __future__ import annotations

import pytest

from coordgraph.verification import Outcome
from coordgraph.verification.vectors import NAME, STATES
from tests.faults.memory_fault import MemoryFault, correct, table
from tests.faults.test_memory_faults import PAGE
from tests.faults.vector_faults import VECTOR_FAULTS
from tests.support.sampling import quick_cases

BEGIN, END = "<!-- vector faults -->\n", "<!-- /vector faults -->"


@quick_cases(2)
@pytest.mark.parametrize("fault", VECTOR_FAULTS, ids=lambda fault: fault.name)
def test_vectors_refutes_the_fault(fault: MemoryFault):
    verdict = fault.graph().check(checks=[NAME])[NAME]
    assert verdict.refuted
    assert fault.shows in "\n".join(map(str, verdict.counterexamples))
    before = correct(fault.schedule, fault.lowering, fault.operand, fault.gemm)
    assert before.check(checks=[NAME])[NAME].outcome is Outcome.PROVED


def test_the_page_lists_every_fault_and_the_check(request: pytest.FixtureRequest):
    text = PAGE.read_text(encoding="utf-8")
    assert f"| `{NAME}` | {STATES} |" in text
    start, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    if request.config.getoption("--update-golden"):
        PAGE.write_text(text[:start] + table(VECTOR_FAULTS) + text[end:], encoding="utf-8")
        return
    assert text[start:end] == table(VECTOR_FAULTS), "pytest tests/faults --update-golden writes it"
