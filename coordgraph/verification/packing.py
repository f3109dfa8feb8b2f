"""Where the matrices of a list of products are, if each operand is one vector of all matrices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise

from coordgraph.gemm import GemmProblem, row_step

__all__ = ["PACKED", "packed_elements", "packed_starts"]

PACKED = "elements_"
"""Prefix of the names of launch parameters for the number of elements of a packed vector of
matrices, such as `elements_a` for the matrices A of all products."""


def packed_elements(
    gemm: GemmProblem, names: Iterable[str], tables: Mapping[str, Sequence[int]]
) -> dict[str, int]:
    """The lengths of vectors that each hold one operand's matrices of all products.

    Args:
        gemm: the problem, a list of products.
        names: names of launch parameters; those for other values are skipped.
        tables: for each axis that differs between products, where the products begin along it.

    Returns:
        The lengths in elements, by the names of the launch parameters, such as `elements_a`.
    """
    found: dict[str, int] = {}
    for name in names:
        if name.startswith(PACKED):
            tensor = name.removeprefix(PACKED).upper()
            found[name] = max(packed_starts(gemm, tensor, tables)[-1], 1)
    return found


def packed_starts(gemm: GemmProblem, tensor: str, tables: Mapping[str, Sequence[int]]) -> list[int]:
    """Where the matrix of each product begins in the tensor's vector; last, where the vector ends.

    All positions are numbers of elements.
    """
    axes = gemm.axes[tensor]
    if gemm.is_transposed(tensor):
        axes = axes[::-1]
    rows, columns = (tables[gemm.offsets(axis)] for axis in axes)
    kind = gemm.dtype if tensor in ("A", "B") else gemm.out_dtype or gemm.dtype
    step = row_step(kind)
    sizes = (
        (r1 - r0) * (-(-(c1 - c0) // step) * step)
        for (r0, r1), (c0, c1) in zip(pairwise(rows), pairwise(columns), strict=True)
    )
    return [0, *accumulate(sizes)]
