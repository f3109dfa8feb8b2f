"""Architectures of NVIDIA GPUs: a registry of their hardware limits and their lowerings.

The lowerings of an architecture are listed from the best to the most general. The package of a
lowering (`passes.lowering.sm_80`, `passes.lowering.sm_90a`) registers its architectures; `register`
adds one from outside this library.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, NamedTuple

from coordgraph import CodegenError
from coordgraph.gemm import GemmProblem
from coordgraph.tensors import dtype
from passes.base import Pass

__all__ = [
    "ALIGNED_BYTES",
    "ARCHITECTURES",
    "Alignment",
    "Architecture",
    "Lowering",
    "Variant",
    "Vectors",
    "architecture_of",
    "architectures_with",
    "first_with",
    "names",
    "native_to",
    "option_values",
    "register",
    "unregister",
]

ALIGNED_BYTES = 16
"""The largest alignment in bytes that a lowering needs: that of TMA and of 16-byte cp.async."""
OLDEST, REASON = 80, "cp.async and bf16 mma need sm_80 or later"


class Vectors(NamedTuple):
    """Elements of A, of B, and of C and D that one access moves; 0 means a full 16 bytes."""

    a: int = 0
    b: int = 0
    d: int = 0

    @classmethod
    def widest(cls, gemm: GemmProblem) -> Vectors:
        """The elements of each tensor that 16 bytes hold, for the types of a problem."""
        operands, results = (dtype(kind or gemm.dtype) for kind in (gemm.dtype, gemm.out_dtype))
        return cls(operands.chunk, operands.chunk, results.chunk)


class Alignment(NamedTuple):
    """The alignment of the tensors of a call, by which a `Lowering` is selected.

    Args:
        vectors: elements that one access of each tensor may move; the tensor's address and
            contiguous extent must be multiples of it.
        bytes: the largest power of two, up to 16, that divides the addresses and strides (in bytes)
            of A and B; 1 if a stride is not positive.
    """

    vectors: Vectors = Vectors()
    bytes: int = ALIGNED_BYTES


class Variant(NamedTuple):
    """One of the programs of a kernel; the alignment of a call's tensors selects the program.

    Args:
        vectors: elements of each tensor that one access moves.
        instructions: the name of the `Lowering` that makes the program; '' is the architecture's
            last, which takes any alignment.
        reads_c: whether launches may pass C, an optional operand.
    """

    vectors: Vectors = Vectors()
    instructions: str = ""
    reads_c: bool = True


class Lowering(ABC):
    """A way to multiply on an architecture: a pass, its options, and the alignment it needs."""

    instructions: ClassVar[str]
    """PTX's name of the multiply instruction, such as `mma.sync`; also the lowering's name."""
    copies: ClassVar[str] = ""
    """The name of what copies A and B to shared memory, such as `cp.async`; '' leaves it out."""
    kind: ClassVar[type[Pass]]
    """The class of the pass. `codegen.compile(…, lowering=…)` takes an instance with options."""
    alignment: ClassVar[int] = 1
    """Alignment in bytes that addresses and strides of A and B need."""
    values: ClassVar[dict[str, tuple[str, ...]]] = {}
    """The allowed values of each option that is a string."""

    @abstractmethod
    def variant(self, alignment: Alignment, *, reads_c: bool) -> Variant:
        """The fastest program for tensors of an alignment that `why_not_aligned` accepts."""

    @abstractmethod
    def configured(self, options: Pass, variant: Variant) -> Pass:
        """The pass `options` with the further options that a variant needs."""

    @property
    def family(self) -> str:
        """What multiplies and what copies, for reports: `wgmma + TMA`."""
        return f"{self.instructions} + {self.copies}" if self.copies else self.instructions

    def options(self, architecture: str, **given: Any) -> Pass:
        """The pass for an architecture with the given options; others have their defaults."""
        return self.kind(**{"architecture": architecture, **given})  # type: ignore[call-arg]

    def has(self, *names: str) -> bool:
        """Whether the pass has all of these options."""
        return {f.name for f in fields(self.kind)} >= set(names)

    def why_not_aligned(self, alignment: int) -> str | None:
        """Why A and B aligned to so many bytes cannot be multiplied, or None."""
        if alignment >= self.alignment:
            return None
        return f"rows or addresses of A and B are no multiples of {self.alignment} bytes"


@dataclass(frozen=True)
class Architecture:
    """An NVIDIA architecture that code can be generated for.

    Args:
        name: the name for `codegen.compile(target=…)`, such as `sm_90a`.
        capability: compute capability times ten: 90 for 9.0.
        shared_bytes: largest dynamic shared memory of one workgroup, in bytes (CUDA C++ programming
            guide, "Technical specifications per compute capability").
        lowerings: the lowerings it can use, the best first; the last takes any alignment.
        reduction: the form of the instruction `red` for `ReduceFragment`: `vector` from sm_90 on
            (PTX ISA, "red"), or `scalar`.
        ptx: PTX version of the generated code times ten: 80 for 8.0.
        exact: whether the code runs on this compute capability only, as code for sm_90a does.
        isa: the name for LLVM and ptxas, if it differs from `name`.
    """

    name: str
    capability: int
    shared_bytes: int
    lowerings: tuple[Lowering, ...] = field(repr=False)
    reduction: str = "scalar"
    ptx: int = 80
    exact: bool = False
    isa: str = ""

    @property
    def assembled_as(self) -> str:
        """The name of the architecture for LLVM and ptxas."""
        return self.isa or self.name

    def runs_on(self, capability: int) -> bool:
        """Whether a GPU of this compute capability runs the code."""
        return capability == self.capability if self.exact else capability >= self.capability

    def lowering(self, instructions: str = "") -> Lowering:
        """The lowering with these instructions; '' is the last one, which takes any alignment.

        Raises:
            CodegenError: the architecture has no such lowering.
        """
        if not instructions:
            return self.lowerings[-1]
        for lowering in self.lowerings:
            if lowering.instructions == instructions:
                return lowering
        known = ", ".join(lowering.instructions for lowering in self.lowerings)
        raise CodegenError(f"{self.name} has no {instructions}; there are {known}")


ARCHITECTURES: dict[str, Architecture] = {}
"""Every registered architecture by name; `native_to` selects one for a GPU."""


def register(*architectures: Architecture) -> None:
    """Add architectures, so that they can be compiled for and named on the command line.

    Raises:
        CodegenError: a name is taken or does not begin with `sm_`, or the last lowering of an
            architecture needs alignment.
    """
    for made in architectures:
        if not made.name.startswith("sm_"):
            raise CodegenError(f"'{made.name}': names of architectures begin with 'sm_'")
        if made.name in ARCHITECTURES:
            raise CodegenError(f"there is an architecture {made.name} already")
        if not made.lowerings or made.lowerings[-1].alignment > 1:
            raise CodegenError(
                f"{made.name}: the last of its lowerings must take tensors of any alignment"
            )
        ARCHITECTURES[made.name] = made


def unregister(name: str) -> None:
    """Remove an architecture from the registry."""
    del ARCHITECTURES[name]


def names() -> tuple[str, ...]:
    """The names of all architectures, the oldest first."""
    ordered = sorted(ARCHITECTURES.values(), key=lambda found: (found.capability, found.exact))
    return tuple(found.name for found in ordered)


def architecture_of(name: str) -> Architecture:
    """The architecture with a name such as `sm_80`; CodegenError if there is none."""
    if name in ARCHITECTURES:
        return ARCHITECTURES[name]
    known = ", ".join(names())
    digits = name.removeprefix("sm_")
    if digits.isdigit() and int(digits) < OLDEST:
        raise CodegenError(f"{name} is too old: {REASON}; there are {known}")
    raise CodegenError(f"'{name}' is not an architecture to generate code for; there are {known}")


def native_to(capability: int) -> Architecture:
    """The best architecture for a GPU of this compute capability (90 for 9.0).

    An exact architecture (`sm_90a`) is preferred, then the highest compute capability that the GPU
    runs, then the first that was registered.

    Raises:
        CodegenError: the GPU is too old.
    """
    fit = [found for found in ARCHITECTURES.values() if found.runs_on(capability)]
    if not fit:
        raise CodegenError(f"compute capability {capability / 10} is too old: {REASON}")
    return max(fit, key=lambda found: (found.exact, found.capability))


def architectures_with(instructions: str) -> tuple[str, ...]:
    """The names of the architectures that have a lowering of these instructions."""
    return tuple(
        found.name
        for found in ARCHITECTURES.values()
        if any(lowering.instructions == instructions for lowering in found.lowerings)
    )


def first_with(*options: str) -> tuple[Architecture, Lowering]:
    """The first registered architecture and lowering whose pass has all of these options.

    Raises:
        CodegenError: there is none.
    """
    for architecture in ARCHITECTURES.values():
        for lowering in architecture.lowerings:
            if lowering.has(*options):
                return architecture, lowering
    raise CodegenError(f"no lowering has {', '.join(options)}")


def option_values(name: str) -> tuple[str, ...]:
    """The allowed values of a string option, over the lowerings of all architectures."""
    found = (
        value
        for architecture in ARCHITECTURES.values()
        for lowering in architecture.lowerings
        for value in lowering.values.get(name, ())
    )
    return tuple(dict.fromkeys(found))
