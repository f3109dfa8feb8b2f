"""Describe a call: the problem, device and alignment that its arrays and options imply."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from codegen.call.alignment import alignment_of_factors
from codegen.call.arrangement import Arrangement
from codegen.call.arrays import library
from codegen.call.checks import NO_OFFSETS, problem_parameters
from codegen.call.invariance import check_invariant
from codegen.call.request import PlanRequest
from codegen.call.views import LABELS, TensorView, numpy_view, single
from coordgraph import Gemm, LaunchError, VerifyError
from coordgraph.elements import DTYPES, DType, dtype
from coordgraph.epilogue import ALPHA_BETA, EpilogueFunction
from coordgraph.gemm import GROUP_AXES, PARTS
from coordgraph.parts_of_b import SEPARATE, width_of
from coordgraph.validation import a_type, flag

__all__ = ["ALIGNED", "Call", "array_key", "check_offsets", "describe"]

ALIGNED = 15
"""Mask of an address: TMA needs multiples of 16 bytes, so these low bits must be zero."""
_ONE_AXIS = tuple(axis for axis in GROUP_AXES if len(axis) == 1)


_graph = lru_cache(maxsize=64)(Gemm.graph)
"""The unscheduled graph of a problem, which relates the extents of the tensors."""


@dataclass(frozen=True)
class Call:
    """What a call of `matmul` multiplies: the problem, and the arrays that the kernel gets.

    Args:
        request: the problem, its device, and the alignment of A and B.
        views: the arrays that the kernel gets, by the names of the graph's tensors.
        arrangement: how the caller's arrays become the arrays in `views`.
    """

    request: PlanRequest
    views: Mapping[str, TensorView]
    arrangement: Arrangement


def array_key(inputs: Mapping[str, Any], c: Any = None, out: Any = None) -> tuple[Hashable, ...]:
    """The part of a call's cache key that depends on arrays, for libraries other than PyTorch.

    Args:
        inputs: arrays by the names of arguments, `a` first. The key has the shapes, strides, types,
            devices and alignments of these arrays.
        c, out: C and D, or None. The key has the type of D, and the strides of C and of D unless
            the array is row-major without gaps.

    Raises:
        LaunchError: an argument is not an array of a supported library.
    """
    keys: list[Hashable] = []
    for name, array in inputs.items():
        home = library(array)
        try:
            if home.on_host:
                keys.append((array.shape, array.strides, array.dtype))
                continue
        except AttributeError:
            numpy_view(array, name)  # raises LaunchError for numpy objects that are not arrays
        view = home.view(array, name)
        keys.append((view.shape, view.strides, view.dtype, view.device, view.pointer & ALIGNED))
    on_host = library(inputs["a"]).on_host
    for name, array in (("c", c), ("out", out)):
        try:
            keys.append(array is None or array.flags.c_contiguous or array.strides)
        except AttributeError:
            home = library(array)
            view = numpy_view(array, name) if on_host else home.view(array, name)
            keys.append(view.contiguous or view.strides)
    keys.append(None if out is None else out.dtype)
    return tuple(keys)


def check_offsets(offsets: Any) -> None:
    """Raise LaunchError if the offsets of groups are not an array.

    A list is refused, because `numpy.asarray` would turn it into 64-bit integers on the host.

    Raises:
        LaunchError: the offsets are missing, or are a Python sequence.
    """
    if offsets is None:
        raise LaunchError(NO_OFFSETS)
    if isinstance(offsets, list | tuple | range):
        raise LaunchError(
            f"offsets is {a_type(offsets)}, not an array; make an i32 array where a and b are: "
            "torch.tensor(offsets, dtype=torch.int32, device=a.device), or for the CPU "
            "numpy.array(offsets, numpy.int32)"
        )


def describe(
    arrays: Mapping[str, Any],
    *,
    beta: float,
    transpose_a: bool,
    transpose_b: bool,
    invariant: bool = False,
    **problem: Any,
) -> Call:
    """Find the problem, the device and the arrays for a kernel from the arrays of a call.

    Args:
        arrays: the operands by the names of the graph's tensors: A, B, C, D, the offsets of groups
            and other operands of the problem; None for an operand that the call leaves out.
        beta: the factor of C.
        transpose_a, transpose_b: whether A, and whether B, is given as its transpose.
        invariant: whether all plans for the call's n and k must add in one order along k.
        problem: other fields of the problem's `Gemm`, such as `grouped=True` and `group_axis`.

    Raises:
        LaunchError: an option has a wrong type or value; an argument is not an array, or has an
            element type that kernels do not support; the shapes of A and B do not fit; or the call
            cannot be batch invariant.
    """
    flag(invariant, "invariant", LaunchError)
    flag(transpose_a, "transpose_a", LaunchError)
    flag(transpose_b, "transpose_b", LaunchError)
    grouped, axis = problem.get("grouped", False), problem.get("group_axis", "m")
    if grouped and axis not in _ONE_AXIS:
        lists = "; for lists of products compile a kernel: see docs/explanation/groups/lists.md"
        raise LaunchError(
            f"group_axis = {axis!r} should be {' or '.join(map(repr, _ONE_AXIS))}"
            + lists * (axis in GROUP_AXES)
        )
    gathered = problem.get("gathered_rows", False)
    function = problem.get("epilogue", ALPHA_BETA)
    parts = problem.get("parts", PARTS[0])
    views = _views(arrays, epilogue=problem.get("epilogue"))
    arrangement = Arrangement.of(
        views,
        sums=len(function.sums),
        width=width_of(parts),
        apart=parts == SEPARATE,
        transpose_a=transpose_a,
        transpose_b=transpose_b,
        batched=not grouped,
        # A batch can be computed as one product with more rows. That product has no batch index, on
        # which epilogue operands other than C may depend, and it numbers the rows of all matrices
        # together, so the epilogue may have no indices. The arrays for outputs other than D may
        # have gaps between their matrices.
        may_join=len(arrays) == len("ABCD")
        and not function.indices
        and all(library(arrays[x]).makes_views for x in "AB"),
        may_turn=not (gathered or problem.get("scattered_rows", False)),
    )
    if arrangement.turned:
        if any(output.reduce for output in function.outputs):
            raise LaunchError(
                "an output of the epilogue reduces rows, but out is column-major, so that rows of "
                "D would be columns of the kernel's result; pass a row-major out"
            )
        if invariant:
            # The kernel would compute the transpose of D: its order of additions would be pinned
            # for each m and k instead of n and k.
            raise LaunchError(
                "invariant=True, but out is column-major, so that rows of D would be columns of "
                "the kernel's result; pass a row-major out"
            )
        transpose_a, transpose_b = not transpose_b, not transpose_a
        problem |= {name: x.exchanged for name, x in problem.items() if name == "epilogue"}
    swap_a, swap_b = arrangement.transpose
    if grouped and axis == "m" and transpose_a != swap_a:
        raise LaunchError(
            "a is given as its transpose, but groups are rows of a, so a must be row-major; pass a "
            "contiguous copy, without a transpose"
        )
    if gathered and transpose_a != swap_a:
        raise LaunchError(
            "rows selects whole rows of a, so a must be row-major; pass a row-major a without "
            "transpose_a, as by np.ascontiguousarray(a) or a.contiguous()"
        )
    if arrangement.changes:
        changed = arrangement.operands(*(arrays.get(name) for name in "ABCD"))
        changed_arrays = {**arrays, **dict(zip("ABCD", changed, strict=True))}
        views = _views(changed_arrays, epilogue=problem.get("epilogue"))
    gemm = Gemm(
        views["A"].dtype,
        views["D"].dtype if "D" in views else None,
        transpose_a=transpose_a != swap_a,
        transpose_b=transpose_b != swap_b,
        batched=arrangement.batch is not None and not arrangement.as_one_product,
        **problem,
    )
    arrangement = replace(arrangement, outputs=tuple(gemm.outputs))
    every = (*gemm.operands, *gemm.outputs)
    operands = [x for x in every if x in gemm.matrices and x in views]
    # `operands` are matrices; later checks refuse those that are given with fewer than two axes.
    operands = [x for x in operands if len(views[x].shape) > 1]
    if operands and not grouped:
        gemm, views, arrangement = _with_operands(gemm, views, arrangement, operands)
    known = [(name, views[name]) for name in gemm.matrices if name in views]
    strided = "" if grouped else gemm.batched_tensors
    if not all(x.without_gaps if t in strided else x.contiguous for t, x in known):
        # All leading dimensions become arguments, so that one kernel takes every layout.
        gemm = replace(gemm, leading_dimensions=gemm.matrices)
    apart = _apart(gemm, views)
    if apart:
        gemm = replace(gemm, element_steps=apart, leading_dimensions=gemm.matrices)
    request = _request(gemm, views, beta)
    if invariant:
        request = replace(request, invariant=True)
        check_invariant(request, views)
    return Call(request, views, arrangement)


def _apart(gemm: Gemm, views: Mapping[str, TensorView]) -> tuple[str, ...]:
    """Names of the tensors whose elements are not adjacent in a row or in a vector.

    Batches of vectors with gaps between the vectors are named, too. Row reductions, and tensors
    that the call does not pass, are left out.
    """
    if gemm.diagonal:
        return ()
    found: list[str] = []
    for name in ("D", *gemm.operands, *gemm.outputs):
        view, output = views.get(name), gemm.outputs.get(name)
        if view is None or 0 in view.shape or min(view.strides) < 0:
            continue
        if (output and output.reduce) or not {"m", "n"} & set(gemm.axes[name]):
            continue
        gaps = name not in gemm.matrices and view.shape[0] > 1 and not view.contiguous
        if view.element_stride != 1 or (gaps and len(view.shape) > 1):
            found.append(name)
    return tuple(found)


def _with_operands(
    gemm: Gemm, views: Mapping[str, TensorView], arrangement: Arrangement, operands: Sequence[str]
) -> tuple[Gemm, dict[str, TensorView], Arrangement]:
    """The problem, views and arrangement of a call whose epilogue reads or writes matrices.

    Args:
        gemm: the problem, as if all operands were row-major.
        views: the arrays; C is arranged as D is, but other operands are as the caller gave them.
        arrangement: how A, B, C and D become the arrays in `views`.
        operands: names of the operands and outputs of the epilogue that the call gives as matrices.
    """
    others = [name for name in operands if name != "C" and arrangement.turned]
    found = {**views, **{name: views[name].transposed for name in others}}
    columns = [name for name in operands if found[name].is_transposed]
    found |= {name: found[name].transposed for name in columns}
    # If the kernel computes Dᵀ, every operand but C is transposed (`others`). Operands that are
    # then column-major are transposed to row-major (`columns`), those in both lists thus twice.
    turned = tuple(LABELS.get(x, x) for x in operands if (x in others) != (x in columns))
    gemm = replace(gemm, transposed_operands=tuple(columns))
    return gemm, found, replace(arrangement, operands_turned=turned)


def _views(
    arrays: Mapping[str, Any], *, epilogue: EpilogueFunction | None
) -> dict[str, TensorView]:
    """Views of the arrays that a call gives, by the names of tensors.

    Args:
        arrays: the arrays by the names of tensors; None for one that the call leaves out.
        epilogue: the epilogue of the call, which may quantize D; None for the default one.

    Raises:
        LaunchError: A or B is missing; an array is not where A is (host or GPU); or an element type
            is not supported.
    """
    on_host, views = library(arrays["A"]).on_host, dict[str, TensorView]()
    for name, array in arrays.items():
        if array is None and name not in "AB":
            continue
        label = LABELS.get(name, name)
        view = numpy_view(array, label) if on_host else library(array).view(array, label)
        views[name] = single(name, view)
        kind = dtype(view.dtype)
        if name in "AB" and not kind.operand:
            raise _wrong_type(label, kind, [d for d in DTYPES.values() if d.operand])
        sums = dtype(dtype(views["A"].dtype).accumulator)
        if name in "CD" and not sums.becomes(kind):
            quantized = name == "D" and epilogue is not None and _result(epilogue, sums, kind)
            if quantized != kind.name:
                fit = [d for d in DTYPES.values() if sums.becomes(d)]
                raise _wrong_type(label, kind, fit, " here")
    return views


def _result(epilogue: EpilogueFunction, sums: DType, out: DType) -> str:
    """The type, by name, of an epilogue's result before its conversion to `out`, the type of D."""
    return epilogue.kinds(sums.name, out.name).result


