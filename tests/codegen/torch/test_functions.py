"""Functions of `codegen.torch` give the values and gradients of PyTorch's, on the CPU."""

from __future__ import annotations

from typing import Any

import pytest

from coordgraph import LaunchError
from tests.codegen.torch.conftest import Make

SHAPES = [
    ((7,), (7,)),
    ((5, 7), (7, 6)),
    ((5, 7), (7,)),
    ((7,), (7, 6)),
    ((7,), (3, 7, 6)),
    ((3, 5, 7), (7,)),
    ((3, 5, 7), (7, 6)),
    ((3, 5, 7), (1, 7, 6)),
    ((5, 7), (3, 7, 6)),
    ((2, 3, 5, 7), (7, 6)),
    ((2, 1, 5, 7), (4, 7, 6)),
    ((0, 7), (7, 6)),
    ((5, 0), (0, 6)),
    ((2, 3, 0), (0, 5)),
    ((0, 2, 3), (0, 3, 4)),
]


def compare(torch: Any, ours: Any, theirs: Any, inputs: tuple[Any, ...]) -> None:
    """Compare the results of `ours` and `theirs`, and their gradients with respect to `inputs`."""
    assert ours.shape == theirs.shape
    torch.testing.assert_close(ours, theirs)
    grad = torch.randn_like(theirs)
    for x, y in zip(
        torch.autograd.grad(ours, inputs, grad),
        torch.autograd.grad(theirs, inputs, grad),
        strict=True,
    ):
        torch.testing.assert_close(x, y)


@pytest.mark.parametrize(("a", "b"), SHAPES, ids=str)
def test_matmul(torch: Any, make: Make, a: tuple[int, ...], b: tuple[int, ...]):
    import codegen.torch as cgt

    x, y = make(*a), make(*b)
    compare(torch, cgt.matmul(x, y), torch.matmul(x, y), (x, y))


@pytest.mark.parametrize("shape", [(7,), (5, 7), (2, 5, 7), (0, 7)], ids=str)
@pytest.mark.parametrize("bias", [False, True])
def test_linear(torch: Any, make: Make, shape: tuple[int, ...], bias: bool):
    import codegen.torch as cgt

    inputs = (make(*shape), make(6, 7), *([make(6)] * bias))
    compare(torch, cgt.linear(*inputs), torch.nn.functional.linear(*inputs), inputs)


@pytest.mark.parametrize("shape", [(), (1,), (6,), (1, 6), (5, 1), (5, 6)], ids=str)
@pytest.mark.parametrize(("beta", "alpha"), [(1, 1), (0.5, -2)])
def test_addmm(torch: Any, make: Make, shape: tuple[int, ...], beta: float, alpha: float):
    import codegen.torch as cgt

    factors: dict[str, Any] = {"beta": beta, "alpha": alpha}
    inputs = make(*shape), make(5, 7), make(7, 6)
    compare(torch, cgt.addmm(*inputs, **factors), torch.addmm(*inputs, **factors), inputs)


@pytest.mark.parametrize("shape", [(6,), (5, 6)], ids=str)
def test_addmm_does_not_read_what_beta_0_multiplies(torch: Any, make: Make, shape: tuple[int, ...]):
    import codegen.torch as cgt

    nan, a, b = torch.full(shape, float("nan"), dtype=torch.float64), make(5, 7), make(7, 6)
    torch.testing.assert_close(cgt.addmm(nan, a, b, beta=0, alpha=2), 2 * (a @ b))


@pytest.mark.parametrize("beta", [0, 2])
def test_addmm_does_not_read_what_alpha_0_multiplies(torch: Any, make: Make, beta: int):
    import codegen.torch as cgt

    inf, b, c = torch.full((5, 7), float("inf"), dtype=torch.float64), make(7, 6), make(6)
    d = cgt.addmm(c, inf, b, beta=beta, alpha=0)
    torch.testing.assert_close(d, torch.addmm(c, inf, b, beta=beta, alpha=0))
    assert d.is_contiguous()
    each = torch.vmap(lambda a: cgt.addmm(c, a, b, beta=beta, alpha=0))(inf[None])
    torch.testing.assert_close(each[0], d)


def test_strides_that_kernels_do_not_read_are_copied(torch: Any, make: Make):
    import codegen.torch as cgt

    b = make(7, 6)
    for a in (make(10, 14)[::2, ::2], make(3, 5, 14)[:, :, :7], make(5).reshape(5, 1).expand(5, 7)):
        torch.testing.assert_close(cgt.matmul(a, b), a @ b)
    a, b = make(7, 3, 5).permute(1, 2, 0), make(6, 3, 7).permute(1, 2, 0)
    torch.testing.assert_close(cgt.bmm(a, b), torch.bmm(a, b))


