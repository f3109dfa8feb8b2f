"""Tensors of a problem: their shapes, and the edges from element offsets to rows and columns."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from sympy import Expr, Integer

from coordgraph.coordinates.dimensions import (
    Linear,
    SubDimension,
    User,
)
from coordgraph.coordinates.edges import (
    Diagonal,
    Edge,
    Split,
)
from coordgraph.gemm import (
    PART,
    PART_STRIDE,
    GemmProblem,
    elements_of,
    ld_of,
    row_step,
    step_of,
    stride_of,
)
from coordgraph.kernel import KernelEditor
from coordgraph.tensors import Role, Tensor

__all__ = ["add_tensor", "element_type", "row_major", "starts_of"]


def starts_of(tensor: str) -> str:
    """The name of the table with the offset of each product's matrix in a tensor, in elements.

    The table exists only with `group_axis="mnk"`. C and other epilogue operands use the table of D.
    """
    return f"{tensor.lower() if tensor in ('A', 'B') else 'd'}_starts"


def element_type(gemm: GemmProblem, tensor: str) -> str:
    """The name of a tensor's element type.

    An output of the epilogue without a declared type has the type of D. An operand without a
    declared type has the type of D if it is a matrix or a vector, and the accumulator's type if it
    is a single element.
    """
    if tensor in ("A", "B"):
        return gemm.dtype
    out, operand = gemm.out_dtype or gemm.dtype, gemm.operands.get(tensor)
    if tensor in gemm.outputs:
        return gemm.stored_type(tensor)
    if operand is None:
        return out
    return operand.dtype or (out if operand.axes else gemm.accumulator)


def add_tensor(
    gemm: GemmProblem,
    e: KernelEditor,
    name: str,
    shape: list[Expr],
    role: Role | None,
    transposed: bool,
) -> None:
    """Add a tensor argument, and the edge from its axes and the product's number to its offsets.

    An axis that an epilogue operand lacks has no dimension, so the operand's offset does not depend
    on it: the operand is broadcast along that axis.

    If the epilogue does not store D, D is no tensor. The graph still has dimensions for D's axes,
    along which operands, outputs and the accumulator are cut into tiles, and for D's elements.

    Args:
        gemm: the problem.
        e: the editor.
        name: the tensor's name.
        shape: extents of the tensor's axes, in elements, rows first.
        role: what the kernel uses the tensor for; None for a D that is not stored.
        transposed: whether the tensor is stored as its transpose.
    """
    kind = element_type(gemm, name)
    if gemm.diagonal and shape and role is not None:
        elements, order = e.parameters[elements_of(name)].symbol, (1, 0) if transposed else (0, 1)
        e.tensors += (Tensor(name, kind, (elements,), role),)
        below = ("group", *(f"{name}.{i}" for i in order))
        axes = gemm.axes[name]
        rows, columns = (gemm.offsets(axes[i]) for i in order)
        pitch = row_step(kind if name in ("A", "B") else gemm.out_dtype or gemm.dtype)
        whole = Diagonal(name, below, starts_of(name), rows, columns, pitch)
        _connect(e, name, elements, shape, whole)
        return
    outer = tuple(reversed(shape) if transposed else shape)
    stored, size = row_major(outer), prod(shape, start=Integer(1))
    given: tuple[Expr, ...] | None = None
    step: Expr = Integer(1)
    if shape and name in gemm.element_steps:
        step = e.parameters[step_of(name)].symbol
        given = stored = (*stored[:-1], step)
        size = (outer[-1] - 1) * step + 1
    if name in gemm.leading_dimensions:
        leading = e.parameters[ld_of(name)].symbol
        given = stored = (leading, step)
        size = (outer[0] - 1) * leading + (outer[1] - 1) * step + 1
    strides = tuple(reversed(stored) if transposed else stored)
    axes = tuple(f"{name}.{i}" for i in range(len(shape)))
    if name == "B" and gemm.parts_apart:
        between = e.parameters[PART_STRIDE].symbol
        given, stored = (between, *stored), (between, *stored)
        outer, strides, axes = (Integer(gemm.sums), *outer), (between, *strides), (PART, *axes)
        size = (gemm.sums - 1) * between + size
    if gemm.is_apart(name):
        count = e.coordinates[gemm.leading].size
        assert count is not None
        stride = size
        if name in gemm.strided_batches:
            stride = e.parameters[stride_of(name)].symbol
            given = (stride, *stored)
        outer, strides, axes = (count, *outer), (stride, *strides), (gemm.leading, *axes)
        size = ((count - 1) * stride + size).expand()
    if role is not None:
        e.tensors += (Tensor(name, kind, outer or (Integer(1),), role, given),)
    whole = Split((name,), axes, strides) if axes else None
    _connect(e, name, size.expand(), shape, whole, role is not None)


def row_major(shape: Sequence[Expr]) -> tuple[Expr, ...]:
    """The strides of a contiguous row-major tensor with the extents `shape`, in elements."""
    return tuple(prod(shape[i + 1 :], start=Integer(1)) for i in range(len(shape)))


def _connect(
    e: KernelEditor,
    name: str,
    size: Expr,
    shape: list[Expr],
    whole: Edge | None,
    stored: bool = True,
) -> None:
    """Add the dimensions of a tensor's element offset and of its axes, and the edge between them.

    Args:
        e: the editor.
        name: the tensor's name.
        size: the number of elements of the tensor.
        shape: extents of the tensor's axes, in elements.
        whole: the edge between the offset and the axes; None for a tensor of a single element,
            which has no axes.
        stored: whether the tensor is in memory; False only for a D that is not stored.
    """
    numbers = User(name, size, tensor=name)
    e.coordinates.add(numbers if stored else Linear(name, size, note="elements; not stored"))
    for i, extent in enumerate(shape):
        e.coordinates.add(SubDimension(f"{name}.{i}", extent, tensor=name, axis=i))
    if whole is not None:
        e.coordinates.connect(whole)
