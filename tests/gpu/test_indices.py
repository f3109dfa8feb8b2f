"""GPU kernels whose epilogues use indices: each element gets its own position."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import codegen
from coordgraph import Gemm
from coordgraph import epilogue as ep
from passes import Pipeline
from passes.lowering import LowerToHopper
from tests.support.indices import (
    causal,
    divided,
    dividends,
    gated,
    positions,
    positions_of,
    unstored,
)
from tests.support.lists import Sizes, ends_of, views

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("gpu")

SCHEDULES = (
    ("data-parallel", (128, 128, 64)),
    ("data-parallel{persistent=true}", (256, 192, 64)),
    ("data-parallel{persistent=true}", (16, 128, 64)),
    ("data-parallel{persistent=true,scheduler=dynamic}", (128, 128, 64)),
    ("two-tile-stream-k", (128, 256, 64)),
    ("stream-k{owner=last}", (128, 128, 32)),
    ("stream-k{owner=last,reduction=turnstile}", (128, 64, 64)),
    ("stream-k{owner=last,reduction=tree}", (128, 128, 64)),
    ("stream-k{reduction=scatter}", (128, 128, 64)),
    ("stream-k{owner=last,reduction=atomic}", (128, 128, 64)),
    ("split-k{splits=3}", (64, 128, 64)),
    ("heterogeneous-tiles", (128, 128, 64)),
)
SIZES = ((256, 512, 192), (200, 328, 72), (129, 131, 77), (1, 7, 5), (300, 17, 1000))
OFFSETS = (0, 130, 130, 201, 300)
"""The first row of each of four groups, of which the second is empty, and the end of the last."""


def whole(*shape: int) -> Any:
    """Small whole numbers, whose sums of products are exact in f32."""
    return torch.randint(-2, 3, shape, device="cuda").bfloat16()


def equal(found: Any, expected: Any) -> None:
    np.testing.assert_array_equal(found.cpu().numpy(), expected)


def compiled(schedule: str, tile: tuple[int, int, int], target: str, **problem: Any) -> Any:
    gemm = Gemm("bf16", out_dtype="f32", epilogue=positions, **problem)
    return codegen.compile(Pipeline.parse(schedule)(gemm.graph(tile)), target)


@pytest.mark.parametrize("divisor", [2, 3, 48, 127, 65537])
def test_i32_are_divided_as_the_error_about_the_operator_advises(divisor: int):
    """For dividends up to 2^23 the advised expression is exact, although the `/` of epilogues with
    16-bit results is approximate.
    """
    numbers = torch.from_numpy(dividends(divisor)).cuda()
    a, b = (torch.ones(shape, device="cuda").bfloat16() for shape in ((8, 8), (8, len(numbers))))
    quotient = torch.div(numbers, divisor, rounding_mode="floor").int()
    operands = {"dividend": numbers, "quotient": quotient}
    d = codegen.matmul(a, b, epilogue=divided(divisor), **operands)
    assert d.dtype == torch.bfloat16
    assert bool((d == 8).all())


@pytest.mark.parametrize(("schedule", "tile"), SCHEDULES, ids=str)
@pytest.mark.parametrize("target", ["native", "sm_80"])
def test_every_schedule(schedule: str, tile: tuple[int, int, int], target: str):
    if target == "sm_80" and tile == (256, 192, 64):
        pytest.skip("the tile has too many accumulators for mma.sync")
    kernel = compiled(schedule, tile, target)
    for m, n, k in SIZES:
        if tile == (256, 192, 64) and (n % 8 or k % 8):
            continue
        out = torch.full((m, n), float("nan"), device="cuda")
        equal(kernel(whole(m, k), whole(k, n), out=out), positions_of(m, n))


@pytest.mark.parametrize(
    ("lowering", "tile"),
    [
        (LowerToHopper(consumers="pingpong"), (64, 128, 64)),
        (LowerToHopper(cluster_m=2), (256, 128, 64)),
        (LowerToHopper(cluster_n=2), (128, 256, 64)),
        (LowerToHopper(cluster_k=2), (64, 64, 128)),
        (LowerToHopper(vector=1), (128, 256, 64)),
    ],
    ids=str,
)
def test_lowerings(lowering: LowerToHopper, tile: tuple[int, int, int]):
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a Hopper GPU")
    schedule = Pipeline.parse("data-parallel{persistent=true}")
    graph = schedule(Gemm("bf16", out_dtype="f32", epilogue=positions).graph(tile))
    kernel = codegen.compile(graph, "sm_90a", lowering=lowering)
    equal(kernel(whole(500, 264), whole(264, 504)), positions_of(500, 504))


@pytest.mark.parametrize("target", ["native", "sm_80"])
def test_batches_groups_and_lists(target: str):
    """Rows and columns count from the first of the element's own product."""
    tile, m, n, k = (128, 128, 64), 300, 264, 136
    batch = compiled("stream-k", tile, target, batched=True)
    equal(
        batch(whole(4, m, k), whole(4, k, n)), np.stack([positions_of(m, n, p) for p in range(4)])
    )
    offsets = torch.tensor(OFFSETS, dtype=torch.int32, device="cuda")
    expected = [positions_of(end - begin, n, g) for g, (begin, end) in enumerate(pairwise(OFFSETS))]
    groups = compiled("data-parallel{persistent=true}", tile, target, grouped=True)
    found = groups(whole(m, k), whole(4, k, n), offsets=offsets)
    equal(found, np.concatenate(expected))
    targets = torch.randperm(m, device="cuda").int()
    scattered = compiled("stream-k", tile, target, grouped=True, scattered_rows=True)
    out = torch.full((m, n), float("nan"), device="cuda")
    scattered(whole(m, k), whole(4, k, n), out=out, offsets=offsets, targets=targets)
    equal(out[targets.long()], np.concatenate(expected))
    sizes: list[Sizes] = [(200, 270, 136), (0, 9, 3), (9, 8, 0), (170, 33, 400)]
    a, b, d = (
        torch.from_numpy(views(shapes, fill=1)[0]).cuda()
        for shapes in (
            [(m, k) for m, _, k in sizes],
            [(k, n) for _, n, k in sizes],
            [(m, n) for m, n, _ in sizes],
        )
    )
    made = compiled("stream-k", tile, target, grouped=True, group_axis="mnk")
    ends = torch.from_numpy(ends_of(sizes)).cuda()
    made(a.bfloat16(), b.bfloat16(), out=d, offsets=ends)
    pool, parts = views([(m, n) for m, n, _ in sizes])
    pool[:] = d.cpu().numpy()
    for group, (part, (rows, columns, _)) in enumerate(zip(parts, sizes, strict=True)):
        np.testing.assert_array_equal(part, positions_of(rows, columns, group))