@pytest.mark.parametrize(("name", "bound"), [("float32", 1e-5), ("bfloat16", 2e-2)])
def test_memory_of_other_types_is_read_in_place(torch: Any, make: Make, name: str, bound: float):
    import codegen.torch as cgt

    dtype = getattr(torch, name)
    x, w, bias = (make(*s, dtype=dtype) for s in ((5, 7), (6, 7), (6,)))
    d = cgt.linear(x, w, bias)
    assert d.dtype == dtype
    exact = torch.nn.functional.linear(x.double(), w.double(), bias.double())
    torch.testing.assert_close(d.double(), exact, atol=bound, rtol=bound)
    d.sum().backward()
    assert x.grad.dtype == w.grad.dtype == bias.grad.dtype == dtype


def test_gradients_of_gradients(torch: Any, make: Make):
    import codegen.torch as cgt

    a, b, c = make(2, 3), make(3, 4), make(4)
    assert torch.autograd.gradgradcheck(cgt.matmul, (a, b))
    assert torch.autograd.gradgradcheck(lambda *x: cgt.addmm(*x, beta=0.5, alpha=2), (c, a, b))


def test_a_frozen_factor_is_not_kept_for_the_backward_pass(torch: Any, make: Make):
    """If `b` requires no gradient, the backward pass does not read `a`, so `a` is not kept."""
    import codegen.torch as cgt

    kept: list[Any] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        a, b = make(5, 7), make(7, 6).detach()
        d = cgt.matmul(a, b)
    assert [x.shape for x in kept] == [b.shape]
    (grad,) = torch.autograd.grad(d.sum(), a)
    torch.testing.assert_close(grad, torch.ones_like(d) @ b.T)


def test_errors(torch: Any, make: Make):
    import codegen.torch as cgt

    a, b = make(5, 7), make(7, 6)
    with pytest.raises(LaunchError, match=r"k would be 7 and 5; pass tensors with the same k"):
        cgt.matmul(a, a)
    with pytest.raises(LaunchError, match=r"hold torch\.float64 and torch\.float32; convert"):
        cgt.matmul(a, b.float())
    with pytest.raises(LaunchError, match=r"torch\.int32, which this function does not multiply"):
        cgt.matmul(a.int(), b.int())
    with pytest.raises(LaunchError, match=r"use PyTorch's function, or codegen\.matmul"):
        cgt.matmul(a.to(torch.int8), b.to(torch.int8))
    with pytest.raises(LaunchError, match=r"complex64, .*; multiply the real and the imaginary"):
        cgt.matmul(a.to(torch.complex64), b.to(torch.complex64))
    with pytest.raises(LaunchError, match="at least one axis"):
        cgt.matmul(a, b[0, 0])
    with pytest.raises(LaunchError, match="three of each; use matmul"):
        cgt.bmm(a, b)
    with pytest.raises(LaunchError, match=r"linear\) is \(5,\), which cannot be broadcast to"):
        cgt.addmm(a[:, 0], a, b)
    with pytest.raises(LaunchError, match="the same number of matrices"):
        cgt.bmm(a.expand(3, 5, 7), b.expand(4, 7, 6))
    with pytest.raises(LaunchError, match="lie on cpu and meta; move them"):
        torch.ops.coordgraph.matmul(a, b.to("meta"))


def test_slices_are_read_in_place(torch: Any, make: Make, monkeypatch: pytest.MonkeyPatch):
    """Tensors with gaps between rows are passed to `matmul` without a copy.

    Tensors with gaps between the elements of a row are copied.
    """
    import codegen.torch as cgt
    from codegen.torch import launching

    given: list[tuple[int, ...]] = []
    real = launching.matmul

    def noted(a: Any, b: Any, **options: Any) -> Any:
        given.extend(tuple(x.strides) for x in (a, b, options.get("c")) if x is not None)
        return real(a, b, **options)

    monkeypatch.setattr(launching, "matmul", noted)
    a, b, c = make(5, 9)[:, :7], make(10, 8).T[:7, :6], make(12, 8)[::2, 1:7][:5]
    d = cgt.addmm(c, a, b, beta=0.5)
    torch.testing.assert_close(d, torch.addmm(c, a, b, beta=0.5))
    assert given == [(72, 8), (8, 64), (128, 8)]
    given.clear()
    torch.testing.assert_close(cgt.matmul(a[:, ::2], b[::2]), a[:, ::2] @ b[::2])
    assert given == [(32, 8), (48, 8)]


