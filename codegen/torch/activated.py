"""The custom operators of `act(A·B + bias)`: one kernel forward, one for gradients of the sums.

The operator `activated` stores only `act(A·B + bias)`. The operator `activated_with_sums` also
stores `A·B + bias`. In the backward pass the operator `activated_gradient` computes the gradients
of `A·B + bias` and of the bias from it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from codegen.call.matmul import matmul
from codegen.torch.activations import ACTIVATIONS, check_activation
from codegen.torch.derivatives import (
    Derivatives,
    differentiable,
    in_forward_mode,
    is_differentiated,
    refused,
    total,
)
from codegen.torch.direct import direct, operator
from codegen.torch.host import copied, on_host
from codegen.torch.launching import has_rows, launch
from codegen.torch.mapping import in_front, one_by_one
from codegen.torch.ops import cast_inputs, check_types, product
from codegen.torch.plain import DEVICES
from codegen.torch.repeats import uninitialized
from coordgraph import LaunchError
from coordgraph import epilogue as ep
from coordgraph.epilogue import EpilogueFunction

__all__ = ["activated_product"]

ARGUMENTS = "(Tensor a, Tensor b, Tensor? bias, str activation, bool invariant)"
BEFORE = "before"
"""Name of the epilogue's tensor with `A·B + bias`, before the activation."""


@cache
def _value(activation: str, biased: bool, kept: bool) -> EpilogueFunction:
    """The epilogue `act(acc + bias)`, which also stores `acc + bias` if `kept`."""
    act = ACTIVATIONS[activation].value

    def activated(acc: Any) -> Any:
        return (act(acc), acc) if kept else act(acc)

    def activated_of_biased(acc: Any, bias: Any) -> Any:
        return activated(acc + bias)

    declared: dict[str, Any] = {"bias": "n"} if biased else {}
    declared |= {BEFORE: ep.output("mn")} if kept else {}
    return ep.epilogue(**declared)(activated_of_biased if biased else activated)


@cache
def _gradient(activation: str, biased: bool) -> EpilogueFunction:
    """The epilogue that computes the gradient of `A·B + bias`; it does not use its sums `acc`.

    Its operands are `before` (`A·B + bias`) and `grad` (the gradient of the activation's result).
    Without `biased` the gradient is D. With it, the gradient is the output `of_before`, and the
    output `of_bias` has the sum of each row. If all matrices are given as their transposes,
    `of_bias` is the gradient of the bias.
    """

    def gradient(acc: Any, before: Any, grad: Any) -> Any:
        found, _ = ACTIVATIONS[activation].gradient(grad, before)
        return (None, found, found) if biased else found

    outputs = {"of_before": ep.output("mn"), "of_bias": ep.output("m", reduce="sum")}
    return ep.epilogue(before="mn", grad="mn", **(outputs if biased else {}))(gradient)


def _check(a: Tensor, b: Tensor, bias: Tensor | None, activation: str) -> tuple[Any, Any]:
    """The shape of `A·B`.

    Raises:
        LaunchError: shapes, element types or devices do not fit, or the activation is unknown.
    """
    check_activation(activation)
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
        raise LaunchError(
            f"a is {tuple(a.shape)} and b is {tuple(b.shape)}; pass matrices of m x k and k x n"
        )
    check_types(a, b)
    if bias is not None:
        check_types(a, bias)
        if tuple(bias.shape) != (b.shape[1],):
            raise LaunchError(
                f"bias is {tuple(bias.shape)}, but ({b.shape[1]},) is needed; pass an element for "
                "each row of weight, or apply the activation to the result of linear"
            )
    return a.shape[0], b.shape[1]


def _activated(
    a: Tensor, b: Tensor, bias: Tensor | None, activation: str, invariant: bool
) -> Tensor:
    """`act(A·B + bias)` (m x n) of A (m x k), B (k x n), and n elements of the bias or None."""
    _check(a, b, bias, activation)
    biases = {} if bias is None else {"bias": bias.contiguous()}
    function = _value(activation, bias is not None, False)
    return launch(a, b, epilogue=function, invariant=invariant, **biases)


