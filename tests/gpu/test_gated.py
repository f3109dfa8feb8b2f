"""GPU kernels whose epilogue has two sums of products (gate, up) agree with float64 to rounding."""

from __future__ import annotations

from typing import Any

import pytest

import codegen
from coordgraph import CodegenError, Gemm, PassError
from passes import Pipeline
from tests.support.gated import geglu, swiglu

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("gpu")

SCHEDULES = (
    ("data-parallel", (128, 128, 64)),
    ("two-tile-stream-k", (128, 256, 64)),
    ("stream-k{owner=last}", (128, 128, 64)),
    ("stream-k{owner=last,reduction=turnstile}", (64, 128, 64)),
    ("stream-k{reduction=scatter}", (128, 128, 64)),
    ("stream-k{owner=last,reduction=atomic}", (128, 192, 64)),
    ("split-k{splits=3}", (128, 128, 64)),
    ("heterogeneous-tiles", (128, 256, 64)),
)
SIZES = (
    *((256, 256, 192), (200, 168, 72), (129, 131, 77), (1, 7, 5), (300, 17, 1000)),
    *((129, 132, 72), (40, 60, 16)),  # rows of B begin at multiples of 16 bytes, its parts do not
)
PARTS = ("stacked", "interleaved", "interleaved:8", "interleaved:16")
LAYOUTS = [(parts, turned) for parts in PARTS for turned in (True, False)]
every_layout = pytest.mark.parametrize(("parts", "turned"), LAYOUTS)


def matrices(m: int, n: int, k: int, *batch: int) -> tuple[Any, Any]:
    torch.manual_seed(m + n + k)
    a, b = torch.randn(*batch, m, k), torch.randn(*batch, k, 2 * n) / k**0.5
    return a.bfloat16().cuda(), b.bfloat16().cuda()


def columns(x: Any, parts: str) -> tuple[Any, Any]:
    kind, _, width = parts.partition(":")
    if kind == "stacked":
        return x.chunk(2, -1)
    numbers = torch.arange(x.shape[-1], device=x.device) // int(width or 1) % 2
    return x[..., numbers == 0], x[..., numbers == 1]


