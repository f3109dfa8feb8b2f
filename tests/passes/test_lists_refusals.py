"""Schedules and arguments that are refused for lists of products, with the reason."""

from __future__ import annotations

from typing import Any

import pytest

from coordgraph import Gemm, PassError, VerifyError
from passes import Pipeline
from tests.passes.schedules import TILE

ORDER = "each group has its own numbers of tile rows and tile columns"
ONE_DEPTH = "needs output tiles with equally many k tiles"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("data-parallel", "known only on the device, .* set persistent=true"),
        ("rasterize{width=2},stream-k", ORDER),
        ("rasterize{width=2,order=hilbert},data-parallel{persistent=true}", ORDER),
        ("reorder{swap=true},stream-k", ORDER),
        ("reorder{group=2},stream-k", ORDER),
        ("grouped{groups=2},stream-k", ORDER),
        ("split-k{splits=3}", "known only on the device, .* use stream-k"),
        ("split-k{splits=3,reduction=peers}", "known only on the device, .* use stream-k"),
        ("heterogeneous-tiles", "macro tiles and small tiles would divide"),
        (
            "stream-k{least_segment=2}",
            "needs output tiles .* use `least`",
        ),
        ("two-tile-stream-k{least_segment=2}", "groups have their own k"),
        ("two-tile-stream-k{first=dp}", f"first=dp {ONE_DEPTH}"),
        ("hybrid-stream-k{first=dp}", f"first=dp {ONE_DEPTH}"),
        ("two-tile-stream-k{waves=contiguous}", f"waves=contiguous {ONE_DEPTH}"),
        ("hybrid-stream-k{waves=contiguous}", f"waves=contiguous {ONE_DEPTH}"),
    ],
)
def test_schedules_that_refuse(name: str, why: str):
    problem = Gemm("f32", grouped=True, group_axis="mnk").graph(TILE)
    with pytest.raises(PassError, match=why):
        Pipeline.parse(name)(problem)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"m": 4}, "m cannot be fixed with group_axis=mnk"),
        ({"n": 3, "k": 5}, "n, k cannot be fixed with group_axis=mnk"),
        ({"batched": True}, "batched or grouped, not both"),
        ({"grouped": False}, "group_axis=mnk has no effect without groups"),
        ({"group_axis": "mn"}, "group_axis='mn' must be m, k or mnk"),
    ],
)
def test_problems_that_are_refused(arguments: dict[str, Any], why: str):
    problem: dict[str, Any] = {"grouped": True, "group_axis": "mnk", **arguments}
    with pytest.raises(VerifyError, match=why):
        Gemm(**problem)
