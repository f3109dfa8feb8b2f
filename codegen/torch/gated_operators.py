"""The custom operators `coordgraph::gated` and `coordgraph::gated_with_sums`, and their gradients.

Both operators compute `act(gate)·up` in the kernel of the product that computes gate and up.
`gated` stores only this result, and its gradient computes the product again. `gated_with_sums` also
stores gate and up, from which its gradient is computed. With the argument `ends` both compute one
product for each group of rows, as `coordgraph::grouped_mm` does.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from codegen.torch.activations import ACTIVATIONS
from codegen.torch.derivatives import (
    Derivatives,
    differentiable,
    is_differentiated,
    refused,
    total,
)
from codegen.torch.direct import direct, operator
from codegen.torch.gated_arguments import shape_of_result, shape_of_sums
from codegen.torch.gated_mapping import mapped, rule
from codegen.torch.gating import differentiate, differentiate_product, multiply_and_gate
from codegen.torch.grouped import grouped_product
from codegen.torch.mapping import in_front
from codegen.torch.ops import add_product, cast_inputs, product
from codegen.torch.plain import DEVICES
from codegen.torch.repeats import uninitialized

__all__ = ["gated_product", "gated_product_with_sums"]

ARGUMENTS = (
    "Tensor a, Tensor b, Tensor? bias=None, str activation='silu', bool invariant=False, "
    "Tensor? ends=None"
)


def _gated(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    activation: str = "silu",
    invariant: bool = False,
    ends: Tensor | None = None,
) -> Tensor:
    """`act(gate)·up` (m x n), where gate and up are the halves of the columns of `A·B + bias`.

    Gate is the first n columns, up is the last n columns.

    Args:
        a, b: A (m x k) and B (k x 2n), or batches of l matrices; with `ends` A (m x k) and B
            (groups x k x 2n).
        bias: 2n elements, for a batch also l x 2n, or None; with `ends` groups x 2n.
        activation: the name of act, of `ACTIVATIONS`.
        invariant: whether the bits of a row of the result must not depend on the other rows, as for
            `codegen.matmul`.
        ends: i32, the end of each group of rows of A; None for products without groups. Rows of the
            result that belong to no group are 0.

    Raises:
        LaunchError: shapes, types or devices of the tensors do not fit; nothing was launched.
        CodegenError: kernels of the device do not multiply this type.
    """
    shape_of_result(a, b, bias, activation, ends)
    return multiply_and_gate(a, b, bias, activation, ends, invariant=invariant)


def _gated_with_sums(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    activation: str = "silu",
    invariant: bool = False,
    ends: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """(`act(gate)·up`, `A·B + bias`) by one kernel; gate and up are halves of `A·B + bias`.

    Rows that belong to no group are 0 in both.
    """
    shape = shape_of_sums(a, b, bias, activation, ends)
    sums = uninitialized(a, shape, None) if ends is None else a.new_zeros(shape)
    return multiply_and_gate(a, b, bias, activation, ends, sums, invariant=invariant), sums


def _gated_gradient(grad: Tensor, sums: Tensor, activation: str) -> Tensor:
    """The gradient of `sums`, `A·B + bias` (m x 2n), given that of `act(gate)·up` (m x n)."""
    return differentiate(grad, sums, activation)


def _gated_gradient_of_product(
    grad: Tensor,
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    activation: str,
    invariant: bool,
    ends: Tensor | None = None,
) -> Tensor:
    """The gradient of `A·B + bias`, given the gradient of `act(gate)·up`."""
    return differentiate_product(grad, a, b, bias, activation, ends, invariant=invariant)


gated_op = operator(
    "gated",
    _gated,
    f"({ARGUMENTS}) -> Tensor",
)
gated_with_sums_op = operator(
    "gated_with_sums",
    _gated_with_sums,
    f"({ARGUMENTS}) -> (Tensor, Tensor)",
)
gated_gradient_op = operator(
    "gated_gradient",
    _gated_gradient,
    "(Tensor grad, Tensor sums, str activation) -> Tensor",
)
gated_gradient_of_product_op = operator(
    "gated_gradient_of_product",
    _gated_gradient_of_product,
    "(Tensor grad, Tensor a, Tensor b, Tensor? bias, str activation, bool invariant, "
    "Tensor? ends=None) -> Tensor",
)
GATED = torch.ops.coordgraph.gated.default
GATED_WITH_SUMS = torch.ops.coordgraph.gated_with_sums.default
GRADIENT = torch.ops.coordgraph.gated_gradient.default
GRADIENT_OF_PRODUCT = torch.ops.coordgraph.gated_gradient_of_product.default
TWICE = refused(
    "a gradient that torch.ops.coordgraph.gated_gradient computes",
    "call codegen.torch.gated, whose gradients can be differentiated",
)
differentiable(GRADIENT, TWICE)
differentiable(GRADIENT_OF_PRODUCT, TWICE)
differentiate_directly = direct(GRADIENT, 2, _gated_gradient, TWICE, casts=False)
differentiate_product_directly = direct(
    GRADIENT_OF_PRODUCT, 4, _gated_gradient_of_product, TWICE, last=True, casts=False
)


@gated_op.register_fake
def _(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    activation: str = "silu",
    invariant: bool = False,
    ends: Tensor | None = None,
) -> Tensor:
    return a.new_empty(shape_of_result(a, b, bias, activation, ends))


@gated_with_sums_op.register_fake
def _(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    activation: str = "silu",
    invariant: bool = False,
    ends: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    sums = a.new_empty(shape_of_sums(a, b, bias, activation, ends))
    return a.new_empty(shape_of_result(a, b, bias, activation, ends)), sums


@gated_gradient_op.register_fake
def _(grad: Tensor, sums: Tensor, activation: str) -> Tensor:
    return sums.new_empty(sums.shape)


@gated_gradient_of_product_op.register_fake
def _(
    grad: Tensor,
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    activation: str,
    invariant: bool,
    ends: Tensor | None = None,
) -> Tensor:
    return a.new_empty(shape_of_sums(a, b, bias, activation, ends))


def _differentiable(grad: Tensor, sums: Tensor, activation: str) -> Tensor:
    """The gradient of `sums` by functions of PyTorch, which can be differentiated again."""
    act = ACTIVATIONS[activation]
    gate, up = sums.chunk(2, -1)
    return torch.cat([act.torch_gradient(grad * up, gate), grad * act.torch_value(gate)], -1)


def _product(a: Tensor, b: Tensor, ends: Tensor | None, invariant: bool) -> Tensor:
    """`A·B` of matrices or batches, or with `ends` of groups, by operators with derivatives."""
    return product(a, b, invariant) if ends is None else grouped_product(a, b, ends, invariant)


def _for_rows(bias: Tensor, rows: int, ends: Tensor | None) -> Tensor:
    """A bias, or a bias for each matrix or group, in a shape that is broadcast to `A·B`.

    With `ends` the result has the bias of each row's group, and zeros for a row of no group. A
    product of groups with k = 1 computes it, because only kernels read `ends`.
    """
    if ends is not None:
        return grouped_product(bias.new_ones(rows, 1), bias.unsqueeze(1), ends, False)
    return bias if bias.dim() == 1 else bias.unsqueeze(-2)


def _of_bias(of_sums: Tensor, bias: Tensor, ends: Tensor | None) -> Tensor:
    """The gradient of the bias, given that of `A·B + bias`: a sum over all rows, or of a group.

    The sums over groups are products with a matrix of ones. It has 8 equal columns, because GPUs
    load rows of a multiple of 16 bytes in larger blocks.
    """
    if ends is None:
        return of_sums.sum(-2).sum_to_size(bias.shape)
    ones = of_sums.new_ones(of_sums.shape[0], 8)
    return grouped_product(of_sums.mT, ones, ends, False)[..., 0]


def _sums(
    a: Tensor, b: Tensor, bias: Tensor | None, ends: Tensor | None, invariant: bool
) -> Tensor:
    """`A·B + bias` by operators that can be differentiated."""
    if bias is not None and bias.dim() == 1 and a.dim() == 2 and ends is None:
        # As the kernel does, this rounds the sums after it adds the bias.
        return add_product(bias, a, b, 1.0, 1.0, invariant)
    sums = _product(a, b, ends, invariant)
    return sums if bias is None else sums + _for_rows(bias, a.shape[-2], ends)


def _gradients(
    ctx: Any,
    of_sums: Tensor | None,
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    ends: Tensor | None,
) -> tuple[Tensor | None, ...]:
    """The gradients of the arguments of `gated`, given `of_sums`, the gradient of `A·B + bias`.

    The gradients of A and B are one product each, with the 2n columns of gate and up together. The
    gradient of B has the layout of B, so that PyTorch need not transpose that of a weight.
    """
    if of_sums is None:
        return (None,) * 6
    needs = ctx.needs_input_grad  # `needs` has no entries for arguments that the call leaves out
    of_b = None
    if needs[1] and b.stride(-1) != 1 and b.stride(-2) == 1:
        of_b = _product(of_sums.mT, a, ends, False).mT
    elif needs[1]:
        of_b = _product(a.mT, of_sums, ends, False)
    return (
        _product(of_sums, b.mT, ends, ctx.invariant) if needs[0] else None,
        of_b,
        None if bias is None or not needs[2] else _of_bias(of_sums, bias, ends),
        None,
        None,
        None,
    )


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    a, b, bias, ctx.activation, ctx.invariant, ends = inputs
    ctx.save_for_backward(a, b, bias, ends)


def _gradients_of_gated(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients of `gated`: one kernel computes gate and up again, and their gradients."""
    a, b, bias, ends = ctx.saved_tensors
    if is_differentiated():
        of_sums = _differentiable(grad, _sums(a, b, bias, ends, ctx.invariant), ctx.activation)
    else:
        options = ctx.activation, ctx.invariant, ends
        of_sums = differentiate_product_directly(grad, a, b, bias, *options)
    return _gradients(ctx, of_sums, a, b, bias, ends)


