"""GPU kernels of epilogues that do not store D, and `codegen.torch.cross_entropy` on a GPU."""

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
    column=ep.operand("n", "i32"),
    target=ep.operand("m", "i32"),
    total=ep.output("m", reduce="logsumexp"),
    picked=ep.output("m", reduce="sum"),
)
def loss(acc: Any, column: Any, target: Any) -> Any:
    return None, acc * 0.125, ep.where(ep.compare(column, target, relation="=="), acc, 0.0)


@ep.epilogue(pre=ep.output("mn", "f32"), half=ep.output("mn"))
def elsewhere(acc: Any) -> Any:
    return None, acc, ep.relu(acc)


WIDE = (256, 192, 64)
"""A tile with too many accumulators for mma.sync. The tile needs wgmma, whose operands TMA loads,
so n and k must be multiples of 8."""
SCHEDULES = (
    ("data-parallel", (128, 128, 64)),
    ("data-parallel{persistent=true}", WIDE),
    ("data-parallel{persistent=true}", (16, 128, 64)),
    ("data-parallel{persistent=true,scheduler=dynamic}", (128, 128, 64)),
    ("two-tile-stream-k", (128, 256, 64)),
    ("stream-k{owner=last}", (128, 128, 64)),
    ("stream-k{owner=last,reduction=turnstile}", (128, 128, 64)),
    ("stream-k{owner=last,reduction=tree}", (128, 128, 64)),
    ("stream-k{owner=last,reduction=atomic}", (128, 128, 64)),
    ("split-k{splits=3}", (64, 128, 64)),
)
SIZES = ((256, 512, 192), (200, 328, 72), (129, 131, 77), (1, 7, 5), (300, 17, 1000))


def whole(*shape: int) -> Any:
    """Small whole numbers, whose sums of products are exact in f32."""
    return torch.randint(-2, 3, shape, device="cuda").bfloat16()


def of_loss(m: int, n: int) -> dict[str, Any]:
    column = torch.arange(n, dtype=torch.int32, device="cuda")
    return {"column": column, "target": torch.randint(0, n, (m,), device="cuda").int()}


