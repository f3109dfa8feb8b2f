"""Products of no extent: what a call does where m, n or k is 0, as PyTorch has it.

Where D has no element, or no row that belongs to a group, nothing runs. Where k is 0, every sum of
products is 0, so D is `beta·C`, or zeros. Kernels are for sizes from 1 on: for the latter they
multiply zeros of some depth, and alpha is 0 too, since what it scales is nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from coordgraph import KernelGraph
from coordgraph.integers import evaluate
from coordgraph.interpreter.arguments import Array, numpy_dtype

__all__ = [
    "extents",
    "lacks_depth",
    "new_output",
    "operands_of_depth",
    "writes_nothing",
    "zeros_of_depth",
]

COUNTS = ("m", "n", "batches", "groups", "elements_d")
VECTORS = ("elements_a", "elements_b")
"""How long A and B are, where they hold the matrices of groups that share no extent."""


def writes_nothing(sizes: Mapping[str, int]) -> bool:
    """Whether no element of D is written. `sizes`: those that the kernel leaves open."""
    return any(sizes.get(name) == 0 for name in COUNTS)


def lacks_depth(sizes: Mapping[str, int]) -> bool:
    """Whether there is nothing to add up: no k, or no element of A or B in any group."""
    return any(sizes.get(name) == 0 for name in ("k", *VECTORS))


def extents(graph: KernelGraph, tensor: str, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of a tensor, as the caller sees it."""
    return tuple(int(evaluate(extent, dict(sizes))) for extent in graph.tensor(tensor).shape)


def operands_of_depth(
    graph: KernelGraph, sizes: Mapping[str, int], depth: int
) -> dict[str, tuple[int, ...]]:
    """The shapes of A and B with another k; vectors of matrices have so many elements at least."""
    vectors = {name: max(depth, sizes[name]) for name in VECTORS if name in sizes}
    deep = {**sizes, "k": depth, **vectors}
    return {name: extents(graph, name, deep) for name in "AB"}


def new_output(graph: KernelGraph, sizes: Mapping[str, int]) -> Array:
    """Memory of numpy for D."""
    return np.empty(extents(graph, "D", sizes), numpy_dtype(graph.tensor("D").dtype))


def zeros_of_depth(graph: KernelGraph, sizes: Mapping[str, int]) -> tuple[Array, Array]:
    """A and B of zeros with k = 1, as arrays of numpy."""
    kind = numpy_dtype(graph.gemm.dtype)
    a, b = operands_of_depth(graph, sizes, 1).values()
    return np.zeros(a, kind), np.zeros(b, kind)
