"""Batches and groups of rows on the GPU give right results, also in replayed CUDA graphs."""

from __future__ import annotations

import random
from itertools import accumulate, pairwise
from typing import Any

import pytest

import codegen
from codegen.targets.nvptx.driver import device
from coordgraph import Gemm
from passes import Pipeline
from passes.lowering import LowerToHopper
from tests.gpu.grouped import kernel, normal, on_device, poisoned
from tests.gpu.kernels import check

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("gpu")

SCHEDULES = (
    "data-parallel{persistent=true}",
    "rasterize{width=4},data-parallel{persistent=true}",
    "stream-k",
    "stream-k{owner=last,reduction=tree}",
    "stream-k{owner=last,least_segment=4}",
    "two-tile-stream-k{owner=last}",
    "two-tile-stream-k{first=dp,waves=contiguous}",
    "stream-k{reduction=atomic}",
)
TARGETS = ("native", "sm_80")
TILES = ((128, 128, 64), (128, 256, 64), (64, 128, 64), (16, 128, 64))


def check_groups(d: Any, a: Any, b: Any, offsets: list[int], c: Any = None, **scalars: Any) -> None:
    """Compare every group's rows of D with a float64 product; other rows must still be NaN.

    B has the shape (groups, n, k): it is stored transposed.
    """
    for group, (begin, end) in enumerate(pairwise(offsets)):
        if begin < end:
            rows = slice(begin, end)
            check(d[rows], a[rows], b[group].T, None if c is None else c[rows], **scalars)
    assert d[: offsets[0]].isnan().all()
    assert d[offsets[-1] :].isnan().all()


def drawn(seed: int, groups: int) -> list[int]:
    """Offsets of groups of random size, about half with 0 or 1 rows; the first rows belong
    to no group.
    """
    chance = random.Random(seed)
    sizes = [
        chance.choice((0, 1, chance.randint(2, 300), chance.randint(2, 900))) for _ in range(groups)
    ]
    return list(accumulate([chance.randint(0, 5), *sizes]))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_groups(schedule: str, tile: tuple[int, int, int], target: str):
    made = kernel(schedule, tile, target, grouped=True, transpose_b=True)
    for seed, (groups, n, k) in enumerate(
        ((1, 256, 512), (5, 512, 1024), (33, 264, 200), (64, 128, 4096))
    ):
        offsets = drawn(seed, groups)
        rows = offsets[-1] + 7
        a, b, c = normal(rows, k), normal(groups, n, k), normal(rows, n)
        given = on_device(offsets)
        d, again = poisoned(rows, n), poisoned(rows, n)
        made(a, b, out=d, offsets=given)
        made(a, b, out=again, offsets=given)
        check_groups(d, a, b, offsets)
        if "atomic" not in schedule:
            same = torch.equal(d.nan_to_num(), again.nan_to_num())
            assert same, "another result the second time"
        d = poisoned(rows, n)
        made(a, b, c, out=d, alpha=0.5, beta=2.0, offsets=given)
        check_groups(d, a, b, offsets, c, alpha=0.5, beta=2.0)


ENDS = (0, 1, 63, 64, 65, 127, 128, 129, 0, 192, 256, 300, 48, 96, 0, 512, 17)
"""The number of rows of each group: 0, whole TMA boxes or tiles, one row less or more, and others.
"""
HOPPER = (
    ((128, 256, 64), LowerToHopper()),
    ((128, 128, 64), LowerToHopper()),
    ((256, 128, 64), LowerToHopper(cluster_m=2)),
    ((128, 256, 64), LowerToHopper(cluster_n=2)),
    ((64, 64, 256), LowerToHopper(cluster_k=4)),
    ((48, 128, 64), LowerToHopper()),
    ((128, 48, 64), LowerToHopper()),
    ((128, 88, 64), LowerToHopper()),
    ((40, 128, 64), LowerToHopper()),
    ((128, 128, 64), LowerToHopper(consumers="pingpong")),
    ((64, 256, 64), LowerToHopper(consumers="pingpong")),
)


@pytest.mark.parametrize(("tile", "lowering"), HOPPER, ids=str)
@pytest.mark.parametrize("schedule", [SCHEDULES[0], SCHEDULES[2], SCHEDULES[5]])
def test_boxes_end_where_groups_do(
    schedule: str, tile: tuple[int, int, int], lowering: LowerToHopper
):
    """Rows outside the groups are not written.

    The test launches all groups at once, and then each group alone.
    """
    if device(0).architecture != "sm_90a":
        pytest.skip(f"these kernels are for sm_90a, this is {device(0).architecture}")
    gemm = Gemm(grouped=True, transpose_b=True)
    made = codegen.compile(Pipeline.parse(schedule)(gemm.graph(tile)), "sm_90a", lowering=lowering)
    offsets = list(accumulate([5, *ENDS]))
    n, k, rows = 520, 640, offsets[-1] + 130
    a, b, c = normal(rows, k), normal(len(ENDS), n, k), normal(rows, n)
    d = poisoned(rows, n)
    made(a, b, out=d, offsets=on_device(offsets))
    check_groups(d, a, b, offsets)
    d = poisoned(rows, n)
    made(a, b, c, out=d, alpha=0.5, beta=2.0, offsets=on_device(offsets))
    check_groups(d, a, b, offsets, c, alpha=0.5, beta=2.0)
    # In a launch of all groups, wrong rows that one group writes may be overwritten by its
    # neighbour, so each group is launched alone, too.
    for group, (begin, end) in enumerate(pairwise(offsets)):
        d = poisoned(rows, n)
        made(a, b[group : group + 1], out=d, offsets=on_device([begin, end]))
        check_groups(d, a, b[group : group + 1], [begin, end])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("k", [200, 201])
