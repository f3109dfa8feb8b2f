"""The custom operators `coordgraph::gated` and `coordgraph::gated_with_sums`, and their gradients.

Both operators compute `act(gate)·up` in the kernel of the product that computes gate and up.
`gated` stores only this result, and its gradient computes the product again. `gated_with_sums` also
stores gate and up, from which its gradient is computed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from codegen.torch.activations import ACTIVATIONS, check_activation
from codegen.torch.derivatives import (
    Derivatives,
    differentiable,
    is_differentiated,
    refused,
    total,
)
from codegen.torch.direct import DEVICES, direct, operator
from codegen.torch.gating import differentiate, differentiate_product, multiply_and_gate
from codegen.torch.mapping import in_front
from codegen.torch.ops import cast_inputs, check_types, product
from coordgraph import LaunchError

__all__ = ["gated_product", "gated_product_with_sums"]

ARGUMENTS = "Tensor a, Tensor b, Tensor? bias=None, str activation='silu', bool invariant=False"


def _gated(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    activation: str = "silu",
    invariant: bool = False,
) -> Tensor:
    """`act(gate)·up` (m x n), where gate and up are the halves of the columns of `A·B + bias`.

    Gate is the first n columns, up is the last n columns.

    Args:
        a, b: A (m x k) and B (k x 2n), or batches of l matrices.
        bias: 2n elements, for a batch also l x 2n, or None.
        activation: the name of act, of `ACTIVATIONS`.
        invariant: whether the bits of a row of the result must not depend on the other rows, as for
            `codegen.matmul`.

    Raises:
        LaunchError: shapes, types or devices of the tensors do not fit; nothing was launched.
        CodegenError: kernels of the device do not multiply this type.
    """
    _shape(a, b, bias, activation)
    return multiply_and_gate(a, b, bias, activation, invariant=invariant)


def _gated_with_sums(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    activation: str = "silu",
    invariant: bool = False,
) -> tuple[Tensor, Tensor]:
    """(`act(gate)·up`, `A·B + bias`) by one kernel; gate and up are halves of `A·B + bias`."""
    sums = a.new_empty(_shape_of_sums(a, b, bias, activation))
    return multiply_and_gate(a, b, bias, activation, sums, invariant=invariant), sums


def _gated_gradient(grad: Tensor, sums: Tensor, activation: str) -> Tensor:
    """The gradient of `sums`, `A·B + bias` (m x 2n), given that of `act(gate)·up` (m x n)."""
    return differentiate(grad, sums, activation)


def _gated_gradient_of_product(
    grad: Tensor, a: Tensor, b: Tensor, bias: Tensor | None, activation: str, invariant: bool
) -> Tensor:
    """The gradient of `A·B + bias`, given the gradient of `act(gate)·up`."""
    return differentiate_product(grad, a, b, bias, activation, invariant=invariant)


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
    "(Tensor grad, Tensor a, Tensor b, Tensor? bias, str activation, bool invariant) -> Tensor",
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
    GRADIENT_OF_PRODUCT, 4, _gated_gradient_of_product, TWICE, casts=False
)


def _shape_of_sums(a: Tensor, b: Tensor, bias: Tensor | None, activation: str) -> tuple[Any, ...]:
    """The shape (m, 2n), or (l, m, 2n), of `A·B + bias`.

    Raises:
        LaunchError: shapes, element types or devices do not fit, or the activation is unknown.
    """
    check_activation(activation)
    fits = a.dim() == b.dim() and a.dim() in (2, 3) and a.shape[:-2] == b.shape[:-2]
    if not fits or a.shape[-1] != b.shape[-2] or b.shape[-1] % 2:
        raise LaunchError(
            f"a is {tuple(a.shape)} and b is {tuple(b.shape)}; pass matrices of m x k and k x 2n, "
            "or two batches of them"
        )
    check_types(a, b)
    if bias is not None:
        check_types(a, bias)
        if tuple(bias.shape) not in ((b.shape[-1],), (*b.shape[:-2], b.shape[-1])):
            raise LaunchError(
                f"bias is {tuple(bias.shape)}, but ({b.shape[-1]},) is needed; pass an element for "
                "each column of b"
            )
    return (*a.shape[:-1], b.shape[-1])


def _shape(a: Tensor, b: Tensor, bias: Tensor | None, activation: str) -> tuple[Any, ...]:
    """The shape (m, n), or (l, m, n), of the result; raises the errors of `_shape_of_sums`."""
    *rows, columns = _shape_of_sums(a, b, bias, activation)
    return (*rows, columns // 2)


@gated_op.register_fake
def _(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    activation: str = "silu",
    invariant: bool = False,
) -> Tensor:
    return a.new_empty(_shape(a, b, bias, activation))


@gated_with_sums_op.register_fake
def _(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    activation: str = "silu",
    invariant: bool = False,
) -> tuple[Tensor, Tensor]:
    sums = a.new_empty(_shape_of_sums(a, b, bias, activation))
    return a.new_empty(_shape(a, b, bias, activation)), sums


@gated_gradient_op.register_fake
def _(grad: Tensor, sums: Tensor, activation: str) -> Tensor:
    return sums.new_empty(sums.shape)


@gated_gradient_of_product_op.register_fake
def _(
    grad: Tensor, a: Tensor, b: Tensor, bias: Tensor | None, activation: str, invariant: bool
) -> Tensor:
    return a.new_empty(_shape_of_sums(a, b, bias, activation))


def _differentiable(grad: Tensor, sums: Tensor, activation: str) -> Tensor:
    """The gradient of `sums` by functions of PyTorch, which can be differentiated again."""
    act = ACTIVATIONS[activation]
    gate, up = sums.chunk(2, -1)
    return torch.cat([act.torch_gradient(grad * up, gate), grad * act.torch_value(gate)], -1)


def _for_rows(bias: Tensor) -> Tensor:
    """A bias, or a bias for each matrix of a batch, in a shape that is broadcast to `A·B`."""
    return bias if bias.dim() == 1 else bias.unsqueeze(-2)


def _sums(a: Tensor, b: Tensor, bias: Tensor | None, invariant: bool) -> Tensor:
    """`A·B + bias` by operators that can be differentiated."""
    sums = product(a, b, invariant)
    return sums if bias is None else sums + _for_rows(bias)


def _gradients(
    ctx: Any, of_sums: Tensor | None, a: Tensor, b: Tensor, bias: Tensor | None
) -> tuple[Tensor | None, ...]:
    """The gradients of the arguments of `gated`, given `of_sums`, the gradient of `A·B + bias`.

    The gradients of A and B are one product each, with the 2n columns of gate and up together.
    """
    needs = ctx.needs_input_grad  # `needs` has no entries for arguments that the call leaves out
    of_bias = None
    if of_sums is not None and bias is not None and needs[2]:
        of_bias = of_sums.sum(-2).sum_to_size(bias.shape)
    if of_sums is None:
        return None, None, None, None, None
    return (
        product(of_sums, b.mT, ctx.invariant) if needs[0] else None,
        product(a.mT, of_sums, False) if needs[1] else None,
        of_bias,
        None,
        None,
    )


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    a, b, bias, ctx.activation, ctx.invariant = inputs
    ctx.save_for_backward(a, b, bias)


def _gradients_of_gated(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients of `gated`: one kernel computes gate and up again, and their gradients."""
    a, b, bias = ctx.saved_tensors
    if is_differentiated():
        of_sums = _differentiable(grad, _sums(a, b, bias, ctx.invariant), ctx.activation)
    else:
        of_sums = differentiate_product_directly(grad, a, b, bias, ctx.activation, ctx.invariant)
    return _gradients(ctx, of_sums, a, b, bias)


