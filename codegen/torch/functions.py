"""`matmul`, `linear`, `addmm` and `bmm` with the signatures and semantics of PyTorch.

They change shapes by PyTorch's own views, and then call an operator of `codegen.torch.ops`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from codegen.torch.ops import ADDMM, MATMUL
from coordgraph import LaunchError

__all__ = ["addmm", "bmm", "linear", "matmul"]


def matmul(input: Tensor, other: Tensor, *, invariant: bool = False) -> Tensor:
    """`torch.matmul`: the product of vectors, matrices, or batches of matrices.

    Args:
        input: (…, m, k), or a vector (k).
        other: (…, k, n), or a vector (k). Axes before the last two are broadcast. Matrices that are
            the transpose of a row-major matrix are read in place; other strides are copied.
        invariant: as for `codegen.matmul`; transposes in `input` are then copied.

    Returns:
        A tensor (…, m, n) of the type of `input`, without the axis of an argument that is a vector.

    Raises:
        LaunchError: shapes, types or devices of the tensors do not fit; nothing was launched.
        CodegenError: kernels of the device do not multiply this type.
    """
    if not input.dim() or not other.dim():
        raise LaunchError("matmul needs tensors with at least one axis; use * for scalars")
    a = input.unsqueeze(0) if input.dim() == 1 else input
    b = other.unsqueeze(1) if other.dim() == 1 else other
    d = _product(a, b, invariant)
    if other.dim() == 1:
        d = d.squeeze(-1)
    return d.squeeze(-1 if other.dim() == 1 else -2) if input.dim() == 1 else d


def _product(a: Tensor, b: Tensor, invariant: bool) -> Tensor:
    """The product of two tensors of two or more axes."""
    if b.dim() == 2:  # B is one matrix: flatten the batch axes of A, so that one product suffices
        if a.dim() == 2:
            return MATMUL(a, b, invariant)
        return MATMUL(a.flatten(0, -2), b, invariant).unflatten(0, a.shape[:-1])
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = a.expand(*batch, *a.shape[-2:]), b.expand(*batch, *b.shape[-2:])
    if len(batch) == 1:
        return MATMUL(a, b, invariant)
    return MATMUL(a.flatten(0, -3), b.flatten(0, -3), invariant).unflatten(0, batch)


def linear(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, *, invariant: bool = False
) -> Tensor:
    """`torch.nn.functional.linear`: `input·weightᵀ + bias`.

    Args:
        input: (…, k).
        weight: (n, k), or a vector (k).
        bias: (n), or None; the kernel adds it before the result is rounded.
        invariant: as for `codegen.matmul`.

    Returns:
        A tensor (…, n), or (…) if `weight` is a vector.

    Raises:
        LaunchError, CodegenError: as for `matmul`.
    """
    if weight.dim() == 1 or bias is None:
        d = matmul(input, weight if weight.dim() == 1 else weight.t(), invariant=invariant)
        return d if bias is None else d + bias
    rows = input.unsqueeze(0) if input.dim() == 1 else input.flatten(0, -2)
    d = ADDMM(bias, rows, weight.t(), 1.0, 1.0, invariant)
    return d if input.dim() == 2 else d.reshape(*input.shape[:-1], weight.shape[0])


def addmm(
    input: Tensor,
    mat1: Tensor,
    mat2: Tensor,
    *,
    beta: float = 1.0,
    alpha: float = 1.0,
    invariant: bool = False,
) -> Tensor:
    """`torch.addmm`: `beta·input + alpha·mat1·mat2`.

    Args:
        input: (m, n), or a tensor that can be broadcast to it. One row is read as it is; a column
            is copied to (m, n) first.
        mat1, mat2: (m, k) and (k, n).
        beta, alpha: the factors; if `beta` is 0, `input` is not read.
        invariant: as for `codegen.matmul`.

    Raises:
        LaunchError, CodegenError: as for `matmul`.
    """
    return ADDMM(input, mat1, mat2, float(beta), float(alpha), invariant)


def bmm(input: Tensor, mat2: Tensor, *, invariant: bool = False) -> Tensor:
    """`torch.bmm`: the products of two batches of equally many matrices, (l, m, k) and (l, k, n).

    Args:
        input, mat2: the batches.
        invariant: as for `codegen.matmul`.

    Raises:
        LaunchError, CodegenError: as for `matmul`.
    """
    if input.dim() != 3 or mat2.dim() != 3:
        raise LaunchError(
            f"input has {input.dim()} axes and mat2 {mat2.dim()}, but bmm needs three of each; use "
            "matmul for other shapes"
        )
    return MATMUL(input, mat2, invariant)
