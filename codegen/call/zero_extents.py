"""Calls in which m, n or k is 0; their results equal PyTorch's results.

If D has no element, or no row that belongs to a group, nothing is launched. If k is 0, every sum of
products is 0, so D is the epilogue of 0: zeros or `beta·C` by default. Kernels need k of at least
1, so for k = 0 they multiply matrices of zeros. Alpha is replaced by 0 too, so that an infinite
alpha does not give NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from codegen.call.operands import Operands
from coordgraph import KernelGraph
from coordgraph.epilogue import ALPHA_BETA
from coordgraph.gemm import GemmProblem
from coordgraph.integers import evaluate
from coordgraph.interpreter.arguments import Array, numpy_dtype

__all__ = [
    "extents",
    "lacks_depth",
    "new_output",
    "of_depth",
    "operands_of_depth",
    "writes_nothing",
    "zeros_of_depth",
]

COUNTS = ("m", "n", "batches", "groups", "elements_d")
VECTORS = ("elements_a", "elements_b")
"""Size parameters of a list of products: the lengths of the vectors in which all matrices A, and
all matrices B, are packed.
"""


def writes_nothing(sizes: Mapping[str, int]) -> bool:
    """Whether a call writes no element of D.

    Args:
        sizes: values of the kernel's size parameters.
    """
    return any(sizes.get(name) == 0 for name in COUNTS)


def lacks_depth(sizes: Mapping[str, int]) -> bool:
    """Whether all sums of products are empty: k is 0, or A or B has no element."""
    return any(sizes.get(name) == 0 for name in ("k", *VECTORS))


def extents(graph: KernelGraph, tensor: str, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of the array that a caller passes for a tensor."""
    return tuple(int(evaluate(extent, dict(sizes))) for extent in graph.tensor(tensor).shape)


def operands_of_depth(
    graph: KernelGraph, sizes: Mapping[str, int], depth: int
) -> dict[str, tuple[int, ...]]:
    """Shapes of A and B with k = `depth`.

    A vector that packs the matrices of a list of products has at least `depth` elements.
    """
    vectors = {name: max(depth, sizes[name]) for name in VECTORS if name in sizes}
    deep = {**sizes, "k": depth, **vectors}
    return {name: extents(graph, name, deep) for name in "AB"}


def of_depth(gemm: GemmProblem, given: Operands) -> Operands:
    """The operands of a call with k = 0: alpha becomes 0, so that infinity times 0 is not NaN."""
    if gemm.epilogue != ALPHA_BETA:
        return given
    return replace(
        given, scalars={**given.scalars, "alpha": 0}
    )  # the int 0 converts to every scalar type


def new_output(graph: KernelGraph, tensor: str, sizes: Mapping[str, int]) -> Array:
    """A new numpy array for D or another output, with uninitialized elements."""
    return np.empty(extents(graph, tensor, sizes), numpy_dtype(graph.tensor(tensor).dtype))


def zeros_of_depth(graph: KernelGraph, sizes: Mapping[str, int]) -> tuple[Array, Array]:
    """A and B of zeros with k = 1, as arrays of numpy."""
    kind = numpy_dtype(graph.gemm.dtype)
    a, b = operands_of_depth(graph, sizes, 1).values()
    return np.zeros(a, kind), np.zeros(b, kind)