def test_matmul():
    """Gated products, transposes, a column-major D, one B for a batch, and an unstored D."""
    m, n, k = 200, 328, 72
    a, b = whole(m, k), whole(k, n)
    options: dict[str, Any] = {"epilogue": positions}
    for first, second in ((a, b), (whole(k, m).t(), whole(n, k).t())):
        out = torch.empty((m, n), device="cuda")
        equal(codegen.matmul(first, second, out=out, **options), positions_of(m, n))
        out = torch.empty((n, m), device="cuda").t()
        equal(codegen.matmul(first, second, out=out, **options), positions_of(m, n))
    out = torch.empty((3, m, n), device="cuda")
    codegen.matmul(whole(3, m, k), b, out=out, **options)
    equal(out, np.stack([positions_of(m, n, product) for product in range(3)]))
    out = torch.empty((m, n), device="cuda")
    equal(codegen.matmul(a, whole(k, 2 * n), epilogue=gated, out=out), positions_of(m, n))
    _, first, copy = codegen.matmul(a, b, epilogue=wide_copy)
    equal(first, np.zeros(m))
    equal(copy, positions_of(m, n))
    masked = torch.where(torch.ones(m, n, device="cuda").tril() > 0, a @ b, -float("inf"))
    assert torch.equal(codegen.matmul(a, b, epilogue=causal), masked)


wide_copy = ep.parse_function(ep.function_text(unstored).replace("copy: mn", "copy: mn f32"))
"""`unstored`, whose output of positions is f32 here, instead of the type of D."""
