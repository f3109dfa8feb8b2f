"""The operators on tensors with data: each calls `codegen.matmul` or `codegen.grouped_matmul`."""

from __future__ import annotations

from typing import Any

import torch

from codegen.call.matmul import grouped_matmul, matmul
from codegen.torch.host import on_host
from coordgraph.epilogue import EpilogueFunction, epilogue

__all__ = ["multiply", "multiply_and_add", "multiply_groups"]


@epilogue(bias="n")
def add_bias(acc: Any, bias: Any) -> Any:
    """`acc + bias`, with one bias for each column."""
    return acc + bias


@epilogue(alpha="", beta="", bias="n")
def add_scaled_bias(acc: Any, alpha: Any, beta: Any, bias: Any) -> Any:
    """`alpha·acc + beta·bias`, with one bias for each column."""
    return acc * alpha + bias * beta


def multiply(a: torch.Tensor, b: torch.Tensor, alpha: float = 1.0) -> torch.Tensor:
    """`alpha·A·B` of matrices, or of batches of equally many matrices, as a new tensor."""
    return _launch(a, b, alpha=alpha)


def multiply_and_add(
    c: torch.Tensor, a: torch.Tensor, b: torch.Tensor, beta: float, alpha: float
) -> torch.Tensor:
    """`alpha·A·B + beta·C` of matrices, as a new tensor; C may need broadcasting to m x n.

    C with one row is an operand of the epilogue, and is not expanded in memory. If `beta` is 0, C
    is not read, so its NaNs are not in the result. If `alpha` is 0, A and B are not read, as in
    BLAS and PyTorch.
    """
    m, n = a.shape[0], b.shape[1]
    if alpha == 0:
        return a.new_zeros(m, n) if beta == 0 else (c * beta).expand(m, n).contiguous()
    if beta == 0:
        return multiply(a, b, alpha)
    if c.dim() < 2 or c.shape[0] == 1:
        bias = c.reshape(-1).expand(n).contiguous()
        if alpha == beta == 1:
            return _launch(a, b, epilogue=add_bias, bias=bias)
        return _launch(a, b, alpha=alpha, beta=beta, epilogue=add_scaled_bias, bias=bias)
    return _launch(a, b, c=c.expand(m, n).contiguous(), alpha=alpha, beta=beta)


def multiply_groups(
    a: torch.Tensor, b: torch.Tensor, starts: torch.Tensor, shape: tuple[int, ...]
) -> torch.Tensor:
    """The products of groups of rows of A, or of groups of columns of A and rows of B.

    Args:
        a: (m, k).
        b: (groups, k, n) for groups of rows, or (k, n).
        starts: i32 (groups + 1), as the offsets of `codegen.grouped_matmul`.
        shape: the shape of the result: (m, n), or (groups, m, n).

    Returns:
        A new tensor. Rows that belong to no group are 0: kernels do not write them, and a gradient
        must be 0 there.
    """
    axis, a, b = (
        ("m", a.contiguous(), _gapless(b)) if b.dim() == 3 else ("k", *map(_gapless, (a, b)))
    )
    if 0 in shape or starts.shape[0] == 1 or a.shape[1] == 0:
        return a.new_zeros(shape)
    out = a.new_zeros(shape) if axis == "m" else a.new_empty(shape)
    arrays = (a, b, starts) if a.is_cuda else map(on_host, (a, b, starts))
    grouped_matmul(*arrays, group_axis=axis, out=out if a.is_cuda else on_host(out))
    return out


def _launch(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    epilogue: EpilogueFunction | None = None,
    **operands: Any,
) -> torch.Tensor:
    """Call `codegen.matmul`: with the tensors on a GPU, with their numpy views on the CPU.

    Args:
        a, b, alpha, beta, epilogue: as for `codegen.matmul`.
        operands: C, or operands of the epilogue, by name: contiguous tensors.
    """
    a, b = _readable(a), _readable(b)
    if a.is_cuda:
        return matmul(a, b, alpha=alpha, beta=beta, epilogue=epilogue, **operands)
    out = a.new_empty((*a.shape[:-1], b.shape[-1]))
    views: dict[str, Any] = {name: on_host(tensor) for name, tensor in operands.items()}
    arrays = on_host(a), on_host(b)
    matmul(*arrays, out=on_host(out), alpha=alpha, beta=beta, epilogue=epilogue, **views)
    return out


def _readable(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a contiguous copy if kernels cannot read its strides.

    Kernels read matrices that are row-major without gaps, or whose transposes are. The matrices of
    a batch may have any distance, also 0.
    """
    if tensor.is_contiguous() or tensor.mT.is_contiguous():
        return tensor
    if tensor.dim() > 2 and tensor.shape[0] > 0:
        first = tensor[0]
        if first.is_contiguous() or first.mT.is_contiguous():
            return tensor
    return tensor.contiguous()


def _gapless(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a contiguous copy unless it, or the transpose of each matrix, has no gaps."""
    return tensor if tensor.is_contiguous() or tensor.mT.is_contiguous() else tensor.contiguous()
