"""The custom operators `coordgraph::matmul` and `coordgraph::addmm`.

Each operator has a kernel for CUDA and CPU tensors, a fake kernel (shapes, for `torch.compile` and
meta tensors), gradients, and rules for autocast and vmap. The products of a gradient are calls of
the same operators, so gradients can be differentiated too. `product` and `add_product` call the
operators, or their kernels where nothing needs PyTorch's dispatcher.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from codegen.torch.derivatives import Derivatives, differentiable, total
from codegen.torch.direct import as_multiplied, cast, direct, operator
from codegen.torch.launching import multiply, multiply_and_add
from codegen.torch.mapping import in_front, without_axis
from codegen.torch.plain import DEVICES
from coordgraph import LaunchError

__all__ = ["add_product", "cast_inputs", "check_types", "product"]

TYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
"""The element types that the operators accept. Kernels on GPUs refuse float32 and float64."""


def _matmul(
    a: Tensor, b: Tensor, invariant: bool = False, out_dtype: torch.dtype | None = None
) -> Tensor:
    """`A·B` of matrices (m x k, k x n), or of batches (l x m x k, l x k x n).

    Args:
        a, b: A and B.
        invariant: whether the bits of a row of the result must not depend on the other rows, as for
            `codegen.matmul`; the same holds for the gradient of A. The gradient of B is a sum over
            the rows of A, so it depends on all rows.
        out_dtype: the type of the result: that of the factors or float32; None is the former.

    Raises:
        LaunchError: shapes, types or devices of the tensors do not fit; nothing was launched.
        CodegenError: kernels of the device do not multiply this type.
    """
    _shape(a, b)
    check_result(a, out_dtype)
    return multiply(a, b, invariant=invariant, dtype=out_dtype)


def _addmm(
    c: Tensor,
    a: Tensor,
    b: Tensor,
    beta: float,
    alpha: float,
    invariant: bool = False,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """`alpha·A·B + beta·C` of matrices; C is m x n, or broadcast to it.

    Args:
        c, a, b: C, A and B.
        beta, alpha: the factors.
        invariant: whether the bits of a row of the result must not depend on the other rows of A.
        out_dtype: the type of the result, as for `_matmul`. C may hold it, or the factors' type.

    Raises:
        LaunchError: shapes, types or devices of the tensors do not fit; nothing was launched.
        CodegenError: kernels of the device do not multiply this type.
    """
    _shape_of_sum(c, a, b, out_dtype)
    return multiply_and_add(c, a, b, beta, alpha, invariant=invariant, dtype=out_dtype)


matmul = operator(
    "matmul",
    _matmul,
    "(Tensor a, Tensor b, bool invariant=False, ScalarType? out_dtype=None) -> Tensor",
)
addmm = operator(
    "addmm",
    _addmm,
    "(Tensor c, Tensor a, Tensor b, float beta, float alpha, "
    "bool invariant=False, ScalarType? out_dtype=None) -> Tensor",
)
MATMUL = torch.ops.coordgraph.matmul.default
ADDMM = torch.ops.coordgraph.addmm.default


def _shape(a: Tensor, b: Tensor) -> tuple[Any, ...]:
    """The shape of A·B.

    Raises:
        LaunchError: shapes, element types or devices do not fit.
    """
    left, right = a.shape, b.shape
    axes = len(left)
    if axes != len(right) or axes not in (2, 3):
        fault = "; pass two matrices, or two batches of three axes"
    elif left[-1] != right[-2]:
        fault = f": k would be {left[-1]} and {right[-2]}; pass tensors with the same k"
    elif axes == 3 and left[0] != right[0]:
        fault = "; pass batches with the same number of matrices"
    else:
        check_types(a, b)
        return (*left[:-1], right[-1])
    raise LaunchError(f"a is {tuple(left)} and b is {tuple(right)}{fault}")


def _shape_of_sum(
    c: Tensor, a: Tensor, b: Tensor, out_dtype: torch.dtype | None
) -> tuple[Any, ...]:
    """The shape of A·B + C.

    Raises:
        LaunchError: A or B is no matrix, C cannot be broadcast to the shape of A·B, or shapes,
            element types or devices do not fit.
    """
    if a.dim() != 2:
        raise LaunchError(f"a is {tuple(a.shape)}, but a matrix is needed; use bmm for a batch")
    shape = _shape(a, b)
    check_result(a, out_dtype)
    if c.dtype is not out_dtype:
        check_types(a, c)
    elif c.device != a.device:
        raise LaunchError(f"the tensors lie on {a.device} and {c.device}; move them to one device")
    if c.shape == shape[1:]:  # a bias: one element for each column
        return shape
    fits = zip(reversed(c.shape), reversed(shape), strict=False)
    if c.dim() > 2 or any(x not in (1, y) for x, y in fits):
        raise LaunchError(
            f"what is added (input of addmm, or bias of linear) is {tuple(c.shape)}, which cannot "
            f"be broadcast to the result's {shape}; pass a tensor of this shape or one with "
            "extents of 1"
        )
    return shape


def check_result(a: Tensor, out_dtype: torch.dtype | None) -> None:
    """Raise LaunchError unless products of `a` can have results of the type `out_dtype`."""
    wide = out_dtype is torch.float32 and a.dtype in (torch.bfloat16, torch.float16)
    if not (wide or out_dtype in (None, a.dtype)):
        raise LaunchError(
            f"out_dtype = {out_dtype}, but the factors hold {a.dtype}; leave out out_dtype, or "
            "pass torch.float32 for factors of bf16 or f16"
        )


def check_types(a: Tensor, other: Tensor) -> None:
    """Raise LaunchError unless the tensors share one device and one element type of `TYPES`."""
    if a.dtype != other.dtype:
        raise LaunchError(
            f"the tensors hold {a.dtype} and {other.dtype}; convert them to one type with .to(…)"
        )
    if a.dtype not in TYPES:
        raise LaunchError(
            f"the tensors hold {a.dtype}, which this function does not multiply; "
            f"{_instead_of(a.dtype)}"
        )
    if a.device != other.device:
        raise LaunchError(
            f"the tensors lie on {a.device} and {other.device}; move them to one device"
        )


def _instead_of(kind: torch.dtype) -> str:
    """Advice for errors: what to do with tensors of a type that these operators refuse."""
    if kind.is_complex:
        return "multiply the real and the imaginary parts separately, or use PyTorch's function"
    others = "PyTorch's function" + ", or codegen.matmul" * (kind in (torch.int8, torch.uint8))
    if kind in (torch.float8_e4m3fn, torch.float8_e5m2):
        others = "scaled_mm"
    return f"convert them to bf16 or f16 with .to(…), or use {others}"


@matmul.register_fake
def _(
    a: Tensor, b: Tensor, invariant: bool = False, out_dtype: torch.dtype | None = None
) -> Tensor:
    shape = _shape(a, b)
    check_result(a, out_dtype)
    return a.new_empty(shape, dtype=out_dtype)


@addmm.register_fake
def _(
    c: Tensor,
    a: Tensor,
    b: Tensor,
    beta: float,
    alpha: float,
    invariant: bool = False,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    return a.new_empty(_shape_of_sum(c, a, b, out_dtype), dtype=out_dtype)


def _save(ctx: Any, a: Tensor, b: Tensor, needs: tuple[bool, bool]) -> None:
    """Keep B if the gradient of A is needed, and A if the gradient of B is needed.

    Also record in `ctx.columns` whether B is column-major.
    """
    needs_a, needs_b = needs
    ctx.columns = b.stride(-1) != 1 and b.stride(-2) == 1
    ctx.save_for_backward(a if needs_b else None, b if needs_a else None)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients of A·B: `grad·Bᵀ` and `Aᵀ·grad`; None for a factor that needs none.

    `grad` is converted to the type of the factors. The gradient of B has the layout of B, so that
    PyTorch need not transpose the gradient of a linear layer's weight, whose transpose is B.
    """
    a, b = ctx.saved_tensors
    of_b = None
    for factor in (a, b):
        if factor is not None and factor.dtype is not grad.dtype:
            grad = grad.to(factor.dtype)
    if a is not None:
        of_b = product(grad.mT, a, False).mT if ctx.columns else product(a.mT, grad, False)
    return None if b is None else product(grad, b.mT, ctx.invariant), of_b


