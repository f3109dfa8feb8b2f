"""`gated` and `swiglu`: a product and `act(gate)·up` in one kernel, with gradients.

With the argument `offs` the kernel computes one product for each group of rows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from codegen.torch.activations import check_activation
from codegen.torch.arguments import check_dense, check_k
from codegen.torch.gated_operators import gated_product, gated_product_with_sums
from codegen.torch.repeats import repeating
from coordgraph import LaunchError
from coordgraph.validation import flag

__all__ = ["gated", "swiglu"]


@repeating
def gated(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: str = "silu",
    offs: Tensor | None = None,
    recompute: bool = False,
    invariant: bool = False,
) -> Tensor:
    """`act(gate) * up`, where gate and up are the halves of `input·weightᵀ + bias`, by one kernel.

    If a tensor requires a gradient, the kernel also stores gate and up for the backward pass. In
    the backward pass one kernel computes the gradients of gate and up, and two products compute the
    gradients of input and weight.

    With `offs`, as for the first layer of the experts of a mixture, the rows of `input` are divided
    into groups, and each group has its own weight and bias. All products are grouped products then,
    as `grouped_mm` computes them, and one more sums up the gradient of the bias.

    Args:
        input: (…, k), or with `offs` (m, k).
        weight: (2n, k): the n rows of the weight of gate, then the n rows of the weight of up; with
            `offs` (groups, 2n, k).
        bias: (2n), one element for all columns, with `offs` (groups, 2n), or None; it is added
            before the activation.
        activation: `silu` (SwiGLU), `gelu` or `gelu_tanh`, its approximation by the hyperbolic
            tangent (GeGLU), or `relu` (ReGLU).
        offs: i32 (groups), on the device of `input`: the end of each group of rows, as for
            `grouped_mm`. Entries must not decrease. The first group begins at 0; a group may be
            empty. The host never reads them. None for one weight for all rows.
        recompute: whether gate and up are not stored, and the backward pass computes them again, in
            the kernel that computes their gradients. Recomputing takes one more product of the size
            of the forward pass, and saves 2n elements for each row of `input`.
        invariant: whether the bits of a row of the result must not depend on the other rows, as for
            `codegen.matmul`.

    Returns:
        A tensor (…, n). Rows that belong to no group are 0 in the tensor and in the gradient of
        `input`.

    Raises:
        LaunchError, CodegenError: the arguments do not fit, or kernels do not multiply the type of
            the tensors, as for `matmul`.
    """
    _check_shapes(input, weight, bias, offs)
    check_activation(activation)
    recompute = flag(recompute, "recompute", LaunchError)
    given = [x for x in (input, weight, bias) if x is not None]
    recorded = torch.is_grad_enabled() and any(x.requires_grad for x in given)
    rows = input if input.dim() == 2 else input.unsqueeze(0)
    if input.dim() > 2:
        rows = input.flatten(0, -2)
    if bias is not None and offs is None and bias.shape in ((), (1,)):
        bias = bias.expand(weight.shape[0])
    if recorded and not recompute:
        d, _ = gated_product_with_sums(rows, weight.mT, bias, activation, invariant, offs)
    else:
        d = gated_product(rows, weight.mT, bias, activation, invariant, offs)
    return d if input.dim() == 2 else d.reshape(*input.shape[:-1], weight.shape[-2] // 2)


def _check_shapes(input: Tensor, weight: Any, bias: Tensor | None, offs: Tensor | None) -> None:
    """Raise LaunchError unless the tensors are dense, and input and weight have enough axes."""
    if isinstance(weight, (tuple, list)):
        raise LaunchError(
            "weight is several tensors, but one is needed; join both weights, as by "
            "torch.cat([gate, up], dim=-2)"
        )
    check_dense("input weight bias? offs?", input, weight, bias, offs)
    if not input.dim():
        raise LaunchError("input has no axes, but (…, k) is needed; pass at least a vector of k")
    if offs is not None and input.dim() != 2:
        raise LaunchError(
            f"input is {tuple(input.shape)}, but with offs one matrix of m x k is needed; pass the "
            "rows of all groups as one matrix, as by input.flatten(0, -2)"
        )
    if offs is None and weight.dim() == 3:
        raise LaunchError(
            f"weight is {tuple(weight.shape)}, but without groups 2n x k is needed; pass offs, an "
            "i32 tensor with the end of each group of rows, or one matrix"
        )
    if weight.dim() != (2 if offs is None else 3) or weight.shape[-2] % 2:
        needed = "2n x k" if offs is None else "with offs groups x 2n x k"
        raise LaunchError(
            f"weight is {tuple(weight.shape)}, but {needed} is needed; join both weights, as by "
            "torch.cat([gate, up], dim=-2)"
        )
    check_k(input, weight)


@repeating
def swiglu(
    input: Tensor,
    gate_up: Tensor,
    bias: Tensor | None = None,
    *,
    offs: Tensor | None = None,
    recompute: bool = False,
    invariant: bool = False,
) -> Tensor:
    """`silu(input·gateᵀ) * (input·upᵀ)`, the activation of the feed-forward layers of Llama.

    The function is `gated` with the activation `silu`.

    Args:
        input: (…, k), or with `offs` (m, k).
        gate_up: (2n, k): the n rows of the weight of gate, then the n rows of the weight of up;
            with `offs` (groups, 2n, k).
        bias: (2n), one element for all columns, with `offs` (groups, 2n), or None; it is added
            before the activation.
        offs: i32 (groups), the end of each group of rows, as for `gated`; None for one weight.
        recompute: whether the backward pass computes gate and up again, as for `gated`.
        invariant: whether the bits of a row of the result must not depend on the other rows, as for
            `codegen.matmul`.

    Returns:
        A tensor (…, n).

    Raises:
        LaunchError, CodegenError: the arguments do not fit, or kernels do not multiply the type of
            the tensors, as for `matmul`.
    """
    return gated(input, gate_up, bias, offs=offs, recompute=recompute, invariant=invariant)
