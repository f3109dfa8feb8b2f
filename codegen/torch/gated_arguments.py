"""Checks of arguments: the operators by which `codegen.torch.gated` multiplies call them."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from codegen.torch.activations import check_activation
from codegen.torch.grouped import check_ends
from codegen.torch.ops import check_types
from coordgraph import LaunchError

__all__ = ["shape_of_result", "shape_of_sums"]


def shape_of_sums(
    a: Tensor, b: Tensor, bias: Tensor | None, activation: str, ends: Tensor | None
) -> tuple[Any, ...]:
    """The shape (m, 2n), or (l, m, 2n), of `A·B + bias`.

    Raises:
        LaunchError: shapes, element types or devices do not fit, or the activation is unknown.
    """
    check_activation(activation)
    if ends is None:
        fits = a.dim() == b.dim() and a.dim() in (2, 3) and a.shape[:-2] == b.shape[:-2]
        needed = "pass matrices of m x k and k x 2n, or two batches of them"
    else:
        fits = a.dim() == 2 and b.dim() == 3
        needed = "with offs pass a matrix of m x k, and a matrix of k x 2n for each group"
    if not fits or a.shape[-1] != b.shape[-2] or b.shape[-1] % 2:
        raise LaunchError(f"a is {tuple(a.shape)} and b is {tuple(b.shape)}; {needed}")
    check_types(a, b)
    if ends is not None:
        check_ends(ends, input=a, weight=b)
    if bias is not None:
        check_types(a, bias)
        _check_bias(bias, b, ends is not None)
    return (*a.shape[:-1], b.shape[-1])


def shape_of_result(
    a: Tensor, b: Tensor, bias: Tensor | None, activation: str, ends: Tensor | None
) -> tuple[Any, ...]:
    """The shape (m, n), or (l, m, n), of the result; raises the errors of `shape_of_sums`."""
    *rows, columns = shape_of_sums(a, b, bias, activation, ends)
    return (*rows, columns // 2)


def _check_bias(bias: Tensor, b: Tensor, grouped: bool) -> None:
    """Raise LaunchError unless `bias` has an element for each column of B."""
    every = (*b.shape[:-2], b.shape[-1])
    if tuple(bias.shape) == every or (bias.shape == every[-1:] and not grouped):
        return
    if grouped:
        raise LaunchError(
            f"bias is {tuple(bias.shape)}, but {every} is needed; pass a row for each group, as by "
            "bias.expand(groups, -1)"
        )
    raise LaunchError(
        f"bias is {tuple(bias.shape)}, but {every[-1:]} is needed; pass an element for each row "
        "of weight"
    )