def check(x: Any, target: Any, total: Any, picked: Any, tile: int) -> None:
    """Check `total`, the logsumexp of each column tile's part of a row, and the target's logit."""
    for part in range(-(-x.shape[1] // tile)):
        wanted = torch.logsumexp(x[:, part * tile : (part + 1) * tile] / 8, -1)
        torch.testing.assert_close(total[:, part].double(), wanted, rtol=4e-6, atol=4e-6)
    assert torch.equal(picked.double().sum(1), x.gather(1, target.long()[:, None])[:, 0])


@pytest.mark.parametrize(("schedule", "tile"), SCHEDULES, ids=str)
@pytest.mark.parametrize("target", ["native", "sm_80"])
def test_results(schedule: str, tile: tuple[int, int, int], target: str):
    if target == "sm_80" and tile == WIDE:
        pytest.skip("the tile has too many accumulators for mma.sync")
    graph = Pipeline.parse(schedule)(Gemm("bf16", epilogue=loss).graph(tile))
    kernel = codegen.compile(graph, target, debug=True)
    for m, n, k in SIZES:
        if tile == WIDE and (n % 8 or k % 8):
            continue
        a, b, given = whole(m, k), whole(k, n), of_loss(m, n)
        shape = (m, -(-n // tile[1]))
        rows = {
            name: torch.full(shape, float("nan"), device="cuda") for name in ("total", "picked")
        }
        d, total, picked = kernel(a, b, **given, **rows)
        assert d is None
        check(a.double() @ b.double(), given["target"], total, picked, tile[1])


@pytest.mark.parametrize(
    ("lowering", "tile"),
    [
        (LowerToHopper(consumers="pingpong"), (64, 128, 64)),
        (LowerToHopper(cluster_m=2), (256, 128, 64)),
        (LowerToHopper(cluster_k=2), (64, 64, 128)),
        (LowerToHopper(vector=1), (128, 256, 64)),
        (LowerToHopper(), (192, 128, 64)),
    ],
    ids=str,
)
def test_lowerings(lowering: LowerToHopper, tile: tuple[int, int, int]):
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a Hopper GPU")
    graph = Pipeline.parse("data-parallel{persistent=true}")(
        Gemm("bf16", epilogue=loss).graph(tile)
    )
    kernel = codegen.compile(graph, "sm_90a", lowering=lowering)
    m, n, k = 1000, 520, 264
    a, b, given = whole(m, k), whole(k, n), of_loss(m, n)
    _, total, picked = kernel(a, b, **given)
    check(a.double() @ b.double(), given["target"], total, picked, tile[1])


def test_matmul_and_outputs_of_every_element():
    for m, n, k in SIZES:
        a, b = whole(m, k), whole(k, n)
        x = a.double() @ b.double()
        d, pre, half = codegen.matmul(a, b, epilogue=elsewhere)
        assert d is None
        assert torch.equal(pre.double(), x)
        assert torch.equal(half, torch.relu(x).to(half.dtype))
        given = of_loss(m, n)
        _, total, picked = codegen.matmul(a, b, epilogue=loss, **given)
        torch.testing.assert_close(total.double(), torch.logsumexp(x / 8, -1), rtol=4e-6, atol=4e-6)
        assert torch.equal(picked.double(), x.gather(1, given["target"].long()[:, None])[:, 0])
    with pytest.raises(LaunchError, match="'out' is given"):
        codegen.matmul(a, b, epilogue=elsewhere, out=torch.empty_like(half))


def expected(hidden: Any, weight: Any, targets: Any, **options: Any) -> Any:
    return torch.nn.functional.cross_entropy(hidden @ weight.t(), targets, **options)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize(
    ("tokens", "classes", "width"), [(512, 2048, 256), (77, 1003, 130), (1, 5, 8)]
)
def test_cross_entropy(
    monkeypatch: pytest.MonkeyPatch,
    tokens: int,
    classes: int,
    width: int,
    blocks: bool,
    kind: Any,
):
    """Loss and gradients are near those of float64, whose inputs are the same rounded numbers."""
    import codegen.torch as cgt

    if blocks:
        monkeypatch.setattr("codegen.torch.token_losses.BLOCK", 0)
    torch.manual_seed(tokens)
    given = [
        (torch.randn(tokens, width, device="cuda")).to(kind).requires_grad_(),
        (torch.randn(classes, width, device="cuda") / width**0.5).to(kind).requires_grad_(),
    ]
    targets = torch.randint(0, classes, (tokens,), device="cuda")
    targets[1:2] = -100
    exact = [x.detach().double().requires_grad_() for x in given]
    for reduction in ("mean", "sum", "none"):
        found = cgt.cross_entropy(given[0], given[1], targets, reduction=reduction)
        right = expected(exact[0], exact[1], targets, reduction=reduction)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), right, rtol=1e-5, atol=1e-5)
        grad = torch.rand_like(found)
        ours = torch.autograd.grad(found, given, grad)
        theirs = torch.autograd.grad(right, exact, grad.double())
        for one, other in zip(ours, theirs, strict=True):
            assert one.dtype == kind
            error = (one.double() - other).abs().max()
            assert error <= 2e-2 * other.abs().max()


def test_cross_entropy_stores_no_logits():
    """Forward and backward take less memory than the logits of all tokens in bf16."""
    import codegen.torch as cgt

    tokens, classes, width = 4096, 1 << 17, 512
    hidden = torch.randn(tokens, width, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(classes, width, device="cuda", dtype=torch.bfloat16).mul_(0.05)
    weight.requires_grad_()
    targets = torch.randint(0, classes, (tokens,), device="cuda")
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    cgt.cross_entropy(hidden, weight, targets).backward()
    torch.cuda.synchronize()
    logits = 2 * tokens * classes
    gradients = 2 * (hidden.numel() + weight.numel())
    assert torch.cuda.max_memory_allocated() - before - gradients < logits // 2
    rows = slice(0, 64)
    right = expected(hidden[rows].double(), weight.double(), targets[rows], reduction="none")
    found = cgt.cross_entropy(hidden[rows], weight, targets[rows], reduction="none")
    torch.testing.assert_close(found.double(), right, rtol=1e-5, atol=1e-5)


def test_cross_entropy_of_a_target_that_is_no_class():
    import codegen.torch as cgt

    hidden, weight = whole(4, 64), whole(100, 64)
    targets = torch.tensor([0, 100, -100, -1], device="cuda")
    found = cgt.cross_entropy(hidden, weight, targets, reduction="none")
    assert torch.isnan(found).tolist() == [False, True, False, True]


@pytest.mark.filterwarnings("ignore")  # torch.compile warns
def test_cross_entropy_in_a_cuda_graph_and_compiled():
    import codegen.torch as cgt

    hidden, weight = whole(64, 64).requires_grad_(), whole(1000, 64).mul(0.1).requires_grad_()
    targets = torch.randint(0, 1000, (64,), device="cuda")

    def step(function: Any) -> tuple[Any, ...]:
        found = function(hidden, weight, targets)
        return found.detach(), *torch.autograd.grad(found, [hidden, weight])

    eager = step(cgt.cross_entropy)
    compiled = step(torch.compile(cgt.cross_entropy, fullgraph=True))
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step(cgt.cross_entropy)
    torch.cuda.current_stream().wait_stream(stream)
    with torch.cuda.graph(graph):
        captured = step(cgt.cross_entropy)
    graph.replay()
    torch.cuda.synchronize()
    for one, two, three in zip(eager, compiled, captured, strict=True):
        assert torch.equal(one, three)
        torch.testing.assert_close(one, two)
