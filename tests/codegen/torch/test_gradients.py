"""Tensors that require gradients: `codegen.matmul` is differentiable, or the call is refused."""

from __future__ import annotations

from typing import Any

import pytest

import codegen
from coordgraph import LaunchError
from coordgraph import epilogue as ep
from tests.codegen.torch.conftest import Make


def test_the_result_has_a_gradient(torch: Any, make: Make):
    a, b, c = make(5, 7), make(6, 7), make(5, 6)
    d = codegen.matmul(a, b, c, alpha=2, beta=0.5, transpose_b=True)
    right = torch.addmm(c, a, b.T, alpha=2, beta=0.5)
    torch.testing.assert_close(d, right)
    grads = (torch.autograd.grad(x.sum(), (a, b, c)) for x in (d, right))
    for ours, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_the_product_times_alpha_is_rounded_once(torch: Any):
    """With a gradient as without one; sums of these whole numbers are exact in f32."""
    a, b = (torch.randint(-9, 9, shape).bfloat16() for shape in ((20, 200), (200, 30)))
    right = ((a.float() @ b.float()) * 0.3).bfloat16()
    assert not torch.equal((a.float() @ b.float()).bfloat16() * 0.3, right)
    d = codegen.matmul(a.requires_grad_(), b, alpha=0.3)
    assert torch.equal(d, right)
    (grad,) = torch.autograd.grad(d.sum(), a)
    summed = 0.3 * b.float().sum(1).expand(20, 200)
    torch.testing.assert_close(grad.float(), summed, rtol=0.02, atol=0.02)


def test_only_c_requires_a_gradient(torch: Any, make: Make):
    a, b, c = make(3, 7, 5).detach(), make(3, 7, 6).detach(), make(3, 5, 6)
    d = codegen.matmul(a, b, c, alpha=3, beta=2, transpose_a=True)
    torch.testing.assert_close(d, 3 * a.mT @ b + 2 * c)
    (grad,) = torch.autograd.grad(d.sum(), c)
    torch.testing.assert_close(grad, torch.full_like(c, 2.0))


@pytest.mark.parametrize("option", ["out", "stream", "tune", "plan"])
def test_options_without_a_gradient_are_refused(make: Make, option: str):
    value = {"out": make(5, 6).detach(), "stream": 0, "tune": True, "plan": "16x16x16"}[option]
    message = rf"a requires a gradient, but matmul\({option}=…\) has none; call it under"
    with pytest.raises(LaunchError, match=message):
        codegen.matmul(make(5, 7), make(7, 6), **{option: value})


def test_products_without_a_gradient_are_refused(torch: Any, make: Make):
    a, b = make(5, 7).detach(), make(7, 6).detach()
    biased = ep.epilogue(bias="n")(lambda acc, bias: acc + bias)
    with pytest.raises(LaunchError, match="bias requires a gradient, but a product with this"):
        codegen.matmul(a, b, epilogue=biased, bias=make(6))
    offsets = torch.tensor([0, 5], dtype=torch.int32)
    message = r"b requires .* grouped_matmul has none; .* use codegen\.torch\.grouped_mm"
    with pytest.raises(LaunchError, match=message):
        codegen.grouped_matmul(a, make(1, 7, 6), offsets)
    with pytest.raises(LaunchError, match=r"beta = 2\.0 multiplies c, but c is missing"):
        codegen.matmul(make(5, 7), b, beta=2)


def test_without_gradients_tensors_are_launched(torch: Any, make: Make):
    """Tensors that record no gradient are passed to a kernel launch, which refuses CPU tensors."""
    a, b = make(5, 7), make(7, 6)
    with torch.no_grad(), pytest.raises(LaunchError, match=r"lies on 'cpu'.*codegen\.torch\.matm"):
        codegen.matmul(a, b)
    with pytest.raises(LaunchError, match="lies on 'cpu'"):
        codegen.matmul(a.detach(), b.detach())


