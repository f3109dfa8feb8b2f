"""GPU kernels store every output of an epilogue, for all schedules, sizes and alignments."""

from __future__ import annotations

from typing import Any

import pytest

import codegen
from coordgraph import Gemm, LaunchError
from coordgraph import epilogue as ep
from passes import Pipeline
from passes.lowering import LowerToHopper

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("gpu")


@ep.epilogue(
    bias=ep.operand("n", "f32"),
    residual=ep.operand("mn", optional=True),
    pre=ep.output("mn", "f32"),
    half=ep.output("mn", "bf16"),
)
def relu_residual(acc: Any, bias: Any, residual: Any) -> Any:
    x = acc + bias
    return ep.relu(x) + residual, x, ep.relu(x)


SCHEDULES = (
    ("data-parallel", (128, 128, 64)),
    ("data-parallel{persistent=true}", (64, 64, 64)),
    ("data-parallel{persistent=true}", (16, 128, 64)),
    ("two-tile-stream-k", (128, 256, 64)),
    ("stream-k{owner=last}", (128, 128, 64)),
    ("stream-k{owner=last,reduction=turnstile}", (128, 128, 64)),
    ("stream-k{owner=last,reduction=tree}", (128, 128, 64)),
    ("stream-k{reduction=scatter}", (128, 128, 64)),
    ("stream-k{owner=last,reduction=atomic}", (128, 128, 64)),
    ("split-k{splits=3}", (64, 128, 64)),
    ("heterogeneous-tiles", (128, 128, 64)),
)
SIZES = ((256, 512, 192), (200, 328, 72), (129, 131, 77), (1, 7, 5), (300, 17, 1000))


def whole(*shape: int, dtype: Any = torch.bfloat16) -> Any:
    """Small whole numbers, whose sums of products are exact in f32."""
    return torch.randint(-2, 3, shape, device="cuda").to(dtype)


def check(found: tuple[Any, ...], sums: Any, bias: Any, residual: Any = None) -> None:
    x = sums + bias.double()
    y = torch.relu(x)
    wanted = (y if residual is None else y + residual.double(), x, y)
    for array, exact in zip(found, wanted, strict=True):
        assert torch.equal(array, exact.to(array.dtype))


@pytest.mark.parametrize(("schedule", "tile"), SCHEDULES, ids=str)
@pytest.mark.parametrize("target", ["native", "sm_80"])
def test_results(schedule: str, tile: tuple[int, int, int], target: str):
    """All outputs are exact. Outputs are NaN before each launch, so missing stores are found."""
    graph = Pipeline.parse(schedule)(Gemm("bf16", epilogue=relu_residual).graph(tile))
    kernel = codegen.compile(graph, target, debug=True)
    for m, n, k in SIZES:
        a, b, residual = whole(m, k), whole(k, n), whole(m, n)
        bias, sums = whole(n, dtype=torch.float32), a.double() @ b.double()
        for more in ({}, {"residual": residual}):
            check(kernel(a, b, bias=bias, **more), sums, bias, **more)
            pre = torch.full((m, n), float("nan"), device="cuda")
            found = kernel(a, b, bias=bias, pre=pre, **more)
            assert found[1] is pre
            check(found, sums, bias, **more)


@pytest.mark.parametrize(
    ("lowering", "tile"),
    [
        (LowerToHopper(consumers="pingpong"), (64, 128, 64)),
        (LowerToHopper(cluster_m=2), (256, 128, 64)),
        (LowerToHopper(cluster_n=2), (128, 256, 64)),
        (LowerToHopper(cluster_k=2), (64, 64, 128)),
        (LowerToHopper(boxed_operands=False), (128, 256, 64)),
        (LowerToHopper(), (128, 88, 64)),
        (LowerToHopper(), (64, 40, 64)),
        (LowerToHopper(consumers="pingpong"), (64, 120, 64)),
    ],
    ids=str,
)
def test_lowerings(lowering: LowerToHopper, tile: tuple[int, int, int]):
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a Hopper GPU")
    graph = Pipeline.parse("data-parallel{persistent=true}")(
        Gemm("bf16", epilogue=relu_residual).graph(tile)
    )
    kernel = codegen.compile(graph, "sm_90a", lowering=lowering)
    m, n, k = 1000, 520, 264
    a, b, bias = whole(m, k), whole(k, n), whole(n, dtype=torch.float32)
    check(kernel(a, b, bias=bias), a.double() @ b.double(), bias)


