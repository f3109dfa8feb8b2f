"""Tests that every schedule stores all outputs of an epilogue, and that checks find errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from coordgraph import Gemm, KernelGraph, VerifyError, parse
from coordgraph import epilogue as ep
from coordgraph.interpreter import interpret
from passes import Pipeline
from tests.support.sampling import quick_cases


@ep.epilogue(scale="", gate=ep.operand("mn", optional=True), pre=ep.output("mn", "f32"))
def gated(acc: Any, scale: Any, gate: Any) -> Any:
    x = acc * scale
    return ep.relu(x) + gate, x


SCHEDULES = (
    "data-parallel",
    "data-parallel{workgroups=5,persistent=true}",
    "split-k{splits=3}",
    "split-k{splits=3,reduction=scatter}",
    "stream-k{workgroups=5}",
    "stream-k{workgroups=5,reduction=tree}",
    "stream-k{workgroups=5,reduction=turnstile}",
    "stream-k{workgroups=5,reduction=scatter}",
    "stream-k{workgroups=5,reduction=atomic}",
    "two-tile-stream-k{workgroups=5}",
    "heterogeneous-tiles",
)
GROUPED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("stream-k{workgroups=5}", {"batched": True}),
    ("stream-k{workgroups=5,reduction=scatter}", {"grouped": True}),
    ("stream-k{workgroups=5}", {"grouped": True, "group_axis": "k", "transpose_a": True}),
    ("data-parallel{workgroups=5,persistent=true}", {"grouped": True, "group_axis": "mnk"}),
    ("data-parallel", {"batched": True, "leading_dimensions": ("pre", "D")}),
)


def scheduled(schedule: str, **options: Any) -> KernelGraph:
    return Pipeline.parse(schedule)(Gemm("f32", epilogue=gated, **options).graph((16, 16, 16)))


@quick_cases(1)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_stores_every_output(schedule: str):
    graph = scheduled(schedule)
    assert not graph.check(checks=("cover", "bounds")).refuted
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((37, 50), (50, 41)))
    gate = rng.integers(-9, 9, (37, 41)).astype(np.float32)
    given = {"workgroups": 5} if schedule == "heterogeneous-tiles" else {}
    found = interpret(graph, a, b, operands={"scale": 2, "gate": gate}, parameters=given)
    np.testing.assert_array_equal(found.outputs["pre"], 2 * a @ b)
    np.testing.assert_array_equal(found.d, np.maximum(2 * a @ b, 0) + gate)


@quick_cases(1)
@pytest.mark.parametrize(("schedule", "options"), GROUPED, ids=str)
def test_batches_and_groups_store_every_output(schedule: str, options: dict[str, Any]):
    report = scheduled(schedule, **options).check(checks=("cover", "bounds"))
    assert not report.refuted
    assert "elements of" in report["cover"].detail


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "edge Split pre -> pre.0, pre.1 strides=(n, 1)",
            "edge Split pre -> pre.0, pre.1 strides=(1, m)",
        ),
        ("edge Tile pre.0 -> pre.tile.0, pre.index.0\n", ""),
        ("edge PassThrough pre.tile.1 -> B.tile.1", "edge PassThrough pre.tile.1 -> A.tile.0"),
    ],
)
def test_cover_finds_wrong_stores(before: str, after: str):
    text = scheduled("stream-k{workgroups=5}").text()
    assert before in text
    report = parse(text.replace(before, after)).check()
    assert report["cover"].refuted
    assert "pre" in report["cover"].counterexamples[0].problem


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("tensor pre f32 [m, n] output", "tensor pre f32 [n, m] output", r"declare .*\[m, n\]"),
        (
            "stores=(pre) store_tiles=(pre.tile.0, pre.tile.1)",
            "",
            r"it stores \(\).*outputs \(pre\)",
        ),
        ("edge PassThrough pre.tile.0 -> A.tile.0\n", "", "'pre.tile.0' is not tied"),
    ],
)
def test_graphs_without_an_output_are_refused(before: str, after: str, message: str):
    text = scheduled("stream-k{workgroups=5}").text()
    assert before in text
    with pytest.raises(VerifyError, match=message):
        parse(text.replace(before, after)).check()
