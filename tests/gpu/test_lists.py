"""Lists of products, each with its own m, n and k, give right results on the GPU.

In memory the matrices of a list are surrounded by NaN, which must not reach a result.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

import codegen
from codegen.targets.nvptx.driver import device
from coordgraph import Gemm
from passes import Pipeline
from passes.lowering import LowerToHopper
from tests.gpu.grouped import Products, kernel
from tests.support.lists import Sizes

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("gpu")

PERSISTENT = "data-parallel{persistent=true}"
SCHEDULES = (
    PERSISTENT,
    "stream-k",
    "stream-k{owner=last}",
    "stream-k{owner=last,reduction=tree}",
    "stream-k{owner=last,reduction=turnstile}",
    "stream-k{reduction=scatter}",
    "stream-k{owner=last,reduction=atomic}",
    "two-tile-stream-k",
    "hybrid-stream-k{owner=last,reduction=turnstile}",
    f"longest-first,{PERSISTENT}",
    "longest-first,two-tile-stream-k{owner=last}",
)
LAYOUTS = ("nn", "nt", "tn", "tt")
TARGETS = ("native", "sm_80")
HOPPER = (
    ((128, 256, 64), LowerToHopper(), PERSISTENT),
    ((128, 256, 64), LowerToHopper(cluster_n=2), PERSISTENT),
    ((256, 256, 64), LowerToHopper(cluster_m=2), PERSISTENT),
    ((256, 128, 64), LowerToHopper(cluster_m=2), SCHEDULES[4]),
    ((256, 128, 64), LowerToHopper(cluster_m=2), SCHEDULES[5]),
    ((128, 256, 64), LowerToHopper(cluster_n=2), SCHEDULES[2]),
    ((128, 128, 64), LowerToHopper(consumers="pingpong"), PERSISTENT),
    ((64, 128, 64), LowerToHopper(consumers="pingpong"), SCHEDULES[4]),
    ((64, 256, 64), LowerToHopper(), SCHEDULES[7]),
    ((64, 64, 256), LowerToHopper(cluster_k=4), PERSISTENT),
    ((48, 128, 64), LowerToHopper(), SCHEDULES[2]),
    ((128, 48, 64), LowerToHopper(), SCHEDULES[6]),
    ((128, 192, 64), LowerToHopper(), SCHEDULES[8]),
)
EDGES = (0, 1, 7, 8, 9, 63, 64, 65, 127, 128, 129, 255, 256, 257)
"""Extents m, n and k of products: 0, whole tiles and TMA boxes, one element less, and one more."""


def gemm(layout: str, **more: Any) -> dict[str, Any]:
    a, b = (side == "t" for side in layout)
    return {"transpose_a": a, "transpose_b": b, "grouped": True, "group_axis": "mnk", **more}


def drawn(seed: int, groups: int, most: int = 700) -> list[Sizes]:
    """Random m, n and k of products, many of them in EDGES; the last product is never empty."""
    chance = random.Random(seed)

    def extent() -> int:
        return chance.choice((chance.choice(EDGES), chance.randint(1, most)))

    return [(extent(), extent(), extent()) for _ in range(groups - 1)] + [(130, 72, 200)]


def on_hopper() -> None:
    if device(0).architecture != "sm_90a":
        pytest.skip(f"these kernels are for sm_90a, this is {device(0).architecture}")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_lists(schedule: str, layout: str, target: str):
    """Lists of 1, 7 and 64 products (the maximum) give right results, with C and without.

    Repeated launches give equal bits.
    """
    made = kernel(schedule, (128, 128, 64), target, **gemm(layout))
    for seed, groups in enumerate((1, 7, 64)):
        problem = Products(drawn(seed, groups), layout, fill=(float("nan"), float("inf"))[seed % 2])
        problem.run(made)
        problem.check()
        first = problem.packed()
        problem.run(made)
        if "atomic" in schedule:
            problem.check()
        else:
            assert torch.equal(problem.packed(), first), "another result the second time"
        problem.run(made, alpha=0.5, beta=2.0)
        problem.check(alpha=0.5, beta=2.0)


@pytest.mark.parametrize(("tile", "lowering", "schedule"), HOPPER, ids=str)
def test_hopper(tile: tuple[int, int, int], lowering: LowerToHopper, schedule: str):
    """In a list of products, tensor maps clip TMA boxes at the end of each matrix in m, n and k."""
    on_hopper()
    graph = Pipeline.parse(schedule)(Gemm(**gemm("nt")).graph(tile))
    made = codegen.compile(graph, "sm_90a", lowering=lowering)
    assert "tensormap.replace" in made.ptx
    for seed, groups in enumerate((1, 7, 40)):
        problem = Products(drawn(10 + seed, groups), "nt")
        for scalars in ({}, {"alpha": -1.0, "beta": 0.5}):
            problem.run(made, **scalars)
            problem.check(**scalars)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("schedule", [PERSISTENT, SCHEDULES[2], SCHEDULES[5]])
def test_every_edge(schedule: str, target: str):
    """Results are right for all extents in EDGES; NaN in adjacent products does not reach them."""
    made = kernel(schedule, (128, 128, 64), target, **gemm("nn"))
    for extent in EDGES:
        for own in ((extent, 72, 100), (72, extent, 100), (72, 100, extent)):
            around = (65, 33, 70)
            problem = Products([around, own, around])
            for group in (0, 2):
                problem.each_a[group].fill_(float("nan"))
                problem.each_b[group].fill_(float("inf"))
            problem.run(made)
            for group in (0, 2):
                assert problem.each_d[group].isnan().all()
                problem.each_a[group].fill_(0)
                problem.each_b[group].fill_(0)
                problem.each_d[group].fill_(0)
            problem.check()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_nothing_to_do(schedule: str, target: str):
    """If no product has output elements, the kernel ends and writes nothing."""
    made = kernel(schedule, (128, 128, 64), target, **gemm("nn"))
    for sizes in ([(0, 300, 500)], [(300, 0, 500)], [(5, 0, 9), (0, 400, 1000)], [(0, 0, 0)] * 3):
        problem = Products(sizes)
        assert problem.d.numel() == 8
        assert problem.run(made).isnan().all()


@pytest.mark.parametrize("target", TARGETS)
def test_no_k_at_all(target: str):
    """Products with k = 0 give zeros, or beta·C; A and B may be empty vectors."""
    made = kernel(SCHEDULES[1], (128, 128, 64), target, **gemm("nt"))
    problem = Products([(130, 72, 0), (1, 1, 0), (64, 200, 0)], "nt")
    for empty in (False, True):
        if empty:
            problem.a, problem.b = problem.a[:0], problem.b[:0]
        for scalars in ({}, {"beta": 2.0}):
            problem.run(made, **scalars)
            for d, c in zip(problem.each_d, problem.each_c, strict=True):
                wanted = scalars.get("beta", 0.0) * c.float()
                torch.testing.assert_close(d, wanted.to(d.dtype))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("dtype", "out_dtype"), [("f16", "f16"), ("bf16", "f32")])
def test_every_type_and_where_vectors_begin(dtype: str, out_dtype: str, target: str):
    """Results stay right if a vector of matrices begins at an address that is no multiple of 16
    bytes.
    """
    given = gemm("tn", dtype=dtype, out_dtype=out_dtype)
    made = kernel(SCHEDULES[2], (64, 64, 64), target, **given)
    problem = Products(drawn(5, 9), "tn", dtype=dtype, out_dtype=out_dtype)
    problem.run(made)
    problem.check()
    first = problem.packed()
    moved = torch.empty(problem.a.numel() + 1, device="cuda", dtype=problem.a.dtype)[1:]
    moved.copy_(problem.a)
    problem.a = moved
    problem.run(made)
    problem.check()
    assert torch.allclose(problem.packed().float(), first.float(), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_other_lists_in_the_same_vectors(schedule: str):
    """Consecutive launches with different offsets give right results without synchronization."""
    made = kernel(schedule, (128, 128, 64), "native", **gemm("nt"))
    lists = [Products(drawn(seed, 12, 300), "nt") for seed in range(6)]
    for _ in range(3):
        for problem in lists:
            problem.run(made)
    for problem in lists:
        problem.check()


@pytest.mark.parametrize("workgroups", [1, 5, 300])
def test_few_and_many_workgroups(workgroups: int):
    made = kernel(SCHEDULES[2], (128, 128, 64), "sm_80", **gemm("nn"))
    problem = Products(drawn(3, 9))
    problem.run(made, workgroups=workgroups)
    problem.check()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_captured_launch_serves_other_lists(schedule: str):
    """A replayed CUDA graph uses the offsets and matrices that are in memory at the replay.

    The number of products must stay the same.
    """
    made = kernel(schedule, (128, 128, 64), "native", **gemm("tn"))
    groups, room = 9, 300 * 304
    a, b, d = (torch.empty(groups * room, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    given = torch.zeros((3, groups + 1), device="cuda", dtype=torch.int32)
    made(a, b, out=d, offsets=given)
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        made(a, b, out=d, offsets=given)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            made(a, b, out=d, offsets=given)
    for seed in range(10):
        problem = Products(drawn(seed, groups, 300), "tn")
        given.copy_(problem.offsets)
        a[: problem.a.numel()].copy_(problem.a)
        b[: problem.b.numel()].copy_(problem.b)
        d.fill_(float("nan"))
        torch.cuda.synchronize()
        graph.replay()
        torch.cuda.synchronize()
        problem.d.copy_(d[: problem.d.numel()])
        problem.check()
        assert d[problem.d.numel() :].isnan().all(), "elements after the last matrix were written"
