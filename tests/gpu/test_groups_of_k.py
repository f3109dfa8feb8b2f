"""Groups along k give right results on the GPU, also with changing offsets.

NaN outside the groups must not reach a result.
"""

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
from tests.gpu.kernels import check, torch_type

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("gpu")

SCHEDULES = (
    "data-parallel",
    "rasterize{width=4},data-parallel{persistent=true}",
    "stream-k",
    "stream-k{owner=last}",
    "stream-k{owner=last,reduction=tree}",
    "stream-k{owner=last,reduction=turnstile}",
    "stream-k{reduction=scatter}",
    "stream-k{owner=last,reduction=atomic}",
)
LAYOUTS = ("nn", "nt", "tn", "tt")
TARGETS = ("native", "sm_80")
LENGTHS = (0, 1, 63, 64, 65, 127, 128, 0, 300, 8, 1000, 17, 512)
"""Numbers of elements of the groups along k: 0, whole k tiles, one element less or more, others."""
HOPPER = (
    ((128, 256, 64), LowerToHopper()),
    ((128, 128, 64), LowerToHopper()),
    ((256, 128, 64), LowerToHopper(cluster_m=2)),
    ((128, 256, 64), LowerToHopper(cluster_n=2)),
    ((64, 64, 256), LowerToHopper(cluster_k=4)),
    ((48, 128, 64), LowerToHopper()),
    ((128, 48, 64), LowerToHopper()),
    ((128, 160, 64), LowerToHopper()),
    ((128, 88, 64), LowerToHopper()),
    ((256, 120, 64), LowerToHopper()),
    ((128, 128, 64), LowerToHopper(consumers="pingpong")),
    ((64, 256, 128), LowerToHopper(consumers="pingpong")),
)


def turned(layout: str) -> dict[str, bool]:
    return {"transpose_a": layout[0] == "t", "transpose_b": layout[1] == "t"}


def operands(layout: str, m: int, n: int, offsets: list[int], dtype: str = "bf16") -> Any:
    """A and B as they are stored, with NaN before the groups and infinity after them."""
    k = offsets[-1] + 8 - offsets[-1] % 8
    a, b = normal(k, m, dtype=dtype), normal(k, n, dtype=dtype)
    for x in (a, b):
        x[: offsets[0]] = float("nan")
        x[offsets[-1] :] = float("inf")
    return (a if layout[0] == "t" else a.T.contiguous()), (
        b.T.contiguous() if layout[1] == "t" else b
    )


def check_each(
    d: Any, a: Any, b: Any, layout: str, offsets: list[int], c: Any = None, **scalars: Any
) -> None:
    """Compare D of every group with float64; D of a group with k = 0 is zeros, or beta·C."""
    left, right = a.T if layout[0] == "t" else a, b.T if layout[1] == "t" else b
    for group, (begin, end) in enumerate(pairwise(offsets)):
        own = None if c is None else c[group]
        if begin < end:
            check(d[group], left[:, begin:end], right[begin:end], own, **scalars)
        elif own is None:
            assert not d[group].any()
        else:
            wanted = (scalars["beta"] * own.float()).to(own.dtype)
            torch.testing.assert_close(d[group], wanted)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_groups(schedule: str, layout: str, target: str):
    made = kernel(schedule, (128, 128, 64), target, grouped=True, group_axis="k", **turned(layout))
    for seed, (groups, m, n) in enumerate(((1, 256, 512), (6, 130, 72), (40, 264, 200))):
        chance = random.Random(seed)
        sizes = [chance.choice((0, 1, chance.randint(2, 700))) for _ in range(groups)]
        offsets = list(accumulate([chance.randint(0, 5), *sizes]))
        a, b = operands(layout, m, n, offsets)
        d, again = poisoned(groups, m, n), poisoned(groups, m, n)
        made(a, b, out=d, offsets=on_device(offsets))
        made(a, b, out=again, offsets=on_device(offsets))
        check_each(d, a, b, layout, offsets)
        if "atomic" not in schedule:
            assert torch.equal(d, again), "another result the second time"
        c, d = normal(groups, m, n), poisoned(groups, m, n)
        made(a, b, c, out=d, alpha=0.5, beta=2.0, offsets=on_device(offsets))
        check_each(d, a, b, layout, offsets, c, alpha=0.5, beta=2.0)


