"""Divides a product with several batch axes into launches, none of which copies an operand.

A launch takes a batch with one axis, whose matrices are at equal distances. Two adjacent batch axes
are joined to one if all matrices of both are at equal distances in each array; the distance is 0
along axes that an array repeats. The longest of the resulting axes is the batch of each launch.
There is one launch for each combination of indices of the other axes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product
from operator import itemgetter

from codegen.call.views import TensorView
from coordgraph.elements import dtype

__all__ = ["launches"]

Axis = tuple[int, tuple[int, ...]]
"""A batch axis: its extent, and for each array the elements from one matrix to the next.

An array that repeats its matrices along the axis has the distance 0.
"""


def launches(*arrays: TensorView) -> Iterator[tuple[TensorView, ...]]:
    """For each launch of a product, views of its arrays.

    Args:
        arrays: A (…, m, k), B (…, k, n), C (…, m, n) if there is one, and D (…, m, n). A and B may
            hold the transpose of each matrix. All batch axes are broadcast to those of D by
            NumPy's rules.
    """
    batch = arrays[-1].shape[:-2]
    steps = zip(*(_steps(array, len(batch)) for array in arrays), strict=True)
    axes = _joined(zip(batch, steps, strict=True))
    longest = max(axes, key=itemgetter(0), default=None)
    others = [axis for axis in axes if axis is not longest]
    for index in product(*(range(extent) for extent, _ in others)):
        yield tuple(
            _matrices(
                array,
                sum(i * steps[place] for i, (_, steps) in zip(index, others, strict=True)),
                longest and (longest[0], longest[1][place]),
            )
            for place, array in enumerate(arrays)
        )


def _steps(array: TensorView, count: int) -> Iterator[int]:
    """Elements from one matrix of an array to the next, along each of `count` batch axes of D."""
    yield from (0,) * (count + 2 - len(array.shape))
    empty = 0 in array.shape
    for extent, stride in zip(array.shape[:-2], array.strides, strict=False):
        # An array without elements may have the stride 0 along axes that are not repeated. Any
        # other stride will do for them, because no element is read.
        yield (stride or int(empty)) if extent != 1 else 0


def _joined(axes: Iterable[Axis]) -> list[Axis]:
    """Join adjacent batch axes where possible, and leave out axes of extent 1."""
    found = list[Axis]()
    for extent, steps in axes:
        if extent == 1:
            continue
        if found:
            outer, before = found[-1]
            if before == tuple(extent * step for step in steps):
                found[-1] = (outer * extent, steps)
                continue
        found.append((extent, steps))
    return found


def _matrices(array: TensorView, offset: int, axis: tuple[int, int] | None) -> TensorView:
    """The matrices of an array that one launch reads or writes.

    Args:
        array: the array.
        offset: elements from the first matrix of the array to the first of the launch.
        axis: extent and distance of the launch's batch axis; None for a single product.
    """
    batch = () if axis is None or axis[1] == 0 else (axis,)
    return replace(
        array,
        pointer=array.pointer + offset * dtype(array.dtype).bytes,
        shape=(*(extent for extent, _ in batch), *array.shape[-2:]),
        strides=(*(step for _, step in batch), *array.strides[-2:]),
    )
