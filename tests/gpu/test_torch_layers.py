"""Layers of `codegen.torch` on the GPU: layouts of gradients, and layers inside of layers."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from tests.gpu.test_torch_ops import check, check_gradients, normal

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("gpu")


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_the_gradient_of_an_activated_layer_s_weight_has_the_weight_s_layout(activation: str):
    import codegen.torch as cgt

    given = normal(130, 72), normal(136, 72), normal(136)
    act = getattr(torch.nn.functional, activation)
    ours = partial(cgt.linear, activation=activation)
    check_gradients(ours, lambda *x: act(torch.nn.functional.linear(*x)), *given)
    (found,) = torch.autograd.grad(ours(*given).sum(), given[1])
    assert found.is_contiguous()


def test_the_gradient_of_grouped_weights_has_the_weights_layout():
    import codegen.torch as cgt

    ends = (40, 40, 130)
    offs = torch.tensor(ends, dtype=torch.int32, device="cuda")
    x, weights = normal(130, 72), normal(3, 136, 72)

    def theirs(x: Any, weights: Any) -> Any:
        spans = zip((0, *ends), ends, strict=False)
        return torch.cat([x[i:j] @ weights[group].T for group, (i, j) in enumerate(spans)])

    def ours(x: Any, weights: Any) -> Any:
        return cgt.grouped_mm(x, weights.mT, offs=offs)

    check_gradients(ours, theirs, x, weights)
    (found,) = torch.autograd.grad(ours(x, weights).sum(), weights)
    assert found.is_contiguous()


def test_normalized_weights_of_gate_up():
    """Repeated calls multiply by the weight that each call computes."""
    import codegen.torch as cgt

    layer = cgt.SwiGLU(72, 136, device="cuda", dtype=torch.bfloat16)
    torch.nn.utils.parametrizations.weight_norm(layer.gate_up)
    x = normal(130, 72).detach()
    for _ in range(12):
        with torch.no_grad():
            gate, up = (x.float() @ layer.gate_up.weight.float().T).chunk(2, -1)
            right = torch.nn.functional.silu(gate) * up @ layer.down.weight.float().T
            check(layer(x), right)
            layer.gate_up.parametrizations.weight.original0.mul_(0.9)
    layer(x).sum().backward()
    assert layer.gate_up.parametrizations.weight.original1.grad.any()


def test_a_bias_of_one_element_is_added_before_the_activation():
    import codegen.torch as cgt

    given = normal(2, 130, 72), normal(136, 72), normal(1)
    wide = [x.detach().float().requires_grad_() for x in given]
    d, exact = cgt.linear(*given, activation="relu"), torch.nn.functional.linear(*wide).relu()
    check(d, exact)
    (found,), (right,) = (
        torch.autograd.grad(result.sum(), bias)
        for result, bias in ((d.float(), given[2]), (exact, wide[2]))
    )
    check(found, right)


@pytest.mark.filterwarnings("ignore")
def test_vectorized_jacobians_of_linear():
    import codegen.torch as cgt

    x, w = normal(2, 3, 16).detach(), normal(8, 16).detach()
    found = torch.autograd.functional.jacobian(cgt.linear, (x, w), vectorize=True)
    right = torch.autograd.functional.jacobian(
        torch.nn.functional.linear, (x.float(), w.float()), vectorize=True
    )
    for one, other in zip(found, right, strict=True):
        check(one, other)
