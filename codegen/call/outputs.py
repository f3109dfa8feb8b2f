"""The arrays that a call of a kernel returns: D, or D and all other outputs of the epilogue."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from coordgraph.gemm import GemmProblem

__all__ = ["outputs_of", "returned", "written"]


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