def whole(n: int, parts: str) -> int:
    """The number of columns `n`, rounded up to whole blocks of interleaved columns."""
    width = int(parts.partition(":")[2] or 1)
    return -(-n // width) * width


def expected(a: Any, b: Any, parts: str) -> Any:
    gate, up = columns(a.double() @ b.double(), parts)
    return torch.nn.functional.silu(gate) * up


def close(d: Any, exact: Any) -> None:
    assert d.shape == exact.shape
    assert ((d.double() - exact).abs() <= 2.0**-6 * exact.abs().clamp(min=1)).all()


@every_layout
@pytest.mark.parametrize(("schedule", "tile"), SCHEDULES, ids=str)
def test_results(schedule: str, tile: tuple[int, int, int], parts: str, turned: bool):
    """Results are right for sizes that end inside tiles; repeated launches give equal bits.

    Kernels with atomic additions may give different bits.
    """
    if parts == "interleaved:8" and tile[0] * tile[1] > 128 * 128:
        tile = (128, 128, 64)  # registers of larger tiles are spilled
    gemm = Gemm("bf16", epilogue=swiglu, parts=parts, transpose_b=turned)
    kernel = codegen.compile(Pipeline.parse(schedule)(gemm.graph(tile=tile)))
    for m, n, k in SIZES:
        n = whole(n, parts)
        a, b = matrices(m, n, k)
        given = b.t().contiguous() if turned else b
        found = []
        for _ in range(3):
            out = torch.full((m, n), torch.nan, dtype=torch.bfloat16, device="cuda")
            found.append(kernel(a, given, out=out).clone())
            close(out, expected(a, b, parts))
        if "atomic" not in schedule:
            assert all(torch.equal(found[0], other) for other in found[1:])


@every_layout
@pytest.mark.parametrize("instructions", ["wgmma", "mma.sync"])
def test_operands(instructions: str, parts: str, turned: bool):
    gemm = Gemm("bf16", epilogue=geglu, parts=parts, transpose_b=turned)
    graph = Pipeline.parse("stream-k{owner=last}")(gemm.graph(tile=(128, 128, 64)))
    try:
        kernel = codegen.compile(graph, instructions=instructions)
    except (CodegenError, PassError) as error:
        pytest.skip(str(error))
    m, n, k = 200, whole(168, parts), 72
    a, b = matrices(m, n, k)
    bias, residual = torch.randn(n).bfloat16().cuda(), torch.randn(m, n).bfloat16().cuda()
    d = kernel(a, b.t().contiguous() if turned else b, bias=bias, scale=0.5, residual=residual)
    gate, up = columns(a.double() @ b.double(), parts)
    exact = torch.nn.functional.gelu(gate, approximate="tanh") * (up + bias) * 0.5 + residual
    close(d, exact)


@pytest.mark.parametrize("turned", [True, False])
@pytest.mark.parametrize("instructions", ["wgmma", "mma.sync"])
@pytest.mark.parametrize("grouped", [False, True])
def test_separate_parts(instructions: str, turned: bool, grouped: bool):
    """A kernel reads the two weights where they are, also if the second has the lower address."""
    gemm = Gemm(
        "bf16", epilogue=swiglu, parts="separate", transpose_b=turned, grouped=grouped
    ).graph(tile=(128, 128, 64))
    try:
        codegen.compile(Pipeline.parse("data-parallel")(gemm), instructions=instructions)
    except (CodegenError, PassError) as error:
        pytest.skip(str(error))
    groups = (3,) if grouped else ()
    for m, n, k in SIZES:
        torch.manual_seed(m + n + k)
        a = torch.randn(m, k).bfloat16().cuda()
        shape = (*groups, *((n, k) if turned else (k, n)))
        weights = [(torch.randn(shape) / k**0.5).bfloat16().cuda() for _ in range(2)]
        offsets = torch.tensor([0, m // 3, m // 3, m], dtype=torch.int32).cuda()
        for pair in (tuple(weights), tuple(weights[::-1])):
            options: Any = {"epilogue": swiglu, "transpose_b": turned}
            gate, up = (w.mT if turned else w for w in pair)
            if not grouped:
                close(
                    codegen.matmul(a, pair, **options),
                    expected(a, torch.cat([gate, up], 1), "stacked"),
                )
                continue
            d = codegen.grouped_matmul(a, pair, offsets, **options)
            for group, (begin, end) in enumerate(((0, m // 3), (m // 3, m // 3), (m // 3, m))):
                both = torch.cat([gate[group], up[group]], 1)
                close(d[begin:end], expected(a[begin:end], both, "stacked"))


@pytest.mark.parametrize("parts", PARTS)
def test_calls(parts: str):
    sizes = ((16, 1024, 512), (512, 1408, 2048), (2048, 4096, 1024), (100, 99, 98))
    for m, n, k in sizes:
        n = whole(n, parts)
        a, b = matrices(m, n, k)
        for given in (b, b.t().contiguous().t()):
            close(codegen.matmul(a, given, epilogue=swiglu, parts=parts), expected(a, b, parts))
    a, b = matrices(96, 144, 200, 3)
    close(codegen.matmul(a, b, epilogue=swiglu, parts=parts), expected(a, b, parts))
    rows, offsets = a.reshape(-1, 200), torch.tensor([0, 10, 10, 288], dtype=torch.int32).cuda()
    d = codegen.grouped_matmul(rows, b, offsets, epilogue=swiglu, parts=parts)
    for group, (begin, end) in enumerate(((0, 10), (10, 10), (10, 288))):
        close(d[begin:end], expected(rows[begin:end], b[group], parts))


def test_torch_layer():
    import codegen.torch as cgt

    layer = cgt.SwiGLU(512, 1408, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(4, 60, 512, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        fused = layer(x)
    torch.testing.assert_close(fused, layer(x).detach(), atol=2e-2, rtol=2e-2)


ACTIVATIONS = {
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "relu": torch.nn.functional.relu,
}


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_torch_gradients(activation: str, biased: bool, recompute: bool):
    """Errors of gradients are at most 2^-6 of the gradient's largest entry in float64."""
    import codegen.torch as cgt

    torch.manual_seed(0)
    for m, n, k in ((200, 168, 72), (129, 131, 77), (1, 7, 5), (1024, 1408, 512)):
        given = [torch.randn(m, k), torch.randn(2 * n, k) / k**0.5, torch.randn(2 * n)]
        given = [t.bfloat16().cuda().requires_grad_() for t in given[: 2 + biased]]
        exact = [t.detach().double().requires_grad_() for t in given]
        gate, up = torch.nn.functional.linear(*exact).chunk(2, -1)
        right = ACTIVATIONS[activation](gate) * up
        d = cgt.gated(*given, activation=activation, recompute=recompute)
        close(d.detach(), right.detach())
        weights = torch.randn(m, n).bfloat16().cuda()
        found = torch.autograd.grad(d, given, weights)
        for one, other in zip(
            found, torch.autograd.grad(right, exact, weights.double()), strict=True
        ):
            largest = other.abs().max()
            assert (one.double() - other).abs().max() <= 2.0**-6 * largest


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_torch_gradients_of_groups(activation: str, biased: bool, recompute: bool):
    """Errors of results and gradients of groups are at most those of `test_torch_gradients`.

    A group is empty, one has one row, and the last rows belong to no group.
    """
    import codegen.torch as cgt

    torch.manual_seed(0)
    options: Any = {"activation": activation, "recompute": recompute}
    for m, n, k in ((200, 168, 72), (129, 131, 77), (4, 7, 5), (1024, 1408, 512)):
        ends = [m // 3, m // 3, m // 3 + 1, m - 2]
        spans = list(zip([0, *ends], ends, strict=False))
        offs = torch.tensor(ends, dtype=torch.int32).cuda()
        given = [torch.randn(m, k), torch.randn(4, 2 * n, k) / k**0.5, torch.randn(4, 2 * n)]
        given = [t.bfloat16().cuda().requires_grad_() for t in given[: 2 + biased]]
        exact = [t.detach().double().requires_grad_() for t in given]
        parts = list[Any]()
        for group, (begin, end) in enumerate(spans):
            rest = [t[group] for t in exact[1:]]
            gate, up = torch.nn.functional.linear(exact[0][begin:end], *rest).chunk(2, -1)
            parts.append(ACTIVATIONS[activation](gate) * up)
        right = torch.cat([*parts, parts[0].new_zeros(2, n)])
        d = cgt.gated(*given, offs=offs, **options)
        close(d.detach(), right.detach())
        assert not d[-2:].any()
        weights = torch.randn(m, n).bfloat16().cuda()
        found = torch.autograd.grad(d, given, weights)
        for one, other in zip(
            found, torch.autograd.grad(right, exact, weights.double()), strict=True
        ):
            assert (one.double() - other).abs().max() <= 2.0**-6 * other.abs().max()
        assert not found[0][-2:].any()
        assert not found[1][1].any()


def test_torch_rows_of_groups_are_invariant():
    """With `invariant=True` rows of one group have the bits that they have beside other groups."""
    import codegen.torch as cgt

    torch.manual_seed(0)
    x, weight = torch.randn(700, 512).bfloat16().cuda(), torch.randn(3, 512, 512).bfloat16().cuda()

    def results(first: int, ends: list[int]) -> tuple[Any, Any]:
        rows = x[first : first + ends[-1]].clone().requires_grad_()
        offs = torch.tensor(ends, dtype=torch.int32).cuda()
        d = cgt.swiglu(rows, weight, offs=offs, invariant=True)
        return d.detach(), torch.autograd.grad(d.sum(), rows)[0]

    whole = results(0, [300, 600, 700])
    for one, every in zip(results(300, [0, 40, 40]), whole, strict=True):
        assert torch.equal(one, every[300:340])


@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream does not match")
def test_torch_groups_in_a_captured_graph():
    """Training of groups is captured once; a replay reads the ends of groups in memory then."""
    import codegen.torch as cgt

    torch.manual_seed(0)
    x, weight, bias = torch.randn(256, 64), torch.randn(3, 96, 64) / 8, torch.randn(3, 96)
    given = [t.bfloat16().cuda().requires_grad_() for t in (x, weight, bias)]
    offs = torch.tensor([100, 100, 256], dtype=torch.int32).cuda()

    def step() -> list[Any]:
        d = cgt.swiglu(*given, offs=offs)
        return [d, *torch.autograd.grad(d, given, torch.ones_like(d))]

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()  # compiles the kernels
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    offs.copy_(torch.tensor([7, 200, 230], dtype=torch.int32))
    graph.replay()
    for one, other in zip(captured, step(), strict=True):
        torch.testing.assert_close(one, other)


def test_memory_of_a_gradient():
    """Forward and backward of `swiglu` need about as much memory as PyTorch's functions.

    During the last product of the backward pass, gate and up still are in memory, since autograd
    keeps what it saved for a function until the function ends. With `recompute` they are not.
    """
    import codegen.torch as cgt

    m, n, k = 4096, 5632, 2048
    x, weight = (torch.randn(s, device="cuda") for s in ((m, k), (2 * n, k)))
    x, weight = x.bfloat16().requires_grad_(), (weight / k**0.5).bfloat16().requires_grad_()

    def stock() -> Any:
        gate, up = torch.nn.functional.linear(x, weight).chunk(2, -1)
        return torch.nn.functional.silu(gate) * up

    def peak(function: Any) -> int:
        found = 0
        for _ in range(2):  # the first call compiles, and allocates workspaces
            x.grad = weight.grad = None
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            function().sum().backward()
            found = torch.cuda.max_memory_allocated() - before
        return found

    ours, theirs = peak(lambda: cgt.swiglu(x, weight)), peak(stock)
    assert ours <= 1.1 * theirs
    assert peak(lambda: cgt.swiglu(x, weight, recompute=True)) <= theirs
