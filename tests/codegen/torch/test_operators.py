"""PyTorch's opcheck, compile, autocast, vmap and meta tensors work with coordgraph's operators."""

from __future__ import annotations

from typing import Any

import pytest

import codegen
from tests.codegen.torch.conftest import Make


@pytest.mark.parametrize("batch", [(), (3,)])
def test_opcheck_of_matmul(torch: Any, make: Make, batch: tuple[int, ...]):
    inputs = make(*batch, 5, 7), make(*batch, 7, 6)
    torch.library.opcheck(torch.ops.coordgraph.matmul.default, inputs)


@pytest.mark.parametrize("shape", [(), (6,), (5, 1), (5, 6)], ids=str)
def test_opcheck_of_addmm(torch: Any, make: Make, shape: tuple[int, ...]):
    inputs = make(*shape), make(5, 7), make(7, 6), 0.5, 2.0
    torch.library.opcheck(torch.ops.coordgraph.addmm.default, inputs)


def test_compiled_in_one_graph(torch: Any, make: Make):
    import codegen.torch as cgt

    x, w, bias = inputs = make(2, 5, 7), make(6, 7), make(6)

    def layer(x: Any, w: Any, bias: Any) -> Any:
        return torch.relu(cgt.linear(x, w, bias)) + 1

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    d, right = compiled(x, w, bias), torch.relu(torch.nn.functional.linear(x, w, bias)) + 1
    torch.testing.assert_close(d, right)
    for ours, theirs in zip(
        torch.autograd.grad(d.sum(), inputs), torch.autograd.grad(right.sum(), inputs), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


def test_other_sizes_compile_nothing(torch: Any, make: Make):
    import codegen.torch as cgt

    counter: Any = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(cgt.matmul, fullgraph=True, backend=counter, dynamic=True)
    for m in (5, 6, 9, 17):
        a, b = make(2, m, 7), make(2, 7, m + 1)
        torch.testing.assert_close(compiled(a, b), a @ b)
    assert counter.frame_count == 1


def test_codegen_matmul_compiles_to_the_operator(torch: Any, make: Make):
    a, b, c = make(5, 7), make(6, 7), make(5, 6)
    compiled = torch.compile(
        lambda a, b, c: codegen.matmul(a, b, c, beta=0.5, transpose_b=True),
        fullgraph=True,
        backend="aot_eager",
    )
    torch.testing.assert_close(compiled(a, b, c), torch.addmm(c, a, b.T, beta=0.5))


def test_export(torch: Any, make: Make):
    import codegen.torch as cgt

    exported = torch.export.export(cgt.Linear(7, 6), (make(5, 7, dtype=torch.float32),))
    called = [str(node.target) for node in exported.graph.nodes]
    assert "coordgraph.addmm.default" in called


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_autocast(torch: Any, make: Make, name: str):
    import codegen.torch as cgt

    dtype = getattr(torch, name)
    x, w, bias = (make(*s, dtype=torch.float32) for s in ((5, 7), (6, 7), (6,)))
    with torch.autocast("cpu", dtype=dtype):
        d, right = cgt.linear(x, w, bias), torch.nn.functional.linear(x, w, bias)
        assert cgt.matmul(x.double(), w.T.double()).dtype == torch.float64
    assert d.dtype == dtype
    torch.testing.assert_close(d, right, atol=2e-2, rtol=2e-2)
    d.sum().backward()
    assert w.grad.dtype == bias.grad.dtype == torch.float32


def test_vmap(torch: Any, make: Make):
    import codegen.torch as cgt

    a, b, c = make(4, 5, 7), make(7, 6, 4), make(4, 6)
    product = torch.vmap(cgt.matmul, (0, 2))(a, b)
    torch.testing.assert_close(product, a @ b.movedim(2, 0))
    torch.testing.assert_close(torch.vmap(cgt.matmul, (0, None))(a, b[..., 0]), a @ b[..., 0])
    sums = torch.vmap(lambda c, a, b: cgt.addmm(c, a, b, beta=2), (0, None, 2))(c, a[0], b)
    torch.testing.assert_close(sums, a[0] @ b.movedim(2, 0) + 2 * c[:, None])
    twice = torch.vmap(torch.vmap(cgt.matmul))(make(2, 3, 5, 7), make(2, 3, 7, 6))
    assert twice.shape == (2, 3, 5, 6)


@pytest.mark.parametrize("kind", ["float16", "float32"])
@pytest.mark.parametrize("alpha", [0, 2])
def test_autocast_in_vmap(torch: Any, make: Make, alpha: int, kind: str):
    """Autocast casts tensors that vmap maps like others, also if types differ or alpha is 0."""
    import codegen.torch as cgt

    c = make(3, 6, dtype=getattr(torch, kind))
    a, b = (make(*s, dtype=torch.float16) for s in ((3, 5, 7), (3, 7, 6)))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        d = torch.vmap(lambda *x: cgt.addmm(*x, alpha=alpha))(c, a, b)
        each = [cgt.addmm(*x, alpha=alpha) for x in zip(c, a, b, strict=True)]
    assert d.dtype == torch.bfloat16
    torch.testing.assert_close(d, torch.stack(each), atol=2e-2, rtol=2e-2)
    d.sum().backward()
    assert {x.grad.dtype == x.dtype for x in (c, a, b) if alpha or x is c} == {True}


def test_meta_tensors(torch: Any):
    import codegen.torch as cgt

    x, w, bias = (torch.empty(s, device="meta") for s in ((2, 5, 7), (6, 7), (6,)))
    assert cgt.linear(x, w, bias).shape == (2, 5, 6)
    assert cgt.bmm(x, x.mT).device.type == "meta"


def test_kernels_record_no_gradients(torch: Any, monkeypatch: pytest.MonkeyPatch):
    """Also if the dispatcher calls them for tensors that require a gradient."""
    import codegen.torch  # noqa: F401 - registers the operators
    from codegen.torch import launching

    recorded = list[bool]()
    multiply = launching.matmul

    def noting(*arrays: Any, **options: Any) -> Any:
        recorded.append(torch.is_grad_enabled())
        return multiply(*arrays, **options)

    monkeypatch.setattr(launching, "matmul", noting)
    a, b, c = (torch.randn(n, n).requires_grad_() for n in (8, 8, 8))
    ops = torch.ops.coordgraph
    found = ops.matmul(a, b), ops.addmm(c, a, b, 1.0, 1.0), ops.gated(a, b, c[0], "silu", False)
    assert all(x.requires_grad for x in found)
    assert recorded
    assert not any(recorded)
