"""`linear_product`: `input·weightᵀ + bias` for any number of axes of `input`, with derivatives.

PyTorch records it as one function. The operators of `codegen.torch.ops` multiply matrices: with
them PyTorch would also record each view that makes a matrix of an argument, and compute the
gradient of each view.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor

from codegen.torch.derivatives import Derivatives
from codegen.torch.direct import direct
from codegen.torch.ops import add_product, product
from codegen.torch.recording import recorder
from codegen.torch.repeats import repeating

__all__ = ["as_linear", "linear_product", "rows_of"]


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None, invariant: bool) -> Tensor:
    """`input·weightᵀ + bias` (…, n) by operators and views, each of which PyTorch can record."""
    rows, b = rows_of(input), weight.t()
    if bias is None:
        d = product(rows, b, invariant)
    else:
        d = add_product(bias, rows, b, 1.0, 1.0, invariant)
    return d if input.dim() == 2 else d.reshape(*input.shape[:-1], weight.shape[0])


def _unrecorded(input: Tensor, weight: Tensor, bias: Tensor | None, invariant: bool) -> Tensor:
    """`_linear` for calls inside which PyTorch records nothing; the result is no view."""
    found = _linear(input, weight, bias, invariant)
    return torch.ops.aten._unsafe_view(found, found.shape) if found._is_view() else found


def rows_of(x: Tensor) -> Tensor:
    """The rows of a tensor of one or more axes as a matrix, also if they have no elements.

    Vectorized Jacobians map gradients by a vmap that knows `reshape`, but not `flatten`.
    """
    if x.dim() == 2:
        return x
    return x.reshape(prod(x.shape[:-1]), x.shape[-1])


@repeating
def _of_input(grad: Tensor, weight: Tensor, invariant: bool) -> Tensor:
    """The gradient of `input` (…, k): `grad·weight`, for a `grad` (…, n) of the result."""
    found = product(rows_of(grad), weight, invariant)
    return found if grad.dim() == 2 else found.reshape(*grad.shape[:-1], weight.shape[1])


@repeating
def _of_weight(grad: Tensor, input: Tensor, by_rows: bool) -> Tensor:
    """The gradient of `weight` (n, k): `gradᵀ·input`, row-major if `by_rows`, else column-major."""
    grad, input = rows_of(grad), rows_of(input)
    return product(grad.mT, input, False) if by_rows else product(input.mT, grad, False).mT


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    input, weight, bias, ctx.invariant = inputs
    needs_input, needs_weight, *_ = ctx.needs_input_grad
    ctx.by_rows = weight.stride(1) == 1 and weight.stride(0) != 1
    ctx.shape = None if bias is None else bias.shape
    ctx.save_for_backward(input if needs_weight else None, weight if needs_input else None)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients of `input`, of `weight` (in the layout of `weight`) and of `bias`."""
    input, weight = ctx.saved_tensors
    of_bias = None
    if grad.dim() > 2 and not grad.is_contiguous():
        grad = rows_of(grad).view(grad.shape)  # so that a copy is made once
    if ctx.needs_input_grad[2]:
        of_bias = rows_of(grad).sum_to_size(ctx.shape)
    return (
        None if weight is None else _of_input(grad, weight, ctx.invariant),
        None if input is None else _of_weight(grad, input, ctx.by_rows),
        of_bias,
        None,
    )


OF_LINEAR = Derivatives(_setup, _gradients)
as_linear = recorder("linear", OF_LINEAR)
"""Called with `(input, weight, bias, invariant, function of these)`: returns the function's result,
which PyTorch records with the derivatives of `linear`."""
linear_product = direct(_linear, 3, _unrecorded, OF_LINEAR, repeats=False)
"""`input·weightᵀ + bias`, for (…, k), (n, k) and a bias that is None or can be broadcast to the
rows and columns of the result. PyTorch records one function if the tensors are plain; else it
records operators."""
