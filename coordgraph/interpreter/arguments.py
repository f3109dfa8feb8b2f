"""Arguments: numpy arrays checked against a graph's tensors, and the sizes read off them."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt
from sympy import Integer, Symbol

from coordgraph.elements import DType, dtype
from coordgraph.epilogue import ALPHA_BETA, EpilogueFunction
from coordgraph.errors import LaunchError, VerifyError
from coordgraph.gemm import GemmProblem, read_of
from coordgraph.integers import evaluate, to_text
from coordgraph.kernel import KernelGraph
from coordgraph.tensors import Role, Tensor
from coordgraph.validation import whole

__all__ = [
    "DEFAULTS",
    "Array",
    "bind",
    "check_scaled",
    "flat",
    "host_array",
    "numpy_dtype",
    "reads",
    "scalar",
    "scalars",
    "unwritten",
    "with_defaults",
]

Array: TypeAlias = npt.NDArray[Any]


def numpy_dtype(name: str) -> np.dtype[Any]:
    """NumPy's type for an element type; ml_dtypes has those that NumPy itself lacks."""
    library = dtype(name).library
    return np.dtype(getattr(np, library, None) or getattr(ml_dtypes, library))


def unwritten(name: str) -> Any:
    """What elements of a type hold before anything is written: NaN, or the least integer."""
    kind = dtype(name)
    return np.nan if kind.is_float else kind.least


def scalars(gemm: GemmProblem, alpha: Any, beta: Any) -> tuple[float, float]:
    """Alpha and beta as a kernel takes them: sums of integers are scaled by whole numbers.

    Raises:
        LaunchError: one is no number, or none that scales sums of this type; or `beta` adds a C
            that cannot be added to them.
    """
    sums = dtype(gemm.accumulator)
    found = scalar(alpha, "alpha", sums), scalar(beta, "beta", sums)
    if found[1] and not sums.is_float and gemm.out_dtype != sums.name:
        raise LaunchError(
            f"beta = {beta} adds a C of {gemm.out_dtype} to sums of {sums}; make the kernel with "
            f"Gemm(out_dtype='{sums}'), or add C to D afterwards"
        )
    return found


def scalar(value: Any, what: str, sums: DType) -> float:
    """A number of the epilogue, as a kernel takes it: a whole one where it scales integers.

    Raises:
        LaunchError: it is no such number.
    """
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        raise LaunchError(f"{what} = {value!r} is not a number") from None
    if sums.is_float:
        return found
    if not found.is_integer() or not sums.least <= found <= sums.largest:
        whole = f"it must be a whole number from {sums.least} to {sums.largest}"
        if what in DEFAULTS:
            raise LaunchError(
                f"{what} = {value} scales sums of {sums}, so {whole}; scale D afterwards by any "
                "other factor"
            )
        raise LaunchError(
            f"{what} = {value} is an operand of {sums}, so {whole}; for other numbers declare it "
            f'as {what}=ep.operand("", "f32"), and convert the sums with ep.cast(acc, to="f32")'
        )
    return int(found)


def host_array(value: object, what: str) -> Array:
    """An array of numpy, as its base class: subclasses may index in ways of their own.

    Raises:
        LaunchError: it is none, or a masked one.
    """
    if isinstance(value, np.ma.MaskedArray):
        raise LaunchError(
            f"{what} is a masked array, and kernels read every element; pass {what}.filled(0), or "
            f"{what}.data to do without the mask"
        )
    if not isinstance(value, np.ndarray):
        raise LaunchError(
            f"{what} is a {type(value).__name__}, not a numpy array; convert it with numpy.asarray"
        )
    return value.view(np.ndarray)


DEFAULTS = {"c": None, "alpha": 1.0, "beta": 0.0}
"""The operands that every call has a parameter for, and what it is where nothing is said."""


