"""Tests which checks run between passes by default, and which ones each `verify` level skips."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import passes.base
from coordgraph import Gemm, KernelGraph, PassError, parse
from passes import Pass, Pipeline, StreamK
from passes.base import Verify
from passes.choosing import Plan

PIPELINE = "rasterize{width=2},stream-k"
Seen = list[tuple[str, str]]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    """A list that gets (name of a check, passes applied before it) whenever a check runs."""
    found: Seen = []
    checks, work = passes.base.run_checks, passes.base.work_problems

    def run_checks(graph: KernelGraph, names: tuple[str, ...]) -> list[str]:
        found.extend((name, ", ".join(graph.log)) for name in names)
        return checks(graph, names)

    def work_problems(graph: KernelGraph) -> tuple[str, ...]:
        found.append(("work", ", ".join(graph.log)))
        return work(graph)

    monkeypatch.setattr(passes.base, "run_checks", run_checks)
    monkeypatch.setattr(passes.base, "work_problems", work_problems)
    return found


def checked(seen: Seen, log: str) -> set[str]:
    return {name for name, of in seen if of == log}


def test_every_result_of_a_pipeline_is_checked_by_default(seen: Seen):
    Pipeline.parse(PIPELINE)(Gemm("f32").graph((4, 4, 4)))
    order = "rasterize{width=2}"
    assert "problem" in checked(seen, "")
    assert "well-formed" in checked(seen, order)
    assert checked(seen, f"{order}, stream-k") >= {"well-formed", "scheduled", "work"}


@pytest.mark.parametrize("level", ["structure", "outside", "work"])
def test_levels_decide_whether_workgroups_are_traced(level: Verify, seen: Seen):
    StreamK()(Gemm("f32").graph((4, 4, 4)), verify=level)
    assert (("work", "stream-k") in seen) is (level == "work")
    assert ("well-formed", "stream-k") in seen


def test_plans_check_the_structure_of_library_passes(seen: Seen):
    Plan((8, 8, 8), pipeline="stream-k").graph(Gemm("f32"))
    assert checked(seen, "stream-k") >= {"well-formed", "scheduled"}
    assert "work" not in checked(seen, "stream-k")


class WithoutStores(Pass):
    """A pass of another package: applies StreamK and then deletes all stores."""

    name = "test-without-stores"
    establishes = ("scheduled",)

    def apply(self, graph: KernelGraph) -> KernelGraph:
        """Apply StreamK and delete every store."""
        text = StreamK()(graph, verify="structure").text()
        return parse(text.replace("StoreTile tensor=D tile=(D.tile.0, D.tile.1)\n", ""))


@pytest.mark.parametrize(
    "run",
    [
        lambda graph: WithoutStores()(graph),
        lambda graph: Pipeline([WithoutStores()])(graph),
        lambda graph: WithoutStores()(graph, verify="outside"),
    ],
    ids=["pass", "pipeline", "outside"],
)
def test_a_broken_result_is_refused_before_the_next_pass(
    run: Callable[[KernelGraph], KernelGraph],
):
    with pytest.raises(PassError, match="test-without-stores left a broken graph: with m="):
        run(Gemm("f32").graph((4, 4, 4)))
    assert WithoutStores()(Gemm("f32").graph((4, 4, 4)), verify="structure").level == "scheduled"