def _setup_with_sums(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    a, b, bias, ctx.activation, ctx.invariant = inputs
    ctx.set_materialize_grads(False)  # None, not zeros, is the gradient of unused sums
    ctx.save_for_backward(a, b, bias, output[1])


def _gradients_with_sums(
    ctx: Any, grad: Tensor | None, grad_of_sums: Tensor | None
) -> tuple[Tensor | None, ...]:
    """The gradients of `gated_with_sums`; one kernel computes the gradients of gate and of up."""
    a, b, bias, sums = ctx.saved_tensors
    of_sums = grad_of_sums
    if grad is not None:
        gradient = _differentiable if is_differentiated() else differentiate_directly
        of_sums = gradient(grad, sums, ctx.activation)
        of_sums = of_sums if grad_of_sums is None else of_sums + grad_of_sums
    return _gradients(ctx, of_sums, a, b, bias)


def _tangents_with_sums(
    arguments: tuple[Any, ...], tangents: tuple[Any, ...]
) -> tuple[Tensor | None, Tensor | None]:
    """The tangents of the results of `gated_with_sums`."""
    a, b, bias, activation, invariant = arguments
    of_a, of_b, of_bias, *_ = tangents
    of_sums = total(
        (
            None if of_a is None else product(of_a, b, invariant),
            None if of_b is None else product(a, of_b, invariant),
        )
    )
    sums = _sums(a, b, bias, invariant)
    if of_bias is not None:
        wide = _for_rows(of_bias)
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
gated_product = direct(GATED, 3, _gated, OF_GATED)
"""`torch.ops.coordgraph.gated`, without PyTorch's dispatcher if all tensors are plain: neither of a
subclass nor sparse, traced or transformed."""
gated_product_with_sums = direct(GATED_WITH_SUMS, 3, _gated_with_sums, OF_GATED_WITH_SUMS)
"""`torch.ops.coordgraph.gated_with_sums`, without PyTorch's dispatcher if all tensors are plain:
neither of a subclass nor sparse, traced or transformed."""

for _device in DEVICES:
    _key = f"Autocast{_device.upper()}"
    torch.library.impl("coordgraph::gated", _key)(cast_inputs(GATED, _device))
    torch.library.impl("coordgraph::gated_with_sums", _key)(cast_inputs(GATED_WITH_SUMS, _device))


def _mapped(op: Any, info: Any, axes: Any, given: tuple[Any, ...], options: tuple[Any, ...]) -> Any:
    """A call of `op` on tensors that vmap maps; returns results and their axes, which are 0.

    Args:
        op: `GATED`, `GATED_WITH_SUMS` or `GRADIENT_OF_PRODUCT`.
        info: vmap's information object; `info.batch_size` is the extent of the mapped axis.
        axes: the mapped axis of each argument, None for an argument without one.
        given: the gradient, if `op` takes one, then A, B and the bias.
        options: the arguments of `op` after the bias.
    """
    *rest, b, bias = given
    *of_rest, of_b, of_bias = (*axes, None)[: len(given)]
    size = info.batch_size
    rows = [in_front(x, axis, size) for x, axis in zip(rest, of_rest, strict=True)]
    folded = (size, rows[-1].shape[1])
    if of_b is None and of_bias is None and b.dim() == 2:  # one B: stack the rows of A
        found = op(*(x.flatten(0, 1) for x in rows), b, bias, *options)
    else:
        b = in_front(b, of_b, size)
        bias = None if bias is None else in_front(bias, of_bias, size)
        if b.dim() == 3:
            found = op(*rows, b, bias, *options)
            return found, 0 if isinstance(found, Tensor) else (0, 0)
        if bias is not None:
            bias = bias if bias.dim() == 3 else bias.unsqueeze(1).expand(*folded, -1)
            bias = bias.flatten(0, 1)
        found = op(*(x.flatten(0, 1) for x in rows), b.flatten(0, 1), bias, *options)
    if isinstance(found, Tensor):
        return found.unflatten(0, folded), 0
    return tuple(x.unflatten(0, folded) for x in found), (0, 0)


def _mapper(op: Any) -> Any:
    """The function that vmap calls for `op`, which is `GATED` or `GATED_WITH_SUMS`."""

    def mapped(
        info: Any,
        in_dims: tuple[Any, ...],
        a: Tensor,
        b: Tensor,
        bias: Tensor | None = None,
        activation: str = "silu",
        invariant: bool = False,
    ) -> Any:
        return _mapped(op, info, in_dims, (a, b, bias), (activation, invariant))

    return mapped


gated_op.register_vmap(_mapper(GATED))
gated_with_sums_op.register_vmap(_mapper(GATED_WITH_SUMS))


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
) -> Any:
    return _mapped(GRADIENT_OF_PRODUCT, info, in_dims, (grad, a, b, bias), (activation, invariant))
