"""The operators on tensors with data: each calls `codegen.matmul` or `codegen.grouped_matmul`."""

from __future__ import annotations

from typing import Any

import torch

from codegen.call.matmul import grouped_matmul, matmul
from codegen.torch.host import on_host
from coordgraph.epilogue import EpilogueFunction, epilogue, silu
from passes.lowering.architectures import ALIGNED_BYTES

__all__ = ["multiply", "multiply_and_add", "multiply_and_gate", "multiply_groups"]


@epilogue(bias="n")
def add_bias(acc: Any, bias: Any) -> Any:
    """Epilogue function: `acc + bias`, with one bias for each column."""
    return acc + bias


@epilogue(alpha="", beta="", bias="n")
def add_scaled_bias(acc: Any, alpha: Any, beta: Any, bias: Any) -> Any:
    """Epilogue function: `alpha·acc + beta·bias`, with one bias for each column."""
    return acc * alpha + bias * beta


@epilogue()
def swiglu(gate: Any, up: Any) -> Any:
    """Epilogue function: `silu(gate)·up`, where gate and up are two sums of products."""
    return silu(gate) * up


@epilogue(gate_bias="n", up_bias="n")
def swiglu_of_biased(gate: Any, up: Any, gate_bias: Any, up_bias: Any) -> Any:
    """Epilogue function: `silu(gate + gate_bias)·(up + up_bias)`, where gate and up are sums."""
    return silu(gate + gate_bias) * (up + up_bias)


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
    is not read, so its NaNs are not in the result. If `alpha` is 0, A and B are not read, as in
    BLAS and PyTorch.
    """
    m, n = a.shape[0], b.shape[1]
    if alpha == 0:
        return a.new_zeros(m, n) if beta == 0 else (c * beta).expand(m, n).contiguous()
    if beta == 0:
        return multiply(a, b, alpha, invariant=invariant)
    if c.dim() < 2 or c.shape[0] == 1:
        bias = c.reshape(-1).expand(n).contiguous()
        if alpha == beta == 1:
            return _launch(a, b, epilogue=add_bias, bias=bias, invariant=invariant)
        factors: Any = {"alpha": alpha, "beta": beta, "invariant": invariant}
        return _launch(a, b, epilogue=add_scaled_bias, bias=bias, **factors)
    c = c.expand(m, n)
    c = c if _has_rows(c) else c.contiguous()
    return _launch(a, b, c=c, alpha=alpha, beta=beta, invariant=invariant)


def multiply_and_gate(
    a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, *, invariant: bool = False
) -> torch.Tensor:
    """`silu(gate)·up` as a new tensor; gate and up are the left and right half of `A·B + bias`."""
    if bias is None:
        return _launch(a, b, epilogue=swiglu, invariant=invariant)
    gate, up = (part.contiguous() for part in bias.chunk(2))
    biases: Any = {"gate_bias": gate, "up_bias": up}
    return _launch(a, b, epilogue=swiglu_of_biased, invariant=invariant, **biases)


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
    sums = 1 if epilogue is None else len(epilogue.sums)
    out = a.new_empty((*a.shape[:-1], b.shape[-1] // sums))
    views: dict[str, Any] = {name: on_host(tensor) for name, tensor in operands.items()}
    arrays = on_host(a), on_host(b)
    matmul(*arrays, out=on_host(out), **options, **views)
    return out


def _readable(tensor: torch.Tensor, *, by_rows: bool = False) -> torch.Tensor:
    """The tensor, or a contiguous copy if kernels cannot read its strides.

    Kernels read row-major matrices and transposes of row-major matrices. Rows may have gaps between
    them. The distance between the matrices of a batch may be any number, even 0.

    Args:
        tensor: a matrix or a batch.
        by_rows: True to copy unless the tensor is contiguous and its address is a multiple of 16
            bytes. Batch-invariant products need this, so that the same instructions multiply
            whatever the number of rows of A is.
    """
    if by_rows:
        aligned = tensor.is_contiguous() and tensor.data_ptr() % ALIGNED_BYTES == 0
        return tensor if aligned else tensor.clone(memory_format=torch.contiguous_format)
    if tensor.is_contiguous() or _has_rows(tensor) or _has_rows(tensor.mT):
        return tensor
    return tensor.contiguous()


def _has_rows(tensor: torch.Tensor) -> bool:
    """Whether each matrix has rows of adjacent elements, and rows that do not overlap."""
    (rows, columns), (step, element) = tensor.shape[-2:], tensor.stride()[-2:]
    return (columns == 1 or element == 1) and (rows == 1 or step >= columns)


def _gapless(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor if it is contiguous, or contiguous after transposing each matrix; else a copy."""
    return tensor if tensor.is_contiguous() or tensor.mT.is_contiguous() else tensor.contiguous()
