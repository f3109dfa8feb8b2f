"""Machines: the facts that lowering needs of the hardware it lowers for."""

from __future__ import annotations

from dataclasses import dataclass

from coordgraph import CodegenError

__all__ = ["ARCHITECTURES", "CudaMachine", "cuda_machine", "newest_for"]

VECTORS = 90
"""The first compute capability with atomic additions of vectors."""


@dataclass(frozen=True)
class CudaMachine:
    """An NVIDIA GPU.

    Args:
        architecture: as ptxas names it.
        shared_bytes: most dynamic shared memory of one workgroup (CUDA C++ programming guide,
            "Technical specifications per compute capability").
        ptx: the version of PTX that first knows the architecture, or 8.0.
    """

    architecture: str
    shared_bytes: int
    ptx: int = 80
    lanes: int = 32

    @property
    def reduction(self) -> str:
        """The form of `ReduceFragment` that it has: vectors from sm_90 on (PTX ISA, "red")."""
        return "vector" if int(self.architecture[3:].rstrip("a")) >= VECTORS else "scalar"


OLDEST, REASON = 80, "cp.async and bf16 mma need sm_80 or later"
LARGE, SMALL, HOPPER = 166912, 101376, 232448
ARCHITECTURES = {
    machine.architecture: machine
    for machine in (
        CudaMachine("sm_80", LARGE),
        CudaMachine("sm_86", SMALL),
        CudaMachine("sm_87", LARGE),
        CudaMachine("sm_89", SMALL),
        CudaMachine("sm_90", HOPPER),
        CudaMachine("sm_90a", HOPPER),
        CudaMachine("sm_100", HOPPER, ptx=86),
        CudaMachine("sm_120", SMALL, ptx=87),
    )
}
"""Later GPUs run the code of the newest of these that is not newer than they are."""


def cuda_machine(architecture: str) -> CudaMachine:
    """The machine of a name such as `sm_80`; CodegenError where there is none."""
    if architecture in ARCHITECTURES:
        return ARCHITECTURES[architecture]
    known = ", ".join(ARCHITECTURES)
    digits = architecture.removeprefix("sm_")
    if digits.isdigit() and int(digits) < OLDEST:
        raise CodegenError(f"{architecture} is too old: {REASON}; there are {known}")
    raise CodegenError(
        f"'{architecture}' is not an architecture to generate code for; there are {known}"
    )


def newest_for(number: int) -> str:
    """The best architecture for a GPU of this compute capability (90 for 9.0)."""
    if number == 90:
        return "sm_90a"
    fit = [int(n) for name in ARCHITECTURES if (n := name.removeprefix("sm_")).isdigit()]
    older = [n for n in fit if n <= number]
    if not older:
        raise CodegenError(f"compute capability {number / 10} is too old: {REASON}")
    return f"sm_{max(older)}"