@pytest.mark.parametrize("shift", [0, 1, 2])
def test_unaligned_outputs_and_gaps(shift: int):
    """Outputs begin at any element, and have gaps between rows, which are not written."""
    m, n, k = 200, 136, 96
    a, b, bias = whole(m, k), whole(k, n), whole(n, dtype=torch.float32)
    buffer = torch.full((m, n + 5), float("nan"), device="cuda")
    pre = buffer[:, shift : shift + n]
    found = codegen.matmul(a, b, epilogue=relu_residual, bias=bias, pre=pre)
    check(found, a.double() @ b.double(), bias)
    assert torch.isnan(buffer[:, :shift]).all()
    assert torch.isnan(buffer[:, shift + n :]).all()


def test_column_major_outputs():
    m, n, k = 200, 136, 96
    a, b, bias = whole(m, k), whole(k, n), whole(n, dtype=torch.float32)
    columns = torch.empty(n, m, device="cuda").t()
    check(
        codegen.matmul(a, b, epilogue=relu_residual, bias=bias, pre=columns),
        a.double() @ b.double(),
        bias,
    )
    out = torch.empty(n, m, dtype=torch.bfloat16, device="cuda").t()
    check(
        codegen.matmul(a, b, epilogue=relu_residual, bias=bias, out=out),
        a.double() @ b.double(),
        bias,
    )


def test_batches_and_groups():
    a, b, bias = whole(3, 130, 96), whole(3, 96, 264), whole(264, dtype=torch.float32)
    check(codegen.matmul(a, b, epilogue=relu_residual, bias=bias), a.double() @ b.double(), bias)
    rows = whole(300, 96)
    offsets = torch.tensor([0, 100, 100, 300], dtype=torch.int32, device="cuda")
    found = codegen.grouped_matmul(rows, b, offsets, epilogue=relu_residual, bias=bias)
    sums = torch.cat([rows[:100].double() @ b[0].double(), rows[100:].double() @ b[2].double()])
    check(found, sums, bias)


def test_gradients_are_refused():
    a = whole(64, 64).requires_grad_()
    with pytest.raises(LaunchError, match="requires a gradient"):
        codegen.matmul(a, whole(64, 64), epilogue=relu_residual, bias=torch.zeros(64).cuda())


@ep.epilogue(scale=ep.operand("n", "f32"), other=ep.output(dtype="u8"), pre=ep.output(dtype="f32"))
def quantized(acc: Any, scale: Any) -> Any:
    x = acc * scale
    return ep.quantize(x), ep.quantize(x, to="u8"), x


@pytest.mark.parametrize(("schedule", "tile"), SCHEDULES, ids=str)
@pytest.mark.parametrize("target", ["native", "sm_80"])
def test_quantized_outputs(schedule: str, tile: tuple[int, int, int], target: str):
    """Ties and saturation are exact, because the scales are powers of two."""
    graph = Pipeline.parse(schedule)(Gemm("bf16", epilogue=quantized).graph(tile))
    kernel = codegen.compile(graph, target)
    for m, n, k in SIZES:
        a, b = whole(m, k), whole(k, n)
        scale = 2.0 ** torch.randint(-2, 4, (n,), device="cuda").float()
        d, other, pre = kernel(a, b, scale=scale)
        x = a.double() @ b.double() * scale.double()
        assert torch.equal(pre.double(), x)
        assert torch.equal(d, torch.round(x).clamp(-128, 127).to(torch.int8))
        assert torch.equal(other, torch.round(x).clamp(0, 255).to(torch.uint8))


def test_not_a_number_and_infinity_are_quantized_as_by_numpy():
    graph = Pipeline.parse("data-parallel")(Gemm("bf16", epilogue=quantized).graph())
    a, b = torch.eye(8, dtype=torch.bfloat16).cuda(), torch.ones(8, 8, dtype=torch.bfloat16).cuda()
    scale = torch.tensor([float("nan"), float("inf"), -float("inf"), 1e30, 0.5, 1.5, -2.5, 300.0])
    d, other, _ = codegen.compile(graph)(a, b, scale=scale.cuda())
    assert d.diagonal().tolist() == [0, 127, -128, 127, 0, 2, -2, 127]
    assert other.diagonal().tolist() == [0, 255, 0, 255, 0, 2, 0, 255]


