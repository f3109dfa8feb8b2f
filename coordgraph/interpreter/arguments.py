"""Arguments: numpy arrays checked against a graph's tensors, and the sizes read off them."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt
from sympy import Integer, Symbol

from coordgraph.errors import LaunchError, VerifyError
from coordgraph.given import whole
from coordgraph.integers import evaluate, to_text
from coordgraph.kernel import KernelGraph
from coordgraph.tensors import Role, Tensor, dtype

__all__ = ["Array", "bind", "flat", "host_array", "numpy_dtype"]

Array: TypeAlias = npt.NDArray[Any]

_NUMPY: dict[str, Any] = {
    "bf16": ml_dtypes.bfloat16,
    "f16": np.float16,
    "f32": np.float32,
    "f64": np.float64,
    "i32": np.int32,
}


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The type of numpy for one of ours."""
    return np.dtype(_NUMPY[name])


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


def bind(
    graph: KernelGraph,
    inputs: tuple[Array, ...],
    c: Array | None,
    beta: float,
    parameters: Mapping[str, int],
    tables: Mapping[str, Array],
) -> tuple[dict[str, Array], dict[str, Any]]:
    """Tensor name to array, and every parameter's value and table's entries.

    Raises:
        LaunchError: an argument does not fit the graph.
    """
    arrays = _arrays(graph, inputs, c, beta, tables)
    given = {name: whole(value, name, LaunchError) for name, value in parameters.items()}
    for tensor in graph.tensors:
        if tensor.name in arrays:
            _read_sizes(tensor, arrays[tensor.name], given)
    if "read_c" in graph.parameters:
        given["read_c"] = int(c is not None and beta != 0)
    for tensor in graph.tensors:
        _read_stride(tensor, arrays.get(tensor.name), given)
    entries = {t.name: [int(entry) for entry in arrays[t.name]] for t in _tables(graph)}
    values = graph.parameters.launch(given, entries)
    for name, array in arrays.items():
        shape = tuple(int(evaluate(extent, values)) for extent in graph.tensor(name).shape)
        if array.shape != shape:
            raise LaunchError(f"{name} is {array.shape}, not {shape}")
    return arrays, values


def _tables(graph: KernelGraph) -> list[Tensor]:
    return [t for t in graph.tensors if t.role is Role.TABLE]


def _arrays(
    graph: KernelGraph,
    inputs: tuple[Array, ...],
    c: Array | None,
    beta: float,
    tables: Mapping[str, Array],
) -> dict[str, Array]:
    """The arrays by tensor name; their types and numbers of axes fit."""
    wanted = [t for t in graph.tensors if t.role is Role.INPUT]
    if len(wanted) != len(inputs):
        raise LaunchError(f"the graph has {len(wanted)} inputs, {len(inputs)} are given")
    arrays = {t.name: _typed(t, x) for t, x in zip(wanted, inputs, strict=True)}
    if c is None and beta != 0:
        raise LaunchError(f"beta = {beta} scales C, but C is not given")
    if c is not None:
        optional = [t for t in graph.tensors if t.role is Role.OPTIONAL_INPUT]
        if not optional:
            raise LaunchError("C is given, but the graph reads no C")
        arrays[optional[0].name] = _typed(optional[0], c)
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
