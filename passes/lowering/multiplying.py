"""What a family of matrix instructions multiplies and stores, and why it may refuse a problem."""

from __future__ import annotations

from coordgraph.elements import DTYPES, DType, MatrixInstruction, dtype
from coordgraph.gemm import GemmProblem

__all__ = ["REGISTER_BYTES", "instruction_of", "no_instruction", "outputs"]

REGISTER_BYTES = 4
"""Of a register of a GPU's thread: accumulators of matrix instructions take one each."""


def outputs(sums: DType) -> tuple[str, ...]:
    """The types that C and D may have on GPUs beside accumulators of a type."""
    return tuple(d.name for d in DTYPES.values() if sums.becomes(d) and d.bytes <= REGISTER_BYTES)


def instruction_of(gemm: GemmProblem, family: str) -> MatrixInstruction:
    """The instruction of a family for A and B of a problem, which `no_instruction` lets through."""
    found = dtype(gemm.dtype).instruction(family)
    assert found is not None
    return found


def no_instruction(gemm: GemmProblem, family: str) -> str | None:
    """Why a family of matrix instructions cannot multiply A by B and store D, or None."""
    kind = dtype(gemm.dtype)
    found = kind.instruction(family)
    if found is None:
        *known, last = (d.name for d in DTYPES.values() if d.instruction(family))
        return (
            f"{family} multiplies {', '.join(known)} and {last} here, not {kind}; use target='cpu'"
        )
    if gemm.out_dtype not in (stored := outputs(dtype(kind.accumulator))):
        return f"C and D may be {', '.join(stored)} here, not {gemm.out_dtype}"
    if found.across_k or (gemm.transpose_b and not gemm.transpose_a):
        return None
    return (
        f"{family} multiplies {kind} only where A and B are contiguous along k: A row-major "
        "(transpose_a=False), and B given as its transpose, a row-major n x k matrix "
        "(transpose_b=True)"
    )