@ep.epilogue(
    bias=ep.operand("n", "f32"),
    total=ep.output("m", reduce="sum"),
    squares=ep.output("m", reduce="sum"),
    largest=ep.output("m", reduce="max"),
    exponential=ep.output("m", reduce="logsumexp"),
)
def row_statistics(acc: Any, bias: Any) -> Any:
    x = acc + bias
    return ep.relu(x), x, x * x, ep.abs(x), x * 0.125


def check_rows(x: Any, rows: tuple[Any, ...]) -> None:
    """Sums of whole numbers and maxima are exact; logsumexp is near its value in float64."""
    total, squares, largest, exponential = rows
    assert torch.equal(total.double(), x.sum(-1))
    assert torch.equal(squares.double(), (x * x).sum(-1))
    assert torch.equal(largest.double(), x.abs().amax(-1))
    wanted = torch.logsumexp(x / 8, -1)
    torch.testing.assert_close(exponential.double(), wanted, rtol=4e-6, atol=4e-6)


ROW_SCHEDULES = [
    (schedule, tile)
    for schedule, tile in (
        *SCHEDULES,
        ("data-parallel", (192, 128, 64)),
        ("data-parallel{persistent=true}", (64, 192, 64)),
    )
    if "scatter" not in schedule and "heterogeneous" not in schedule
]


