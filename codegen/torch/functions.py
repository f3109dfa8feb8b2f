"""`matmul`, `linear`, `addmm`, `bmm` and `grouped_mm` with the signatures and semantics of PyTorch.

These functions change shapes by PyTorch's own views, and then call an operator of
`codegen.torch.ops`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from codegen.torch.activated import activated_product
from codegen.torch.activations import check_activation
from codegen.torch.arguments import check_broadcast, check_dense, check_k, number
from codegen.torch.direct import as_multiplied
from codegen.torch.grouped import grouped_product
from codegen.torch.linear_product import as_linear, linear_product, rows_of
from codegen.torch.ops import OF_ADDMM, OF_MATMUL, add_product, product
from codegen.torch.recording import recorder
from codegen.torch.repeats import repeating
from coordgraph import LaunchError

__all__ = ["addmm", "bmm", "grouped_mm", "linear", "matmul"]

NUMBERS = (bool, int, float)
_as_matmul = recorder("matmul", OF_MATMUL)
_as_addmm = recorder("addmm", OF_ADDMM)


def _written(
    out: Tensor, function: Callable[..., Tensor], *tensors: Tensor, **options: Any
) -> Tensor:
    """Copy a function's result to `out`, without a gradient and without autocast, as PyTorch does.

    Raises:
        LaunchError: `out` is no dense tensor, or does not have the shape, type and device of the
            result; or a tensor requires a gradient. Nothing was written.
    """
    if type(out) is not Tensor or out.layout is not torch.strided:
        check_dense("out", out)
    # `function` refuses arguments that are no tensors.
    given = [x for x in (out, *tensors) if isinstance(x, Tensor)]
    if torch.is_grad_enabled() and any(x.requires_grad for x in given):
        raise LaunchError(
            f"a tensor requires a gradient, but {function.__name__}(out=…) has none; call it under "
            "torch.no_grad(), or without out="
        )
    with torch.autocast(out.device.type, enabled=False):
        d = function(*tensors, **options)
    ours, theirs = ((tuple(x.shape), x.dtype, x.device) for x in (out, d))
    if ours != theirs:
        raise LaunchError(
            f"out is {ours[0]} of {ours[1]} on {ours[2]}, but the result is {theirs[0]} of "
            f"{theirs[1]} on {theirs[2]}; pass a tensor like the result, or call without out="
        )
    return out.copy_(d)


def _recorded_matmul(
    input: Tensor, other: Tensor, *, out: Tensor | None = None, invariant: bool = False
) -> Any:
    """How `repeating` records gradients of a `matmul` call; None if it would reshape tensors."""
    axes = input.dim()
    if axes != other.dim() or not (axes == 2 or (axes == 3 and input.shape[0] == other.shape[0])):
        return None
    return _as_matmul, (input, other, invariant, None)


@partial(repeating, recorded=_recorded_matmul)
def matmul(
    input: Tensor, other: Tensor, *, out: Tensor | None = None, invariant: bool = False
) -> Tensor:
    """`torch.matmul`: the product of vectors, matrices, or batches of matrices.

    Args:
        input: (…, m, k), or a vector (k).
        other: (…, k, n), or a vector (k). Axes before the last two are broadcast. Matrices that are
            row-major, or the transpose of a row-major matrix, are read in place; others are copied.
        out: a tensor of the result's shape and type, to which the result is copied; None makes a
            new tensor. `codegen.matmul(…, out=…)` writes the result in place.
        invariant: whether the bits of a row of the result must not depend on the other rows, as for
            `codegen.matmul`. If True, `input` is copied unless it is contiguous.

    Returns:
        `out`, or a tensor (…, m, n) of the type of `input`, without the axis of an argument that
        is a vector.

    Raises:
        LaunchError: shapes, types or devices of the tensors do not fit, so nothing was launched; or
            a tensor requires a gradient, and `out` is given.
        CodegenError: kernels of the device do not multiply this type.
    """
    if out is not None:
        return _written(out, matmul, input, other, invariant=invariant)
    check_dense("input other", input, other)
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
            return product(a, b, invariant)
        return product(a.flatten(0, -2), b, invariant).unflatten(0, a.shape[:-1])
    batch = a.shape[:-2]
    if batch != b.shape[:-2]:
        check_broadcast(a, b)
        batch = torch.broadcast_shapes(batch, b.shape[:-2])
        # Without this cast, the gradient of `expand` would sum float8, which PyTorch cannot.
        a, b = as_multiplied(a), as_multiplied(b)
        a, b = a.expand(*batch, *a.shape[-2:]), b.expand(*batch, *b.shape[-2:])
    if len(batch) == 1:
        return product(a, b, invariant)
    return product(a.flatten(0, -3), b.flatten(0, -3), invariant).unflatten(0, batch)


def _recorded_linear(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: str | None = None,
    invariant: bool = False,
) -> Any:
    """How `repeating` records gradients of a `linear` call.

    None if there is an activation, or if `weight` is a vector.
    """
    if activation is not None or weight.dim() != 2:
        return None
    return as_linear, (input, weight, bias, invariant)


@partial(repeating, recorded=_recorded_linear)
def linear(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: str | None = None,
    invariant: bool = False,
) -> Tensor:
    """`torch.nn.functional.linear`: `input·weightᵀ + bias`, with an activation if one is named.

    Args:
        input: (…, k).
        weight: (n, k), or a vector (k).
        bias: None, (n), or one element for all columns; without an activation also any shape that
            can be broadcast to the result's. The kernel adds it before the result is rounded. If
            `weight` is a vector, the bias is added to the rounded product.
        activation: `relu`, `silu`, `gelu` or `gelu_tanh`, which the kernel applies; then `weight`
            must be a matrix. The sums before it are stored, too, if a tensor requires a gradient,
            and one kernel of the backward pass computes their gradient and that of the bias. None
            applies no activation.
        invariant: whether the bits of a row of the result must not depend on the other rows, as for
            `codegen.matmul`.

    Returns:
        A tensor (…, n), or (…) if `weight` is a vector.

    Raises:
        LaunchError, CodegenError: the arguments do not fit, or kernels do not multiply the type of
            the tensors, as for `matmul`.
    """
    check_dense("input weight bias?", input, weight, bias)
    if weight.dim() > 2:
        raise LaunchError(
            f"weight is {tuple(weight.shape)}, but linear needs n x k; multiply batches by matmul"
        )
    if input.dim() and weight.dim():
        check_k(input, weight)
    if activation is not None:
        check_activation(activation)
        if weight.dim() != 2 or not input.dim():
            raise LaunchError(
                f"input has {input.dim()} axes and weight {weight.dim()}, but activation="
                f"{activation} needs a weight of n x k; apply the activation to the result"
            )
        if bias is not None and bias.shape in ((), (1,)):
            bias = bias.expand(weight.shape[0])
        d = activated_product(rows_of(input), weight.t(), bias, activation, invariant)
        return d if input.dim() == 2 else d.reshape(*input.shape[:-1], weight.shape[0])
    if weight.dim() == 1 or not input.dim():
        d = matmul(input, weight if weight.dim() == 1 else weight.t(), invariant=invariant)
        if bias is not None and bias.device != d.device:
            raise LaunchError(
                f"the tensors lie on {d.device} and {bias.device}; move them to one device"
            )
        if bias is None:
            return d
        _check_bias(bias, d.shape)
        return (d + as_multiplied(bias)).to(d.dtype)
    if bias is not None and bias.dim() > 1 and input.dim() > 2:
        shape = (*input.shape[:-1], weight.shape[0])
        _check_bias(bias, shape)
        # The rows of the bias, each of which is added to a row of the result.
        rows = bias.expand(shape).flatten(0, -2)
        return linear_product(input.flatten(0, -2), weight, rows, invariant).reshape(shape)
    return linear_product(input, weight, bias, invariant)


def _check_bias(bias: Tensor, shape: tuple[Any, ...]) -> None:
    """Raise LaunchError unless the bias can be broadcast to `shape`, the shape of the result."""
    fits = zip(reversed(bias.shape), reversed(shape), strict=False)
    if bias.dim() > len(shape) or any(x not in (1, y) for x, y in fits):
        raise LaunchError(
            f"bias is {tuple(bias.shape)}, which cannot be broadcast to the result's "
            f"{tuple(shape)}; pass an element for each column, or a tensor of this shape"
        )


def _recorded_addmm(
    input: Tensor,
    mat1: Tensor,
    mat2: Tensor,
    out_dtype: torch.dtype | None = None,
    *,
    beta: float = 1,
    alpha: float = 1,
    out: Tensor | None = None,
    invariant: bool = False,
) -> Any:
    """How `repeating` records gradients of an `addmm` call.

    None if alpha or beta is not a Python number.
    """
    if type(beta) not in NUMBERS or type(alpha) not in NUMBERS:
        return None
    return _as_addmm, (input, mat1, mat2, float(beta), float(alpha), invariant, out_dtype)


@partial(repeating, recorded=_recorded_addmm)
def addmm(
    input: Tensor,
    mat1: Tensor,
    mat2: Tensor,
    out_dtype: torch.dtype | None = None,
    *,
    beta: float = 1,
    alpha: float = 1,
    out: Tensor | None = None,
    invariant: bool = False,
) -> Tensor:
    """`torch.addmm`: `beta·input + alpha·mat1·mat2`.

    Args:
        input: (m, n), or a tensor that can be broadcast to (m, n), even if `beta` is 0. A single
            row is read in place; a single column is first copied to (m, n).
        mat1, mat2: (m, k) and (k, n).
        out_dtype: the type of the result: None or the type of the factors, or torch.float32 for
            factors of bf16 or f16, whose sums are then not rounded. `input` may hold `out_dtype`
            or the type of the factors. A gradient is converted to the type of the factors before
            it is multiplied.
        beta, alpha: the factors. If `beta` is 0, `input` is not read. If `alpha` is 0, `mat1` and
            `mat2` are not read.
        out: the tensor to which the result is copied, as for `matmul`; None makes a new tensor.
        invariant: whether the bits of a row of the result must not depend on the other rows, as for
            `codegen.matmul`.

    Raises:
        LaunchError, CodegenError: the arguments do not fit, or kernels do not multiply the type of
            the tensors, as for `matmul`.
    """
    if out is not None:
        options: Any = {"beta": beta, "alpha": alpha, "invariant": invariant}
        return _written(out, addmm, input, mat1, mat2, out_dtype=out_dtype, **options)
    check_dense("input mat1 mat2", input, mat1, mat2)
    factors = number("beta", beta), number("alpha", alpha)
    # The defaults of alpha and beta are the integer 1, not 1.0: `torch.compile(dynamic=True)` would
    # make a float default an input of its graph.
    return add_product(input, mat1, mat2, *factors, invariant, out_dtype)


def _recorded_bmm(
    input: Tensor,
    mat2: Tensor,
    out_dtype: torch.dtype | None = None,
    *,
    out: Tensor | None = None,
    invariant: bool = False,
) -> Any:
    """How `repeating` records gradients of a `bmm` call."""
    return _as_matmul, (input, mat2, invariant, out_dtype)


@partial(repeating, recorded=_recorded_bmm)
def bmm(
    input: Tensor,
    mat2: Tensor,
    out_dtype: torch.dtype | None = None,
    *,
    out: Tensor | None = None,
    invariant: bool = False,
) -> Tensor:
    """`torch.bmm`: the products of two batches of equally many matrices, (l, m, k) and (l, k, n).

    Args:
        input, mat2: the batches.
        out_dtype: the type of the result, as for `addmm`.
        out: the tensor to which the result is copied, as for `matmul`; None makes a new tensor.
        invariant: whether the bits of a row of the result must not depend on the other rows, as for
            `codegen.matmul`.

    Raises:
        LaunchError, CodegenError: the arguments do not fit, or kernels do not multiply the type of
            the tensors, as for `matmul`.
    """
    if out is not None:
        return _written(out, bmm, input, mat2, out_dtype=out_dtype, invariant=invariant)
    check_dense("input mat2", input, mat2)
    if input.dim() != 3 or mat2.dim() != 3:
        raise LaunchError(
            f"input has {input.dim()} axes and mat2 {mat2.dim()}, but bmm needs three of each; use "
            "matmul for other shapes"
        )
    return product(input, mat2, invariant, out_dtype)


def grouped_mm(
    mat_a: Tensor,
    mat_b: Tensor,
    *,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    invariant: bool = False,
) -> Tensor:
    """`torch.nn.functional.grouped_mm`: one product for each group, as for a mixture of experts.

    | `mat_a`        | `mat_b`        | `offs` divides              | result         |
    | :------------- | :------------- | :-------------------------- | :------------- |
    | (m, k)         | (groups, k, n) | rows of A                   | (m, n)         |
    | (groups, m, k) | (k, n)         | columns of B                | (m, n)         |
    | (m, k)         | (k, n)         | columns of A and rows of B  | (groups, m, n) |
    | (groups, m, k) | (groups, k, n) | nothing: leave out `offs`   | (groups, m, n) |

    Extents and strides are not restricted, while PyTorch's function needs rows of a multiple of 16
    bytes. The host never reads `offs`, so that a CUDA graph may be replayed with other values.
    Inside `torch.autocast` the factors are cast, as for `matmul`; PyTorch's function does not cast.

    Args:
        mat_a, mat_b: the factors A and B. Matrices that are row-major, or transposes of row-major
            matrices, are read in place, also with gaps between rows and between matrices; others
            are copied. If `offs` divides rows of A, A is copied unless it is row-major; if `offs`
            divides columns of B, B is copied unless it is the transpose of a row-major matrix.
        offs: i32 (groups), on the device of the factors: the end of each group. Entries must not
            decrease. The first group begins at 0; a group may be empty.
        bias: not supported yet, as in PyTorch.
        out_dtype: None, or the type of the factors, as in PyTorch.
        invariant: whether the bits of a row of the result must not depend on the other rows and
            groups, as for `codegen.grouped_matmul`. Two matrices are refused, because each group
            has its own k.

    Returns:
        A tensor of the type of the factors. Rows and columns that belong to no group are 0 in
        the tensor and in gradients; PyTorch leaves them uninitialized.

    Raises:
        LaunchError, CodegenError: the arguments do not fit, or kernels do not multiply the type of
            the tensors, as for `matmul`.
    """
    check_dense("mat_a mat_b offs?", mat_a, mat_b, offs)
    if bias is not None:
        raise LaunchError("grouped_mm takes no bias; leave it out and add it to the result")
    if out_dtype is not None and out_dtype != mat_a.dtype:
        raise LaunchError(
            f"out_dtype = {out_dtype}, but the factors hold {mat_a.dtype}; leave out_dtype out and "
            "convert the result with .to(…)"
        )
    if mat_a.dim() == mat_b.dim() == 3:
        if offs is not None:
            raise LaunchError(
                "mat_a and mat_b have three axes, a matrix for each group, so there are no rows or "
                "columns to divide into groups; leave out offs"
            )
        return product(mat_a, mat_b, invariant)
    if offs is None:
        raise LaunchError(
            f"mat_a has {mat_a.dim()} axes and mat_b {mat_b.dim()}; pass offs, an i32 tensor with "
            "the end of each group, or three axes each"
        )
    return grouped_product(mat_a, mat_b, offs, invariant)
