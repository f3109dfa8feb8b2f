"""Some schedules refuse groups along k; invalid problems and offset tables are errors."""

from __future__ import annotations

import numpy as np
import pytest

from coordgraph import Gemm, LaunchError, PassError, VerifyError
from coordgraph.interpreter import interpret
from coordgraph.parameters import LARGEST_SIZE
from passes import (
    HeterogeneousTiles,
    HybridStreamK,
    Pass,
    SplitK,
    StreamK,
    TwoTileStreamK,
)
from tests.passes.schedules import SCHEDULES, TILE, schedule
from tests.passes.test_groups_of_k import M, N, graph


@pytest.mark.parametrize("name", SCHEDULES)
def test_which_schedules_share_depths_that_are_data(name: str):
    """Only some schedules accept output tiles with different numbers of k tiles.

    Schedules with whole tiles or with equally many iterations per workgroup accept them. Schedules
    that cut every tile into equal parts, that move range ends to tile ends, or that interleave the
    k tiles of a tile among workgroups, refuse them.
    """
    needs_one_depth = (
        *("split-k", "heterogeneous", "least_segment", "first=dp", "waves=contiguous"),
        "k_order=interleaved",
    )
    right = not any(word in name for word in needs_one_depth)
    problem = Gemm("f32", grouped=True, group_axis="k").graph(TILE)
    assert (schedule(name).why_not(problem) is None) == right


@pytest.mark.parametrize(
    ("refused", "why"),
    [
        (TwoTileStreamK(first="dp"), "first=dp needs output tiles with equally .* use first=sk"),
        (HybridStreamK(waves="contiguous"), "waves=contiguous needs .* use waves=strided"),
        (TwoTileStreamK(least_segment=2), "least_segment=2 needs output tiles with equally many"),
        (SplitK(splits=2), "pieces need output tiles with equally .* use stream-k"),
        (HeterogeneousTiles(), "groups have their own k, .* use stream-k"),
        (StreamK(least_segment=3), "least_segment=3 needs .* use `least`"),
    ],
    ids=lambda value: str(value) if isinstance(value, Pass) else "",
)
def test_refusals_say_why(refused: Pass, why: str):
    with pytest.raises(PassError, match=why):
        refused(Gemm("f32", grouped=True, group_axis="k").graph(TILE))


def test_problems_that_are_none():
    with pytest.raises(VerifyError, match="Gemm: group_axis='n' must be m, k or mnk"):
        Gemm(grouped=True, group_axis="n")
    for strange in ("mk", "", "K", None, 2):
        with pytest.raises(VerifyError, match="must be m, k or mnk"):
            Gemm(grouped=True, group_axis=strange)  # type: ignore[arg-type]
    with pytest.raises(VerifyError, match="group_axis=k has no effect without groups"):
        Gemm(group_axis="k")
    with pytest.raises(VerifyError, match="group_axis=k has no effect without groups"):
        Gemm(batched=True, group_axis="k")
    with pytest.raises(VerifyError, match="batched or grouped, not both"):
        Gemm(batched=True, grouped=True, group_axis="k")
    with pytest.raises(VerifyError, match=r"k = 1073741825 must be in 1\.\.1073741824"):
        Gemm(grouped=True, group_axis="k", k=2**30 + 1)
    assert Gemm(grouped=True, group_axis="k", transpose_a=True).ragged("k")
    assert Gemm(grouped=True, group_axis="k", m=LARGEST_SIZE).m == LARGEST_SIZE
    assert Gemm(group_axis="m").group_axis == "m"
    kinds = {axis: Gemm(grouped=True, group_axis=axis).batched_tensors for axis in "mk"}
    assert kinds == {"m": "B", "k": "CD"}


@pytest.mark.parametrize(
    ("offsets", "why"),
    [
        (
            [0, 5, 4, 9],
            r"offsets\[2\] = 4 is less than offsets\[1\] = 5; entries must be non-decreasing",
        ),
        ([-1, 5, 7, 9], r"offsets\[0\] = -1 is negative"),
        ([0, 5, 7, 21], r"offsets\[3\] = 21 is larger than 20"),
        ([], r"groups = -1 is outside 1\.\.511"),
        ([3], r"groups = 0 is outside 1\.\.511"),
    ],
)
def test_tables_that_are_not_as_declared(offsets: list[int], why: str):
    a, b = np.zeros((M, 20), np.float32), np.zeros((20, N), np.float32)
    with pytest.raises(LaunchError, match=why):
        interpret(
            graph("stream-k"),
            a,
            b,
            parameters={"workgroups": 2},
            tables={"offsets": np.array(offsets, np.int32)},
        )


def test_c_must_be_of_all_groups():
    a, b = np.zeros((M, 8), np.float32), np.zeros((8, N), np.float32)
    given_ = {"parameters": {"workgroups": 2}, "tables": {"offsets": np.array([0, 3, 8], np.int32)}}
    with pytest.raises(LaunchError, match="C has 2 axes, but the graph needs 3"):
        interpret(graph("stream-k"), a, b, np.zeros((M, N), np.float32), beta=1, **given_)
    with pytest.raises(
        LaunchError, match=r"C has the shape \(3, .*: axis 0 of \(groups, m, n\) must be 2"
    ):
        interpret(graph("stream-k"), a, b, np.zeros((3, M, N), np.float32), beta=1, **given_)