@pytest.mark.parametrize(("schedule", "tile"), ROW_SCHEDULES, ids=str)
@pytest.mark.parametrize("target", ["native", "sm_80"])
def test_reductions_of_rows(schedule: str, tile: tuple[int, int, int], target: str):
    """Each column tile's part of a row is reduced. Outputs are NaN before each launch."""
    graph = Pipeline.parse(schedule)(Gemm("bf16", epilogue=row_statistics).graph(tile))
    kernel = codegen.compile(graph, target, debug=True)
    names = ("total", "squares", "largest", "exponential")
    for m, n, k in SIZES:
        a, b, bias = whole(m, k), whole(k, n), whole(n, dtype=torch.float32)
        x = a.double() @ b.double() + bias.double()
        tiles = -(-n // tile[1])
        rows = {name: torch.full((m, tiles), float("nan"), device="cuda") for name in names}
        d, *found = kernel(a, b, bias=bias, **rows)
        assert torch.equal(d, torch.relu(x).to(d.dtype))
        for part in range(tiles):
            columns = x[:, part * tile[1] : (part + 1) * tile[1]]
            check_rows(columns, tuple(array[:, part] for array in found))


@pytest.mark.parametrize(
    ("lowering", "tile"),
    [
        (LowerToHopper(consumers="pingpong"), (64, 128, 64)),
        (LowerToHopper(consumers="pingpong"), (16, 128, 64)),
        (LowerToHopper(cluster_m=2), (256, 128, 64)),
        (LowerToHopper(cluster_k=2), (64, 64, 128)),
        (LowerToHopper(boxed_operands=False), (128, 256, 64)),
        (LowerToHopper(), (192, 128, 64)),
    ],
    ids=str,
)
def test_lowerings_reduce_rows(lowering: LowerToHopper, tile: tuple[int, int, int]):
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a Hopper GPU")
    graph = Pipeline.parse("data-parallel{persistent=true}")(
        Gemm("bf16", epilogue=row_statistics).graph(tile)
    )
    kernel = codegen.compile(graph, "sm_90a", lowering=lowering)
    m, n, k = 1000, 520, 264
    a, b, bias = whole(m, k), whole(k, n), whole(n, dtype=torch.float32)
    x = a.double() @ b.double() + bias.double()
    _, *found = kernel(a, b, bias=bias)
    for part in range(-(-n // tile[1])):
        columns = x[:, part * tile[1] : (part + 1) * tile[1]]
        check_rows(columns, tuple(array[:, part] for array in found))


@ep.epilogue(total=ep.output("m", reduce="sum"), largest=ep.output("m", reduce="max"))
def sum_and_maximum(acc: Any) -> Any:
    return ep.relu(acc), acc, acc


@pytest.mark.parametrize("tile", [(64, 256, 64), (64, 512, 64)], ids=str)
def test_the_widest_tiles_reduce_rows(tile: tuple[int, int, int]):
    """A thread has 128 sums of D and has registers left for two results of a row, not for four."""
    graph = Pipeline.parse("data-parallel{persistent=true}")(
        Gemm("bf16", epilogue=sum_and_maximum).graph(tile)
    )
    kernel = codegen.compile(graph, "native")
    a, b = whole(1000, 264), whole(264, 520)
    x = a.double() @ b.double()
    _, total, largest = kernel(a, b)
    for part in range(-(-520 // tile[1])):
        columns = x[:, part * tile[1] : (part + 1) * tile[1]]
        assert torch.equal(total[:, part].double(), columns.sum(-1))
        assert torch.equal(largest[:, part].double(), columns.amax(-1))


@pytest.mark.parametrize("size", [(1, 7, 5), (129, 131, 77), (1000, 3000, 264), (16, 2048, 512)])
def test_matmul_reduces_whole_rows(size: tuple[int, int, int]):
    m, n, k = size
    a, b, bias = whole(m, k), whole(k, n), whole(n, dtype=torch.float32)
    x = a.double() @ b.double() + bias.double()
    _, *found = codegen.matmul(a, b, epilogue=row_statistics, bias=bias)
    assert all(array.shape == (m,) for array in found)
    check_rows(x, tuple(found))


def test_matmul_reduces_rows_on_the_stream_of_the_call():
    a, b, bias = whole(512, 512), whole(512, 2048), whole(2048, dtype=torch.float32)
    x = a.double() @ b.double() + bias.double()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    _, *found = codegen.matmul(a, b, epilogue=row_statistics, bias=bias, stream=stream)
    stream.synchronize()
    check_rows(x, tuple(found))


def test_batches_and_groups_reduce_rows():
    a, b, bias = whole(3, 130, 96), whole(3, 96, 264), whole(264, dtype=torch.float32)
    x = a.double() @ b.double() + bias.double()
    _, *found = codegen.matmul(a, b, epilogue=row_statistics, bias=bias)
    check_rows(x, tuple(found))
    rows = whole(300, 96)
    offsets = torch.tensor([0, 100, 100, 300], dtype=torch.int32, device="cuda")
    _, *found = codegen.grouped_matmul(rows, b, offsets, epilogue=row_statistics, bias=bias)
    sums = torch.cat([rows[:100].double() @ b[0].double(), rows[100:].double() @ b[2].double()])
    check_rows(sums + bias.double(), tuple(found))


def test_reductions_of_rows_with_infinity_and_nan():
    a, b = torch.eye(4, dtype=torch.bfloat16).cuda(), torch.zeros(4, 8, dtype=torch.bfloat16).cuda()
    for value in (float("inf"), float("-inf"), float("nan")):
        bias = torch.full((8,), value, device="cuda")
        *_, largest, exponential = codegen.matmul(a, b, epilogue=row_statistics, bias=bias)
        torch.testing.assert_close(exponential, bias[:4], equal_nan=True)
        torch.testing.assert_close(largest, bias[:4].abs(), equal_nan=True)


def test_rows_of_random_numbers_are_near_float64():
    """Logits of a large vocabulary: sums of squares and logsumexp have the error of f32."""
    a = torch.randn(512, 256, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(256, 50000, device="cuda", dtype=torch.bfloat16)
    bias = torch.randn(50000, device="cuda")
    x = a.double() @ b.double() + bias.double()
    _, total, squares, largest, exponential = codegen.matmul(
        a, b, epilogue=row_statistics, bias=bias
    )
    torch.testing.assert_close(squares.double(), (x * x).sum(1), rtol=1e-5, atol=0)
    torch.testing.assert_close(largest.double(), x.abs().amax(1), rtol=1e-5, atol=1e-4)
    wanted = torch.logsumexp(x / 8, 1)
    torch.testing.assert_close(exponential.double(), wanted, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(total.double(), x.sum(1), rtol=0, atol=0.2)


def test_matmul_reduces_all_elements():
    @ep.epilogue(amax=ep.output("", reduce="max"), total=ep.output("", reduce="sum"))
    def of_all(acc: Any) -> Any:
        return acc, ep.abs(acc), acc

    a, b = whole(3, 130, 96), whole(3, 96, 264)
    x = a.double() @ b.double()
    _, amax, total = codegen.matmul(a, b, epilogue=of_all)
    assert amax.shape == total.shape == ()
    assert amax == x.abs().max()
    assert total.double() == x.sum()
