"""B given as a tuple of matrices, one for each sum of the epilogue, as one array with an axis more.

The kernel's B has an axis of parts, whose stride is a launch argument. So the distance between two
arrays in memory is enough to read both, wherever they were allocated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from codegen.call.arrays import library
from codegen.call.gradients import refuse_gradients
from codegen.call.views import TensorView, numpy_view, shape_text
from coordgraph import LaunchError
from coordgraph.epilogue import EpilogueFunction
from coordgraph.gemm import LARGEST_PART_STRIDE, PARTS
from coordgraph.parts_of_b import SEPARATE
from coordgraph.tensors import dtype

__all__ = ["joined_parts"]

ADVICE = "pass one array with all columns, as of numpy.concatenate or torch.cat"


def joined_parts(
    matrices: Mapping[str, Any], epilogue: EpilogueFunction, options: dict[str, Any]
) -> tuple[Mapping[str, Any], EpilogueFunction, dict[str, Any]]:
    """Replace a tuple B by one array of the same memory; returns the changed arguments.

    Arguments with another B are returned unchanged. If the second array of the tuple has the lower
    address, the array begins with it, and the sums of the epilogue change their order.

    Args:
        matrices: A, B, C and D by name; B is a tuple of k x n matrices of equal strides, or with
            groups of arrays of groups x k x n.
        epilogue: the epilogue, with a sum for each matrix.
        options: other arguments of the call, among them `parts`.

    Raises:
        LaunchError: the matrices do not fit each other, the epilogue or the options.
    """
    given: tuple[Any, ...] = matrices["B"]
    if type(given) is not tuple:
        return matrices, epilogue, options
    sums = len(epilogue.sums)
    if len(given) != sums or sums == 1:
        raise LaunchError(
            f"b is a tuple of {len(given)} arrays, but the epilogue {epilogue.name} has {sums} "
            f"{'sum' if sums == 1 else 'sums'}; pass "
            f"{'a single array' if sums == 1 else 'a tuple of as many arrays'}"
        )
    if options.get("parts", PARTS[0]) not in (PARTS[0], SEPARATE):
        raise LaunchError(
            f"parts={options['parts']} is for one array b, but b is a tuple; leave out parts"
        )
    if options.get("tune"):
        raise LaunchError("tune=True does not measure products whose b is a tuple; leave out tune")
    names = [f"b[{number}]" for number in range(sums)]
    refuse_gradients(dict(zip(names, given, strict=True)), "a product whose b is a tuple")
    on_host = library(given[0]).on_host
    views = [
        numpy_view(x, name) if on_host else library(x).view(x, name)
        for x, name in zip(given, names, strict=True)
    ]
    for name, view in zip(names, views, strict=True):
        _check_like(views[0], name, view)
    axes = 3 if options.get("grouped") else 2
    if len(views[0].shape) != axes or len(matrices["A"].shape) != 2:
        raise LaunchError(
            f"b[0] is {shape_text(views[0].shape)} and a is "
            f"{shape_text(tuple(matrices['A'].shape))}, but if b is a tuple, a must be a matrix, "
            f"and b[0] {'groups x k x n' if axes == 3 else 'a matrix'}; for other shapes {ADVICE}"
        )
    backwards = views[0].pointer > views[-1].pointer
    order = slice(None, None, -1 if backwards else 1)
    first, step = views[order][0], _step(views[order])
    shape = (*first.shape[:-2], sums, *first.shape[-2:])
    strides = (*first.strides[:-2], step, *first.strides[-2:])
    made: Any = replace(first, shape=shape, strides=strides)
    if on_host:
        bytes_of = tuple(stride * dtype(first.dtype).bytes for stride in strides)
        made = np.lib.stride_tricks.as_strided(given[order][0], shape, bytes_of, writeable=False)
    if backwards:
        epilogue = _reversed_sums(epilogue)
    return {**matrices, "B": made}, epilogue, {**options, "parts": SEPARATE}


def _check_like(first: TensorView, name: str, view: TensorView) -> None:
    """Raise LaunchError unless an array of a tuple is like the first one.

    Both must have the same shape, element type, device and strides; strides of axes of length 1 are
    ignored.
    """
    for what in ("shape", "dtype", "device"):
        one, other = getattr(first, what), getattr(view, what)
        if one != other:
            raise LaunchError(
                f"{name} has the {what} {other}, but b[0] has {one}; pass arrays of equal {what}"
            )
    steps = zip(first.shape, first.strides, view.strides, strict=True)
    if any(extent > 1 and one != other for extent, one, other in steps):
        raise LaunchError(
            f"{name} has the strides {view.strides}, but b[0] has {first.strides}, and kernels "
            "read all arrays of a tuple with the same strides; copy one of them to the layout of "
            "the other"
        )


def _step(views: list[TensorView]) -> int:
    """The distance in elements from each array to the next, the same for all.

    Raises:
        LaunchError: the distances differ, are no multiple of an element, or are too large.
    """
    size = dtype(views[0].dtype).bytes
    apart = {after.pointer - before.pointer for before, after in pairwise(views)}
    if len(apart) > 1:
        raise LaunchError(f"the arrays of b are not equally far apart in memory; {ADVICE}")
    step, rest = divmod(apart.pop(), size)
    if rest or step > LARGEST_PART_STRIDE:
        raise LaunchError(
            f"the arrays of b are {step * size + rest} bytes apart in memory, but kernels need a "
            f"multiple of {size} bytes up to {size * LARGEST_PART_STRIDE}; {ADVICE}"
        )
    return step


def _reversed_sums(function: EpilogueFunction) -> EpilogueFunction:
    """The same function with its sums of products in the opposite order."""
    sums = function.sums[::-1]
    # The result of a function that does not store D is its first sum.
    return replace(function, sums=sums, result=function.result if function.stores_d else sums[0])
