"""Counts of schedules' work equal formulas, and counts in lowered kernels; needs no GPU."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.counting.counts import busiest, count
from benchmarks.measures.schedules import SCHEDULES, shape_of
from benchmarks.measures.waves import ideal
from coordgraph import Gemm
from coordgraph.integers import evaluate
from passes import Pipeline
from passes.lowering import LowerToHopper
from tests.support.sampling import quick_cases

TILE = (128, 128, 64)


@given(st.lists(st.integers(0, 20), min_size=1, max_size=30), st.integers(1, 8))
def test_the_next_workgroup_begins_on_the_sm_that_is_free_first(
    lengths: list[int], processors: int
):
    ends = [0] * processors
    for length in lengths:
        ends[ends.index(min(ends))] += length
    assert busiest(lengths, processors) == max(ends)
    assert busiest(lengths, len(lengths)) == max(lengths)


@quick_cases(1)
@pytest.mark.parametrize("tiles", [1, 66, 131, 132, 133, 300])
def test_counts_of_closed_forms(tiles: int):
    found = shape_of(tiles, TILE, 4096)

    def counted(schedule: str) -> Any:
        return count(schedule, TILE, (found.m, found.n, found.k), 132)

    for whole in ("data-parallel", "data-parallel{persistent=true}"):
        assert counted(whole).utilisation == pytest.approx(ideal(tiles, 132))
        assert (counted(whole).fix_ups, counted(whole).workspace_bytes) == (0, 0)
    # Each macro tile of the last wave is divided into four small tiles, which are distributed
    # evenly among the workgroups.
    small = counted("heterogeneous-tiles")
    waves, rest = divmod(tiles, 132)
    quarters = math.ceil(4 * rest / 132)
    assert small.busiest == waves * 64 + quarters * 16
    assert (small.tiles, small.fix_ups, small.workspace_bytes) == (tiles, 0, 0)
    streamed = counted("stream-k")
    assert (streamed.tiles, streamed.grid) == (tiles, 132)
    assert streamed.busiest == math.ceil(tiles * 64 / 132)
    assert streamed.utilisation == pytest.approx(tiles * 64 / 132 / streamed.busiest)
    assert streamed.workspace_bytes == 132 * (128 * 128 * 4 + 4)
    in_two = counted("split-k{splits=2}")
    assert (in_two.fix_ups, in_two.grid) == (tiles, 2 * tiles)
    assert in_two.utilisation == pytest.approx(ideal(2 * tiles, 132))


@quick_cases(2)
@pytest.mark.parametrize("splits", [2, 3, 5])
def test_no_peer_receives_its_own_piece(splits: int):
    """In a reduce-scatter, a workgroup receives all partial sums of a tile but its own one."""
    owned = count(f"split-k{{splits={splits}}}", TILE, (256, 256, 4096), 132)
    assert owned.fix_ups == 4 * (splits - 1)
    scattered = f"split-k{{splits={splits},reduction=scatter}}"
    assert count(scattered, TILE, (256, 256, 4096), 132).fix_ups == 4 * splits * (splits - 1)


@pytest.mark.slow
def test_the_workspace_is_that_of_the_kernel():
    for schedule in SCHEDULES:
        lowered = LowerToHopper()(Pipeline.parse(schedule)(Gemm("bf16").graph((128, 256, 64))))
        values = {"m": 1408, "n": 3072, "k": 4096, "workgroups": 132, "read_c": 0}
        known = lowered.parameters.evaluate(
            {name: value for name, value in values.items() if name in lowered.parameters}
        )
        held = {
            tensor.name: int(evaluate(tensor.elements, known)) * 4
            for tensor in lowered.tensors
            if tensor.role.workspace
        }
        counted = count(schedule, (128, 256, 64), (1408, 3072, 4096), 132)
        assert sum(held.values()) == counted.workspace_bytes
