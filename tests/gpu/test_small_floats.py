"""8-bit floats on a GPU: products, and results rounded to 8 bits."""

from __future__ import annotations

from typing import Any

import pytest

import codegen
import coordgraph as cg
from coordgraph import epilogue as ep
from passes import DataParallel, Pass, StreamK, TwoTileStreamK
from tests.support.gpu import Gpu

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("gpu")

TYPES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
both = pytest.mark.parametrize("kind", TYPES)
SCHEDULES: tuple[Pass, ...] = (
    DataParallel(persistent=True),
    StreamK(owner="last"),
    StreamK(reduction="scatter"),
    TwoTileStreamK(owner="last"),
)
SHAPES = ((17, 33, 65), (128, 128, 128), (200, 304, 512), (384, 256, 4096))


@pytest.fixture(autouse=True)
def new_enough(gpu: Gpu):
    """8-bit floats need compute capability 8.9."""
    if gpu.capability < (8, 9):
        pytest.skip("8-bit floats need compute capability 8.9")


def whole(kind: str, *shape: int, seed: int = 0) -> Any:
    """Random numbers -1, 0 and 1, whose sums up to 2^13 are exact on tensor cores."""
    random = torch.Generator("cuda").manual_seed(seed)
    return torch.randint(-1, 2, shape, generator=random, device="cuda").to(TYPES[kind])


def normal(kind: str, *shape: int, seed: int = 0) -> Any:
    random = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, generator=random, device="cuda").to(TYPES[kind])


def compiled(target: str, schedule: Pass, gemm: cg.Gemm) -> Any:
    """A kernel for a GPU target; 'native' stands for the target of this machine's GPU.

    A k tile is 128 bytes deep: two stages of 256 bytes exceed the shared memory of sm_89.
    """
    depth = 128 if gemm.dtype in TYPES else 64
    return codegen.compile(schedule(gemm.graph((128, 128, depth))), target)


@both
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("target", ["native", "sm_89"])
def test_sums_of_whole_numbers_are_exact(target: str, schedule: Pass, kind: str):
    kernel = compiled(target, schedule, cg.Gemm(kind, transpose_b=True))
    for m, n, k in SHAPES:
        a, b = whole(kind, m, k), whole(kind, n, k, seed=1)
        for _ in range(2):  # the first launch must leave the workspace zero
            assert torch.equal(kernel(a, b).double(), a.double() @ b.double().T)


@both
@pytest.mark.parametrize("out", ["f32", "bf16", "f16"])
def test_random_products(kind: str, out: str):
    """Tensor cores keep about 14 bits of sums, so a sum may be off by 2^-13 for each addition."""
    m, n, k = 256, 512, 2048
    a, b = normal(kind, m, k), normal(kind, n, k, seed=1)
    kernel = compiled("native", StreamK(owner="last"), cg.Gemm(kind, out, transpose_b=True))
    want = a.double() @ b.double().T
    error = (kernel(a, b).double() - want).norm() / want.norm()
    assert error < 2**-8


@both
def test_matmul_batches_and_groups(kind: str):
    a, b = whole(kind, 3, 200, 272), whole(kind, 3, 136, 272, seed=1)
    want = a.double() @ b.double().transpose(1, 2)
    assert torch.equal(codegen.matmul(a, b, transpose_b=True).double(), want)
    assert torch.equal(codegen.matmul(a[0], b[0].T).double(), want[0])
    offsets = torch.tensor([0, 250, 250, 600], device="cuda", dtype=torch.int32)
    rows = a.reshape(600, 272)
    found = codegen.grouped_matmul(rows, b, offsets, transpose_b=True)
    assert torch.equal(found[:250].double(), rows[:250].double() @ b[0].double().T)
    assert torch.equal(found[250:].double(), rows[250:].double() @ b[2].double().T)


