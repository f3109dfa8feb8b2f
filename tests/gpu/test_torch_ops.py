"""`codegen.torch` on the GPU: values and gradients against f32, compiled, and in a CUDA graph."""

from __future__ import annotations

from typing import Any

import pytest

import codegen

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("gpu")

BOUND = 2e-2
"""Largest error of 16-bit results (sums are in f32), relative to the largest element."""
SHAPES = [(256, 384, 512), (264, 136, 72), (130, 70, 50)]
"""Problems (m, n, k): a multiple of the tile; partial tiles, with rows that TMA can load; and rows
that TMA cannot load.
"""

compiles = pytest.mark.filterwarnings("ignore")
"""Mark of tests that run PyTorch's compiler: ignore its warnings about its own settings."""


def normal(*shape: int, dtype: Any = None) -> Any:
    """A random tensor on the GPU that requires a gradient."""
    made = torch.randn(shape, device="cuda").to(dtype or torch.bfloat16)
    return made.requires_grad_()


def check(ours: Any, exact: Any) -> None:
    """Compare a 16-bit result with that of the same product in f32."""
    assert ours.shape == exact.shape
    exact = exact.detach()
    assert (ours.detach().float() - exact).abs().max() <= BOUND * exact.abs().max()


def check_gradients(work: Any, theirs: Any, *inputs: Any) -> None:
    """Compare the value and the gradients of `work` with those of `theirs` on f32 inputs."""
    wide = [x.detach().float().requires_grad_() for x in inputs]
    d, exact = work(*inputs), theirs(*wide)
    check(d, exact)
    grad = torch.randn_like(exact).to(d.dtype)
    pairs = zip(
        torch.autograd.grad(d, inputs, grad),
        torch.autograd.grad(exact, wide, grad.float()),
        strict=True,
    )
    for ours, right in pairs:
        check(ours, right)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_linear(m: int, n: int, k: int, dtype: str):
    import codegen.torch as cgt

    kind = getattr(torch, dtype)
    inputs = normal(2, m, k, dtype=kind), normal(n, k, dtype=kind), normal(n, dtype=kind)
    check_gradients(cgt.linear, torch.nn.functional.linear, *inputs)
    check_gradients(cgt.linear, torch.nn.functional.linear, *inputs[:2])


@pytest.mark.parametrize("shape", [(), (384,), (256, 1), (256, 384)], ids=str)
def test_addmm(shape: tuple[int, ...]):
    import codegen.torch as cgt

    inputs, factors = (normal(*shape), normal(256, 512), normal(512, 384)), (0.5, -2.0)
    beta, alpha = factors
    check_gradients(
        lambda c, a, b: cgt.addmm(c, a, b, beta=beta, alpha=alpha),
        lambda c, a, b: torch.addmm(c, a, b, beta=beta, alpha=alpha),
        *inputs,
    )


def test_batches():
    import codegen.torch as cgt

    check_gradients(cgt.bmm, torch.bmm, normal(3, 128, 256), normal(3, 256, 64))
    check_gradients(cgt.matmul, torch.matmul, normal(128, 256), normal(3, 256, 64))
    # this view is not row-major, so the operator copies it
    strided = normal(128, 3, 256).transpose(0, 1)
    check_gradients(cgt.matmul, torch.matmul, strided.detach().requires_grad_(), normal(256, 64))