def _setup_with_sums(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    a, b, bias, ctx.activation, ctx.invariant, ends = inputs
    ctx.set_materialize_grads(False)  # None, not zeros, is the gradient of unused sums
    ctx.save_for_backward(a, b, bias, ends, output[1])


def _gradients_with_sums(
    ctx: Any, grad: Tensor | None, grad_of_sums: Tensor | None
) -> tuple[Tensor | None, ...]:
    """The gradients of `gated_with_sums`; one kernel computes the gradients of gate and of up."""
    a, b, bias, ends, sums = ctx.saved_tensors
    of_sums = grad_of_sums
    if grad is not None:
        gradient = _differentiable if is_differentiated() else differentiate_directly
        of_sums = gradient(grad, sums, ctx.activation)
        of_sums = of_sums if grad_of_sums is None else of_sums + grad_of_sums
    return _gradients(ctx, of_sums, a, b, bias, ends)


def _tangents_with_sums(
    arguments: tuple[Any, ...], tangents: tuple[Any, ...]
) -> tuple[Tensor | None, Tensor | None]:
    """The tangents of the results of `gated_with_sums`."""
    a, b, bias, activation, invariant, ends = arguments
    of_a, of_b, of_bias, *_ = tangents
    of_sums = total(
        (
            None if of_a is None else _product(of_a, b, ends, invariant),
            None if of_b is None else _product(a, of_b, ends, invariant),
        )
    )
    sums = _sums(a, b, bias, ends, invariant)
    if of_bias is not None:
        wide = _for_rows(of_bias, a.shape[-2], ends)
        of_sums = wide.expand(sums.shape) if of_sums is None else of_sums + wide
    if of_sums is None:
        return None, None
    act = ACTIVATIONS[activation]
    (gate, up), (of_gate, of_up) = sums.chunk(2, -1), of_sums.chunk(2, -1)
    of_d = act.torch_gradient(of_gate * up, gate) + act.torch_value(gate) * of_up
    return of_d, of_sums.contiguous()


def _tangents(arguments: tuple[Any, ...], tangents: tuple[Any, ...]) -> Tensor | None:
    """The tangent of the result of `gated`."""
    return _tangents_with_sums(arguments, tangents)[0]


OF_GATED = Derivatives(_setup, _gradients_of_gated, _tangents)
OF_GATED_WITH_SUMS = Derivatives(_setup_with_sums, _gradients_with_sums, _tangents_with_sums)
differentiable(GATED, OF_GATED)
differentiable(GATED_WITH_SUMS, OF_GATED_WITH_SUMS)
gated_product = direct(GATED, 3, _gated, OF_GATED, last=True)
"""`torch.ops.coordgraph.gated`, without PyTorch's dispatcher if all tensors are plain: neither of a
subclass nor sparse, traced or transformed."""
gated_product_with_sums = direct(
    GATED_WITH_SUMS, 3, _gated_with_sums, OF_GATED_WITH_SUMS, last=True
)
"""`torch.ops.coordgraph.gated_with_sums`, without PyTorch's dispatcher if all tensors are plain:
neither of a subclass nor sparse, traced or transformed."""

for _device in DEVICES:
    _key = f"Autocast{_device.upper()}"
    torch.library.impl("coordgraph::gated", _key)(cast_inputs(GATED, _device))
    torch.library.impl("coordgraph::gated_with_sums", _key)(cast_inputs(GATED_WITH_SUMS, _device))


gated_op.register_vmap(rule(GATED))
gated_with_sums_op.register_vmap(rule(GATED_WITH_SUMS))


@gated_gradient_op.register_vmap
def _(info: Any, in_dims: tuple[Any, ...], grad: Tensor, sums: Tensor, activation: str) -> Any:
    of_grad, of_sums, _ = in_dims
    grad, sums = (
        in_front(x, axis, info.batch_size) for x, axis in ((grad, of_grad), (sums, of_sums))
    )
    return GRADIENT(grad, sums, activation), 0


@gated_gradient_of_product_op.register_vmap
def _(
    info: Any,
    in_dims: tuple[Any, ...],
    grad: Tensor,
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    activation: str,
    invariant: bool,
    ends: Tensor | None = None,
) -> Any:
    options = activation, invariant, ends
    return mapped(GRADIENT_OF_PRODUCT, info, in_dims, (grad, a, b, bias), options)
