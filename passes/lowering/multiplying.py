"""The element types that `mma.sync` and `wgmma` kernels multiply and store."""

from __future__ import annotations

from coordgraph.elements import DTYPES, DType, MatrixInstruction, dtype
from coordgraph.epilogue.operation import QUANTIZED
from coordgraph.gemm import GemmProblem
from passes.lowering.architectures import Architecture, architecture_of, names

__all__ = ["REGISTER_BYTES", "instruction_of", "no_instruction", "outputs", "too_old"]

REGISTER_BYTES = 4
"""Number of bytes of one register of a GPU thread; each element of an accumulator takes one
register."""


def outputs(sums: DType) -> tuple[str, ...]:
    """The types that C and D may have on GPUs when the accumulator has the type `sums`."""
    return tuple(d.name for d in DTYPES.values() if sums.becomes(d) and d.bytes <= REGISTER_BYTES)


def too_old(kind: DType, architecture: Architecture) -> str | None:
    """Why GPUs of an architecture have no instructions for an element type; None if they have."""
    if architecture.capability >= kind.capability:
        return None
    newer = [x for x in names() if architecture_of(x).capability >= kind.capability]
    return (
        f"GPUs multiply, read and store {kind} from compute capability {kind.capability / 10} on, "
        f"which {architecture.name} lacks; choose one of the targets {', '.join(newer)}, or cpu"
    )


def instruction_of(gemm: GemmProblem, family: str) -> MatrixInstruction:
    """The `mma.sync` or `wgmma` instruction for the element type of A and B.

    The caller must have checked that such an instruction exists: `no_instruction` returns None for
    the same arguments.

    Args:
        gemm: the matrix product: element types, extents, layouts and epilogue.
        family: `mma.sync` or `wgmma`.
    """
    found = dtype(gemm.dtype).instruction(family)
    assert found is not None
    return found


def no_instruction(gemm: GemmProblem, family: str, architecture: Architecture) -> str | None:
    """Why `mma.sync` (or `wgmma`) cannot multiply A by B and store D; None if it can.

    Args:
        gemm: the matrix product: element types, extents, layouts and epilogue.
        family: `mma.sync` or `wgmma`.
        architecture: the architecture for which a kernel is made.
    """
    kind = dtype(gemm.dtype)
    found = kind.instruction(family)
    if found is None:
        every = (d for d in DTYPES.values() if not too_old(d, architecture))
        *known, last = (d.name for d in every if d.instruction(family))
        return (
            f"{family} kernels multiply {', '.join(known)} and {last}, not {kind}; use target='cpu'"
        )
    if why := too_old(kind, architecture):
        return why
    # `Gemm` has checked that the epilogue quantizes D if D has 8-bit elements.
    if gemm.out_dtype not in {*(stored := outputs(dtype(kind.accumulator))), *QUANTIZED}:
        return (
            f"C and D have the type {gemm.out_dtype}; with A and B of {kind}, {family} kernels "
            f"store one of: {', '.join(stored)}"
        )
    if found.across_k or (gemm.transpose_b and not gemm.transpose_a):
        return None
    remedies = ["A row-major (transpose_a=False; leave out --transpose-a)"] * gemm.transpose_a
    if not gemm.transpose_b:
        remedies.append(
            "B as its transpose, a row-major n x k matrix (transpose_b=True or --transpose-b)"
        )
    return (
        f"{family} multiplies {kind} only if A and B are contiguous along k; give "
        f"{' and '.join(remedies)}"
    )