def one_by_one(a: Any, b: Any, ends: list[int]) -> Any:
    """The products of all groups, one after another; elements of D in no group are 0."""
    if a.dim() == 3:
        return one_by_one(b.mT, a.mT, ends).mT
    spans = list(zip([0, *ends], ends, strict=False))
    if b.dim() == 2:
        return torch.stack([a[:, first:end] @ b[first:end] for first, end in spans])
    parts = [a[first:end] @ b[group] for group, (first, end) in enumerate(spans)]
    return torch.cat([*parts, a.new_zeros(a.shape[0] - ends[-1], b.shape[-1])])


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("shape", [(264, 136), (136,)])
def test_out_dtype(shape: tuple[int, ...], dtype: str):
    """Sums in f32 are not rounded to the type of the factors; PyTorch's function agrees."""
    import codegen.torch as cgt

    c, a, b = normal(*shape, dtype=getattr(torch, dtype)), normal(264, 72), normal(72, 136)
    d = cgt.addmm(c, a, b, torch.float32, beta=0.5)
    exact = torch.addmm(c.double(), a.double(), b.double(), beta=0.5)
    torch.testing.assert_close(d.double(), exact, atol=1e-3, rtol=1e-4)
    assert [x.dtype for x in torch.autograd.grad(d.sum(), (c, a))] == [c.dtype, a.dtype]
    if hasattr(torch.ops.aten.addmm, "dtype"):
        with torch.no_grad():
            right = torch.addmm(c, a, b, torch.float32, beta=0.5)
        torch.testing.assert_close(d.detach(), right, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("k", [256, 136, 70])
@pytest.mark.parametrize("divided", ["rows", "columns", "terms"])
def test_groups(divided: str, k: int):
    """Results and gradients are right if a group is empty and if rows belong to no group."""
    import codegen.torch as cgt

    ends, rows, n = [130, 130, 395, 500], 520, 192
    shapes = {
        "rows": ((rows, k), (4, k, n)),
        "columns": ((4, n, k), (k, rows)),
        "terms": ((k, rows), (rows, n)),
    }
    offs = torch.tensor(ends, dtype=torch.int32, device="cuda")
    check_gradients(
        lambda a, b: cgt.grouped_mm(a, b, offs=offs),
        lambda a, b: one_by_one(a, b, ends),
        *(normal(*shape) for shape in shapes[divided]),
    )


def test_groups_with_gaps():
    """Factors with gaps between rows and between matrices, which are not copied."""
    import codegen.torch as cgt

    ends = [130, 130, 395, 500]
    offs = torch.tensor(ends, dtype=torch.int32, device="cuda")
    rows, experts = normal(520, 200).detach()[:, :136], normal(8, 136, 256).detach()[::2, :, :192]
    columns = normal(192, 560).detach()[:, :520]
    for a, b in (
        (rows, experts),
        (rows, normal(4, 192, 144).detach()[:, :, :136].mT),
        (rows, normal(136, 192).detach().expand(4, 136, 192)),
        (columns, rows),
    ):
        d = cgt.grouped_mm(a, b, offs=offs)
        check(d, one_by_one(a.float(), b.float(), ends))


def test_groups_in_a_cuda_graph():
    """A replay of a CUDA graph uses the offsets that are in memory then: the host reads none."""
    import codegen.torch as cgt

    a, b = normal(512, 256).detach(), normal(3, 256, 128).detach()
    offs = torch.tensor([100, 300, 512], dtype=torch.int32, device="cuda")
    cgt.grouped_mm(a, b, offs=offs)  # the first call compiles the kernel
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        d = cgt.grouped_mm(a, b, offs=offs)
    for ends in ([100, 300, 512], [0, 77, 400], [512, 512, 512]):
        offs.copy_(torch.tensor(ends, dtype=torch.int32))
        graph.replay()
        check(d, one_by_one(a.float(), b.float(), ends))


def test_swiglu():
    """In autograd's thread, a product of PyTorch after one of ours prints no warning."""
    import codegen.torch as cgt

    layer = cgt.SwiGLU(256, 384, device="cuda", dtype=torch.bfloat16)
    weights = [x.detach().float() for x in (layer.gate_up.weight, layer.down.weight)]

    def exact(x: Any) -> Any:
        gate, up = (x @ weights[0].T).chunk(2, -1)
        return (torch.nn.functional.silu(gate) * up) @ weights[1].T

    check_gradients(layer, exact, normal(2, 130, 256))


def test_codegen_matmul_has_a_gradient():
    a, b, c = normal(256, 512), normal(384, 512), normal(256, 384)
    check_gradients(
        lambda a, b, c: codegen.matmul(a, b, c, beta=0.5, transpose_b=True),
        lambda a, b, c: torch.addmm(c, a, b.T, beta=0.5),
        *(a, b, c),
    )
    with torch.no_grad():
        assert codegen.matmul(a, b, transpose_b=True).grad_fn is None


@compiles
def test_compiled_in_one_graph():
    import codegen.torch as cgt

    weight, bias, x = normal(384, 512), normal(384), normal(256, 512)

    def layer(product: Any) -> Any:
        return lambda x, w, b: torch.tanh(product(x, w, b) / 16) + 1

    compiled = torch.compile(layer(cgt.linear), fullgraph=True)
    check_gradients(compiled, layer(torch.nn.functional.linear), x, weight, bias)


@compiles
def test_compiled_with_other_sizes():
    import codegen.torch as cgt

    pytest.importorskip("torch._dynamo.testing")
    counter: Any = torch._dynamo.testing.CompileCounterWithBackend("inductor")
    compiled = torch.compile(cgt.matmul, fullgraph=True, backend=counter, dynamic=True)
    with torch.no_grad():
        for m in (128, 192, 264, 1000):
            a, b = normal(m, 512), normal(512, 384)
            check(compiled(a, b), a.float() @ b.float())
    assert counter.frame_count == 1


# PyTorch warns because the step was first run on another stream than at the end of the test.
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream does not match")
def test_cuda_graph():
    """A training step is captured in a CUDA graph; a replay uses the inputs' current values."""
    import codegen.torch as cgt

    layer = cgt.Linear(512, 384, device="cuda", dtype=torch.bfloat16)
    x = normal(256, 512)

    def step() -> Any:
        d = layer(x)
        return d, *torch.autograd.grad(d.float().square().sum(), (x, layer.weight, layer.bias))

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    with torch.no_grad():
        x.copy_(normal(256, 512))
    graph.replay()
    for ours, right in zip(captured, step(), strict=True):
        torch.testing.assert_close(ours, right)


@compiles
def test_reduce_overhead():
    """The operators work in CUDA graphs that `torch.compile(mode="reduce-overhead")` captures."""
    import codegen.torch as cgt

    w, bias = normal(384, 512).detach(), normal(384).detach()
    compiled = torch.compile(cgt.linear, fullgraph=True, mode="reduce-overhead")
    for _ in range(4):
        x = normal(256, 512).detach()
        torch.compiler.cudagraph_mark_step_begin()
        check(compiled(x, w, bias), torch.nn.functional.linear(x.float(), w.float(), bias.float()))


def test_use_kernels_and_autocast():
    import codegen.torch as cgt

    x, w = normal(256, 512, dtype=torch.float32), normal(384, 512, dtype=torch.float32)
    with cgt.use_kernels(), torch.autocast("cuda", dtype=torch.bfloat16):
        d = torch.nn.functional.linear(x, w)
    assert d.dtype == torch.bfloat16
    assert "coordgraph" in type(d.grad_fn).__name__
    check(d, x @ w.T)
    (grad,) = torch.autograd.grad(d.float().sum(), w)
    assert grad.dtype == torch.float32


def test_opcheck():
    import codegen.torch  # noqa: F401 - registers the operators

    a, b, bias = normal(64, 128), normal(128, 72), normal(72)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(torch.ops.coordgraph.matmul.default, (a, b), test_utils=checks)
    inputs = bias, a, b, 1.0, 1.0
    torch.library.opcheck(torch.ops.coordgraph.addmm.default, inputs, test_utils=checks)
    groups = normal(64, 128), normal(2, 128, 72), torch.tensor([20, 60]).int().cuda()
    torch.library.opcheck(torch.ops.coordgraph.grouped_mm.default, groups, test_utils=checks)


def test_repeated_calls_only_launch(monkeypatch: pytest.MonkeyPatch):
    """A repeated call is not checked, and reads the tensors it is given, also in a CUDA graph."""
    import importlib

    functions = importlib.import_module("codegen.torch.functions")

    def fail(*_: Any) -> None:
        raise AssertionError("the call was checked")

    def made(*shape: int) -> Any:
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

    weight = torch.nn.Parameter(made(96, 128))
    with torch.no_grad():
        for _ in range(8):
            functions.linear(made(2, 32, 128), weight, made(96))
        x, bias = made(2, 32, 128), made(96)
        with monkeypatch.context() as patch:
            patch.setattr(functions, "check_dense", fail)
            d = functions.linear(x, weight, bias)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                captured = functions.linear(x, weight, bias)
        right = torch.nn.functional.linear(x, weight, bias)
        torch.testing.assert_close(d, right, rtol=2e-2, atol=2e-2)
        x.copy_(made(2, 32, 128))
        graph.replay()
        right = torch.nn.functional.linear(x, weight, bias)
        torch.testing.assert_close(captured, right, rtol=2e-2, atol=2e-2)
    assert functions.linear(x, weight, bias).requires_grad
    with torch.autocast("cuda", dtype=torch.float16):
        assert functions.linear(x, weight, bias).dtype is torch.float16


def test_repeated_sums_and_batches():
    """Repeated calls read the C and the batch that they are given, with the strides of an `out`."""
    import codegen
    import codegen.torch as cgt

    def made(*shape: int) -> Any:
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

    near: Any = {"rtol": 2e-2, "atol": 1e-1}
    offsets = torch.tensor([0, 20, 64], device="cuda", dtype=torch.int32)
    with torch.no_grad():
        for _ in range(9):
            a, b, c = made(64, 128), made(128, 96), made(64, 96)
            found = cgt.addmm(c, a, b, beta=0.5)
            torch.testing.assert_close(found, torch.addmm(c, a, b, beta=0.5), **near)
            torch.testing.assert_close(
                cgt.bmm(a[None], b[None]), torch.bmm(a[None], b[None]), **near
            )
            torch.testing.assert_close(codegen.matmul(a, b, c, beta=2.0), a @ b + 2 * c, **near)
            groups, out = made(2, 128, 96), made(64, 96)
            codegen.grouped_matmul(a, groups, offsets, out=out)
        a, groups = made(64, 128), made(2, 128, 96)
        wide = torch.zeros(64, 192, device="cuda", dtype=torch.bfloat16)
        codegen.grouped_matmul(a, groups, offsets, out=wide[:, :96])
        right = torch.cat((a[:20] @ groups[0], a[20:] @ groups[1]))
        torch.testing.assert_close(wide[:, :96], right, **near)
        assert not wide[:, 96:].any()
