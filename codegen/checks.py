"""Checks of a call's arguments, the same for every target; nothing is launched before they pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from sympy import Integer

from coordgraph import Gemm, KernelGraph, LaunchError, VerifyError
from coordgraph.gemm import AXES, OFFSETS, OFFSETS_OF, elements_of, stride_of
from coordgraph.integers import evaluate
from coordgraph.interpreter.arguments import host_array
from coordgraph.tensors import Role, Tensor, dtype

__all__ = [
    "Misfit",
    "TensorView",
    "by_table",
    "check_call",
    "check_overlap",
    "number",
    "numpy_view",
    "numpy_views",
    "problem_parameters",
    "product_sizes",
    "rows_of_offsets",
    "shape_text",
    "type_name",
]

LABELS = {
    **{"A": "a", "B": "b", "C": "c", "D": "out"},
    **dict.fromkeys((OFFSETS, *OFFSETS_OF.values()), "offsets"),
}
NO_OFFSETS = "offsets are missing: where each group begins, and where the last ends"


class Misfit(LaunchError):
    """An array that another kernel would take.

    Args:
        plain: what is wrong, and what mends it with any kernel.
        other: how to make the other kernel, for those who make kernels themselves.
    """

    def __init__(self, plain: str, other: str = "") -> None:
        super().__init__(plain + other)
        self.plain = plain


@dataclass(frozen=True, slots=True)
class TensorView:
    """What a kernel needs to know of an array; strides in elements, `device` a number or None."""

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    device: Any = None

    @property
    def bytes(self) -> int:
        """Bytes from the first element to the last."""
        if 0 in self.shape:
            return 0
        last = sum(
            (extent - 1) * stride for extent, stride in zip(self.shape, self.strides, strict=True)
        )
        return dtype(self.dtype).bytes * (last + 1)

    @property
    def matrix_stride(self) -> int:
        """Elements from one matrix of a batch to the next; of a single one, what it has."""
        return self.strides[0] if self.shape[0] != 1 else prod(self.shape[1:])

    @property
    def first(self) -> TensorView:
        """The first matrix of a batch."""
        return replace(self, shape=self.shape[1:], strides=self.strides[1:])

    @property
    def blocks(self) -> tuple[int, int]:
        """Bytes from one block without gaps to the next, 0 for a single one, and bytes of each.

        Of a batch each matrix is one, which must be contiguous; all else is a single block.
        """
        if len(self.shape) < 3 or self.contiguous:
            return 0, self.bytes
        return dtype(self.dtype).bytes * self.matrix_stride, self.first.bytes

    @property
    def contiguous(self) -> bool:
        """Row-major without gaps; the stride of an axis of one element means nothing."""
        if 0 in self.shape:
            return True
        expected = 1
        for extent, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if extent != 1 and stride != expected:
                return False
            expected *= extent
        return True


def number(value: Any, what: str) -> float:
    """A scalar of the epilogue."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise LaunchError(f"{what} = {value!r} is not a number") from None


def type_name(name: str, what: str) -> str:
    """An array's type by the name that its library has for it.

    Raises:
        LaunchError: kernels do not know it.
    """
    try:
        return dtype(name).name
    except VerifyError as error:
        if what == LABELS[OFFSETS]:
            raise LaunchError(
                f"offsets holds {name}, and must be i32: pass offsets.to(torch.int32), or "
                "offsets.astype('int32') of numpy, CuPy and JAX"
            ) from error
        raise LaunchError(f"{what}: {error}") from error