@pytest.mark.parametrize(("tile", "lowering"), HOPPER, ids=str)
@pytest.mark.parametrize("schedule", [SCHEDULES[1], SCHEDULES[3]])
def test_tiles_end_where_groups_do(
    schedule: str, tile: tuple[int, int, int], lowering: LowerToHopper
):
    """The last k tile of a group uses nothing past the group's end.

    The test launches all groups at once, and each group alone, between NaN and infinity.
    """
    if device(0).architecture != "sm_90a":
        pytest.skip(f"these kernels are for sm_90a, this is {device(0).architecture}")
    gemm = Gemm(grouped=True, group_axis="k", transpose_a=True)
    made = codegen.compile(Pipeline.parse(schedule)(gemm.graph(tile)), "sm_90a", lowering=lowering)
    offsets, m, n = list(accumulate([5, *LENGTHS])), 200, 264
    a, b = operands("tn", m, n, offsets)
    d = poisoned(len(LENGTHS), m, n)
    made(a, b, out=d, offsets=on_device(offsets))
    check_each(d, a, b, "tn", offsets)
    for length in LENGTHS[1:6]:
        ends = [11, 11 + length]
        a, b = operands("tn", m, n, ends)
        d = poisoned(1, m, n)
        made(a, b, out=d, offsets=on_device(ends))
        check_each(d, a, b, "tn", ends)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("dtype", "out_dtype"), [("f16", "f16"), ("bf16", "f32")])
def test_every_type_and_odd_rows(dtype: str, out_dtype: str, target: str):
    made = kernel(
        SCHEDULES[3], (64, 64, 64), target,
        dtype=dtype, out_dtype=out_dtype, grouped=True, group_axis="k", transpose_a=True,
    )  # fmt: skip
    offsets = [3, 3, 130, 131, 400]
    for m, n in ((64, 128), (77, 33)):
        a, b = operands("tn", m, n, offsets, dtype)
        d = poisoned(4, m, n, dtype=out_dtype)
        made(a, b, out=d, offsets=on_device(offsets))
        check_each(d, a, b, "tn", offsets)


@pytest.mark.parametrize("target", TARGETS)
def test_no_k_at_all(target: str):
    made = kernel(SCHEDULES[2], (128, 128, 64), target, grouped=True, group_axis="k")
    a, b = (torch.empty(x, device="cuda", dtype=torch_type("bf16")) for x in ((96, 0), (0, 40)))
    d = poisoned(3, 96, 40)
    made(a, b, out=d, offsets=on_device([0, 0, 0, 0]))
    assert not d.any()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_captured_launch_serves_other_groups(schedule: str):
    made = kernel(
        schedule, (128, 128, 64), "native", grouped=True, group_axis="k", transpose_a=True
    )
    k, groups, m, n = 4096, 12, 256, 384
    a, b, d = normal(k, m), normal(k, n), poisoned(groups, m, n)
    given = on_device([0] * (groups + 1))
    made(a, b, out=d, offsets=given)
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        made(a, b, out=d, offsets=given)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            made(a, b, out=d, offsets=given)
    for seed in range(10):
        chance = random.Random(seed)
        borders = sorted(chance.randint(0, k) for _ in range(groups + 1))
        given.copy_(on_device(borders))
        d.fill_(float("nan"))
        torch.cuda.synchronize()
        graph.replay()
        torch.cuda.synchronize()
        check_each(d, a, b, "tn", borders)
