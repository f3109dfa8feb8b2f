"""`codegen.torch.swiglu`: one kernel without gradients, PyTorch's activation with them."""

from __future__ import annotations

from typing import Any

import pytest

from coordgraph import LaunchError


def expected(torch: Any, x: Any, weight: Any, bias: Any = None) -> Any:
    gate, up = torch.nn.functional.linear(x, weight, bias).chunk(2, -1)
    return torch.nn.functional.silu(gate) * up


@pytest.mark.parametrize("shape", [(5, 12), (2, 3, 12), (12,), (0, 12)], ids=str)
@pytest.mark.parametrize("biased", [False, True])
def test_values_and_gradients(torch: Any, biased: bool, shape: tuple[int, ...]):
    import codegen.torch as cgt

    x, weight = torch.randn(shape), torch.randn(14, 12)
    bias = torch.randn(14) if biased else None
    torch.testing.assert_close(cgt.swiglu(x, weight, bias), expected(torch, x, weight, bias))
    given = [t.requires_grad_() for t in (x, weight, bias) if t is not None]
    cgt.swiglu(x, weight, bias).square().sum().backward()
    ours = [t.grad.clone() for t in given]
    for t in given:
        t.grad = None
    expected(torch, x, weight, bias).square().sum().backward()
    for t, ours_of in zip(given, ours, strict=True):
        torch.testing.assert_close(ours_of, t.grad)


@pytest.mark.parametrize("biased", [False, True])
def test_operator(torch: Any, biased: bool):
    swiglu = torch.ops.coordgraph.swiglu.default
    a, b = (torch.randn(s, requires_grad=True) for s in ((5, 12), (12, 14)))
    bias = torch.randn(14, requires_grad=True) if biased else None
    torch.library.opcheck(swiglu, (a, b, bias))
    doubles = [t.detach().double().requires_grad_() for t in (a, b, bias) if t is not None]
    assert torch.autograd.gradcheck(lambda *t: swiglu(*t), doubles)


def test_one_operator_without_gradients(torch: Any):
    import codegen.torch as cgt

    layer = cgt.SwiGLU(16, 24, bias=True)
    x = torch.randn(3, 16)
    make_fx = pytest.importorskip("torch.fx.experimental.proxy_tensor").make_fx
    with torch.no_grad():
        graph = make_fx(layer)(x)
        calls = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
        assert "coordgraph.swiglu.default" in calls
        assert not any("silu" in call for call in calls)
        fused = layer(x)
    torch.testing.assert_close(fused, layer(x))


def test_autocast_and_refusals(torch: Any):
    import codegen.torch as cgt

    x, weight = torch.randn(4, 12), torch.randn(14, 12)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        assert cgt.swiglu(x, weight).dtype is torch.bfloat16
    with pytest.raises(LaunchError, match="2n x k is needed"):
        cgt.swiglu(x, weight[:13])
    with pytest.raises(LaunchError, match="pass matrices of m x k and k x 2n"):
        cgt.swiglu(x[:, :11], weight)
    with pytest.raises(LaunchError, match="is needed; pass an element for each column"):
        cgt.swiglu(x, weight, torch.randn(7))
