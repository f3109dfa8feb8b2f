"""Checks of a call's arguments, the same for every target; nothing is launched before they pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

from sympy import Integer

from codegen.call.overlap import check_overlap
from codegen.call.views import LABELS, TensorView, label, numpy_view, shape_text, single
from coordgraph import KernelGraph, LaunchError
from coordgraph.gemm import (
    ARRAYS,
    AXES,
    OFFSETS,
    OFFSETS_OF,
    PART_STRIDE,
    ROWS,
    GemmProblem,
    elements_of,
    ld_of,
    rows_of,
    step_of,
    stride_of,
)
from coordgraph.integers import evaluate, index_symbol, to_text
from coordgraph.interpreter.arguments import check_scaled, reads
from coordgraph.interpreter.layout import strides_of
from coordgraph.tensors import Role, Tensor, dtype

__all__ = [
    "ArgumentMismatch",
    "by_table",
    "check_call",
    "number",
    "numpy_views",
    "problem_parameters",
    "product_sizes",
    "tables_of_call",
]

MATRIX = 2
"""Number of axes of a matrix."""
NO_OFFSETS = "offsets are missing; pass where each group begins, and where the last ends"


class ArgumentMismatch(LaunchError):
    """Raised for an array of a type or layout that another kernel takes, but not this one.

    Args:
        problem: the first part of the message: what is wrong, and how to change the array.
        other_kernel: the rest of the message: how to make the other kernel; '' if there is none.
    """

    def __init__(self, problem: str, other_kernel: str = "") -> None:
        super().__init__(problem + other_kernel)
        self.problem = problem


def number(value: Any, what: str) -> float:
    """A scalar of the epilogue as a float; LaunchError if `value` is not a number."""
    try:
        if isinstance(value, str | bytes):  # float() would accept the text "2"
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise LaunchError(f"{what} = {value!r} is not a number; give an int or a float") from None


def numpy_views(
    a: Any,
    b: Any,
    c: Any,
    out: Any,
    offsets: Any = None,
    operands: Mapping[str, Any] | None = None,
    outputs: Mapping[str, Any] | None = None,
) -> dict[str, TensorView]:
    """Views of the numpy arrays of a call, by the names of tensors.

    Args:
        a, b, c, out: A, B, C and D; C and D may be None.
        offsets: the offsets of groups, or None.
        operands: the operands of the epilogue, and tables of row numbers (of rows to gather or
            scatter), by the name of the tensor. C may be among them if `c` is None.
        outputs: the arrays for outputs of the epilogue besides D, by the name of the tensor.

    Raises:
        LaunchError: an argument is no numpy array, or has an element type or layout that kernels do
            not support; A or B is missing; or the array of an output is read-only.
    """
    written = {"D": out, **(outputs or {})}
    arrays = {"A": a, "B": b, "C": c, **written, OFFSETS: offsets, **(operands or {})}
    views = {n: single(n, numpy_view(x, label(n))) for n, x in arrays.items() if x is not None}
    for name in "AB":
        if name not in views:
            raise LaunchError(f"argument '{label(name)}' is missing; pass the matrix {name}")
    for name, array in written.items():
        if array is not None and not array.flags.writeable:
            raise LaunchError(
                f"argument '{label(name)}' is a read-only array; pass an array that may be written"
            )
    return views


def product_sizes(
    a: tuple[int, ...],
    b: tuple[int, ...],
    transpose_a: bool,
    transpose_b: bool,
    sums: int = 1,
    width: int = 0,
) -> dict[str, int]:
    """m, n and k of a product of matrices, or batches, with these shapes.

    Args:
        a, b: the shapes of A and B.
        transpose_a, transpose_b: whether A, and whether B, is given as its transpose.
        sums: the number of sums of products whose columns are in one matrix B of `sums`·n columns.
        width: the number of columns of a block if blocks for different sums alternate; else 0 or 1.

    Raises:
        LaunchError: A and B disagree on k, or B has no whole blocks for all sums.
    """
    m, k = reversed(a[-2:]) if transpose_a else a[-2:]
    k_of_b, n = reversed(b[-2:]) if transpose_b else b[-2:]
    if k != k_of_b:
        stored = {True: " (given as its transpose)", False: ""}
        raise LaunchError(
            f"a is {shape_text(a)}{stored[transpose_a]} and b is {shape_text(b)}"
            f"{stored[transpose_b]}: k would be {k} and {k_of_b}; pass arrays with the same k"
        )
    if n % sums:
        raise LaunchError(
            f"b has {n} columns, but the epilogue has {sums} sums, each of which needs as many "
            f"columns as D; pass a matrix whose number of columns is a multiple of {sums}"
        )
    if width > 1 and n % (sums * width):
        raise LaunchError(
            f"b has {n} columns, but with parts=interleaved:{width} blocks of {width} columns of "
            f"each of {sums} sums alternate; pass a matrix whose number of columns is a multiple "
            f"of {sums * width}"
        )
    return {"m": m, "n": n // sums, "k": k}


def problem_parameters(
    graph: KernelGraph,
    views: Mapping[str, TensorView],
    *,
    beta: float = 0.0,
    scalars: Mapping[str, float] | None = None,
) -> dict[str, int]:
    """Values of the graph's size parameters (m, n, k, batches, …) and `read_NAME` parameters.

    `read_NAME`, such as `read_c`, is 1 if the kernel reads the optional epilogue operand NAME,
    else 0.

    Sizes may be 0, which kernels do not support: see `codegen.call.zero_extents`.

    Args:
        graph: the graph of the kernel.
        views: the arrays of the call, by the names of tensors.
        beta: the factor of C.
        scalars: scalars of the epilogue by name; for `alpha·acc + beta·C`, `beta` is enough.

    Raises:
        LaunchError: the shapes of A and B do not fit each other or the graph.
    """
    gemm = graph.gemm
    if gemm.grouped != (OFFSETS in views):
        raise LaunchError(
            NO_OFFSETS
            if gemm.grouped
            else "offsets is given, but this kernel has no groups; leave it out, or compile a "
            "kernel of Gemm(grouped=True)"
        )
    _check_stored(gemm, views)
    for name in ("A", "B"):
        if len((tensor := graph.tensor(name)).shape) != len(views[name].shape):
            raise _wrong_axes(tensor, views[name])
    read = reads(gemm, dict.fromkeys(views, True), {"beta": beta, **(scalars or {})})
    if gemm.diagonal:
        return _diagonal_parameters(views) | read
    shapes = views["A"].shape, views["B"].shape
    sums = 1 if gemm.parts_apart else gemm.sums
    turned = gemm.transpose_a, gemm.transpose_b
    found = product_sizes(*shapes, *turned, sums, gemm.part_width)
    numbered = gemm.gathered_rows or gemm.scattered_rows
    read |= _rows_of_arrays(gemm, views) if numbered else {}
    found["m"] = views[ROWS].shape[0] if gemm.gathered_rows else found["m"]
    m, n, _ = found.values()
    for axis, value in found.items():
        fixed = getattr(gemm, axis)
        if fixed is not None and fixed != value:
            raise LaunchError(
                f"this kernel is for {axis} = {fixed}, but the tensors have {axis} = {value}; "
                f"leave {axis} out of Gemm(…) for a kernel of every size"
            )
    given = {axis: value for axis, value in found.items() if getattr(gemm, axis) is None}
    if gemm.grouped:
        by_groups = "B" if gemm.ragged("m") else OFFSETS
        if len((tensor := graph.tensor(by_groups)).shape) != len(views[by_groups].shape):
            raise _wrong_axes(tensor, views[by_groups])
        given["groups"] = views[by_groups].shape[0] - (by_groups == OFFSETS)
        if given["groups"] < 0:
            raise LaunchError(
                "offsets is empty; give an entry for each group, and one for the end of the last"
            )
    if gemm.batched:
        given["batches"] = views["A"].shape[0]
    return given | _strides(gemm, views, m, n) | read


def _strides(gemm: GemmProblem, views: Mapping[str, TensorView], m: int, n: int) -> dict[str, int]:
    """The launch arguments for strides; a missing tensor counts as an m x n array without gaps."""
    given = {PART_STRIDE: views["B"].strides[-3]} if gemm.parts_apart else {}
    whole = TensorView(0, (1, m, n), (m * n, n, 1), gemm.dtype)
    for name in (*gemm.matrices, *gemm.element_steps):
        view = views.get(name, whole)
        given |= {ld_of(name): view.leading_dimension} if name in gemm.leading_dimensions else {}
        given |= {stride_of(name): view.matrix_stride} if name in gemm.strided_batches else {}
        given |= {step_of(name): view.element_stride} if name in gemm.element_steps else {}
    return given


def _check_stored(gemm: GemmProblem, views: Mapping[str, TensorView]) -> None:
    """Raise LaunchError if a call passes an array for a D that the epilogue does not store."""
    if "D" in views and not gemm.epilogue.stores_d:
        raise LaunchError(
            f"argument 'out' is given, but the epilogue {gemm.epilogue.name} does not store D; "
            "leave it out"
        )


def _rows_of_arrays(gemm: GemmProblem, views: Mapping[str, TensorView]) -> dict[str, int]:
    """The launch arguments `rows_a` and `rows_d`: the numbers of rows of A and of D.

    A kernel has `rows_a` only if it gathers rows of A by a table of row numbers, and `rows_d` only
    if it scatters rows to D by such a table.

    Raises:
        LaunchError: a table is missing, or rows are scattered to D and D is missing.
    """
    for table, tensor in gemm.tables_of_rows.items():
        if table not in views:
            what = "read from A" if tensor == "A" else "written to D"
            raise LaunchError(
                f"{table} is missing: an i32 vector with the number of the row to be {what}, for "
                f"each row of the product; pass {table}=…"
            )
        if tensor not in views:
            raise LaunchError(
                "argument 'out' is missing, but targets holds numbers of rows of out; pass out=…, "
                "an array that has these rows"
            )
    return {rows_of(tensor): views[tensor].shape[0] for tensor in gemm.tables_of_rows.values()}


def _diagonal_parameters(views: Mapping[str, TensorView]) -> dict[str, int]:
    """The launch arguments of a list of products: the lengths of A, B, C and D, and `groups`.

    Raises:
        LaunchError: `offsets` has a wrong shape or is not contiguous, or `out` is missing.
    """
    given_offsets = views[OFFSETS]
    offsets = given_offsets.shape
    if len(offsets) != 2 or offsets[0] != len(AXES) or not offsets[1]:
        raise LaunchError(
            f"offsets has the shape {shape_text(offsets)}, but 3 x (groups + 1) is needed; give "
            "for m, n and k where each group begins, and where the last ends"
        )
    # Kernels get one address for each row of `offsets`, and read the row as if it had no gaps.
    if not given_offsets.contiguous:
        raise LaunchError(
            f"offsets is not contiguous and row-major, but has strides {given_offsets.strides}; "
            "pass a contiguous copy"
        )
    given = {elements_of(name): views[name].shape[0] for name in "ABCD" if name in views}
    if "D" not in views:
        raise LaunchError(
            "argument 'out' is missing, and the length of a new array depends on offsets, which "
            "are on the device; pass out=…"
        )
    return given | {"groups": offsets[1] - 1}


def tables_of_call(gemm: GemmProblem, offsets: Any, operands: Mapping[str, Any]) -> dict[str, Any]:
    """The tables of integers (offsets of groups, row numbers) that a call passes, by name.

    Args:
        gemm: the problem, which says what tables of row numbers there are.
        offsets: the call's argument `offsets`, with a row for each of m, n and k for a list of
            products; None if there are no groups.
        operands: the call's other arrays, among which are the tables of row numbers.
    """
    tables = {name: operands[name] for name in gemm.tables_of_rows}
    if offsets is None:
        return tables
    if not gemm.diagonal:
        return {OFFSETS: offsets, **tables}
    return dict(zip(OFFSETS_OF.values(), offsets, strict=True))


def by_table(graph: KernelGraph, views: Mapping[str, TensorView]) -> dict[str, TensorView]:
    """A dictionary from the names of the graph's tensors and tables to the arrays of a call.

    The result equals `views`, the arrays by argument name, except for a list of products: then the
    three rows of the argument `offsets`, along m, n and k, become three tables.
    """
    found = dict(views)
    if graph.gemm.diagonal and OFFSETS in found:
        every = found.pop(OFFSETS)
        size = dtype(every.dtype).bytes
        for row, name in enumerate(OFFSETS_OF.values()):
            at = every.pointer + row * every.strides[0] * size
            rows = replace(every, pointer=at, shape=every.shape[1:], strides=every.strides[1:])
            found[name] = rows
    return found


def check_call(
    graph: KernelGraph,
    views: Mapping[str, TensorView],
    *,
    beta: float = 0.0,
    scalars: Mapping[str, float] | None = None,
) -> None:
    """Check shapes, types, layouts, devices, overlap of arrays; LaunchError if one does not fit."""
    numbers = {"beta": beta, **(scalars or {})}
    check_scaled(graph.gemm, dict.fromkeys(views, True), numbers)
    sizes = problem_parameters(graph, views, scalars=numbers)
    for name, view in by_table(graph, views).items():
        if len((tensor := graph.tensor(name)).shape) != len(view.shape):
            raise _wrong_axes(tensor, view)
        _check_tensor(graph.tensor(name), view, sizes)
    if len({view.device for view in views.values()}) > 1:
        where = ", ".join(f"{label(n)} on {v.device}" for n, v in views.items())
        raise LaunchError(f"the tensors lie on different devices: {where}; move them to one device")
    check_overlap(views, graph.gemm.stored)


def _wrong_axes(tensor: Tensor, view: TensorView) -> LaunchError:
    """The error for an array that has more or fewer axes than its tensor."""
    name, axes = label(tensor.name), len(tensor.shape)
    what = {1: "a vector", 2: "a matrix"}.get(axes) or " x ".join(map(to_text, tensor.shape))
    if tensor.name in LABELS:
        spread = f"; pass np.broadcast_to(c, {_extents(tensor)}), or use an epilogue with bias='n'"
        more = spread if tensor.name == "C" and len(view.shape) == 1 else ""
        return LaunchError(f"{name} has shape {shape_text(view.shape)}; {what} is needed{more}")
    return LaunchError(
        f"{name} has the shape {view.shape}, but {_extents(tensor)} is needed; pass an array of "
        "this shape"
    )


def _check_tensor(tensor: Tensor, view: TensorView, sizes: Mapping[str, int]) -> None:
    name = label(tensor.name)
    assert not tensor.role.workspace
    expected = tuple(
        int(extent) if isinstance(extent, Integer) else int(evaluate(extent, sizes))
        for extent in tensor.shape
    )
    if view.dtype != tensor.dtype:
        raise ArgumentMismatch(
            f"{name} holds {view.dtype}, but the kernel takes {tensor.dtype}; convert it",
            _other_kernel(tensor, view),
        )
    if view.shape != expected and tensor.name not in LABELS:
        raise LaunchError(
            f"{name} has the shape {view.shape}, but {_extents(tensor)} = {expected} is needed; "
            "pass an array of this shape"
        )
    if view.shape != expected:
        if tensor.role is Role.TABLE:
            entries = "groups + 1, where each group begins, and where the last ends"
            raise LaunchError(
                f"{name} has {prod(view.shape)} entries, but {prod(expected)} are needed; give "
                f"{entries}"
            )
        raise LaunchError(
            f"{name} is {shape_text(view.shape)}, but {shape_text(expected)} is needed; pass an "
            "array of this shape"
        )
    _check_layout(tensor, view, sizes)
    size = dtype(tensor.dtype).bytes
    if view.pointer % size:
        raise LaunchError(
            f"{name} starts at an address that is no multiple of {size} bytes, the size of an "
            "element; pass a copy"
        )


def _extents(tensor: Tensor) -> str:
    """The shape of a tensor in the graph's symbols, as text: `(n,)`, `(m, n)`."""
    extents = ", ".join(map(to_text, tensor.shape))
    return f"({extents},)" if len(tensor.shape) == 1 else f"({extents})"