def with_defaults(function: EpilogueFunction, given: Mapping[str, Any]) -> dict[str, Any]:
    """The operands of a call: without those that the epilogue does not have, left at their default.

    Raises:
        LaunchError: one is given that the epilogue does not have, or a number that it has is not.
    """
    found: dict[str, Any] = {}
    for name, value in given.items():
        if function.operand(name) is not None:
            found[name] = value
        elif name not in DEFAULTS or not _is_default(name, value):
            names = ", ".join(o.name for o in function.operands) or "none"
            raise LaunchError(
                f"{name} is no operand of the epilogue {function.name}; its operands are: {names}"
            )
    for operand in function.operands:
        if operand.name in DEFAULTS:
            found.setdefault(operand.name, DEFAULTS[operand.name])
        if found.get(operand.name) is None and not operand.optional:
            raise LaunchError(
                f"{operand.name} is missing: the epilogue {function.name} needs it"
                + f", {'a number' if operand.is_scalar else 'an array'}, by this name"
            )
    return found


def _is_default(name: str, value: Any) -> bool:
    default = DEFAULTS[name]
    return value is default or (default is not None and value == default)


def reads(
    gemm: GemmProblem, given: Mapping[str, bool], scalars: Mapping[str, Any]
) -> dict[str, int]:
    """The parameters that say which optional operands are read.

    An operand that is multiplied by a scalar of 0 wherever it is used is not read.

    Args:
        gemm: the problem.
        given: by the name of a tensor, whether a call has it.
        scalars: the numbers of the call.
    """
    found: dict[str, int] = {}
    for tensor, operand in gemm.operands.items():
        if operand.optional:
            scale = gemm.epilogue.scale_of(operand.name)
            counts = not scale or bool(scalars.get(scale, 1) != 0)
            found[read_of(tensor)] = int(given.get(tensor, False) and counts)
    return found


def check_scaled(gemm: GemmProblem, given: Mapping[str, bool], scalars: Mapping[str, Any]) -> None:
    """LaunchError where C is optional and not given, and beta, which multiplies it, is not 0.

    Other optional operands that are not given count as 0, whatever multiplies them.
    """
    for tensor, operand in gemm.operands.items():
        counts = operand.optional and operand.name in DEFAULTS
        scale = gemm.epilogue.scale_of(operand.name) if counts else ""
        if scale and scalars.get(scale, 0) != 0 and not given.get(tensor, False):
            raise LaunchError(
                f"{scale} = {scalars[scale]} needs {operand.name}; pass it, or {scale}=0"
            )


def bind(
    graph: KernelGraph,
    inputs: tuple[Array, ...],
    operands: Mapping[str, Any],
    parameters: Mapping[str, int],
    tables: Mapping[str, Array],
) -> tuple[dict[str, Array], dict[str, float], dict[str, Any]]:
    """Tensor name to array, the numbers, and every parameter's value and table's entries.

    Raises:
        LaunchError: an argument does not fit the graph.
    """
    gemm = graph.gemm
    arrays = _arrays(graph, inputs, operands, tables)
    kinds = gemm.epilogue.kinds(gemm.accumulator, gemm.out_dtype or gemm.dtype).operands
    numbers = {
        o.name: scalar(operands[o.name], o.name, dtype(kinds[o.name]))
        for o in gemm.epilogue.scalars
    }
    if gemm.epilogue == ALPHA_BETA:
        scalars(gemm, operands["alpha"], operands["beta"])  # C can be added
    given = {name: whole(value, name, LaunchError) for name, value in parameters.items()}
    for tensor in graph.tensors:
        if tensor.name in arrays and not tensor.role.finishes:
            _read_sizes(tensor, arrays[tensor.name], given)
    for tensor in graph.tensors:  # what operands need follows from A and B
        if tensor.name in arrays and tensor.role.finishes:
            _read_sizes(tensor, arrays[tensor.name], given)
    there = dict.fromkeys(arrays, True)
    check_scaled(gemm, there, numbers)
    given |= {n: r for n, r in reads(gemm, there, numbers).items() if n in graph.parameters}
    for tensor in graph.tensors:
        _read_stride(tensor, arrays.get(tensor.name), given)
    entries = {t.name: [int(entry) for entry in arrays[t.name]] for t in _tables(graph)}
    values = graph.parameters.launch(given, entries)
    for name, array in arrays.items():
        shape = tuple(int(evaluate(extent, values)) for extent in graph.tensor(name).shape)
        if array.shape != shape:
            raise LaunchError(f"{name} is {array.shape}, not {shape}")
    return arrays, numbers, values