def _setup_matmul(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    a, b, ctx.invariant, *_ = inputs
    _save(ctx, a, b, ctx.needs_input_grad[:2])


def _gradients_of_matmul(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return (*_gradients(ctx, grad), None, None)


def _tangents_of_matmul(arguments: tuple[Any, ...], tangents: tuple[Any, ...]) -> Tensor | None:
    """The tangent of A·B: the sum of the products of each factor's tangent and the other factor."""
    a, b, *options = arguments
    of_a, of_b, *_ = tangents
    return total(
        (
            None if of_a is None else product(of_a, b, *options),
            None if of_b is None else product(a, of_b, *options),
        )
    )


OF_MATMUL = Derivatives(_setup_matmul, _gradients_of_matmul, _tangents_of_matmul)
differentiable(MATMUL, OF_MATMUL)
product = direct(MATMUL, 2, _matmul, OF_MATMUL)
"""`torch.ops.coordgraph.matmul(a, b, invariant)`, without PyTorch's dispatcher if all tensors are
plain: neither of a subclass nor sparse, traced or transformed."""


def _setup_addmm(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    c, a, b, ctx.beta, ctx.alpha, ctx.invariant, *_ = inputs
    ctx.shape, ctx.dtype = c.shape, c.dtype
    _save(ctx, a, b, ctx.needs_input_grad[1:3])


def _gradients_of_addmm(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    of_c = None
    if ctx.needs_input_grad[0]:
        of_c = grad.sum_to_size(ctx.shape)
        of_c = (of_c if ctx.beta == 1 else of_c * ctx.beta).to(ctx.dtype)
    factors = _gradients(ctx, grad if ctx.alpha == 1 else grad * ctx.alpha)
    return (of_c, *factors, None, None, None, None)


def _tangents_of_addmm(arguments: tuple[Any, ...], tangents: tuple[Any, ...]) -> Tensor | None:
    """The tangent of `alpha·A·B + beta·C`."""
    _, a, b, beta, alpha, *options = arguments
    of_c, *of_factors = tangents[:3]
    of_c = None if of_c is None else of_c.to((*options, None)[1] or a.dtype)
    found = _tangents_of_matmul((a, b, *options), tuple(of_factors)) if alpha else None
    if of_c is None or beta == 0:
        return found if found is None or alpha == 1 else found * alpha
    of_c = (of_c * beta).expand(a.shape[0], b.shape[1])
    return of_c.contiguous() if found is None else torch.add(of_c, found, alpha=alpha)


OF_ADDMM = Derivatives(_setup_addmm, _gradients_of_addmm, _tangents_of_addmm)
differentiable(ADDMM, OF_ADDMM)
add_product = direct(ADDMM, 3, _addmm, OF_ADDMM)
"""`torch.ops.coordgraph.addmm(c, a, b, beta, alpha, invariant)`, without PyTorch's dispatcher if
all tensors are plain: neither of a subclass nor sparse, traced or transformed."""


def cast_inputs(op: Any, device: str) -> Callable[..., Tensor]:
    """A function that calls the operator `op` on arguments cast as under `torch.autocast`.

    Floating-point tensors, except float64, are cast to autocast's type for the device.

    `torch.library.register_autocast` casts to a type that is fixed when it is called, but each
    `torch.autocast` region may have another type.
    """

    def cast_inputs(*arguments: Any) -> Tensor:
        to = torch.get_autocast_dtype(device)

        with torch.autocast(device, enabled=False):
            return op(*(cast(x, to, device) for x in arguments))

    return cast_inputs


for _device in DEVICES:
    _key = f"Autocast{_device.upper()}"
    torch.library.impl("coordgraph::matmul", _key)(cast_inputs(MATMUL, _device))
    torch.library.impl("coordgraph::addmm", _key)(cast_inputs(ADDMM, _device))


@matmul.register_vmap
def _(
    info: Any,
    in_dims: tuple[Any, ...],
    a: Tensor,
    b: Tensor,
    invariant: bool = False,
    out_dtype: torch.dtype | None = None,
) -> tuple[Tensor, int]:
    of_a, of_b, *_ = in_dims
    if of_b is None and b.dim() == 2:  # all products share B: stack the rows of A in one product
        rows = a.movedim(of_a, 0)
        return MATMUL(rows.flatten(0, 1), b, invariant, out_dtype).unflatten(0, rows.shape[:2]), 0
    a, b = in_front(a, of_a, info.batch_size), in_front(b, of_b, info.batch_size)
    if a.dim() == 3:
        return MATMUL(a, b, invariant, out_dtype), 0
    flat = MATMUL(a.flatten(0, 1), b.flatten(0, 1), invariant, out_dtype)
    return flat.unflatten(0, a.shape[:2]), 0


@addmm.register_vmap
def _(
    info: Any,
    in_dims: tuple[Any, ...],
    c: Tensor,
    a: Tensor,
    b: Tensor,
    beta: float,
    alpha: float,
    invariant: bool = False,
    out_dtype: torch.dtype | None = None,
) -> tuple[Tensor, int]:
    of_c, of_a, of_b, *_ = in_dims
    # vmap calls this rule before autocast casts the arguments of an operator.
    c, a, b = as_multiplied(c), as_multiplied(a), as_multiplied(b)
    first = without_axis(c, of_c), without_axis(a, of_a), without_axis(b, of_b)
    _shape_of_sum(*first, out_dtype)
    a, b = in_front(a, of_a, info.batch_size), in_front(b, of_b, info.batch_size)
    if alpha:
        product = MATMUL(a, b, invariant, out_dtype) * alpha
    else:
        product = a.new_zeros(*a.shape[:2], b.shape[2], dtype=out_dtype)
    if beta == 0:
        return product, 0
    c = in_front(c, of_c, info.batch_size)
    while c.dim() < 3:
        c = c.unsqueeze(1)
    return product + c.to(product.dtype) * beta, 0
