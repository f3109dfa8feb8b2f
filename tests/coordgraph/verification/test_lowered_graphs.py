"""Checks of lowered graphs read from text: faults are found, and too large launches skipped."""

from __future__ import annotations

import re
from functools import cache
from types import ModuleType

import pytest

from coordgraph import Gemm, VerifyError, parse
from coordgraph.errors import UnnamedFault
from coordgraph.verification import Outcome
from coordgraph.verification.lowered import LOWERED
from coordgraph.verification.memory_order import examine, machine, steps, thread_values
from coordgraph.verification.memory_order.check import NAME
from coordgraph.verification.memory_order.machine_facts import Facts
from passes import StreamK
from passes.lowering import LowerToHopper, LowerToTensorCores
from tests.support.sampling import quick_cases


@cache
def lowered(target: str) -> str:
    """The text of a lowered graph of stream-k for one target."""
    lower, tile = {
        "sm_80": (LowerToTensorCores(), (64, 64, 32)),
        "sm_90a": (LowerToHopper(), (128, 128, 64)),
    }[target]
    return lower(StreamK(workgroups=4)(Gemm("bf16").graph(tile))).text()


def edited(target: str, old: str, new: str, count: int = -1) -> str:
    """The text of a lowered graph in which `old` is replaced by `new`."""
    text = lowered(target)
    assert old in text
    return text.replace(old, new, count)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Advance dim=B.boxes.inside", "Advance dim=B.boxes"),
        ("Advance dim=ring.step", "Advance dim=D.shared.place"),
    ],
)
def test_an_advance_needs_a_counter(old: str, new: str):
    graph = parse(edited("sm_90a", old, new, 1))
    dim = new.partition("=")[2]
    with pytest.raises(VerifyError, match=f"Advance: '{dim}' is not the index of a Counter here"):
        graph.check()


def test_a_foreign_exception_of_the_check_is_named(monkeypatch: pytest.MonkeyPatch):
    def broken(*_: object) -> None:
        raise KeyError("B.boxes")

    monkeypatch.setitem(LOWERED, "memory order", broken)
    with pytest.raises(UnnamedFault, match=r"the check memory order failed: KeyError: 'B.boxes'"):
        parse(lowered("sm_80")).check()


ACCUMULATE = (
    "AccumulateFragment fragment=acc source=partials "
    "registers=(fragment.m, fragment.n, acc.eighth, acc.half) width="
)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (
            f"{ACCUMULATE}2",
            f"{ACCUMULATE}2147483648",
            r"AccumulateFragment \(operation \d+\): it accesses 2147483648 elements of 'partials', "
            "which has only 16384",
        ),
        (f"{ACCUMULATE}2", f"{ACCUMULATE}0", "AccumulateFragment .*: width is 0"),
        (
            "SetCoordinate dim=B.copy.element value=0",
            "SetCoordinate dim=B.copy.element value=2147483648",
            r"the index 2147483648 lies outside 'B.copy.element'; give an index in 0\.\.7",
        ),
        (
            "SetCoordinate dim=acc.pair value=0",
            "SetCoordinate dim=acc.pair value=-1",
            "the index -1 lies outside 'acc.pair'",
        ),
    ],
)
def test_widths_and_indices_fit(old: str, new: str, problem: str):
    graph = parse(edited("sm_80", old, new, 1))
    with pytest.raises(VerifyError, match=problem):
        graph.check()


@quick_cases(2)
@pytest.mark.parametrize(
    ("target", "old", "new", "problem"),
    [
        (
            "sm_80",
            "dim A.shared: Shared size=8192",
            "dim A.shared: Shared size=4096",
            r"s bytes 8[12]\d\d\.\.82\d\d of A.shared, which has only 8192 bytes; enlarge",
        ),
        ("sm_80", f"{ACCUMULATE}2", f"{ACCUMULATE}16384", "reads bytes .* of partials"),
        ("sm_90a", "a_strides=(16, 1024)", "a_strides=(16, 65536)", "reads bytes .* of A.shared"),
    ],
)
def test_an_access_past_its_memory_is_refuted(target: str, old: str, new: str, problem: str):
    (verdict,) = parse(edited(target, old, new)).check(checks=[NAME])
    assert verdict.refuted
    found = verdict.counterexamples[0]
    assert re.search(problem, found.problem), found.problem
    assert any(line.endswith("<-- first") for line in found.interleaving)


@pytest.mark.parametrize(
    ("target", "old", "new", "detail"),
    [
        (
            "sm_80",
            "dim=A.copy.pass start=0 stop=2 ",
            "dim=A.copy.pass start=0 stop=2147483648 ",
            "the unrolled iterations over A.copy.pass, for all threads, are 274877906944, over the "
            "budget of 16777216",
        ),
        (
            "sm_90a",
            "wgmma.m64n128k16.bf16",
            "wgmma.m64n99999999999k16.bf16",
            "the rows of operands that one wgmma reads are 12500000000, over the budget",
        ),
    ],
)
def test_an_array_over_the_budget_is_not_made(target: str, old: str, new: str, detail: str):
    (verdict,) = parse(edited(target, old, new)).check(checks=[NAME])
    assert verdict.outcome is Outcome.UNKNOWN
    assert detail in verdict.detail


@pytest.mark.parametrize(
    ("module", "limit", "detail"),
    [
        (examine, "MOST_WORKGROUPS", "the launch has 4 workgroups, over the budget of 3"),
        (steps, "MOST_ITERATIONS", "a workgroup executes more than 3 iterations of loops"),
        (thread_values, "MOST_ELEMENTS", "are 256, over the budget of 3"),
        (machine, "MOST_BYTES", "events need more than 3 bytes"),
    ],
)
def test_a_launch_over_the_budget_is_not_examined(
    module: ModuleType, limit: str, detail: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, limit, 3)
    (verdict,) = parse(lowered("sm_80")).check(checks=[NAME])
    assert verdict.outcome is Outcome.UNKNOWN
    assert detail in verdict.detail


def test_a_workgroup_has_at_most_as_many_threads_as_a_gpu_allows():
    text = edited("sm_80", "edge Flatten warp.m, warp.n, lane -> workitem\n", "")
    text = text.replace("dim workitem: Workitem size=128", "dim workitem: Workitem size=2147483647")
    with pytest.raises(VerifyError, match="2147483647 threads in a workgroup; a GPU allows 1 to"):
        Facts.of(parse(text))


def test_a_report_says_what_is_not_examined():
    report = parse(
        edited(
            "sm_80",
            "edge Split A -> A.0, A.1 strides=(k, 1)",
            "edge Split A -> A.0, A.1 strides=(n, 1)",
        )
    ).check()
    assert not report.refuted
    assert "addresses of elements of A, B, C and D" in report.not_covered
    assert str(report).endswith(report.not_covered)
    assert report.json()["not_covered"] == report.not_covered
