"""`cross_entropy` of a linear layer's outputs, which are not stored, with gradients.

The custom operators `coordgraph::cross_entropy` and `coordgraph::cross_entropy_gradient` compute
the loss of each token and the gradients, which cannot be differentiated themselves.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from codegen.torch.arguments import check_dense
from codegen.torch.derivatives import differentiable, refused
from codegen.torch.direct import direct, operator
from codegen.torch.mapping import in_front, one_by_one
from codegen.torch.ops import cast_inputs, check_types
from codegen.torch.plain import DEVICES
from codegen.torch.token_losses import kind_of_losses, token_loss_gradients, token_losses
from coordgraph import LaunchError
from coordgraph.validation import flag, whole

__all__ = ["cross_entropy"]

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
"""The element types that targets may have."""
REDUCTIONS = ("mean", "sum", "none")


def cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    ignore_index: int = -100,
    reduction: Literal["mean", "sum", "none"] = "mean",
    invariant: bool = False,
) -> Tensor:
    """`torch.nn.functional.cross_entropy` of the logits `hidden·weightᵀ`, which are never stored.

    Unlike PyTorch's function, it has no `label_smoothing`, no weights of classes and no targets
    that are probabilities; the logits have no bias.

    The kernel of the product reduces each row of logits. The backward pass computes the logits
    again, for a block of classes at a time, and stores the gradients of one block of logits: at
    most 2^27 elements, or 256 for each token if that is more. The result has no second derivative
    and no tangent in forward-mode differentiation: computing one raises LaunchError.

    Args:
        hidden: (…, k), one row for each token.
        weight: (classes, k), the weight of the linear layer.
        targets: (…) of integers, the class of each token. On a GPU, which does not check targets,
            the loss of a token whose target is no class is NaN.
        ignore_index: the target of tokens that count neither in the loss nor in the mean.
        reduction: `mean` over the tokens that are not ignored, `sum`, or `none`.
        invariant: whether the bits of a token's loss must not depend on the other tokens, as for
            `codegen.matmul`, nor those of its row of the gradient of `hidden`, if the gradient of
            its loss is the same. The losses of `mean` and `sum` depend on all tokens. In the
            backward pass a block then has 4096 classes for any number of tokens.

    Returns:
        The loss in float32, or in float64 for tensors of float64, computed from sums of products
        that are not rounded. The loss is a scalar, or for `none` a tensor of the shape of
        `targets`.

    Raises:
        LaunchError: shapes, types or devices of the tensors do not fit, `reduction` is unknown, or
            on the CPU a target is no class; nothing was launched.
        CodegenError: kernels of the device do not multiply this type.
    """
    check_dense("hidden weight targets", hidden, weight, targets)
    if reduction not in REDUCTIONS:
        raise LaunchError(
            f"reduction = {reduction!r} is unknown; choose one of {', '.join(REDUCTIONS)}"
        )
    if not hidden.dim() or hidden.shape[:-1] != targets.shape:
        raise LaunchError(
            f"hidden is {tuple(hidden.shape)} and targets is {tuple(targets.shape)}; pass a target "
            "for each row of hidden"
        )
    flag(invariant, "invariant", LaunchError)
    if not isinstance(ignore_index, int):  # a SymInt of the compiler is an int here
        ignore_index = whole(ignore_index, "ignore_index", LaunchError)
    rows = hidden.flatten(0, -2) if hidden.dim() > 1 else hidden.unsqueeze(0)
    losses, _ = losses_of(rows, weight, targets.reshape(-1), ignore_index, invariant)
    if reduction == "none":
        return losses.reshape(targets.shape)
    total = losses.sum()
    return total if reduction == "sum" else total / (targets.ne(ignore_index)).sum()


def _check(hidden: Tensor, weight: Tensor, targets: Tensor) -> None:
    """Raise LaunchError unless the tensors have shapes, element types and devices that fit."""
    fits = hidden.dim() == weight.dim() == 2 and hidden.shape[1] == weight.shape[1]
    if not fits or hidden.shape[:1] != targets.shape:
        raise LaunchError(
            f"hidden is {tuple(hidden.shape)}, weight is {tuple(weight.shape)} and targets is "
            f"{tuple(targets.shape)}; pass hidden as tokens x k, weight as classes x k, and a "
            "target for each token"
        )
    check_types(hidden, weight)
    if targets.dtype not in INTEGERS:
        raise LaunchError(
            f"targets holds {targets.dtype}, but integer class indices are needed; convert it to "
            "torch.int64; for probabilities use torch.nn.functional.cross_entropy"
        )
    if targets.device != hidden.device:
        raise LaunchError(
            f"the tensors lie on {hidden.device} and {targets.device}; move them to one device"
        )


def _cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, ignore_index: int, invariant: bool = False
) -> tuple[Tensor, Tensor]:
    """(the loss of each token, the logsumexp of its logits).

    Args:
        hidden: (tokens, k).
        weight: (classes, k).
        targets: (tokens) of integers.
        ignore_index: the target of tokens whose loss is 0.
        invariant: whether the bits of a token's loss must not depend on the other tokens.

    Raises:
        LaunchError: shapes, types or devices of the tensors do not fit; nothing was launched.
        CodegenError: kernels of the device do not multiply this type.
    """
    _check(hidden, weight, targets)
    return token_losses(hidden, weight, targets, ignore_index, invariant=invariant)


def _cross_entropy_gradient(
    grad: Tensor,
    totals: Tensor,
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    ignore_index: int,
    of_hidden: bool,
    of_weight: bool,
    invariant: bool = False,
) -> tuple[Tensor, Tensor]:
    """The gradients of `hidden` and `weight`; an empty tensor for a gradient that is not needed.

    Args:
        grad: (tokens), the gradients of the losses.
        totals: (tokens), the logsumexp of each token's logits, which the operator
            `coordgraph::cross_entropy` returns.
        hidden, weight, targets, ignore_index: the rows of the tokens, the weight of the linear
            layer, the classes of the tokens, and the target of ignored tokens, as for
            `coordgraph::cross_entropy`.
        of_hidden, of_weight: whether to compute the gradient of `hidden` and that of `weight`.
        invariant: whether the bits of a row of the gradient of `hidden` must not depend on the
            other tokens.
    """
    given = grad, totals, hidden, weight, targets, ignore_index
    found = token_loss_gradients(*given, (of_hidden, of_weight), invariant=invariant)
    first, second = (hidden.new_empty(0) if x is None else x for x in found)
    return first, second


cross_entropy_op = operator(
    "cross_entropy",
    _cross_entropy,
    "(Tensor hidden, Tensor weight, Tensor targets, int ignore_index, "
    "bool invariant=False) -> (Tensor, Tensor)",
)
cross_entropy_gradient_op = operator(
    "cross_entropy_gradient",
    _cross_entropy_gradient,
    "(Tensor grad, Tensor totals, Tensor hidden, Tensor weight, Tensor targets, "
    "int ignore_index, bool of_hidden, bool of_weight, bool invariant=False) -> (Tensor, Tensor)",
)
LOSS = torch.ops.coordgraph.cross_entropy.default
GRADIENT = torch.ops.coordgraph.cross_entropy_gradient.default
INSTEAD = (
    "compute the logits by codegen.torch.linear and call torch.nn.functional.cross_entropy on them"
)
OF_GRADIENT = refused("the gradient of cross_entropy", INSTEAD)
differentiable(GRADIENT, OF_GRADIENT)
gradients_directly = direct(GRADIENT, 5, _cross_entropy_gradient, OF_GRADIENT, casts=False)


@cross_entropy_op.register_fake
def _(
    hidden: Tensor, weight: Tensor, targets: Tensor, ignore_index: int, invariant: bool = False
) -> tuple[Tensor, Tensor]:
    _check(hidden, weight, targets)
    losses, totals = (
        hidden.new_empty(hidden.shape[0], dtype=kind_of_losses(hidden)) for _ in range(2)
    )
    return losses, totals


@cross_entropy_gradient_op.register_fake
def _(
    grad: Tensor,
    totals: Tensor,
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    ignore_index: int,
    of_hidden: bool,
    of_weight: bool,
    invariant: bool = False,
) -> tuple[Tensor, Tensor]:
    first = hidden.new_empty(hidden.shape if of_hidden else (0,))
    return first, weight.new_empty(weight.shape if of_weight else (0,))


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *given, ctx.ignore_index, ctx.invariant = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*given, output[1])


def _gradients(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    """The gradients of `hidden` and `weight`, given the gradients of the losses."""
    hidden, weight, targets, totals = ctx.saved_tensors
    needs = tuple(ctx.needs_input_grad[:2])
    given = grad, totals, hidden, weight, targets, ctx.ignore_index
    found = gradients_directly(*given, *needs, ctx.invariant)
    of = (x if needed else None for x, needed in zip(found, needs, strict=True))
    return (*of, None, None, None)


DERIVATIVES = replace(refused("cross_entropy", INSTEAD), setup=_setup, gradients=_gradients)
differentiable(LOSS, DERIVATIVES)
losses_of = direct(LOSS, 3, _cross_entropy, DERIVATIVES)
"""`torch.ops.coordgraph.cross_entropy`, without PyTorch's dispatcher if all tensors are plain:
neither of a subclass nor sparse, traced or transformed."""

_loss_of_each = one_by_one(LOSS)
_gradient_of_each = one_by_one(GRADIENT)


@cross_entropy_op.register_vmap
def _(
    info: Any,
    in_dims: tuple[Any, ...],
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    ignore_index: int,
    invariant: bool = False,
) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
    """Rule of `torch.vmap`: one call for all mapped indices if `weight` is not mapped."""
    if in_dims[1] is not None:
        return _loss_of_each(info, in_dims, hidden, weight, targets, ignore_index, invariant)
    rows, classes = (
        in_front(x, axis, info.batch_size)
        for x, axis in ((hidden, in_dims[0]), (targets, in_dims[2]))
    )
    losses, totals = LOSS(rows.flatten(0, 1), weight, classes.flatten(), ignore_index, invariant)
    return (losses.view(classes.shape), totals.view(classes.shape)), (0, 0)


@cross_entropy_gradient_op.register_vmap
def _(
    info: Any,
    in_dims: tuple[Any, ...],
    grad: Tensor,
    totals: Tensor,
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    ignore_index: int,
    of_hidden: bool,
    of_weight: bool,
    invariant: bool = False,
) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
    """Rule of `torch.vmap`: one call if `weight` is neither mapped nor needs a gradient."""
    rows = grad, totals, hidden, targets
    options = ignore_index, of_hidden, of_weight, invariant
    if of_weight or in_dims[3] is not None:
        given = *rows[:3], weight, targets, *options
        return _gradient_of_each(info, in_dims, *given)
    axes = (*in_dims[:3], in_dims[4])
    folded = [in_front(x, axis, info.batch_size) for x, axis in zip(rows, axes, strict=True)]
    *given, classes = (x.flatten(0, 1) for x in folded)
    first, second = GRADIENT(*given, weight, classes, *options)
    first = first.view(folded[2].shape) if of_hidden else first.expand(info.batch_size, 0)
    return (first, second.expand(info.batch_size, 0)), (0, 0)


for _device in DEVICES:
    _key = f"Autocast{_device.upper()}"
    torch.library.impl("coordgraph::cross_entropy", _key)(cast_inputs(LOSS, _device))
