"""PyTorch operators on real (not fake) tensors, which call `matmul` or `grouped_matmul`."""

from __future__ import annotations

from typing import Any

import torch

from codegen.call.matmul import grouped_matmul, matmul
from codegen.torch.host import on_host
from codegen.torch.repeats import uninitialized
from coordgraph import LaunchError
from coordgraph.epilogue import EpilogueFunction, epilogue
from passes.lowering.architectures import ALIGNED_BYTES

__all__ = [
    "has_rows",
    "launch",
    "launch_groups",
    "multiply",
    "multiply_and_add",
    "multiply_groups",
    "readable",
]


@epilogue(bias="n")
def add_bias(acc: Any, bias: Any) -> Any:
    """Epilogue function: `acc + bias`, with one bias for each column."""
    return acc + bias


@epilogue(alpha="", beta="", bias="n")
def add_scaled_bias(acc: Any, alpha: Any, beta: Any, bias: Any) -> Any:
    """Epilogue function: `alpha·acc + beta·bias`, with one bias for each column."""
    return acc * alpha + bias * beta


def multiply(
    a: torch.Tensor,
    b: torch.Tensor,
    alpha: float = 1.0,
    *,
    invariant: bool = False,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """`alpha·A·B` of matrices, or of batches of equally many matrices, as a new tensor.

    The result holds `dtype`, or the type of the factors if `dtype` is None.
    """
    if dtype not in (None, a.dtype):
        out = uninitialized(a, (*a.shape[:-1], b.shape[-1]), dtype)
        return launch(a, b, alpha=alpha, invariant=invariant, out=out)
    if not a.is_cuda:
        return launch(a, b, alpha=alpha, invariant=invariant)
    a, b = readable(a, by_rows=invariant), readable(b)
    return matmul(a, b, alpha=alpha, invariant=invariant)


def multiply_and_add(
    c: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    beta: float,
    alpha: float,
    *,
    invariant: bool = False,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """`alpha·A·B + beta·C` of matrices, as a new tensor; C may need broadcasting to m x n.

    The element type of the result is `dtype`, or that of the factors if `dtype` is None. C has one
    of these two types.

    C with one row is an operand of the epilogue, and is not expanded in memory. If `beta` is 0, C
    is not read, so its NaNs are not in the result. If `alpha` is 0, A and B are not read, as in
    BLAS and PyTorch.
    """
    m, n = a.shape[0], b.shape[1]
    dtype = dtype or a.dtype
    if alpha == 0 and beta == 0:
        return a.new_zeros(m, n, dtype=dtype)
    if beta == 0:
        return multiply(a, b, alpha, invariant=invariant, dtype=dtype)
    c = c if c.dtype is dtype else c.to(dtype)
    if alpha == 0:
        return (c * beta).expand(m, n).contiguous()
    out = None if dtype is a.dtype else uninitialized(a, (m, n), dtype)
    if c.dim() < 2 or c.shape[0] == 1:
        whole = c.dim() == 1 and c.shape[0] == n
        bias = (c if whole else c.reshape(-1).expand(n)).contiguous()
        if alpha == beta == 1:
            if out is not None or not a.is_cuda:
                return launch(a, b, epilogue=add_bias, bias=bias, invariant=invariant, out=out)
            a, b = readable(a, by_rows=invariant), readable(b)
            return matmul(a, b, epilogue=add_bias, bias=bias, invariant=invariant)
        factors: Any = {"alpha": alpha, "beta": beta, "invariant": invariant}
        return launch(a, b, epilogue=add_scaled_bias, bias=bias, out=out, **factors)
    c = c.expand(m, n)
    c = c if has_rows(c) else c.contiguous()
    return launch(a, b, c=c, alpha=alpha, beta=beta, invariant=invariant, out=out)


def multiply_groups(
    a: torch.Tensor,
    b: torch.Tensor,
    starts: torch.Tensor,
    shape: tuple[int, ...],
    *,
    invariant: bool = False,
) -> torch.Tensor:
    """The products of groups of rows of A, or of groups of columns of A and rows of B.

    Args:
        a: (m, k).
        b: (groups, k, n) for groups of rows, or (k, n).
        starts: i32 (groups + 1), as the offsets of `codegen.grouped_matmul`.
        shape: the shape of the result: (m, n), or (groups, m, n).
        invariant: whether the bits of a row of the result must not depend on the other rows; only
            for groups of rows.

    Returns:
        A new tensor. Rows that belong to no group are 0: kernels do not write them, and a gradient
        must be 0 there.

    Raises:
        LaunchError: `invariant` is True, but groups divide k.
    """
    if invariant and b.dim() == 2:
        raise LaunchError(
            "invariant=True needs one order of additions for all rows, but the groups divide k, so "
            "every group has its own k; leave out invariant, or multiply each group by matmul"
        )
    if 0 in shape or starts.shape[0] == 1 or a.shape[1] == 0:
        return a.new_zeros(shape)
    out = a.new_zeros(shape) if b.dim() == 3 else a.new_empty(shape)
    launch_groups(a, b, starts, out, invariant=invariant)
    return out


def launch_groups(
    a: torch.Tensor,
    b: torch.Tensor,
    starts: torch.Tensor,
    out: torch.Tensor,
    *,
    invariant: bool = False,
    epilogue: EpilogueFunction | None = None,
    **operands: Any,
) -> None:
    """Call `codegen.grouped_matmul`: with tensors on a GPU, with their numpy views on the CPU.

    Rows that belong to no group are not written.

    Args:
        a, b, starts: the factors and the starts of groups, as for `multiply_groups`.
        out: the tensor that receives D, of strides that kernels write.
        invariant: whether the bits of a row of D must not depend on the other rows.
        epilogue: the epilogue function; None stores A·B.
        operands: operands and outputs of the epilogue besides D, by name: tensors of strides that
            kernels read and write.
    """
    axis = "m" if b.dim() == 3 else "k"
    if axis == "k" or invariant:
        a = readable(a, by_rows=invariant)
    elif not has_rows(a):  # kernels cannot divide rows of the transpose of a row-major matrix
        a = a.contiguous()
    arrays = {"a": a, "b": readable(b), "offsets": starts, "out": out, **operands}
    if not a.is_cuda:
        arrays = {name: on_host(x) for name, x in arrays.items()}
    given = [arrays.pop(name) for name in ("a", "b", "offsets")]
    grouped_matmul(*given, group_axis=axis, invariant=invariant, epilogue=epilogue, **arrays)


def launch(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    invariant: bool = False,
    epilogue: EpilogueFunction | None = None,
    out: torch.Tensor | None = None,
    **operands: Any,
) -> torch.Tensor:
    """Call `codegen.matmul`: with the tensors on a GPU, with their numpy views on the CPU.

    Args:
        a, b, alpha, beta, invariant, epilogue: the factors A and B, the scales of A·B and of C,
            whether to be batch invariant, and the epilogue function, as for `codegen.matmul`.
        out: the tensor that receives D, of strides that kernels write; None makes a new tensor.
        operands: C, and operands and all outputs of the epilogue besides D, by name: tensors of
            strides that kernels read and write.

    Returns:
        D.
    """
    a, b = readable(a, by_rows=invariant), readable(b)
    options: Any = {"alpha": alpha, "beta": beta, "invariant": invariant, "epilogue": epilogue}
    if a.is_cuda:
        found = matmul(a, b, out=out, **options, **operands)
        return found[0] if isinstance(found, tuple) else found
    sums = 1 if epilogue is None else len(epilogue.sums)
    d = a.new_empty((*a.shape[:-1], b.shape[-1] // sums)) if out is None else out
    views: dict[str, Any] = {name: on_host(tensor) for name, tensor in operands.items()}
    arrays = on_host(a), on_host(b)
    matmul(*arrays, out=on_host(d), **options, **views)
    return d


def readable(tensor: torch.Tensor, *, by_rows: bool = False) -> torch.Tensor:
    """The tensor, or a contiguous copy if kernels cannot read its strides.

    Kernels read row-major matrices and transposes of row-major matrices. Rows may have gaps between
    them. The distance between the matrices of a batch may be any number, even 0.

    Args:
        tensor: a matrix or a batch.
        by_rows: True to copy unless the tensor is contiguous and its address is a multiple of 16
            bytes. Batch-invariant products need such tensors, so that the same instructions
            multiply whatever the number of rows of A is.
    """
    if by_rows:
        aligned = tensor.is_contiguous() and tensor.data_ptr() % ALIGNED_BYTES == 0
        return tensor if aligned else tensor.clone(memory_format=torch.contiguous_format)
    if tensor.is_contiguous():
        return tensor
    rows, columns, step, element = _layout(tensor)
    if _have_rows(rows, columns, step, element) or _have_rows(columns, rows, element, step):
        return tensor
    return tensor.contiguous()


def has_rows(tensor: torch.Tensor) -> bool:
    """Whether each matrix has rows of adjacent elements, and rows that do not overlap."""
    return _have_rows(*_layout(tensor))


def _layout(tensor: torch.Tensor) -> tuple[int, int, int, int]:
    """Numbers of rows and columns of a tensor's matrices, strides between rows and columns."""
    shape, strides = tensor.shape, tensor.stride()
    return shape[-2], shape[-1], strides[-2], strides[-1]


def _have_rows(rows: int, columns: int, step: int, element: int) -> bool:
    """Whether rows (stride `step`) are disjoint, and their elements (stride `element`) adjacent."""
    return (columns == 1 or element == 1) and (rows == 1 or step >= columns)
