"""The operators on tensors with data (not fake ones): each calls `codegen.matmul` once."""

from __future__ import annotations

from typing import Any

import torch

from codegen.call.matmul import matmul
from codegen.torch.host import on_host
from coordgraph.epilogue import EpilogueFunction, epilogue
from passes.lowering.architectures import ALIGNED_BYTES

__all__ = ["multiply", "multiply_and_add"]


@epilogue(bias="n")
def add_bias(acc: Any, bias: Any) -> Any:
    """`acc + bias`, with one bias for each column."""
    return acc + bias


@epilogue(alpha="", beta="", bias="n")
def add_scaled_bias(acc: Any, alpha: Any, beta: Any, bias: Any) -> Any:
    """`alpha·acc + beta·bias`, with one bias for each column."""
    return acc * alpha + bias * beta


def multiply(
    a: torch.Tensor, b: torch.Tensor, alpha: float = 1.0, *, invariant: bool = False
) -> torch.Tensor:
    """`alpha·A·B` of matrices, or of batches of equally many matrices, as a new tensor."""
    return _launch(a, b, alpha=alpha, invariant=invariant)


def multiply_and_add(
    c: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    beta: float,
    alpha: float,
    *,
    invariant: bool = False,
) -> torch.Tensor:
    """`alpha·A·B + beta·C` of matrices, as a new tensor; C may need broadcasting to m x n.

    C with one row is an operand of the epilogue, and is not expanded in memory. If `beta` is 0, C
    is not read, so its NaNs are not in the result.
    """
    if beta == 0:
        return multiply(a, b, alpha, invariant=invariant)
    m, n = a.shape[0], b.shape[1]
    if c.dim() < 2 or c.shape[0] == 1:
        bias = c.reshape(-1).expand(n).contiguous()
        if alpha == beta == 1:
            return _launch(a, b, epilogue=add_bias, bias=bias, invariant=invariant)
        factors: Any = {"alpha": alpha, "beta": beta, "invariant": invariant}
        return _launch(a, b, epilogue=add_scaled_bias, bias=bias, **factors)
    c = c.expand(m, n).contiguous()
    return _launch(a, b, c=c, alpha=alpha, beta=beta, invariant=invariant)


def _launch(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    invariant: bool = False,
    epilogue: EpilogueFunction | None = None,
    **operands: Any,
) -> torch.Tensor:
    """Call `codegen.matmul`: with the tensors on a GPU, with their numpy views on the CPU.

    Args:
        a, b, alpha, beta, invariant, epilogue: as for `codegen.matmul`.
        operands: C, or operands of the epilogue, by name: contiguous tensors.
    """
    a, b = _readable(a, by_rows=invariant), _readable(b)
    options: Any = {"alpha": alpha, "beta": beta, "invariant": invariant, "epilogue": epilogue}
    if a.is_cuda:
        return matmul(a, b, **options, **operands)
    out = a.new_empty((*a.shape[:-1], b.shape[-1]))
    views: dict[str, Any] = {name: on_host(tensor) for name, tensor in operands.items()}
    arrays = on_host(a), on_host(b)
    matmul(*arrays, out=on_host(out), **options, **views)
    return out


def _readable(tensor: torch.Tensor, *, by_rows: bool = False) -> torch.Tensor:
    """The tensor, or a contiguous copy if kernels cannot read its strides.

    Kernels read matrices that are row-major without gaps, or whose transposes are. The matrices of
    a batch may have any distance, also 0.

    Args:
        tensor: a matrix or a batch.
        by_rows: whether the matrices must be row-major and the batch without gaps, at an address
            that TMA can read: in a batch-invariant product, the number of rows of A must not decide
            which instructions multiply.
    """
    if by_rows:
        aligned = tensor.is_contiguous() and tensor.data_ptr() % ALIGNED_BYTES == 0
        return tensor if aligned else tensor.clone(memory_format=torch.contiguous_format)
    if tensor.is_contiguous() or tensor.mT.is_contiguous():
        return tensor
    if tensor.dim() > 2 and tensor.shape[0] > 0:
        first = tensor[0]
        if first.is_contiguous() or first.mT.is_contiguous():
            return tensor
    return tensor.contiguous()
