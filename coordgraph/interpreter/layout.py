"""Where the elements of a tensor are in memory: strides, and gaps between rows and matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from sympy import Symbol

from coordgraph.integers import evaluate
from coordgraph.tensors import Tensor

__all__ = ["elements", "has_strides", "laid_out", "read_strides", "strides_of"]

Array: TypeAlias = npt.NDArray[Any]


def read_strides(tensor: Tensor, array: Array | None, given: dict[str, int]) -> None:
    """Set the launch parameters for strides of `tensor`, in elements, to the strides of `array`.

    Without an array, or if the array does not have the tensor's fixed strides, such as stride 1
    along a row, the tensor is taken to have no gaps; `laid_out` then copies the array.

    Args:
        tensor: the graph's tensor.
        array: the array that the caller passed for the tensor; None if there is none.
        given: values of launch parameters by name, to which the function adds.
    """
    wanted = {
        axis: stride.name
        for axis, stride in enumerate(tensor.strides or ())
        if isinstance(stride, Symbol) and stride.name not in given
    }
    if not wanted:
        return
    shape = tuple(int(evaluate(extent, given)) for extent in tensor.shape)
    whole = {name: prod(shape[axis + 1 :]) for axis, name in wanted.items()}
    if array is not None and array.size:
        # The stride of an axis of extent 1 is arbitrary: take the stride of a contiguous array.
        own = {
            name: array.strides[axis] // array.itemsize if array.shape[axis] != 1 else whole[name]
            for axis, name in wanted.items()
        }
        if has_strides(array, strides_of(tensor, given | own)):
            whole = own
    given.update(whole)


def strides_of(tensor: Tensor, values: Mapping[str, Any]) -> tuple[int, ...]:
    """The strides of a tensor in elements; `values` has the launch parameters by name."""
    if tensor.strides is not None:
        return tuple(int(evaluate(stride, dict(values))) for stride in tensor.strides)
    shape = tuple(int(evaluate(extent, dict(values))) for extent in tensor.shape)
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


def has_strides(array: Array, strides: Sequence[int]) -> bool:
    """Whether an array has the given strides, in elements; False if one of them is negative.

    The stride along an axis of extent 1 is not compared, because it locates no element.
    """
    return all(
        extent == 1 or (step == stride * array.itemsize and step >= 0)
        for extent, step, stride in zip(array.shape, array.strides, strides, strict=True)
    )


def laid_out(array: Array, strides: Sequence[int], unwritten: Any) -> Array:
    """A one-dimensional array of a tensor's memory, from its first to its last element.

    If `array` has the strides `strides`, the result is a view of its memory, gaps included;
    otherwise it is a copy of the elements.

    Args:
        array: the tensor's elements.
        strides: the tensor's strides in elements.
        unwritten: the value of elements in the gaps of a copy.
    """
    if not array.size:
        return array.reshape(-1)
    ends = zip(array.shape, strides, strict=True)
    count = 1 + sum((extent - 1) * stride for extent, stride in ends)
    if has_strides(array, strides):
        return _strided(array, (count,), (array.itemsize,), writeable=False)
    made = np.full(count, unwritten, array.dtype)
    elements(made, array.shape, strides)[...] = array
    return made


def elements(memory: Array, shape: Sequence[int], strides: Sequence[int]) -> Array:
    """A view of a tensor's memory with the tensor's axes; `strides` are in elements."""
    steps = tuple(stride * memory.itemsize for stride in strides)
    return _strided(memory, tuple(shape), steps)


def _strided(
    array: Array, shape: tuple[int, ...], steps: tuple[int, ...], *, writeable: bool = True
) -> Array:
    """A view of an array's memory with a shape and with distances between elements in bytes.

    NumPy makes such views of integers, but not of e5m2, whose name in the array interface, `<f1`,
    it cannot read. So the view is made of the elements' bits.
    """
    bits = array.view(f"u{array.itemsize}")
    found = np.lib.stride_tricks.as_strided(bits, shape, steps, writeable=writeable)
    return found.view(array.dtype)
