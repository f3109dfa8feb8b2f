"""The custom operator `coordgraph::grouped_mm`: products whose m, n or k is divided into groups.

A matrix argument is divided into groups; an argument with three axes has one matrix for each group.
At least one argument is a matrix: if both have three axes, the product is a batch, which
`coordgraph::matmul` computes. The products of a gradient are calls of this operator, so gradients
can be differentiated too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from codegen.torch.derivatives import Derivatives, differentiable, total
from codegen.torch.direct import direct, operator
from codegen.torch.launching import multiply_groups
from codegen.torch.mapping import one_by_one
from codegen.torch.ops import cast_inputs, check_types
from codegen.torch.plain import DEVICES
from coordgraph import LaunchError

__all__ = ["check_ends", "grouped_product", "starts_of"]


def _grouped_mm(a: Tensor, b: Tensor, ends: Tensor, invariant: bool = False) -> Tensor:
    """The products of all groups; `ends` (i32) holds the end of each group.

    With `invariant` the bits of a row of the result do not depend on the other rows or groups, nor
    do those of a row of the gradient of A if the rows of A are divided.

    The shapes decide which rows or columns are divided into groups:

    - A (m x k) and B (groups x k x n): the rows of A; the result is m x n;
    - A (groups x m x k) and B (k x n): the columns of B; the result is m x n;
    - A (m x k) and B (k x n): the columns of A and the rows of B; the result is groups x m x n.

    Rows and columns of the result that belong to no group are 0.

    Raises:
        LaunchError: shapes, types or devices of the tensors do not fit; nothing was launched.
        CodegenError: kernels of the device do not multiply this type.
    """
    shape = _shape(a, b, ends)
    divided = a.shape[1] if a.dim() == b.dim() else a.shape[0] if a.dim() == 2 else b.shape[1]
    starts = starts_of(ends, divided)
    if a.dim() == 3:  # groups of columns of D are groups of rows of Dᵀ = Bᵀ·Aᵀ
        d = multiply_groups(b.mT, a.mT, starts, shape[::-1], invariant=invariant)
        return d.mT.contiguous()
    return multiply_groups(a, b, starts, shape, invariant=invariant)


grouped_mm = operator(
    "grouped_mm",
    _grouped_mm,
    "(Tensor a, Tensor b, Tensor ends, bool invariant=False) -> Tensor",
)
GROUPED_MM = torch.ops.coordgraph.grouped_mm.default


def _shape(a: Tensor, b: Tensor, ends: Tensor) -> tuple[Any, ...]:
    """The shape of the result: (groups, m, n) for two matrices, else (m, n).

    Raises:
        LaunchError: shapes, element types or devices do not fit.
    """
    shapes = f"mat_a is {tuple(a.shape)} and mat_b is {tuple(b.shape)}"
    if (a.dim(), b.dim()) not in ((2, 2), (2, 3), (3, 2)):
        raise LaunchError(
            f"{shapes}; with offs pass two matrices, or a matrix and a tensor of three axes; leave "
            "out offs for two tensors of three axes"
        )
    if a.shape[-1] != b.shape[-2]:
        raise LaunchError(
            f"{shapes}: k would be {a.shape[-1]} and {b.shape[-2]}; pass tensors with the same k"
        )
    check_types(a, b)
    check_ends(ends, mat_a=a, mat_b=b)
    matrix = a.shape[-2], b.shape[-1]
    return (ends.shape[0], *matrix) if a.dim() == b.dim() == 2 else matrix


def check_ends(ends: Tensor, **factors: Tensor) -> None:
    """Raise LaunchError unless `ends` holds the ends of groups of a product.

    Args:
        ends: the argument `offs`.
        factors: the factors, by the names of the arguments. A factor with three axes has a matrix
            for each group.
    """
    if ends.dim() != 1 or ends.dtype is not torch.int32:
        raise LaunchError(
            f"offs is {tuple(ends.shape)} of {ends.dtype}, but a vector of torch.int32 is needed: "
            "the end of each group; convert it with .to(torch.int32)"
        )
    for name, x in factors.items():
        if ends.device != x.device:
            raise LaunchError(
                f"offs lies on {ends.device} and {name} on {x.device}; move them to one device"
            )
        if x.dim() == 3 and x.shape[0] != ends.shape[0]:
            raise LaunchError(
                f"{name} has {x.shape[0]} matrices, but offs has {ends.shape[0]} entries, one for "
                "the end of each group; pass one entry for each matrix"
            )


def starts_of(ends: Tensor, extent: int) -> Tensor:
    """The start of each group of `extent` indices, and the end of the last group.

    Raises:
        LaunchError: an entry of `ends` is wrong. Entries in the memory of a GPU are not checked,
            since the host never reads them.
    """
    if not ends.is_cuda:
        _check_entries(ends, extent)
    return torch.nn.functional.pad(ends, (1, 0))


def _check_entries(ends: Tensor, extent: int) -> None:
    """Raise LaunchError if an entry of `offs` is less than the one before, or beyond `extent`."""
    before = 0
    for group, end in enumerate(ends.tolist()):
        if not before <= end <= extent:
            raise LaunchError(
                f"offs[{group}] = {end}, but the group begins at {before} and there are {extent} "
                "rows or columns to divide; pass the end of each group, without the 0 at the front"
            )
        before = end


@grouped_mm.register_fake
def _(a: Tensor, b: Tensor, ends: Tensor, invariant: bool = False) -> Tensor:
    return a.new_empty(_shape(a, b, ends))


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    a, b, ends, invariant = inputs
    # Other gradients sum over the rows of a group, so their rows depend on all of these.
    ctx.invariant = invariant and b.dim() == 3
    ctx.columns = b.stride(-1) != 1 and b.stride(-2) == 1
    needs_a, needs_b = ctx.needs_input_grad[:2]
    ctx.save_for_backward(a if needs_b else None, b if needs_a else None, ends)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients of A·B: `grad·Bᵀ` and `Aᵀ·grad` of every group.

    The gradient of B has the layout of B, so that PyTorch need not transpose that of a weight.
    """
    a, b, ends = ctx.saved_tensors
    of_b = None
    if a is not None and ctx.columns:
        of_b = grouped_product(grad.mT, a, ends, False).mT
    elif a is not None:
        of_b = grouped_product(a.mT, grad, ends, False)
    return (
        None if b is None else grouped_product(grad, b.mT, ends, ctx.invariant),
        of_b,
        None,
        None,
    )


def _tangents(arguments: tuple[Any, ...], tangents: tuple[Any, ...]) -> Tensor | None:
    """The tangent of A·B of every group."""
    a, b, ends, invariant = arguments
    of_a, of_b = tangents[:2]
    return total(
        (
            None if of_a is None else grouped_product(of_a, b, ends, invariant),
            None if of_b is None else grouped_product(a, of_b, ends, invariant),
        )
    )


DERIVATIVES = Derivatives(_setup, _gradients, _tangents)
differentiable(GROUPED_MM, DERIVATIVES)
grouped_product = direct(GROUPED_MM, 3, _grouped_mm, DERIVATIVES)
"""`torch.ops.coordgraph.grouped_mm`, without PyTorch's dispatcher if all tensors are plain: neither
of a subclass nor sparse, traced or transformed."""


grouped_mm.register_vmap(one_by_one(GROUPED_MM))

for _device in DEVICES:
    torch.library.impl("coordgraph::grouped_mm", f"Autocast{_device.upper()}")(
        cast_inputs(GROUPED_MM, _device)
    )
