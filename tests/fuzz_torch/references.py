"""What functions of `codegen.torch` compute, by other functions of PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["bound_of_losses", "cross_entropy", "gated", "gated_groups", "linear", "one_by_one"]

ACTIVATIONS: dict[str, Any] = {
    "silu": lambda x: x * x.sigmoid(),  # F.silu has no forward mode for its gradient
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
}


def one_by_one(a: Tensor, b: Tensor, offs: Tensor | None = None) -> Tensor:
    """`grouped_mm` as one product after another; elements of D that belong to no group are 0."""
    # PyTorch cannot take views of some views with tangents: an assertion in it fails.
    a, b = (x.clone(memory_format=torch.contiguous_format) for x in (a, b))
    if offs is None:
        return a @ b
    if a.dim() == 3:
        return one_by_one(b.mT, a.mT, offs).mT
    ends = offs.tolist()
    spans = list(zip([0, *ends], ends, strict=False))
    if b.dim() == 2:
        parts = [a[:, first:end] @ b[first:end] for first, end in spans]
        return torch.stack(parts) if parts else a.new_zeros(0, a.shape[0], b.shape[1])
    parts = [a[first:end] @ b[group] for group, (first, end) in enumerate(spans)]
    left = a.shape[0] - (ends[-1] if ends else 0)
    return torch.cat([*parts, a.new_zeros(left, b.shape[-1])])


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`torch.nn.functional.linear`, also of a vector as the weight with a bias."""
    d = torch.matmul(x, weight if weight.dim() == 1 else weight.t())
    return d if bias is None else d + bias


def gated(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: str = "silu",
    recompute: bool = False,
) -> Tensor:
    """`codegen.torch.gated`, of which `recompute` changes only the memory."""
    if weight.dim() != 2 or weight.shape[0] % 2 or (bias is not None and bias.dim() != 1):
        raise RuntimeError("weight is no matrix with an even number of rows, or bias no vector")
    gate, up = F.linear(x, weight, bias).chunk(2, -1)
    return ACTIVATIONS[activation](gate) * up


def gated_groups(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    offs: Tensor | None = None,
    activation: str = "silu",
    recompute: bool = False,
) -> Tensor:
    """`codegen.torch.gated` with `offs` as one product after another; other rows are 0."""
    if offs is None or x.dim() != 2 or weight.dim() != 3 or weight.shape[1] % 2:
        raise RuntimeError("offs is missing, x is no matrix, or weight no matrices with even rows")
    groups, columns, k = weight.shape
    if offs.shape != (groups,) or x.shape[1] != k:
        raise RuntimeError("the number of groups or k differs")
    if bias is not None and bias.shape != (groups, columns):
        raise RuntimeError("bias has no row for each group")
    ends = offs.tolist()
    parts = [
        gated(x[first:end], weight[i], None if bias is None else bias[i], activation=activation)
        for i, (first, end) in enumerate(zip([0, *ends], ends, strict=False))
    ]
    if not groups:
        return x.new_zeros(x.shape[0], columns // 2)
    return torch.cat([*parts, parts[0].new_zeros(x.shape[0] - ends[-1], columns // 2)])


def _logits(hidden: Tensor, weight: Tensor) -> Tensor:
    logits = F.linear(hidden, weight)
    if not logits.is_floating_point():
        raise RuntimeError("logits are no floating-point numbers")
    return logits if logits.dtype is torch.float64 else logits.float()


def cross_entropy(
    hidden: Tensor, weight: Tensor, *, targets: Tensor, ignore_index: int, reduction: str
) -> Tensor:
    """`codegen.torch.cross_entropy` of logits that are stored."""
    if hidden.shape[:-1] != targets.shape or weight.dim() != 2:
        raise RuntimeError("there is not one target for each row, or weight is no matrix")
    logits = _logits(hidden, weight)
    flat = logits.reshape(targets.numel(), logits.shape[-1])
    losses = F.cross_entropy(
        flat, targets.flatten(), ignore_index=ignore_index, reduction=reduction
    )
    return losses.reshape(targets.shape) if reduction == "none" else losses


def bound_of_losses(
    hidden: Tensor, weight: Tensor, *, targets: Tensor, ignore_index: int, reduction: str
) -> Tensor:
    """A number for each loss, to which rounding errors of the loss and its gradients are relative.

    Args:
        hidden, weight: absolute values of the arguments of `cross_entropy`.
        targets, ignore_index, reduction: the other arguments of `cross_entropy`.
    """
    sums = _logits(hidden, weight).sum(-1) + weight.shape[0]
    if reduction == "none":
        return sums
    kept = targets.ne(ignore_index).sum() if reduction == "mean" else 1
    return sums.sum() / kept