def _other_kernel(tensor: Tensor, view: TensorView) -> str:
    """The end of a message about a wrong element type: how to make a kernel for it, or ''."""
    if tensor.name not in ARRAYS and (tensor.role.finishes or tensor.role is Role.OUTPUT):
        what = "operand" if tensor.role.finishes else "output"
        return f', or declare the {what} with dtype="{view.dtype}"'
    kind, operand = dtype(view.dtype), tensor.role is Role.INPUT
    if tensor.role is Role.TABLE or not (kind.operand if operand else kind.is_float):
        return ""
    return f", or make the kernel with Gemm({'' if operand else 'out_'}dtype='{view.dtype}')"


def _check_layout(tensor: Tensor, view: TensorView, sizes: Mapping[str, int]) -> None:
    if 0 in view.shape:
        return  # strides of an array without elements do not matter
    name = label(tensor.name)
    expected = strides_of(tensor, sizes)
    fits = all(
        extent == 1 or stride == wanted >= 0
        for extent, stride, wanted in zip(view.shape, view.strides, expected, strict=True)
    )
    if not fits:
        raise _wrong_layout(tensor, view)
    if tensor.role is Role.OUTPUT and tensor.strides is not None and view.overlaps_itself:
        what = "matrices" if len(view.shape) > MATRIX else "rows"
        raise LaunchError(
            f"the {what} of {name} overlap in memory (strides {view.strides}); pass an array "
            f"whose {what} are apart"
        )


def _wrong_layout(tensor: Tensor, view: TensorView) -> ArgumentMismatch:
    """The error for an array whose strides are not those of its tensor."""
    name, more = label(tensor.name), ""
    if min(view.strides) < 0:
        return ArgumentMismatch(
            f"{name} has negative strides {view.strides}; pass a contiguous copy"
        )
    if tensor.name in (turned := {"A": "transpose_a=…", "B": "transpose_b=…"}):
        more = f", or its transpose to a kernel of Gemm({turned[tensor.name]})"
    if len(view.shape) >= MATRIX and view.strides[-1] == 1 and min(view.strides) >= 0:
        leading = f"Gemm(leading_dimensions=('{tensor.name}', …))"
        more += f", or the array itself to a kernel of {leading}"
    rows = " row-major" * (len(view.shape) > 1)
    if index_symbol(ld_of(tensor.name)) in (tensor.strides or ()):
        rows = " along its rows"  # gaps between rows are allowed
    return ArgumentMismatch(
        f"{name} is not contiguous{rows} (strides {view.strides}); pass a contiguous copy", more
    )
