"""The cost model counts the work of batches and groups, and chooses plans near the fastest."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordgraph import Gemm
from coordgraph.interpreter import trace
from passes import Pipeline
from passes.choosing import Plan, choices, constants_of, rank
from passes.choosing.candidates import candidates
from passes.choosing.measurements import is_plan
from passes.choosing.model import Counts, cost
from passes.choosing.plan_table import Table
from tests.support.sampling import quick_cases

H200 = constants_of()
RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
BATCH = Gemm("bf16", m=640, n=768, k=1024, batched=True, transpose_b=True)
ROWS = Gemm("bf16", m=8192, n=4096, k=7168, grouped=True, transpose_b=True)
DEPTHS = Gemm("bf16", m=2048, n=2048, k=65536, grouped=True, group_axis="k", transpose_a=True)


def terms(plan: str, batches: int = 1, **sizes: Any) -> dict[str, float]:
    table = Table.of([(Gemm("bf16", transpose_b=True, **sizes), Plan.parse(plan))], batches)
    return cost(table, H200).row(0)


@pytest.mark.parametrize("batched", [False, True])
def test_a_batch_of_one_costs_what_a_product_does(batched: bool):
    alone = replace(BATCH, batched=False)
    problem = replace(BATCH, batched=batched)
    assert [*choices(problem, batches=1)] == [*choices(alone)]
    assert rank(problem, batches=2) != rank(alone)


@pytest.mark.parametrize(
    "plan",
    [
        "128x256x64 data-parallel{persistent=true} on 132",
        "128x256x64@c2x1 stream-k{owner=last} on 66",
        "128x256x64 two-tile-stream-k{owner=last} on 132",
        "128x256x64 heterogeneous-tiles on 132",
    ],
)
def test_products_of_one_tile_cost_what_one_of_as_many_tiles_does(plan: str):
    many = terms(plan, 299, m=128, n=256, k=4096)
    one = terms(plan, m=299 * 128, n=256, k=4096)
    for term in ("launch", "loop", "tiles", "fixup", "cluster"):
        assert many[term] == pytest.approx(one[term]), term
    # Each of the 299 products reads a B of its own from DRAM; the one large product has one B.
    assert many["dram"] > 1.5 * one["dram"]


def test_four_products_read_and_write_four_times_as_much():
    plan = "256x128x64 data-parallel{persistent=true} on 132"
    # A and B of one product stay in the L2 cache between bands of tiles. The A and B of all four
    # products together would not fit.
    sizes = {"m": 8192, "n": 2048, "k": 1024}
    few, many = terms(plan, 1, **sizes), terms(plan, 4, **sizes)
    few["dram"], many["dram"] = (found["dram"] - H200.dram_seconds for found in (few, many))
    for term in ("l2", "power", "loop", "dram"):
        assert many[term] == pytest.approx(4 * few[term], rel=0.05), term


@quick_cases(1)
@pytest.mark.parametrize(
    "pipeline",
    ["data-parallel{persistent=true}", "stream-k{owner=last}", "hybrid-stream-k{owner=last}"],
)
@given(
    count=st.integers(1, 5),
    m=st.integers(1, 3),
    n=st.integers(1, 3),
    k=st.integers(1, 6),
    grid=st.integers(1, 9),
)
@settings(max_examples=10, deadline=None)
def test_work_is_that_of_the_graph(pipeline: str, count: int, m: int, n: int, k: int, grid: int):
    graph = Pipeline.parse(pipeline)(Gemm("f32", batched=True).graph((4, 4, 4)))
    sizes: dict[str, Any] = {"m": 4 * m, "n": 4 * n, "k": 4 * k}
    strides = {"stride_a": 16 * m * k, "stride_b": 16 * k * n, "stride_c": 16 * m * n}
    strides["stride_d"] = strides["stride_c"]
    found = trace(graph, {**sizes, **strides, "batches": count, "workgroups": grid})
    plan = Plan((4, 4, 4), pipeline=pipeline, workgroups=grid)
    table = Table.of([(Gemm("bf16", batched=True, **sizes), plan)], count)
    counts = Counts(table, replace(H200, processors=grid))
    assert counts.shape.tiles[0] == count * m * n
    assert counts.work.iterations[0] == max(found.iterations)
    assert counts.work.counts.all_sends[0] == len(found.sends)


@pytest.mark.parametrize("tile", [48, 64, 128, 256])
def test_groups_end_in_the_middle_of_tiles_on_average(tile: int):
    random, plan = np.random.default_rng(0), Plan((tile, 128, 64))
    for groups, rows in ((8, 1000), (16, 8192), (64, 4096)):
        problem = replace(ROWS, m=rows, n=128)
        weights = random.exponential(size=(200, groups))
        sizes = np.floor(rows * weights / weights.sum(axis=1, keepdims=True))
        real = np.ceil(sizes / tile).sum(axis=1).mean()
        counted = Counts(Table.of([(problem, plan)], groups), H200).shape.tiles[0]
        assert counted == pytest.approx(real, rel=0.15)


@quick_cases(1)
@pytest.mark.parametrize("every", [18, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("problem", "batches"), [(BATCH, 7), (ROWS, 16), (DEPTHS, 16)])
def test_graphs_take_the_schedules_of_all_candidates(problem: Gemm, batches: int, every: int):
    """Every candidate's schedule can be applied to and lowered for batches and groups."""
    open_, plans = replace(problem, m=None, n=None, k=None), dict[str, Plan]()
    for all_kinds in (False, True):
        table = candidates(problem, H200, batches=batches, all_kinds=all_kinds)
        for plan in map(table.plan, range(len(table))):
            plans.setdefault(plan.pipeline, plan)
    for plan in [*plans.values()][::every]:
        assert plan.lowering.why_not(plan.graph(open_)) is None, plan
    assert len(plans) > 1