def _wrong_type(label: str, kind: DType, fit: Sequence[DType], where: str = "") -> LaunchError:
    """The error for a matrix `label` of type `kind`, where only the types in `fit` are allowed."""
    *known, last = (d.name for d in fit)
    return LaunchError(
        f"{label} holds {kind}; matrices hold {', '.join(known)} or {last}{where}: convert it"
    )


def _request(gemm: Gemm, views: Mapping[str, TensorView], beta: float) -> PlanRequest:
    """The `PlanRequest` of a call; extents of 0 become 1, since an empty product has no best plan.

    Raises:
        LaunchError: the shapes of A and B do not fit, or an extent is too large.
    """
    sizes = problem_parameters(_graph(gemm), views, beta=beta)
    try:
        problem = replace(gemm, **{axis: max(sizes[axis], 1) for axis in "mnk"})
    except VerifyError as error:  # an extent is larger than kernels support
        raise LaunchError(str(error).removeprefix("Gemm: ")) from error
    wide = (x for x in gemm.operands if x != "C")
    wide = (x for x in wide if gemm.axes[x] == "mn" or x in gemm.element_steps)
    # An operand with one element for each element of D needs as many registers as C, so it limits
    # the tile in the same way. So does a vector whose elements are apart, for their addresses.
    reads_c = beta != 0 or any(x in views for x in wide)
    batches = max(sizes.get("batches", sizes.get("groups", 1)), 1)
    device = views["A"].device
    if device is None:
        return PlanRequest(problem, "cpu", reads_c=reads_c, batches=batches)
    from codegen.targets.nvptx import driver

    here = driver.device(int(device))
    return PlanRequest(
        problem,
        here.architecture,
        here.name,
        here.processors,
        here.ordinal,
        alignment_of_factors(problem, views),
        reads_c=reads_c,
        batches=batches,
    )