@both
@pytest.mark.parametrize("dtype", ["bf16", "e4m3"])
@pytest.mark.parametrize("target", ["native", "sm_89"])
def test_rounded_outputs(target: str, dtype: str, kind: str):
    """Results are rounded to nearest, ties to even, and saturate."""

    @ep.epilogue(
        row=ep.operand("m", "f32"),
        amax=ep.output("m", reduce="max"),
        other=ep.output(dtype="e5m2"),
    )
    def scaled(acc: Any, row: Any) -> Any:
        x = acc * row
        return ep.quantize(x, to=kind), ep.abs(x), ep.quantize(x, to="e5m2")

    kernel = compiled(
        target, StreamK(owner="last"), cg.Gemm(dtype, transpose_b=True, epilogue=scaled)
    )
    for m, n, k in SHAPES:
        a, b = whole("e4m3", m, k), whole("e4m3", n, k, seed=1)
        a, b = (x.to(torch.bfloat16) if dtype == "bf16" else x for x in (a, b))
        row = 2.0 ** torch.randint(-4, 9, (m,), device="cuda").float()
        found, amax, other = kernel(a, b, row=row)
        x = a.double() @ b.double().T * row[:, None].double()
        for result, name in ((found, kind), (other, "e5m2")):
            most = torch.finfo(TYPES[name]).max
            want = x.float().clamp(-most, most).to(TYPES[name])
            assert torch.equal(result.view(torch.uint8), want.view(torch.uint8))
        assert torch.equal(amax.amax(-1).double(), x.abs().amax(-1))


@both
def test_not_a_number_stays_and_infinity_saturates(kind: str):
    @ep.epilogue(scale=ep.operand("n", "f32"))
    def scaled(acc: Any, scale: Any) -> Any:
        return ep.quantize(acc * scale, to=kind)

    kernel = compiled("native", DataParallel(), cg.Gemm("bf16", epilogue=scaled))
    a, b = (torch.ones(8, 8, device="cuda", dtype=torch.bfloat16) / 4 for _ in range(2))
    scale = torch.tensor([float("nan"), float("inf"), -float("inf"), 1e30, 0, 1, 2, 3.0]).cuda()
    found, most = kernel(a, b, scale=scale)[0].float(), torch.finfo(TYPES[kind]).max
    assert found[0].isnan()
    assert found[1:].tolist() == [most, -most, most, 0, 0.5, 1, 1.5]


@both
@pytest.mark.parametrize("recipe", ["TensorWise", "RowWise"])
@pytest.mark.parametrize(
    ("m", "n", "k"), [(256, 512, 1024), (1, 40, 64), (40, 1, 64), (40, 24, 1), (33, 50, 77)]
)
def test_scaled_mm(m: int, n: int, k: int, recipe: str, kind: str):
    import codegen.torch as cgt

    a, b = normal(kind, m, k), normal(kind, n, k, seed=1)
    whole = recipe == "TensorWise"
    shapes = ((1, 1), (1, 1)) if whole else ((m, 1), (1, n))
    first, second = (torch.rand(shape, device="cuda") + 0.5 for shape in shapes)
    bias = torch.randn(n, device="cuda").bfloat16()
    want = (a.double() @ b.double().T) * first * second + bias
    for to in (torch.bfloat16, torch.float32, TYPES[kind]):
        scales = first, recipe, second, recipe
        found = cgt.scaled_mm(a, b.t(), *scales, bias=bias, output_dtype=to)
        assert (found.shape, found.dtype) == ((m, n), to)
        tolerance = 2**-8 + torch.finfo(to).eps
        most = torch.finfo(to).max
        error = (found.double() - want.clamp(-most, most)).norm() / want.norm()
        assert error < tolerance


def test_scaled_mm_in_compiled_functions_and_graphs():
    """A scale in device memory is read by every replay of a CUDA graph."""
    import codegen.torch as cgt

    a, b = normal("e4m3", 128, 256), normal("e4m3", 64, 256, seed=1)
    scale, one = torch.ones(1, device="cuda"), torch.ones(1, device="cuda")

    def scaled() -> Any:
        return cgt.scaled_mm(a, b.t(), scale, "TensorWise", one, "TensorWise")

    want = scaled().float()
    compiled = torch.compile(scaled, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled().float(), want)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = scaled()
    scale.fill_(4)
    graph.replay()
    assert torch.equal(found.float(), 4 * want)