def _activated_with_sums(
    a: Tensor, b: Tensor, bias: Tensor | None, activation: str, invariant: bool
) -> tuple[Tensor, Tensor]:
    """(`act(A·B + bias)`, `A·B + bias`) by one kernel."""
    before = uninitialized(a, _check(a, b, bias, activation), None)
    given: dict[str, Any] = {BEFORE: before} | ({} if bias is None else {"bias": bias.contiguous()})
    function = _value(activation, bias is not None, True)
    return launch(a, b, epilogue=function, invariant=invariant, **given), before


def _activated_gradient(
    grad: Tensor, before: Tensor, activation: str, biased: bool
) -> tuple[Tensor, Tensor]:
    """The gradients of `A·B + bias` (m x n) and of the bias (n), by one kernel with k = 0.

    The second tensor is empty if not `biased`. The kernel for a bias computes the transpose, since
    epilogues reduce rows.
    """
    grad = grad if has_rows(grad) else grad.contiguous()
    m, n = before.shape
    function = _gradient(activation, biased)
    if not biased:
        a, b = before.new_empty(m, 0), before.new_empty(0, n)
        d = launch(a, b, epilogue=function, before=before, grad=grad)
        return d, before.new_empty(0)
    found = torch.empty_like(before)
    arrays: dict[str, Any] = {
        "a": before.new_empty(n, 0),
        "b": before.new_empty(0, m),
        **{"before": before.t(), "grad": grad.t(), "of_before": found.t()},
    }
    if not before.is_cuda:
        arrays = {name: on_host(x) for name, x in arrays.items()}
    of_bias = matmul(epilogue=function, **arrays)[2]
    of_bias = of_bias if before.is_cuda else copied(of_bias)
    return found, of_bias.to(before.dtype)


activated_op = operator(
    "activated",
    _activated,
    f"{ARGUMENTS} -> Tensor",
)
activated_with_sums_op = operator(
    "activated_with_sums",
    _activated_with_sums,
    f"{ARGUMENTS} -> (Tensor, Tensor)",
)
activated_gradient_op = operator(
    "activated_gradient",
    _activated_gradient,
    "(Tensor grad, Tensor before, str activation, bool biased) -> (Tensor, Tensor)",
)
ACTIVATED = torch.ops.coordgraph.activated.default
ACTIVATED_WITH_SUMS = torch.ops.coordgraph.activated_with_sums.default
GRADIENT = torch.ops.coordgraph.activated_gradient.default


@activated_op.register_fake
def _(a: Tensor, b: Tensor, bias: Tensor | None, activation: str, invariant: bool) -> Tensor:
    return a.new_empty(_check(a, b, bias, activation))


@activated_with_sums_op.register_fake
def _(
    a: Tensor, b: Tensor, bias: Tensor | None, activation: str, invariant: bool
) -> tuple[Tensor, Tensor]:
    shape = _check(a, b, bias, activation)
    return a.new_empty(shape), a.new_empty(shape)


@activated_gradient_op.register_fake
def _(grad: Tensor, before: Tensor, activation: str, biased: bool) -> tuple[Tensor, Tensor]:
    return torch.empty_like(before), before.new_empty(before.shape[1] if biased else 0)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    a, b, bias, ctx.activation, ctx.invariant = inputs
    ctx.biased = bias is not None
    ctx.columns = b.stride(-1) != 1 and b.stride(-2) == 1
    ctx.set_materialize_grads(False)  # None, not zeros, is the gradient of unused sums
    ctx.save_for_backward(a, b, output[1])


def _gradients(
    ctx: Any, grad: Tensor | None, grad_of_sums: Tensor | None
) -> tuple[Tensor | None, ...]:
    """The gradients of `activated_with_sums`; that of B has the layout of B, as for `matmul`."""
    a, b, before = ctx.saved_tensors
    needs, of_sums, of_bias = ctx.needs_input_grad, grad_of_sums, None
    biased = ctx.biased and needs[2]
    if grad is not None and (is_differentiated() or grad_of_sums is not None):
        # The gradient will be differentiated, or is a sum of two, so PyTorch computes it.
        of_sums = ACTIVATIONS[ctx.activation].torch_gradient(grad, before)
        of_sums = of_sums if grad_of_sums is None else of_sums + grad_of_sums
    elif grad is not None:
        of_sums, of_bias = _gradient_of_sums(grad, before, ctx.activation, biased)
    if of_sums is None:
        return None, None, None, None, None
    if biased and of_bias is None:
        of_bias = of_sums.sum(0)
    of_b = None
    if needs[1]:
        of_b = product(of_sums.mT, a, False).mT if ctx.columns else product(a.mT, of_sums, False)
    return (
        product(of_sums, b.mT, ctx.invariant) if needs[0] else None,
        of_b,
        of_bias if biased else None,
        None,
        None,
    )


