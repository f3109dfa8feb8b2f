"""int8 on a GPU: results are bit-equal to 64-bit sums modulo 2^32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import codegen
import coordgraph as cg
from coordgraph import CodegenError
from coordgraph import epilogue as ep
from passes import (
    DataParallel,
    HeterogeneousTiles,
    HybridStreamK,
    Pass,
    SplitK,
    StreamK,
    TwoTileStreamK,
)
from passes.lowering import LowerToHopper
from tests.support.gpu import Gpu

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("gpu")

TYPES = {"i8": torch.int8, "u8": torch.uint8}
OUTPUTS = {"i32": torch.int32, "f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
FACTORS = {"bf16": torch.bfloat16, "i8": torch.int8}
SCHEDULES: tuple[Pass, ...] = (
    DataParallel(),
    DataParallel(persistent=True),
    StreamK(),
    StreamK(owner="last", reduction="tree"),
    StreamK(owner="last", reduction="turnstile"),
    StreamK(owner="last", reduction="atomic"),
    StreamK(reduction="scatter"),
    TwoTileStreamK(owner="last"),
    HybridStreamK(owner="last"),
    SplitK(splits=3),
    HeterogeneousTiles(small_m=64, small_n=64),
)
SHAPES = (
    (1, 1, 1),
    (17, 33, 65),
    (128, 128, 128),
    (200, 300, 500),
    (129, 257, 1027),
    (384, 256, 4096),
    (1000, 776, 2064),
)
"""Problems (m, n, k). Extents are multiples of 16 as TMA needs, multiples of smaller powers of 2,
or odd, which needs narrow copies.
"""
LOWERINGS = (
    ((128, 256, 128), LowerToHopper(), "i32"),
    ((128, 128, 128), LowerToHopper(), "i32"),
    ((256, 128, 128), LowerToHopper(cluster_m=2), "bf16"),
    ((128, 256, 128), LowerToHopper(cluster_n=2), "i32"),
    ((64, 128, 256), LowerToHopper(cluster_k=2), "f16"),
    ((128, 128, 128), LowerToHopper(consumers="pingpong"), "f32"),
    ((16, 128, 128), LowerToHopper(), "i32"),
    ((48, 256, 256), LowerToHopper(), "bf16"),
)


def whole(dtype: str, *shape: int, seed: int = 0) -> Any:
    """A tensor of random integers on the GPU, over the whole range of a type with its extremes."""
    info = torch.iinfo(TYPES[dtype])
    random = np.random.default_rng((seed, *shape))
    found = random.integers(info.min, info.max, shape, endpoint=True)
    found.flat[:: max(found.size // 7, 1)] = info.min or info.max
    return torch.from_numpy(found).to("cuda", TYPES[dtype])


def product(a: Any, b: Any) -> Any:
    """A·B modulo 2^32, computed exactly in f64."""
    return (a.double() @ b.double()).long().to(torch.int32)


def check(kernel: Any, dtype: str, shape: tuple[int, int, int], out: str, **options: Any) -> None:
    """Launch a kernel twice, and compare both results with PyTorch's; B is stored as its transpose.

    The second result is right only if the first launch left the workspace zero.
    """
    m, n, k = shape
    a, b = whole(dtype, m, k), whole(dtype, n, k, seed=1)
    want = product(a, b.T)
    for _ in range(2):
        d = torch.full((m, n), 77, device="cuda", dtype=OUTPUTS[out])
        assert kernel(a, b, out=d, **options) is d
        # A sum in i32 is converted to f32, and then to the 16-bit type of D.
        floats = want if out == "i32" else want.float().to(OUTPUTS[out])
        assert torch.equal(d, floats)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_schedules_by_mma_sync(schedule: Pass, dtype: str):
    graph = schedule(cg.Gemm(dtype, transpose_b=True).graph((128, 128, 64)))
    kernel = codegen.compile(graph, "sm_80")
    for shape in SHAPES:
        check(kernel, dtype, shape, "i32")


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_schedules_by_wgmma(gpu: Gpu, schedule: Pass, dtype: str):
    if gpu.capability != (9, 0):
        pytest.skip("wgmma needs compute capability 9.0")
    graph = schedule(cg.Gemm(dtype, transpose_b=True).graph((128, 128, 128)))
    kernel = codegen.compile(graph, "sm_90a")
    assert kernel.instructions == "wgmma"  # type: ignore[attr-defined]
    for shape in SHAPES:
        check(kernel, dtype, shape, "i32")


@pytest.mark.parametrize(
    "schedule", [DataParallel(persistent=True), StreamK(owner="last")], ids=str
)
@pytest.mark.parametrize(("tile", "lowering", "out"), LOWERINGS, ids=str)
def test_lowerings_for_hopper(
    gpu: Gpu, tile: tuple[int, int, int], lowering: LowerToHopper, out: str, schedule: Pass
):
    if gpu.capability != (9, 0):
        pytest.skip("wgmma needs compute capability 9.0")
    graph = schedule(cg.Gemm("i8", out_dtype=out, transpose_b=True).graph(tile))
    kernel = codegen.compile(graph, "sm_90a", lowering=lowering)
    for shape in SHAPES[2:]:
        check(kernel, "i8", shape, out)


@ep.epilogue(scale=ep.operand("n", "f32"))
def quantized(acc: Any, scale: Any) -> Any:
    return ep.quantize(ep.cast(acc, to="f32") * scale)


@pytest.mark.parametrize(
    "schedule", [DataParallel(persistent=True), StreamK(owner="last")], ids=str
)
@pytest.mark.parametrize(
    ("dtype", "tile"), [("bf16", (128, 256, 64)), ("i8", (128, 256, 128)), ("i8", (32, 128, 128))]
)
def test_quantized_results(gpu: Gpu, dtype: str, tile: tuple[int, int, int], schedule: Pass):
    """A D of i8, aligned or not, is the rounded product; wgmma computes it where the GPU has it.

    Scales are powers of two, so that ties and saturation are exact.
    """
    graph = schedule(cg.Gemm(dtype, transpose_b=True, epilogue=quantized).graph(tile))
    kernel = codegen.compile(graph)
    if gpu.capability == (9, 0):
        assert kernel.instructions == "wgmma"  # type: ignore[attr-defined]
    for m, n, k in SHAPES[2:]:
        a, b = (
            torch.randint(-3, 4, size, device="cuda").to(FACTORS[dtype])
            for size in ((m, k), (n, k))
        )
        scale = 2.0 ** torch.randint(-4, 2, (n,), device="cuda").float()
        want = torch.round(a.double() @ b.double().T * scale.double()).clamp(-128, 127)
        for shift in (0, 1):
            d = torch.empty(m * n + shift, device="cuda", dtype=torch.int8)[shift:].view(m, n)
            kernel(a, b, scale=scale, out=d)
            assert torch.equal(d.double(), want)


@pytest.mark.parametrize("target", ["sm_80", "native"])
def test_alpha_and_beta_are_whole(target: str):
    m, n, k = 300, 200, 512
    a, b = whole("i8", m, k), whole("i8", n, k, seed=1)
    c = torch.randint(-1000, 1000, (m, n), device="cuda", dtype=torch.int32)
    graph = StreamK(owner="last")(cg.Gemm("i8", transpose_b=True).graph((128, 128, 128)))
    kernel = codegen.compile(graph, target)
    found = kernel(a, b, c, alpha=-3, beta=7)
    assert torch.equal(found, -3 * product(a, b.T) + 7 * c)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("m", "n", "k"), [(1, 512, 4096), (256, 256, 8192), (2048, 2304, 1024), (130, 50, 77)]
)
def test_matmul(m: int, n: int, k: int, dtype: str):
    a, b = whole(dtype, m, k), whole(dtype, n, k, seed=1)
    found = codegen.matmul(a, b.T)
    assert found.dtype == torch.int32
    assert torch.equal(found, product(a, b.T))
    assert torch.equal(codegen.matmul(a, b, transpose_b=True), found)
    out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    codegen.matmul(a, b.T, out=out)
    assert torch.equal(out, found.float().bfloat16())


def test_matmul_says_which_layout_it_needs():
    a, b = whole("i8", 64, 64), whole("i8", 64, 64, seed=1)
    with pytest.raises(CodegenError, match="contiguous along k"):
        codegen.matmul(a, b)


@pytest.mark.parametrize("dtype", TYPES)
def test_batches_and_groups(dtype: str):
    a, b = whole(dtype, 3, 200, 272), whole(dtype, 3, 136, 272, seed=1)
    found = codegen.matmul(a, b, transpose_b=True)
    for d, x, y in zip(found, a, b, strict=True):
        assert torch.equal(d, product(x, y.T))
    rows = a.reshape(600, 272)
    offsets = torch.tensor([0, 250, 250, 600], device="cuda", dtype=torch.int32)
    found = codegen.grouped_matmul(rows, b, offsets, transpose_b=True)
    assert torch.equal(found[:250], product(rows[:250], b[0].T))
    assert torch.equal(found[250:], product(rows[250:], b[2].T))