def numpy_view(array: Any, what: str) -> TensorView:
    """Address, shape, strides and type of a numpy array.

    Raises:
        LaunchError: it is no numpy array or a masked one, or its type or layout is none that
            kernels know.
    """
    array = host_array(array, what)
    kind = type_name(array.dtype.name, what)
    if not array.dtype.isnative:
        raise LaunchError(f"{what} has its bytes swapped; convert it with .astype")
    if any(stride % array.itemsize for stride in array.strides):
        raise LaunchError(f"{what} is not contiguous row-major (strides {array.strides} in bytes)")
    strides = tuple(stride // array.itemsize for stride in array.strides)
    return TensorView(array.ctypes.data, array.shape, strides, kind)


def numpy_views(a: Any, b: Any, c: Any, out: Any, offsets: Any = None) -> dict[str, TensorView]:
    """The numpy arrays of a call, under the names of their tensors; A and B must be there.

    Raises:
        LaunchError: as for `numpy_view`; or A or B is missing, or `out` is read-only.
    """
    arrays = {"A": a, "B": b, "C": c, "D": out, OFFSETS: offsets}
    views = {n: numpy_view(x, LABELS[n]) for n, x in arrays.items() if x is not None}
    for name in "AB":
        if name not in views:
            raise LaunchError(f"{LABELS[name]} is missing")
    if out is not None and not out.flags.writeable:
        raise LaunchError("out is read-only; pass an array that may be written")
    return views


def product_sizes(
    a: tuple[int, ...], b: tuple[int, ...], transpose_a: bool, transpose_b: bool
) -> dict[str, int]:
    """m, n and k of matrices, or batches, of these shapes.

    Raises:
        LaunchError: they disagree on k.
    """
    m, k = reversed(a[-2:]) if transpose_a else a[-2:]
    k_of_b, n = reversed(b[-2:]) if transpose_b else b[-2:]
    if k != k_of_b:
        stored = {True: " (given as its transpose)", False: ""}
        raise LaunchError(
            f"a is {shape_text(a)}{stored[transpose_a]} and b is "
            f"{shape_text(b)}{stored[transpose_b]}: k would be {k} and {k_of_b}"
        )
    return {"m": m, "n": n, "k": k}


def problem_parameters(
    graph: KernelGraph, views: Mapping[str, TensorView], *, beta: float
) -> dict[str, int]:
    """m, n, k and the like where the graph leaves them open, and whether C is read.

    They may be 0, which kernels do not know: see `codegen.empty`.

    Raises:
        LaunchError: A and B do not fit each other or the graph.
    """
    gemm = graph.gemm
    if gemm.grouped != (OFFSETS in views):
        raise LaunchError(
            NO_OFFSETS if gemm.grouped else "offsets are for kernels of Gemm(grouped=True)"
        )
    for name in ("A", "B"):
        _check_axes(graph.tensor(name), views[name])
    if gemm.diagonal:
        return _diagonal_parameters(views, beta=beta)
    found = product_sizes(views["A"].shape, views["B"].shape, gemm.transpose_a, gemm.transpose_b)
    m, n, k = found.values()
    for axis, value in found.items():
        fixed = getattr(gemm, axis)
        if fixed is not None and fixed != value:
            raise LaunchError(
                f"this kernel is for {axis} = {fixed}, the tensors have {value}; "
                f"leave {axis} out of Gemm(…) for a kernel of every size"
            )
    given = {axis: value for axis, value in found.items() if getattr(gemm, axis) is None}
    if gemm.grouped:
        by_groups = "B" if gemm.ragged("m") else OFFSETS
        _check_axes(graph.tensor(by_groups), views[by_groups])
        given["groups"] = views[by_groups].shape[0] - (by_groups == OFFSETS)
        if given["groups"] < 0:
            raise LaunchError(
                "offsets is empty; it has an entry for each group, and one for the end"
            )
    if gemm.batched:
        given["batches"] = views["A"].shape[0]
        matrix = {"A": m * k, "B": k * n, "C": m * n, "D": m * n}
        for name in gemm.batched_tensors:
            view = views.get(name)
            given[stride_of(name)] = matrix[name] if view is None else view.matrix_stride
    given["read_c"] = int("C" in views and beta != 0)
    return given


def _diagonal_parameters(views: Mapping[str, TensorView], *, beta: float) -> dict[str, int]:
    """The same of groups that share no extent: how long vectors of matrices are."""
    given_offsets = views[OFFSETS]
    offsets = given_offsets.shape
    if len(offsets) != 2 or offsets[0] != len(AXES) or not offsets[1]:
        raise LaunchError(
            f"offsets has shape {shape_text(offsets)}; 3 x (groups + 1) is needed: for m, n and k, "
            "where each group begins, and where the last ends"
        )
    if not given_offsets.contiguous:  # a launch finds its rows one after another
        raise LaunchError(
            f"offsets is not contiguous row-major (strides {given_offsets.strides}); pass a "
            "contiguous copy"
        )
    given = {elements_of(name): views[name].shape[0] for name in "ABCD" if name in views}
    if "D" not in views:
        raise LaunchError("out is missing: how long it is follows from offsets on the device")
    return given | {"groups": offsets[1] - 1, "read_c": int("C" in views and beta != 0)}


def rows_of_offsets(gemm: Gemm, offsets: Any) -> dict[str, Any]:
    """The entries of every given table, out of what a call is given."""
    if offsets is None:
        return {}
    if not gemm.diagonal:
        return {OFFSETS: offsets}
    return dict(zip(OFFSETS_OF.values(), offsets, strict=True))


def by_table(graph: KernelGraph, views: Mapping[str, TensorView]) -> dict[str, TensorView]:
    """The views by the names of the graph's tensors: rows of offsets are tables of their own."""
    found = dict(views)
    if graph.gemm.diagonal and OFFSETS in found:
        every = found.pop(OFFSETS)
        size = dtype(every.dtype).bytes
        for row, name in enumerate(OFFSETS_OF.values()):
            at = every.pointer + row * every.strides[0] * size
            rows = replace(every, pointer=at, shape=every.shape[1:], strides=every.strides[1:])
            found[name] = rows
    return found


def check_call(graph: KernelGraph, views: Mapping[str, TensorView], *, beta: float) -> None:
    """Everything else that tensors must satisfy: shapes, types, layout, overlap."""
    if beta != 0 and "C" not in views:
        raise LaunchError(f"beta = {beta} needs c; pass it, or beta=0")
    sizes = problem_parameters(graph, views, beta=beta)
    for name, view in by_table(graph, views).items():
        _check_axes(graph.tensor(name), view)
        _check_tensor(graph.tensor(name), view, sizes)
    if len({view.device for view in views.values()}) > 1:
        where = ", ".join(f"{LABELS[n]} on {v.device}" for n, v in views.items())
        raise LaunchError(f"the tensors lie on different devices: {where}")
    check_overlap(views)


def check_overlap(views: Mapping[str, TensorView]) -> None:
    """LaunchError where D shares memory with another tensor; their layouts were checked before."""
    out = views.get("D")
    for name in ("A", "B", "C", OFFSETS):
        other = views.get(name)
        if out is None or other is None or not (how := _overlap(out, other)):
            continue
        # Each element of C is read before that element of D is written; so they may be the same
        # ones. Of tensors of one shape that begin together, bytes tell whether strides differ.
        same = (out.pointer, out.dtype, out.bytes) == (other.pointer, other.dtype, other.bytes)
        if name == "C" and same:
            continue
        raise LaunchError(f"out {how.format(LABELS[name])}; give out memory of its own")


def _check_axes(tensor: Tensor, view: TensorView) -> None:
    label, axes = LABELS[tensor.name], len(tensor.shape)
    if len(view.shape) != axes:
        what = {1: "a vector", 2: "a matrix"}.get(axes, "as many matrices as products")
        raise LaunchError(f"{label} has shape {shape_text(view.shape)}; {what} is needed")


def _check_tensor(tensor: Tensor, view: TensorView, sizes: Mapping[str, int]) -> None:
    label = LABELS[tensor.name]
    assert not tensor.role.workspace
    expected = tuple(
        int(extent) if isinstance(extent, Integer) else int(evaluate(extent, sizes))
        for extent in tensor.shape
    )
    if view.dtype != tensor.dtype:
        raise Misfit(
            f"{label} holds {view.dtype}, the kernel takes {tensor.dtype}; convert it",
            _other_kernel(tensor, view),
        )
    if view.shape != expected:
        entries = ": groups + 1, where each begins, and where the last ends"
        raise LaunchError(
            f"{label} is {shape_text(view.shape)}, {shape_text(expected)} is needed"
            + entries * (tensor.role is Role.TABLE)
        )
    _check_layout(tensor, view)
    size = dtype(tensor.dtype).bytes
    if view.pointer % size:
        raise LaunchError(f"{label} starts at an address that is no multiple of {size} bytes")


def _other_kernel(tensor: Tensor, view: TensorView) -> str:
    """What else would do where there are kernels for what an array holds."""
    if tensor.role is Role.TABLE or dtype(view.dtype).name == "i32":
        return ""
    option = "dtype" if tensor.role is Role.INPUT else "out_dtype"
    return f", or make the kernel with Gemm({option}='{view.dtype}')"


def _check_layout(tensor: Tensor, view: TensorView) -> None:
    if 0 in view.shape:
        return  # strides mean nothing
    label = LABELS[tensor.name]
    turned = {"A": "transpose_a=…", "B": "transpose_b=…"}.get(tensor.name)
    matrices = tensor.strides is not None
    if matrices and tensor.role is Role.OUTPUT and view.matrix_stride < prod(view.shape[1:]):
        raise LaunchError(f"the matrices of {label} overlap (strides {view.strides})")
    if not (view.first.contiguous and view.matrix_stride >= 0 if matrices else view.contiguous):
        raise Misfit(
            f"{label} is not contiguous{' row-major' * (len(view.shape) > 1)} (strides "
            f"{view.strides}); pass a contiguous copy",
            f", or its transpose to a kernel of Gemm({turned})" if turned else "",
        )


def _overlap(one: TensorView, other: TensorView) -> str:
    """How the memory of one is part of the other's, or '' where it is not."""
    if not (one.bytes and other.bytes):
        return ""
    apart = other.pointer - one.pointer
    if not -other.bytes < apart < one.bytes:
        return ""
    (step, size), (pace, length) = one.blocks, other.blocks
    if step and pace and step != pace:
        return "may overlap {}: their matrices lie among each other, at unlike distances"
    # The ranges overlap: so if blocks in step would share bytes anywhere, two that are there do.
    step = step or pace
    return "overlaps {}" * (not step or apart % step < size or -apart % step < length)


def shape_text(shape: tuple[int, ...]) -> str:
    """A shape as messages have it."""
    return "x".join(map(str, shape)) or "a scalar"
