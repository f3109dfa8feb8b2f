"""`OperandReads`: number of bytes that an epilogue reads, and writes besides D, per launch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from coordgraph.elements import dtype
from coordgraph.gemm import GemmProblem

__all__ = ["OperandReads"]


@dataclass(frozen=True)
class OperandReads:
    """Bytes that an epilogue reads besides the accumulators, and writes besides D.

    Args:
        element_bytes: bytes of the widest element that the epilogue reads for every element of D,
            or 0. Operands as large as D need registers in addition to the accumulators.
        total_bytes: bytes of all epilogue operands and of all outputs besides D, summed over the
            products, each element counted once.
    """

    element_bytes: int
    total_bytes: float

    @classmethod
    def of(
        cls, problem: GemmProblem, extents: Mapping[str, float], *, reads_c: bool
    ) -> OperandReads:
        """The bytes that a problem's epilogue reads, and writes besides D.

        Args:
            problem: the problem, with its epilogue.
            extents: `l`, the number of products, and `m`, `n` and `k` of each product, where `n`
                counts the columns of B.
            reads_c: whether the launch passes C; if not, the epilogue does not read C.
        """
        out, widest, total = problem.out_dtype or problem.dtype, 0, 0.0
        for tensor, operand in problem.operands.items():
            if tensor == "C" and not reads_c:
                continue
            size = dtype(operand.dtype or out).bytes
            parts = problem.sums if "n" in operand.axes else 1
            total += size * prod(extents[axis] for axis in operand.axes) / parts
            if {*"mn"} <= {*operand.axes}:
                widest = max(widest, size)
        for output in problem.outputs.values():
            elements = prod(extents[axis] for axis in ("l", *output.axes))
            total += dtype(output.dtype or out).bytes * elements
        return cls(widest, total)