def test_groups_on_the_cpu_are_refused_with_advice(torch: Any, make: Make):
    offsets = torch.tensor([0, 5], dtype=torch.int32)
    with pytest.raises(LaunchError, match=r"codegen\.torch\.grouped_mm for groups"):
        codegen.grouped_matmul(make(5, 7).detach(), make(7, 6).detach()[None], offsets)


def test_the_gradient_of_a_weight_has_the_weight_s_layout(torch: Any):
    """The gradient has the strides of the weight; else PyTorch would transpose each gradient."""
    import codegen.torch as cgt

    x, weight = torch.randn(6, 8), torch.randn(4, 8, requires_grad=True)
    transposed = weight.detach().t().requires_grad_()
    cgt.matmul(x, transposed).sum().backward()
    assert transposed.grad.stride() == transposed.stride()
    cgt.linear(x, weight).sum().backward()
    torch.testing.assert_close(weight.grad, transposed.grad.t())
    (of_weight,) = torch.autograd.grad(cgt.linear(x, weight).sum(), [weight])
    assert of_weight.is_contiguous()
    plain = torch.randn(8, 4, requires_grad=True)
    cgt.matmul(x, plain).sum().backward()
    assert plain.grad.is_contiguous()


@pytest.mark.parametrize("differentiated", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_the_gradient_of_an_activated_layer_s_weight_has_the_weight_s_layout(
    torch: Any, make: Make, activation: str, differentiated: bool
):
    import codegen.torch as cgt

    x, weight = make(6, 8), make(4, 8)
    for given in (weight, weight.detach().t().contiguous().t().requires_grad_()):
        sums = cgt.linear(x, given, activation=activation).sum()
        (found,) = torch.autograd.grad(sums, given, create_graph=differentiated)
        assert found.stride() == given.stride()
        (right,) = torch.autograd.grad(
            getattr(torch.nn.functional, activation)(x @ given.t()).sum(), given
        )
        torch.testing.assert_close(found, right)


@pytest.mark.parametrize("shape", [(5, 8), (3, 5, 8)], ids=str)
def test_the_gradient_of_grouped_weights_has_the_weights_layout(
    torch: Any, make: Make, shape: tuple[int, ...]
):
    """Also if the weights hold n x k, and their transposes are multiplied."""
    import codegen.torch as cgt

    offs = torch.tensor([2, 2, 5], dtype=torch.int32)
    x = make(6, 5) if len(shape) == 3 else make(3, 6, 5)
    for weights, transposed in ((make(*shape), False), (make(*shape[:-2], 8, 5), True)):
        b = weights.mT if transposed else weights
        cgt.grouped_mm(x, b, offs=offs).pow(2).sum().backward()
        assert weights.grad.is_contiguous()
        again = b.detach().contiguous().requires_grad_()
        cgt.grouped_mm(x, again, offs=offs).pow(2).sum().backward()
        assert again.grad.is_contiguous()
        right = again.grad.mT if transposed else again.grad
        torch.testing.assert_close(weights.grad, right)
        (found,) = torch.autograd.grad(cgt.grouped_mm(x, b, offs=offs).sum(), weights)
        assert found.is_contiguous()


def test_compiled_autograd_compiles_the_backward_pass(torch: Any, make: Make):
    """Also that of calls in eager mode; calls with another alpha have another gradient."""
    import codegen.torch as cgt

    x, weight = make(5, 8), make(6, 8)
    compiler = torch.compile(backend="eager", fullgraph=True)
    for alpha in (2.0, 3.0):
        y = cgt.linear(cgt.addmm(x[0, :6], x, weight.t(), alpha=alpha), weight.t())
        right = torch.autograd.grad(y.sum(), (x, weight), retain_graph=True)
        x.grad = weight.grad = None
        with torch._dynamo.compiled_autograd._enable(compiler):
            y.sum().backward()
        torch.testing.assert_close((x.grad, weight.grad), right)
