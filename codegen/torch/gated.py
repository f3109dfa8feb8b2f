"""`gated` and `swiglu`: a product and `act(gate)·up` in one kernel, with gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from codegen.torch.activations import check_activation
from codegen.torch.arguments import check_dense, check_k
from codegen.torch.gated_operators import gated_product, gated_product_with_sums
from coordgraph import LaunchError

__all__ = ["gated", "swiglu"]


def gated(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: str = "silu",
    recompute: bool = False,
    invariant: bool = False,
) -> Tensor:
    """`act(gate) * up`, where gate and up are the halves of `input·weightᵀ + bias`, by one kernel.

    If a tensor requires a gradient, the kernel also stores gate and up for the backward pass. In
    the backward pass one kernel computes the gradients of gate and up, and two products compute the
    gradients of input and weight.

    Args:
        input: (…, k).
        weight: (2n, k): the n rows of the weight of gate, then the n rows of the weight of up.
        bias: (2n), or None; it is added before the activation.
        activation: `silu` (SwiGLU), `gelu` or `gelu_tanh`, its approximation by the hyperbolic
            tangent (GeGLU), or `relu` (ReGLU).
        recompute: whether gate and up are not stored, and the backward pass computes them again, in
            the kernel that computes their gradients. Recomputing takes one more product of the size
            of the forward pass, and saves 2n elements for each row of `input`.
        invariant: whether the bits of a row of the result must not depend on the other rows, as for
            `codegen.matmul`.

    Returns:
        A tensor (…, n).

    Raises:
        LaunchError, CodegenError: the arguments do not fit, or kernels do not multiply the type of
            the tensors, as for `matmul`.
    """
    if isinstance(weight, (tuple, list)):
        raise LaunchError(
            "weight is several tensors, but one is needed; join both weights, as by "
            "torch.cat([gate, up])"
        )
    check_dense("input weight bias?", input, weight, bias)
    if not input.dim():
        raise LaunchError("input has no axes, but (…, k) is needed; pass at least a vector of k")
    if weight.dim() != 2 or weight.shape[0] % 2:
        raise LaunchError(
            f"weight is {tuple(weight.shape)}, but 2n x k is needed; join both weights, as by "
            "torch.cat([gate, up])"
        )
    check_k(input, weight)
    check_activation(activation)
    given = [x for x in (input, weight, bias) if x is not None]
    recorded = torch.is_grad_enabled() and any(x.requires_grad for x in given)
    rows = input if input.dim() == 2 else input.unsqueeze(0)
    if input.dim() > 2:
        rows = input.flatten(0, -2)
    if recorded and not recompute:
        d, _ = gated_product_with_sums(rows, weight.t(), bias, activation, invariant)
    else:
        d = gated_product(rows, weight.t(), bias, activation, invariant)
    return d if input.dim() == 2 else d.reshape(*input.shape[:-1], weight.shape[0] // 2)


def swiglu(
    input: Tensor,
    gate_up: Tensor,
    bias: Tensor | None = None,
    *,
    recompute: bool = False,
    invariant: bool = False,
) -> Tensor:
    """`silu(input·gateᵀ) * (input·upᵀ)`, the activation of the feed-forward layers of Llama.

    The function is `gated` with the activation `silu`.

    Args:
        input: (…, k).
        gate_up: (2n, k): the n rows of the weight of gate, then the n rows of the weight of up.
        bias: (2n), or None; it is added before the activation.
        recompute: whether the backward pass computes gate and up again, as for `gated`.
        invariant: whether the bits of a row of the result must not depend on the other rows, as for
            `codegen.matmul`.

    Returns:
        A tensor (…, n).

    Raises:
        LaunchError, CodegenError: the arguments do not fit, or kernels do not multiply the type of
            the tensors, as for `matmul`.
    """
    return gated(input, gate_up, bias, recompute=recompute, invariant=invariant)