def _tangents(arguments: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """The tangents of `activated_with_sums`."""
    a, b, bias, activation, invariant = arguments
    of_a, of_b, of_bias = tangents[:3]
    of_sums = total(
        (
            None if of_a is None else product(of_a, b, invariant),
            None if of_b is None else product(a, of_b, invariant),
        )
    )
    if of_bias is not None:
        of_sums = of_bias.expand(a.shape[0], -1) if of_sums is None else of_sums + of_bias
    if of_sums is None:
        return None, None
    before = product(a, b, invariant)
    before = before if bias is None else before + bias
    return ACTIVATIONS[activation].torch_gradient(of_sums, before), of_sums


OF_SUMS = Derivatives(_setup, _gradients, _tangents)
OF_ACTIVATED = refused(
    "the operator activated", "call activated_with_sums, which keeps what gradients need"
)
TWICE = refused(
    "the operator activated_gradient",
    "call linear without activation, and apply PyTorch's activation to its result",
)
differentiable(ACTIVATED_WITH_SUMS, OF_SUMS)
differentiable(ACTIVATED, OF_ACTIVATED)
differentiable(GRADIENT, TWICE)
_with_sums = direct(ACTIVATED_WITH_SUMS, 3, _activated_with_sums, OF_SUMS)
_alone = direct(ACTIVATED, 3, _activated, OF_ACTIVATED)
_gradient_of_sums = direct(GRADIENT, 2, _activated_gradient, TWICE, casts=False)
for _device in DEVICES:
    _key = f"Autocast{_device.upper()}"
    for _op in (ACTIVATED, ACTIVATED_WITH_SUMS):
        _name = _op.name()
        torch.library.impl(_name, _key)(cast_inputs(_op, _device))


def activated_product(
    a: Tensor, b: Tensor, bias: Tensor | None, activation: str, invariant: bool
) -> Tensor:
    """`act(A·B + bias)` of matrices, with gradients; the sums are stored only for a gradient."""
    given = [x for x in (a, b, bias) if x is not None]
    if in_forward_mode() or (torch.is_grad_enabled() and any(x.requires_grad for x in given)):
        return _with_sums(a, b, bias, activation, invariant)[0]
    return _alone(a, b, bias, activation, invariant)


def _mapper(op: Any) -> Any:
    """The function that vmap calls for an operator; `op` computes its results.

    If all products share B and the bias, the rows of A are stacked, and one product computes them.
    """
    each = one_by_one(op)

    def mapped(info: Any, in_dims: tuple[Any, ...], a: Tensor, *rest: Any) -> Any:
        if any(axis is not None for axis in in_dims[1:3]):
            return each(info, in_dims, a, *rest)
        rows = in_front(a, in_dims[0], info.batch_size)
        found = op(rows.flatten(0, 1), *rest)
        if isinstance(found, Tensor):
            return found.unflatten(0, rows.shape[:2]), 0
        return tuple(x.unflatten(0, rows.shape[:2]) for x in found), (0, 0)

    return mapped


# vmap hides from `activated_product` that a tensor requires a gradient. The tensors here show it.
activated_op.register_vmap(_mapper(activated_product))
activated_with_sums_op.register_vmap(_mapper(ACTIVATED_WITH_SUMS))
_gradient_of_each = one_by_one(GRADIENT)


@activated_gradient_op.register_vmap
def _(
    info: Any,
    in_dims: tuple[Any, ...],
    grad: Tensor,
    before: Tensor,
    activation: str,
    biased: bool,
) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
    """One call if no bias needs a gradient, which is a sum for each index."""
    if biased:
        return _gradient_of_each(info, in_dims, grad, before, activation, biased)
    grad, before = (
        in_front(x, axis, info.batch_size) for x, axis in zip((grad, before), in_dims, strict=False)
    )
    d, empty = GRADIENT(grad.flatten(0, 1), before.flatten(0, 1), activation, biased)
    return (d.unflatten(0, before.shape[:2]), empty.expand(info.batch_size, 0)), (0, 0)