@pytest.mark.parametrize("types", [("f16", "f16"), ("bf16", "f32")])
def test_groups_of_every_type_and_of_odd_rows(types: tuple[str, str], k: int, target: str):
    dtype, out_dtype = types
    made = kernel(
        "two-tile-stream-k{owner=last}", (64, 64, 64), target,
        dtype=dtype, out_dtype=out_dtype, grouped=True, transpose_b=True,
    )  # fmt: skip
    offsets = [3, 3, 130, 131, 400]
    a, b = normal(405, k, dtype=dtype), normal(4, 77, k, dtype=dtype)
    d = poisoned(405, 77, dtype=out_dtype)
    made(a, b, out=d, offsets=on_device(offsets))
    check_groups(d, a, b, offsets)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_captured_launch_serves_other_groups(schedule: str):
    """A replayed CUDA graph uses the offsets of groups that are in memory at the replay."""
    made = kernel(schedule, (128, 128, 64), "native", grouped=True, transpose_b=True)
    rows, groups, n, k = 2048, 16, 512, 768
    a, b, d = normal(rows, k), normal(groups, n, k), poisoned(rows, n)
    given = on_device([0] * (groups + 1))
    # The first call compiles the kernel and allocates the workspace of the stream.
    made(a, b, out=d, offsets=given)
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        made(a, b, out=d, offsets=given)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            made(a, b, out=d, offsets=given)
    for seed in range(12):
        chance = random.Random(seed)
        borders = sorted(chance.randint(0, rows) for _ in range(groups + 1))
        if seed == 0:
            borders = [0] * (groups + 1)
        given.copy_(on_device(borders))
        d.fill_(float("nan"))
        torch.cuda.synchronize()
        graph.replay()
        torch.cuda.synchronize()
        check_groups(d, a, b, borders)


def test_offsets_that_the_kernel_before_wrote():
    """A launch reads the offsets only after the kernel before it on the stream has written them.

    Launches overlap, so a launch that reads too early would see the old offsets.
    """
    made = kernel(SCHEDULES[0], (128, 128, 64), "native", grouped=True, transpose_b=True)
    rows, groups, n, k = 1024, 8, 256, 256
    a, b = normal(rows, k), normal(groups, n, k)
    given = on_device([0] * (groups + 1))
    results = []
    for seed in range(40):
        chance = random.Random(seed)
        borders = sorted(chance.randint(0, rows) for _ in range(groups + 1))
        d = poisoned(rows, n)
        torch.add(on_device(borders), 0, out=given)
        made(a, b, out=d, offsets=given)
        results.append((borders, d))
    for borders, d in results:
        check_groups(d, a, b, borders)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("schedule", ["data-parallel", *SCHEDULES, "heterogeneous-tiles"])
def test_batches(schedule: str, layout: str, target: str):
    turned = {"transpose_a": layout[0] == "t", "transpose_b": layout[1] == "t"}
    made = kernel(schedule, (128, 128, 64), target, batched=True, **turned)
    for batches, m, n, k in ((1, 130, 70, 64), (7, 200, 136, 512), (33, 65, 40, 1000)):
        a = normal(batches, *((k, m) if turned["transpose_a"] else (m, k)))
        b = normal(batches, *((n, k) if turned["transpose_b"] else (k, n)))
        d = poisoned(batches, m, n)
        made(a, b, out=d)
        for i in range(batches):
            left = a[i].T if turned["transpose_a"] else a[i]
            right = b[i].T if turned["transpose_b"] else b[i]
            check(d[i], left, right, None)


@pytest.mark.parametrize("target", TARGETS)
def test_batches_with_gaps_and_with_one_matrix_for_all(target: str):
    made = kernel(SCHEDULES[0], (128, 128, 64), target, batched=True, transpose_b=True)
    a, b, d = normal(10, 256, 128), normal(1, 512, 128), poisoned(10, 256, 512)
    made(a[::2], b.expand(5, 512, 128), out=d[1::2])
    assert d[::2].isnan().all()
    for i in range(5):
        check(d[2 * i + 1], a[2 * i], b[0].T, None)
