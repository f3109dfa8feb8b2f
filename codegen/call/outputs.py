"""The arrays that a call of a kernel returns: D, or D and all other outputs of the epilogue."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from coordgraph.epilogue import EpilogueFunction
from coordgraph.gemm import GemmProblem
from coordgraph.interpreter.arguments import Array

__all__ = ["finished", "outputs_of", "returned", "written"]

LAST: dict[str, Callable[[Array], Array]] = {
    "sum": lambda parts: parts.sum(-1),
    "max": lambda parts: parts.max(-1, initial=-np.inf),
    "logsumexp": lambda parts: np.logaddexp.reduce(parts, -1),
}
"""For each reduction: the function that reduces the results of all column tiles of a row, or all
results of all rows, along the last axis."""


def outputs_of(gemm: GemmProblem) -> tuple[str, ...]:
    """The names of all tensors that a kernel writes for its caller; D comes first."""
    return "D", *gemm.outputs


def written(
    gemm: GemmProblem, out: Any, others: Mapping[str, Any], new: Callable[[str], Any]
) -> dict[str, Any]:
    """The arrays of all outputs by tensor, D first.

    Args:
        gemm: the problem.
        out: the array that the call passes for D, or None.
        others: the arrays that the call passes for other outputs, by tensor.
        new: makes an array for an output that the call leaves out.
    """
    given = {"D": out, **others}
    return {
        name: new(name) if given.get(name) is None else given[name] for name in outputs_of(gemm)
    }


def returned(arrays: Iterable[Any]) -> Any:
    """What a call returns: D, or the tuple (D, other outputs in the order of declaration)."""
    found: Any = tuple(arrays)
    return found if len(found) > 1 else found[0]


def finished(function: EpilogueFunction, found: Any) -> Any:
    """Finish reductions: combine the results of all tiles of a row, or of D, to one element.

    A kernel stores one result for each row of each macro tile. Only CPU kernels reduce rows. The
    result of this function is what the call returns: D, or a tuple of D and other outputs.

    Args:
        function: the epilogue.
        found: what the kernel returned.
    """
    if not any(output.reduce for output in function.outputs):
        return found
    d, *others = found
    with np.errstate(all="ignore"):  # infinity and NaN are valid results
        return d, *(
            LAST[output.reduce](array if output.axes else array.reshape(-1))
            if output.reduce
            else array
            for output, array in zip(function.outputs, others, strict=True)
        )
