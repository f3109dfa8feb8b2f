"""Generating a kernel, and choosing the plan of a call, call a limited number of functions.

CPU times differ between machines and runs; the number of Python functions that are called does not.
Each limit was set to the number of calls at that time plus about a third, so that only a new
repetition of work exceeds it. `python -m benchmarks generation` prints the numbers of calls and
times.
"""

from __future__ import annotations

import pytest

from benchmarks.measures.generation import choosing_times, python_calls, stages_of, warm_up
from passes.choosing import Plan
from tests.support.sampling import chosen, quick_cases

GENERATED = {
    "128x256x64 data-parallel": 420_000,
    "128x128x64 split-k{splits=4,reduction=scatter}": 820_000,
    "128x128x64 stream-k{reduction=scatter}": 1_060_000,
    "128x128x64 stream-k{owner=last,k_order=interleaved}": 1_130_000,
    "128x256x64 two-tile-stream-k": 1_150_000,
    "128x128x64 two-tile-stream-k{reduction=scatter}": 1_400_000,
}
"""By plan, the largest number of function calls that generating its PTX for sm_90a may take, in a
process that has generated other kernels before.
"""
CHOSEN = {"all plans": 2300, "a family": 2000}
"""Limits of the function calls that choose a plan for a new size, among all plans or a family's.

A family is the set of kernels that `codegen.warm` compiles.
"""
QUICK = ("128x256x64 data-parallel", "128x128x64 two-tile-stream-k{reduction=scatter}")


@quick_cases(1)
@pytest.mark.parametrize("plan", chosen(QUICK, [*GENERATED]))
def test_generating_a_kernel(plan: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COORDGRAPH_CACHE", "off")
    warm_up("sm_90a")
    assert python_calls(lambda: stages_of(Plan.parse(plan), "sm_90a")) <= GENERATED[plan]


@pytest.mark.slow
def test_choosing_a_plan():
    found = choosing_times(4)
    assert {name: figures["calls"] <= CHOSEN[name] for name, figures in found.items()} == {
        "all plans": True,
        "a family": True,
    }, found