def test_what_groups_refuse_is_no_candidate():
    rows = {choice.plan.pipeline for choice in choices(ROWS, batches=16)}
    assert "data-parallel" not in rows
    assert not any("heterogeneous" in pipeline for pipeline in rows)
    assert {"data-parallel{persistent=true}", "two-tile-stream-k{owner=last}"} <= rows
    # Data-parallel plans for groups are persistent even if there are fewer tiles than SMs.
    few = {c.plan.pipeline for c in choices(replace(ROWS, m=64, n=256), batches=4)}
    assert "data-parallel{persistent=true}" in few
    # With groups along k, workgroups with equally many Stream-K iterations may complete very
    # different numbers of tiles. The cost model does not count how many tiles a workgroup
    # completes, so Stream-K is no candidate.
    depths = [choice.plan.pipeline for choice in choices(DEPTHS, batches=16)]
    assert not any("stream-k" in pipeline for pipeline in depths)


def test_operands_of_groups_along_k_come_in_rows_of_whole_cache_lines():
    for groups in (8, 32, 64):
        problem = replace(DEPTHS, m=7168, k=8192)
        plans = [choice.plan for choice in choices(problem, batches=groups)]
        assert len(plans) > 20
        for plan in plans:
            parts = plan.tile[0] // plan.cluster[0], plan.tile[1] // plan.cluster[1]
            assert parts[0] % 64 == parts[1] % 64 == 0, plan
    # The problem has k as the contiguous axis of A and B, so n of a tile need not be a multiple of
    # 64.
    assert any(choice.plan.tile[1] % 64 for choice in choices(ROWS, batches=16))


def test_a_short_list_for_groups_ends_with_a_plan_that_they_take():
    found = rank(ROWS, None, 1, batches=8)
    assert found[0].plan.cluster != (1, 1, 1)
    assert found[-1].plan == Plan((128, 128, 64), pipeline="data-parallel{persistent=true}")


def measured(name: str) -> Iterator[tuple[Gemm, int, dict[Plan, float]]]:
    """Yield the times of each problem in a results file `name` of `python -m benchmarks groups`.

    The items are (problem, number of groups, seconds of each plan).
    """
    data = json.loads((RESULTS / name).read_text("utf-8"))
    like = {"m": ROWS, "k": DEPTHS}[data["axis"]]
    for (_, groups), rows in groupby(data["rows"], lambda row: (row["shape"], row["groups"])):
        ours = [row for row in rows if is_plan({"plan": row["name"]}) and "seconds" in row]
        problem = replace(like, **{axis: ours[0][axis] for axis in "mnk"})
        yield problem, groups, {Plan.parse(r["name"]): r["seconds"]["median"] for r in ours}


@pytest.mark.parametrize(
    ("name", "mean", "most"),
    [
        ("groups-h200-2026-11-23.json", 1.04, 1.15),
        ("groups-k-h200-2026-11-23.json", 1.015, 1.04),
    ],
)
def test_what_is_chosen_among_measured_plans_is_near_the_best(name: str, mean: float, most: float):
    losses: list[float] = []
    for problem, groups, times in measured(name):
        streams = not problem.ragged("k")
        plans = [p for p in times if streams or "stream-k" not in p.pipeline]
        table = Table.of(((problem, plan) for plan in plans), groups)
        best = plans[int(np.argmin(cost(table, H200).total))]
        losses.append(log(times[best] / min(times.values())))
    assert len(losses) == 16
    assert exp(sum(losses) / len(losses)) < mean
    assert exp(max(losses)) < most


@pytest.mark.parametrize("name", ["groups-h200-2026-11-23.json", "groups-k-h200-2026-11-23.json"])
def test_the_page_says_how_far_grouped_matmul_is_behind_the_best(name: str):
    """groups/speed.md says how much slower `grouped_matmul` is than the fastest measured plan.

    In each results file, the runs of `grouped_matmul` and of the plans were interleaved.
    """
    rows = json.loads((RESULTS / name).read_text("utf-8"))["rows"]
    losses: list[float] = []
    for _, each in groupby(rows, lambda row: (row["shape"], row["groups"])):
        times = {row["name"]: row["seconds"]["median"] for row in each if row["ours"]}
        losses.append(log(times["codegen.grouped_matmul"] / min(times.values())))
    assert len(losses) == 16
    mean, most = exp(sum(losses) / len(losses)) - 1, exp(max(losses)) - 1
    speed = RESULTS.parents[1] / "docs" / "explanation" / "groups" / "speed.md"
    page = " ".join(speed.read_text("utf-8").split())
    said = f"take {mean:.1%} longer than the fastest measured ones, at most {most:.1%}"
    assert said.replace("%", " %") in page
