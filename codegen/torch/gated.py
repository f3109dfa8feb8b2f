"""`swiglu`: a product and the activation `silu(gate)·up` in one kernel, as `coordgraph::swiglu`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from codegen.torch.functions import linear
from codegen.torch.launching import multiply_and_gate
from codegen.torch.ops import DEVICES, MATMUL, cast_inputs, check_types
from coordgraph import LaunchError

__all__ = ["SWIGLU", "swiglu"]


@torch.library.custom_op(
    "coordgraph::swiglu",
    mutates_args=(),
    device_types=DEVICES,
    schema="(Tensor a, Tensor b, Tensor? bias=None, bool invariant=False) -> Tensor",
)
def gated(a: Tensor, b: Tensor, bias: Tensor | None = None, invariant: bool = False) -> Tensor:
    """`silu(gate)·up` (m x n), where gate and up are the halves of the columns of `A·B + bias`.

    Gate is the first n columns, up is the last n columns.

    Args:
        a, b: A (m x k) and B (k x 2n).
        bias: 2n elements, or None.
        invariant: as for `codegen.matmul`.

    Raises:
        LaunchError: shapes, types or devices of the tensors do not fit; nothing was launched.
        CodegenError: kernels of the device do not multiply this type.
    """
    _shape(a, b, bias)
    return multiply_and_gate(a, b, bias, invariant=invariant)


SWIGLU = torch.ops.coordgraph.swiglu.default


def _shape(a: Tensor, b: Tensor, bias: Tensor | None) -> tuple[Any, ...]:
    """The shape (m, n) of the result, for A (m x k) and B (k x 2n).

    Raises:
        LaunchError: shapes, element types or devices do not fit.
    """
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0] or b.shape[1] % 2:
        raise LaunchError(
            f"a is {tuple(a.shape)} and b is {tuple(b.shape)}; pass matrices of m x k and k x 2n"
        )
    check_types(a, b)
    if bias is not None:
        check_types(a, bias)
        if tuple(bias.shape) != (b.shape[1],):
            raise LaunchError(
                f"bias is {tuple(bias.shape)}, but ({b.shape[1]},) is needed; pass an element for "
                "each column of b"
            )
    return a.shape[0], b.shape[1] // 2


@gated.register_fake
def _(a: Tensor, b: Tensor, bias: Tensor | None = None, invariant: bool = False) -> Tensor:
    return a.new_empty(_shape(a, b, bias))


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    a, b, bias, ctx.invariant = inputs
    ctx.save_for_backward(a, b, bias)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients of A, B and the bias. `A·B` is computed again, because it was not stored."""
    a, b, bias = ctx.saved_tensors
    sums = MATMUL(a, b, ctx.invariant)
    gate, up = (sums if bias is None else sums + bias).chunk(2, -1)
    share = torch.sigmoid(gate)
    of_gate, of_up = grad * up * share * (1 + gate * (1 - share)), grad * gate * share
    of_sums = torch.cat([of_gate, of_up], -1)
    needs = ctx.needs_input_grad  # `needs` has no entries for arguments that the call leaves out
    return (
        MATMUL(of_sums, b.mT, ctx.invariant) if needs[0] else None,
        MATMUL(a.mT, of_sums) if needs[1] else None,
        of_sums.sum(0) if bias is not None and needs[2] else None,
        None,
    )


gated.register_autograd(_gradients, setup_context=_setup)

for _device in DEVICES:
    torch.library.impl("coordgraph::swiglu", f"Autocast{_device.upper()}")(
        cast_inputs(SWIGLU, _device)
    )


def swiglu(
    input: Tensor, gate_up: Tensor, bias: Tensor | None = None, *, invariant: bool = False
) -> Tensor:
    """`silu(input·gateᵀ) * (input·upᵀ)`, the activation of the feed-forward layers of Llama.

    Without gradients, one kernel computes the result: `input·gate_upᵀ` is never stored. If a tensor
    requires a gradient, `input·gate_upᵀ` is stored for the backward pass, and PyTorch applies the
    activation.

    Args:
        input: (…, k).
        gate_up: (2n, k): the n rows of the weight of gate, then the n rows of the weight of up.
        bias: (2n), or None; it is added before the activation.
        invariant: as for `codegen.matmul`.

    Returns:
        A tensor (…, n).

    Raises:
        LaunchError, CodegenError: as for `matmul`.
    """
    given = [x for x in (input, gate_up, bias) if x is not None]
    if gate_up.dim() != 2 or gate_up.shape[0] % 2:
        raise LaunchError(
            f"gate_up is {tuple(gate_up.shape)}, but 2n x k is needed; join both weights, as by "
            "torch.cat([gate, up])"
        )
    if torch.is_grad_enabled() and any(x.requires_grad for x in given):
        gate, up = linear(input, gate_up, bias, invariant=invariant).chunk(2, -1)
        return torch.nn.functional.silu(gate) * up
    d = SWIGLU(input.reshape(-1, input.shape[-1]), gate_up.t(), bias, invariant)
    return d.reshape(*input.shape[:-1], gate_up.shape[0] // 2)
