"""The arrays that a call of a kernel returns: D, or D and all other outputs of the epilogue.

If the epilogue does not store D, None is returned in place of D.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from codegen.call.arrays import library
from coordgraph.epilogue import EpilogueFunction
from coordgraph.epilogue.reduction import IDENTITIES
from coordgraph.gemm import GemmProblem

__all__ = ["finished", "returned", "written"]


Sum = Callable[[Any, Any], Any]
"""Type of functions that sum an array along its last axis; the first argument is the module with
the functions of the array's library."""


def _any_order(functions: Any, parts: Any) -> Any:
    """The sum along the last axis, in an order that the array's library chooses."""
    return functions.sum(parts, -1)


def _of_pairs(functions: Any, parts: Any) -> Any:
    """The sum along the last axis, in an order that depends only on the extent of that axis.

    The first half of the elements is added to the second half, again and again; elements that an
    odd number of elements leaves over are added last.
    """
    left = list[Any]()
    while (count := parts.shape[-1]) > 1:
        if count % 2:
            left.append(parts[..., -1])
        parts = parts[..., : count // 2] + parts[..., count // 2 : count // 2 * 2]
    return sum(reversed(left), parts[..., 0])


def _logsumexp(functions: Any, parts: Any, add: Sum) -> Any:
    """`log(sum(exp(parts)))` along the last axis, computed without overflow."""
    high = functions.amax(parts, -1)
    # If the largest value is infinite, subtracting it would give NaN.
    high = functions.where(functions.isfinite(high), high, functions.zeros_like(high))
    return functions.log(add(functions, functions.exp(parts - high[..., None]))) + high


LAST: dict[str, Callable[[Any, Any, Sum], Any]] = {
    "sum": lambda functions, parts, add: add(functions, parts),
    "max": lambda functions, parts, add: functions.amax(parts, -1),
    "logsumexp": _logsumexp,
}
"""For each reduction: a function that reduces the results of all column tiles of a row, or all
results of all rows, along the last axis. The function's arguments are the module with the
functions of the array's library, the array, and the function that sums along the last axis."""


def written(
    gemm: GemmProblem, out: Any, others: Mapping[str, Any], new: Callable[[str], Any]
) -> dict[str, Any]:
    """The arrays of all outputs that the kernel stores, by the tensors' names, D first.

    Args:
        gemm: the problem, with the names of the outputs that are stored.
        out: the array that the call passes for D, or None.
        others: the arrays that the call passes for other outputs, by the tensors' names.
        new: a function from a tensor's name to a new array, for outputs that the call leaves out.
    """
    given = {"D": out, **others}
    return {name: new(name) if given.get(name) is None else given[name] for name in gemm.stored}


def returned(gemm: GemmProblem, arrays: Mapping[str, Any]) -> Any:
    """What a call returns: D, or the tuple (D, other outputs in the order of declaration).

    Args:
        gemm: the problem, with the names of the epilogue's outputs besides D.
        arrays: the arrays of all outputs that the kernel stores, by the tensors' names. If D is not
            among them, the first element of the tuple is None.
    """
    others = tuple(arrays[name] for name in gemm.outputs)
    return (arrays.get("D"), *others) if others else arrays["D"]


def finished(
    function: EpilogueFunction, found: Any, stream: Any = None, *, invariant: bool = False
) -> Any:
    """Finish reductions: combine the results of all tiles of a row, or of D, to one element.

    A kernel stores one result for each row of each macro tile. The array's own library reduces
    these results, on the stream of the launch. The result of this function is what the call
    returns: D, or a tuple of D (None if it is not stored) and other outputs.

    Args:
        function: the epilogue.
        found: what the kernel returned: D, or a tuple of D and the other outputs, not reduced yet.
        stream: the stream of the launch; None for the current stream of the array's library.
        invariant: whether the results of a row are added in an order that does not depend on the
            number of rows.
    """
    if not any(output.reduce for output in function.outputs):
        return found
    d, *others = found
    add = _of_pairs if invariant else _any_order
    return d, *(
        _last(output.reduce, array if output.axes else array.reshape(-1), stream, add)
        if output.reduce
        else array
        for output, array in zip(function.outputs, others, strict=True)
    )


def _last(reduce: str, parts: Any, stream: Any, add: Sum) -> Any:
    """Reduce the last axis of an array; an axis of extent 0 gives the identity of the reduction.

    Args:
        reduce: the name of the reduction: `sum`, `max` or `logsumexp`.
        parts: the array, such as one result for each row of each macro tile.
        stream: the stream on which to reduce; None for the current stream of the array's library.
        add: the function that sums along the last axis.
    """
    home = library(parts)
    with home.on_stream(parts, stream), np.errstate(all="ignore"):  # infinity and NaN are valid
        if not parts.shape[-1]:
            return home.functions.sum(parts, -1) + IDENTITIES[reduce]
        return LAST[reduce](home.functions, parts, add)
