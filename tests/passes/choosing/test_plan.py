"""`Plan`: its text form, checks of its fields, graphs and lowerings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from coordgraph import Gemm, ParseError, PassError
from coordgraph.tilings import macro_tile
from passes import DataParallel, HeterogeneousTiles, Pipeline
from passes.choosing import Plan, rank
from passes.choosing.counting import COUNTED_TILE
from passes.choosing.plan_table import Table
from passes.lowering import LowerToHopper
from tests.passes.schedules import SCHEDULES
from tests.support.gated import swiglu

TEXTS = (
    "128x256x64 data-parallel",
    "256x256x64@c2x1 two-tile-stream-k{owner=last} on 66",
    "16x64x128@c1x1x2 stream-k{owner=last} on 60",
    "256x512x64@c1x2 rasterize{width=4},data-parallel{persistent=true} on 66",
    "128x256x64 rasterize,hybrid-stream-k{owner=last,least_segment=8} on 132",
    "128x192x64 two-tile-stream-k{first=dp,reduction=scatter} on 132",
    "128x192x64 stream-k{least=4,reduction=turnstile} on 99",
    "128x256x64 heterogeneous-tiles on 132",
    "128x256x64 heterogeneous-tiles{small_m=128} on 132",
    "128x256x64 heterogeneous-tiles{small_m=32,small_n=64} on 132",
)


TURNS = "256x128x64@c2x1@pingpong data-parallel{persistent=true} on 66"


@pytest.mark.parametrize("text", [*TEXTS, TURNS, "64x256x64@pingpong stream-k"])
def test_text_is_read_back(text: str):
    plan = Plan.parse(text)
    assert str(plan) == text
    assert Plan.parse(f"  {text} ") == plan


@pytest.mark.parametrize("text", [*TEXTS, TURNS])
def test_a_table_keeps_plans(text: str):
    gemm = Gemm("bf16", m=300, n=400, k=500)
    assert Table.of([(gemm, Plan.parse(text))]).plan(0) == Plan.parse(text)


@pytest.mark.parametrize(
    "text", ["", "data-parallel", "128x256 data-parallel", "128x128x64@c2 x", "64x64x64@tennis x"]
)
def test_what_is_no_plan_is_refused(text: str):
    with pytest.raises(PassError, match="is no plan"):
        Plan.parse(text)


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ({"tile": (16, 16)}, r"tile of a plan = \(16, 16\) is not three numbers"),
        ({"tile": 16}, "tile of a plan = 16 is not three numbers"),
        ({"tile": "abc"}, "tile of a plan = 'a' is not a whole number"),
        ({"tile": (16, 16, 0)}, "tile of a plan = 0 must be at least 1"),
        ({"cluster": (2.0, 1, 1)}, "cluster of a plan = 2.0 is not a whole number"),
        ({"pipeline": 5}, "pipeline of a plan = 5 is not text"),
        ({"workgroups": 0}, "workgroups of a plan = 0 must be at least 1"),
        ({"workgroups": 2.5}, "workgroups of a plan = 2.5 is not a whole number"),
        ({"consumers": "tennis"}, "consumers of a plan = 'tennis' is unknown; use one of coope"),
        ({"consumers": []}, r"consumers of a plan = \[\] is unknown; use"),
    ],
)
def test_parts_of_a_plan_are_looked_at(parts: dict[str, Any], why: str):
    with pytest.raises(PassError, match=why):
        Plan(**{"tile": (16, 16, 16), **parts})


def test_lists_and_numbers_of_numpy_will_do():
    plan = Plan([16, np.int64(16), 16], [2, 1, 1], "stream-k", np.int32(4))  # type: ignore[arg-type]
    assert {plan} == {Plan((16, 16, 16), (2, 1, 1), "stream-k", 4)}
    assert str(plan) == "16x16x16@c2x1 stream-k on 4"


def test_text_is_needed():
    for read in (Plan.parse, Pipeline.parse):
        with pytest.raises(PassError, match="= None is not text"):
            read(None)  # type: ignore[arg-type]


def test_an_unknown_pass_is_refused():
    with pytest.raises(ParseError):
        Plan.parse("128x256x64 stream-q")


def test_the_graph_is_scheduled_and_the_lowering_has_the_cluster():
    plan = Plan.parse(TEXTS[1])
    graph = plan.graph(Gemm("bf16", transpose_b=True))
    assert (graph.level, macro_tile(graph.coordinates)) == ("scheduled", (256, 256, 64))
    assert isinstance(plan.lowering, LowerToHopper)
    assert (plan.lowering.cluster_m, plan.lowering.cluster_n) == (2, 1)
    assert plan.why_not(Gemm("bf16", m=64, n=64, k=64)) is None
    assert Plan((250, 256, 64)).why_not(Gemm("bf16"))


def test_the_lowering_has_the_consumers():
    plan = Plan.parse(TURNS)
    assert plan.lowering == LowerToHopper(cluster_m=2, consumers="pingpong", reads_c=False)
    assert plan.why_not(Gemm("bf16")) is None
    assert plan.kernel != replace(plan, consumers="cooperative").kernel
    assert "pingpong cannot add up" in (
        Plan.parse("64x64x128@c1x1x2@pingpong stream-k").why_not(Gemm("bf16")) or ""
    )


@pytest.mark.parametrize("m", [256, 512, 1024])
def test_plans_of_gated_products_can_be_scheduled(m: int):
    """A plan's small tiles count the columns of B, like its macro tiles, for both sums."""
    problem = Gemm("bf16", transpose_b=True, epilogue=swiglu, m=m, n=14336, k=4096)
    plans = [choice.plan for choice in rank(problem, None, 40)]
    assert any("heterogeneous-tiles" in plan.pipeline for plan in plans)
    for plan in plans:
        plan.graph(problem)