def test_out(torch: Any, make: Make):
    import codegen.torch as cgt

    a, b, c = (make(*shape).detach() for shape in ((5, 7), (7, 6), (6,)))
    out = torch.empty(6, 5, dtype=torch.float64).T  # `out` may have any strides
    assert cgt.matmul(a, b, out=out) is out
    torch.testing.assert_close(out, a @ b)
    torch.testing.assert_close(cgt.addmm(c, a, b, beta=2, out=out), torch.addmm(c, a, b, beta=2))
    square = a[:, :5].clone()
    right = square @ square
    torch.testing.assert_close(cgt.matmul(square, square, out=square), right)
    torch.testing.assert_close(cgt.bmm(a[None], b[None], out=out[None]), (a @ b)[None])
    # As in PyTorch, autocast has no effect on calls with `out`.
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(cgt.matmul(a, b, out=out), a @ b)
    with pytest.raises(
        LaunchError, match=r"matmul\(out=…\) has none; call it under torch\.no_grad"
    ):
        cgt.matmul(a.requires_grad_(), b, out=out)
    a.requires_grad_(False)
    with pytest.raises(LaunchError, match=r"out is \(6, 5\) .* the result is \(5, 6\) .*; pass"):
        cgt.matmul(a, b, out=out.T)
    with pytest.raises(LaunchError, match=r"of torch\.float32 .*; pass a tensor like the result"):
        cgt.matmul(a, b, out=out.float())


@pytest.mark.parametrize("shape", [(3, 6), (3, 1), (2, 1, 6), (2, 3, 6), (1, 1, 1)], ids=str)
def test_a_bias_with_several_axes_is_broadcast(torch: Any, make: Make, shape: tuple[int, ...]):
    import codegen.torch as cgt

    inputs = make(2, 3, 7), make(6, 7), make(*shape)
    x, weight, bias = inputs
    compare(torch, cgt.linear(*inputs), x @ weight.T + bias, inputs)
    with pytest.raises(LaunchError, match=r"bias is \(4, 6\), .* result's \(2, 3, 6\); pass"):
        cgt.linear(*inputs[:2], make(4, 6))


def test_a_vector_s_bias_of_another_type_does_not_change_that_of_the_result(torch: Any):
    """`torch.nn.functional.linear` adds the bias in place if the weight is a vector."""
    import codegen.torch as cgt

    given = torch.randn(7).half(), torch.randn(7).half(), torch.randn(())
    d, right = cgt.linear(*given), torch.nn.functional.linear(*given)
    assert d.dtype is right.dtype is torch.float16
    torch.testing.assert_close(d, right, rtol=2e-3, atol=2e-3)
    with pytest.raises(LaunchError, match=r"bias is \(5,\), .* result's \(\); pass"):
        cgt.linear(*given[:2], torch.randn(5))


def test_autocast_before_other_operators(torch: Any):
    """Autocast casts a bias that is added to a scalar, and factors before they are broadcast.

    PyTorch has no sum of float8, which the gradient of a broadcast factor needs.
    """
    import codegen.torch as cgt

    x, bias = torch.randn(7), torch.randn(())
    a = torch.randn(5, 7).to(torch.float8_e4m3fn).requires_grad_()
    b = torch.randn(3, 7, 6).to(torch.float8_e4m3fn)
    found: list[tuple[Any, ...]] = []
    for linear, matmul in ((cgt.linear, cgt.matmul), (torch.nn.functional.linear, torch.matmul)):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            d, product = linear(x, x, bias), matmul(a, b)
        (gradient,) = torch.autograd.grad(product, a, torch.ones_like(product))
        found.append((d.dtype, product.dtype, gradient.float()))
    assert found[0][:2] == found[1][:2] == (torch.bfloat16, torch.bfloat16)
    torch.testing.assert_close(found[0][2], found[1][2], rtol=0.15, atol=0.1)


def test_tensors_without_strides_are_refused(torch: Any, make: Make):
    import codegen.torch as cgt

    a, b = make(5, 7).detach(), make(7, 6)
    with pytest.raises(LaunchError, match=r"torch\.sparse_coo, but kernels read dense .*convert"):
        cgt.matmul(a.to_sparse(), b)
    with pytest.raises(LaunchError, match=r"torch\.sparse_coo, but kernels read dense"):
        cgt.linear(b.T, a.to_sparse())
    with cgt.use_kernels(dtypes=(torch.float64,), devices=("cpu",)):
        torch.testing.assert_close(a.to_sparse() @ b, a @ b)
        with pytest.raises(RuntimeError):  # PyTorch, not coordgraph, raises this error
            torch.mm(a[None], b)


def test_8_bit_floats_without_scales_are_refused(torch: Any, make: Make):
    import codegen.torch as cgt

    with pytest.raises(AttributeError, match=r"no scaled_grouped_mm; use .*scaled_mm for each"):
        cgt.scaled_grouped_mm  # noqa: B018 - the look-up raises
    with pytest.raises(AttributeError, match=r"'codegen\.torch' has no attribute 'mm'"):
        cgt.mm  # noqa: B018 - the look-up raises
    a = make(16, 16).detach().to(torch.float8_e4m3fn)
    with pytest.raises(LaunchError, match=r"torch\.float8_e4m3fn, which .* or use scaled_mm$"):
        cgt.matmul(a, a)
