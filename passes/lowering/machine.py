"""Machines: the facts that lowering needs of the hardware it lowers for."""

from __future__ import annotations

from dataclasses import dataclass

from coordgraph import CodegenError

__all__ = ["CudaMachine", "cuda_machine"]

# Largest dynamic shared memory of one workgroup, in bytes (CUDA C++ programming guide, "Technical
# specifications per compute capability").
_SHARED = {
    80: 166912,
    86: 101376,
    87: 166912,
    89: 101376,
    90: 232448,
    100: 232448,
    103: 232448,
    120: 101376,
    121: 101376,
}


@dataclass(frozen=True)
class CudaMachine:
    """An NVIDIA GPU: `architecture` as ptxas names it, shared memory of a workgroup in bytes."""

    architecture: str
    shared_bytes: int
    lanes: int = 32


def cuda_machine(architecture: str) -> CudaMachine:
    """The machine called `sm_80`, `sm_90a`, …; CodegenError where its matrix units are too old."""
    digits = architecture.removeprefix("sm_").rstrip("af")
    if not architecture.startswith("sm_") or not digits.isdigit():
        raise CodegenError(f"'{architecture}' is not an NVIDIA architecture such as sm_80")
    number = int(digits)
    if number < 80:
        raise CodegenError(f"{architecture} is too old: cp.async and bf16 mma need sm_80 or later")
    known = max(n for n in _SHARED if n <= number)
    return CudaMachine(architecture, _SHARED.get(number, min(_SHARED[known], 101376)))