def _tables(graph: KernelGraph) -> list[Tensor]:
    return [t for t in graph.tensors if t.role is Role.TABLE]


def _arrays(
    graph: KernelGraph,
    inputs: tuple[Array, ...],
    operands: Mapping[str, Any],
    tables: Mapping[str, Array],
) -> dict[str, Array]:
    """The arrays by tensor name; their types and numbers of axes fit."""
    wanted = [t for t in graph.tensors if t.role is Role.INPUT]
    if len(wanted) != len(inputs):
        raise LaunchError(f"the graph has {len(wanted)} inputs, {len(inputs)} are given")
    arrays = {t.name: _typed(t, x) for t, x in zip(wanted, inputs, strict=True)}
    for name, operand in graph.gemm.operands.items():
        if (value := operands.get(operand.name)) is not None:
            if operand.in_memory and isinstance(value, np.ndarray) and not value.ndim:
                value = value.reshape(1)
            arrays[name] = _typed(graph.tensor(name), value)
    known = {t.name: t for t in _tables(graph)}
    if wrong := sorted(tables.keys() ^ known.keys()):
        what = "no table of this graph" if wrong[0] in tables else "missing; pass it in tables"
        raise LaunchError(f"{wrong[0]} is {what}")
    return arrays | {name: _typed(t, tables[name]) for name, t in known.items()}


def _typed(tensor: Tensor, value: object) -> Array:
    value = host_array(value, tensor.name)
    try:
        found = dtype(value.dtype.name).name
    except VerifyError:
        found = value.dtype.name
    if found != tensor.dtype:
        raise LaunchError(f"{tensor.name} has elements of {found}, the graph is for {tensor.dtype}")
    if value.ndim != len(tensor.shape):
        raise LaunchError(f"{tensor.name} has {value.ndim} axes, not {len(tensor.shape)}")
    return value


def _read_sizes(tensor: Tensor, array: Array, given: dict[str, int]) -> None:
    """Take sizes that are parameters from the array; they must agree with what is known."""
    for axis, (extent, found) in enumerate(zip(tensor.shape, array.shape, strict=True)):
        more, symbol = extent.as_coeff_Add()
        if isinstance(symbol, Symbol):  # as in `groups + 1` of a table
            expected = given.setdefault(symbol.name, found - int(more)) + int(more)
        elif isinstance(extent, Integer):
            expected = int(extent)
        else:
            continue
        if expected != found:
            shape = ", ".join(map(to_text, tensor.shape))
            raise LaunchError(
                f"{tensor.name} is {array.shape}: axis {axis} of ({shape}) must be {expected}"
            )


def _read_stride(tensor: Tensor, array: Array | None, given: dict[str, int]) -> None:
    """Take a stride that is a parameter from the array; what is not there has no gaps."""
    stride = tensor.strides[0] if tensor.strides else None
    if not isinstance(stride, Symbol) or stride.name in given:
        return
    if array is not None and array.size and _rows_follow(array):
        given[stride.name] = array.strides[0] // array.itemsize
    else:
        given[stride.name] = prod(int(evaluate(extent, given)) for extent in tensor.shape[1:])


def _rows_follow(array: Array) -> bool:
    """Whether the matrices of a batch are contiguous, one at or after the other."""
    return bool(array[0].flags.c_contiguous) and array.strides[0] >= 0 == array.strides[0] % (
        array.itemsize
    )


def flat(array: Array) -> Array:
    """The elements from the first to the last, as tensors count them."""
    if array.ndim < 3 or not _rows_follow(array):
        return np.ascontiguousarray(array).reshape(-1)
    count = (len(array) - 1) * (array.strides[0] // array.itemsize) + array[0].size
    return np.lib.stride_tricks.as_strided(array, (count,), (array.itemsize,), writeable=False)