def test_small_tiles_have_whole_columns_of_every_sum():
    graph = Gemm("bf16", epilogue=swiglu).graph((64, 64, 64))
    assert HeterogeneousTiles(small_n=32).why_not(graph) is None
    why = HeterogeneousTiles(small_n=1).why_not(graph)
    assert why == "small_n=1 has columns of B for 2 sums of the epilogue; use a multiple of 2"


@pytest.mark.timeout(20)
def test_a_tile_of_very_many_columns_is_refused_at_once():
    graph = DataParallel()(Gemm("bf16").graph((64, 2**60, 64)))
    assert LowerToHopper().why_not(graph) is not None


def test_plans_with_other_grids_share_a_kernel():
    one, other = Plan.parse("128x128x64 stream-k on 5"), Plan.parse("128x128x64 stream-k on 6")
    assert one != other
    assert one.kernel == other.kernel


def test_a_width_that_is_the_default_is_not_written():
    text = "128x256x64 rasterize,data-parallel"
    assert str(Plan.parse("128x256x64 rasterize{width=8},data-parallel")) == text


@pytest.mark.parametrize(
    "pipeline",
    [
        "reorder{swap=true},data-parallel",
        "rasterize{snake=true},data-parallel",
        "two-tile-stream-k{waves=contiguous}",
        "stream-k{workgroups=132}",
        "split-k{reduction=atomic}",
        "stream-k{reduction=atomic}",
        "hybrid-stream-k{owner=last,reduction=atomic}",
    ],
)
def test_what_no_model_knows_is_refused(pipeline: str):
    with pytest.raises(ValueError, match="the cost model does not know"):
        Table.of([(Gemm("bf16", m=1, n=1, k=1), Plan((64, 64, 64), pipeline=pipeline))])


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_schedules_are_those_of_another_tile_and_back(name: str):
    tile = (12, 20, 4)
    found = SCHEDULES[name].scaled(tile, COUNTED_TILE).scaled(COUNTED_TILE, tile)
    assert found == SCHEDULES[name] or isinstance(found, HeterogeneousTiles)
    if isinstance(found, HeterogeneousTiles):
        assert found.small(tile) == HeterogeneousTiles.small(SCHEDULES[name], tile)  # type: ignore[arg-type]


def test_small_tiles_of_whole_elements_are_needed():
    with pytest.raises(PassError, match="no small tiles of whole elements for macro tiles"):
        HeterogeneousTiles(small_m=4).scaled((12, 12, 4), (64, 64, 4))


def test_families():
    texts = ("data-parallel{persistent=true}", "rasterize,stream-k", "stream-k{reduction=tree}")
    found = [Plan((64, 64, 64), pipeline=text).family for text in texts]
    assert found == ["data-parallel", "stream-k", "stream-k tree"]
