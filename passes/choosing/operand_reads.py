"""`OperandReads`: bytes that an epilogue reads and writes, and cycles of its row reductions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from coordgraph.elements import dtype
from coordgraph.gemm import GemmProblem

__all__ = ["OperandReads"]

ROW_CYCLES = {"sum": 3.0, "max": 3.0, "logsumexp": 26.0}
"""For each reduction of rows: the cycles in which a warpgroup reduces one element per thread.

Measured on an H200 with tiles of 256 x 128 of a bf16 product of 4096 x 128256 x 4096: `logsumexp`
took 3.7 us a tile longer than `max`. A sum or a maximum takes three instructions.
"""


@dataclass(frozen=True)
class OperandReads:
    """Costs of an epilogue besides reading the accumulators and writing D.

    Args:
        element_bytes: bytes of the widest element that the epilogue reads for every element of D,
            or 0. Operands as large as D need registers in addition to the accumulators.
        total_bytes: bytes of all epilogue operands and of all outputs besides D, summed over the
            products, each element counted once.
        row_cycles: cycles in which a warpgroup reduces one element per thread, summed over the
            outputs that reduce rows.
    """

    element_bytes: int
    total_bytes: float
    row_cycles: float = 0.0

    @classmethod
    def of(
        cls, problem: GemmProblem, extents: Mapping[str, float], *, reads_c: bool
    ) -> OperandReads:
        """The costs of a problem's epilogue.

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
        reductions = [o.reduce for o in problem.outputs.values() if o.reduce]
        return cls(widest, total, sum(ROW_CYCLES[name] for name in reductions))
