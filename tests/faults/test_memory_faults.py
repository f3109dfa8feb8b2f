"""The check `memory order` refutes every faulty lowered graph of the catalogue."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordgraph.verification import Outcome
from coordgraph.verification.memory_order.check import NAME, STATES
from tests.faults.memory_fault import MemoryFault, correct, table
from tests.faults.memory_faults import MEMORY_FAULTS
from tests.support.sampling import chosen, quick_cases

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "checks.md"
BEGIN, END = "<!-- memory faults -->\n", "<!-- /memory faults -->"
BY_NAME = {fault.name: fault for fault in MEMORY_FAULTS}
QUICK = (
    "consumed stages are not freed",
    "the wrong stage freed",
    "inverted parity in the wait for a full stage",
    "mbarrier does not expect the bytes of B",
    "a stage freed while wgmma reads it",
    "no wgmma fence",
    "no mbarrier initialisation fence",
    "no wait for earlier launches",
    "no proxy fence before a TMA store",
    "no wait for TMA stores at the end",
    "flag set with relaxed order, not release",
    "flag not cleared for the next launch",
    "no warp barrier after waits for flags",
    "no barrier after reads of a stage",
    "no barrier after TakeFlag",
    "partial sums in a cluster acquired at CTA scope",
    "no cluster barrier at the end",
    "warpgroup waits for its own turn to end, not the other's",
    "copies one stage too far ahead",
    "no barrier after the wait for the last copies",
    "no barrier after a table is computed on sm_80",
    "no proxy fence after zeros are stored past a group's end",
    "workgroup waits for its own flag on sm_80",
)


def test_names_are_unique_and_faults_are_many():
    assert len(BY_NAME) == len(MEMORY_FAULTS) >= 20
    assert {*QUICK} <= {*BY_NAME}
    assert {fault.target for fault in MEMORY_FAULTS} == {"sm_80", "sm_90a"}


@quick_cases(1)
@pytest.mark.parametrize("name", chosen(QUICK, list(BY_NAME)))
def test_memory_order_refutes_the_fault(name: str):
    fault: MemoryFault = BY_NAME[name]
    verdict = fault.graph().check()[NAME]
    assert verdict.refuted, name
    text = "\n".join(map(str, verdict.counterexamples))
    assert fault.shows in text
    found = verdict.counterexamples[0]
    assert found.launch is not None
    assert found.workgroups
    assert 1 <= len(found.interleaving) <= 12
    assert all(line.startswith("workgroup ") for line in found.interleaving)


def test_the_page_lists_every_fault_and_the_check(request: pytest.FixtureRequest):
    text = PAGE.read_text(encoding="utf-8")
    assert f"| `{NAME}` | {STATES} |" in text
    start, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    if request.config.getoption("--update-golden"):
        PAGE.write_text(text[:start] + table(MEMORY_FAULTS) + text[end:], encoding="utf-8")
        return
    assert text[start:end] == table(MEMORY_FAULTS), (
        "pytest tests/faults --update-golden writes the table"
    )


CORRECT = sorted({(f.schedule, f.lowering, f.operand, f.gemm) for f in MEMORY_FAULTS}, key=str)


@quick_cases(1)
@pytest.mark.parametrize(("schedule", "lowering", "operand", "gemm"), CORRECT, ids=str)
def test_the_correct_graphs_hold(schedule: str, lowering: object, operand: bool, gemm: object):
    graph = correct(schedule, lowering, operand, gemm)  # type: ignore[arg-type]
    assert graph.check()[NAME].outcome is Outcome.HOLDS
