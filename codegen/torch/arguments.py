"""Checks of arguments that all functions of `codegen.torch` share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from coordgraph import LaunchError

OPTIONAL = "?"
"""The last character of the name of an argument that may be None; see `check_dense`."""

__all__ = ["check_broadcast", "check_dense", "check_k", "number"]


def check_dense(names: str, *given: Any) -> None:
    """Raise LaunchError unless each argument is a tensor with strides, and is not quantized.

    Args:
        names: the names of the arguments, separated by spaces. An argument may be None if its name
            ends with `OPTIONAL`.
        given: the arguments. Sparse and nested tensors have no strides. Quantized tensors have
            strides, but kernels do not read their scales, so they are refused, too.
    """
    for index, x in enumerate(given):
        if not isinstance(x, Tensor):
            name = names.split()[index]
            if x is None and name.endswith(OPTIONAL):
                continue
            kind = "None" if x is None else f"a {type(x).__name__}"
            raise LaunchError(
                f"{name.rstrip(OPTIONAL)} is {kind}, but a tensor is needed; pass one tensor, as "
                "made by torch.as_tensor, torch.stack or torch.cat"
            )
        if x.layout is not torch.strided or x.is_nested:
            kind = "nested" if x.is_nested else str(x.layout)
            name = names.split()[index].rstrip(OPTIONAL)
            raise LaunchError(
                f"{name} is {kind}, but kernels read dense tensors with strides; convert it, as by "
                ".to_dense(), or use PyTorch's function"
            )
        if x.is_quantized:
            name = names.split()[index].rstrip(OPTIONAL)
            raise LaunchError(
                f"{name} is quantized, but kernels do not read the scales of quantized tensors; "
                "convert it, as by .dequantize(), or use PyTorch's function"
            )


def check_k(input: Tensor, weight: Tensor) -> None:
    """Raise LaunchError unless the rows of `input` and of the n x k `weight` have equal extents."""
    if input.shape[-1] != weight.shape[-1]:
        raise LaunchError(
            f"input is {tuple(input.shape)} and weight is {tuple(weight.shape)}: k would be "
            f"{input.shape[-1]} and {weight.shape[-1]}; pass a weight of n x k"
        )


def check_broadcast(a: Tensor, b: Tensor) -> None:
    """Raise LaunchError unless the axes of two tensors before the last two can be broadcast."""
    axes = zip(reversed(a.shape[:-2]), reversed(b.shape[:-2]), strict=False)
    if any(x != y and x != 1 and y != 1 for x, y in axes):
        raise LaunchError(
            f"input is {tuple(a.shape)} and other is {tuple(b.shape)}, whose axes before the last "
            "two do not broadcast; pass tensors where these axes are equal or 1"
        )


def number(name: str, given: Any) -> float:
    """The argument `name` as a float.

    Raises:
        LaunchError: it is no number, or a tensor whose gradient or tangent would be lost.
    """
    if isinstance(given, Tensor):
        tangents = getattr(torch.autograd.forward_ad, "_current_level", -1) >= 0
        if given.requires_grad or tangents:
            lost = "requires a gradient" if given.requires_grad else "may have a tangent"
            raise LaunchError(
                f"{name} is a tensor that {lost}, but kernels take a number; pass {name}.item(), "
                f"or multiply by {name} outside of the call"
            )
    try:
        return float(given)  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError):
        raise LaunchError(f"{name} = {given!r} is no number; pass an int or a float") from None
