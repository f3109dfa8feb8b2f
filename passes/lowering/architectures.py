"""Architectures of NVIDIA GPUs: a registry of their hardware limits and their lowerings.

Each architecture lists its lowerings from the fastest to the most general. The packages
`passes.lowering.sm_80` and `passes.lowering.sm_90a` register their architectures when they are
imported; `register` adds an architecture from outside this library.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, NamedTuple

from coordgraph import CodegenError
from coordgraph.gemm import GemmProblem
from coordgraph.tensors import dtype
from coordgraph.validation import flag, text, whole
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
"""The largest alignment, in bytes, that a lowering needs: TMA and 16-byte cp.async need 16."""
OLDEST, REASON = 80, "cp.async and bf16 mma need sm_80 or later"
"""OLDEST: the lowest supported compute capability, times ten. REASON: the text in error messages
that explains why older GPUs are not supported."""
OLDEST_PTX = 70
"""The PTX version, times ten, that introduced sm_80 (PTX ISA, release notes)."""
REDUCTIONS = ("scalar", "vector")
"""Allowed values of `Architecture.reduction`: the form of the PTX instruction `red` in kernels."""
_EXAMPLES = {
    "capability": "it is the compute capability times ten: 86 for 8.6",
    "ptx": "it is the PTX version times ten: 80 for 8.0",
    "shared_bytes": "it is a number of bytes: 101376 for 99 KiB",
}
"""For each numeric field of `Architecture`, by name: the text that explains the field's value at
the end of error messages."""


class Vectors(NamedTuple):
    """For each tensor, the number of elements that one memory access moves.

    The number 0 means as many elements as 16 bytes hold.

    Attributes:
        a: elements of A in one access.
        b: elements of B in one access.
        d: elements of C, and of D, in one access.
        operands: elements in one access of those operands of the epilogue that have an element for
            each column of D.
    """

    a: int = 0
    b: int = 0
    d: int = 0
    operands: int = 0

    @classmethod
    def widest(cls, gemm: GemmProblem) -> Vectors:
        """The widest accesses: for each tensor, the number of elements that fill 16 bytes."""
        operands, results = (dtype(kind or gemm.dtype) for kind in (gemm.dtype, gemm.out_dtype))
        return cls(operands.chunk, operands.chunk, results.chunk)


class Alignment(NamedTuple):
    """The alignment of the tensors of a call, which decides which lowerings can multiply them.

    Args:
        vectors: for each tensor, the number of elements that one access may move. The tensor's
            address and its extent along the contiguous axis are multiples of this number.
        bytes: the largest power of two, up to 16, that divides the addresses and strides (in bytes)
            of A and B; 1 if a stride is not positive.
    """

    vectors: Vectors = Vectors()
    bytes: int = ALIGNED_BYTES


class Variant(NamedTuple):
    """The properties that identify one compiled program of a kernel.

    A kernel has several programs. The alignment of a call's tensors, and whether the call passes C,
    select one of them.

    Args:
        vectors: for each tensor, the number of elements that one access moves.
        instructions: the name of the `Lowering` that makes the program, such as `wgmma`; '' means
            the last lowering of the architecture, which takes tensors of any alignment.
        reads_c: whether launches of the program may pass the optional operand C.
    """

    vectors: Vectors = Vectors()
    instructions: str = ""
    reads_c: bool = True


class Lowering(ABC):
    """Base class: describes one way to lower graphs to an architecture, and makes its pass."""

    instructions: ClassVar[str]
    """The multiply instruction's name in PTX, such as `mma.sync`; also the lowering's name."""
    copies: ClassVar[str] = ""
    """The mechanism that copies A and B to shared memory, such as `cp.async`, for reports; '' if
    reports do not name it."""
    kind: ClassVar[type[Pass]]
    """The class of the lowering pass. `codegen.compile(…, lowering=…)` takes an instance of it."""
    alignment: ClassVar[int] = 1
    """The alignment in bytes that addresses and strides of A and B must have."""
    values: ClassVar[dict[str, tuple[str, ...]]] = {}
    """The allowed values of each string option of the pass, by the option's name."""

    @abstractmethod
    def variant(self, alignment: Alignment, *, reads_c: bool) -> Variant:
        """The properties of the fastest program that this lowering makes for a call's tensors.

        Args:
            alignment: the alignment of the call's tensors; `why_not_aligned` has accepted it.
            reads_c: whether the call passes C.
        """

    @abstractmethod
    def configured(self, options: Pass, variant: Variant) -> Pass:
        """The lowering pass that makes a program with the properties `variant`.

        Args:
            options: a lowering pass; the result has its options, except those that `variant` sets.
            variant: the properties of the program.
        """

    @property
    def family(self) -> str:
        """Text for reports: multiply instruction and copy mechanism, such as `wgmma + TMA`."""
        return f"{self.instructions} + {self.copies}" if self.copies else self.instructions

    def options(self, architecture: str, **given: Any) -> Pass:
        """The lowering pass for `architecture`; options not in `given` have default values."""
        return self.kind(**{"architecture": architecture, **given})  # type: ignore[call-arg]

    def has(self, *names: str) -> bool:
        """Whether the lowering pass has options (dataclass fields) of all of these names."""
        return {f.name for f in fields(self.kind)} >= set(names)

    def why_not_aligned(self, alignment: int) -> str | None:
        """Why this lowering cannot multiply A and B aligned to `alignment` bytes, else None."""
        if alignment >= self.alignment:
            return None
        return f"rows or addresses of A and B are no multiples of {self.alignment} bytes"


@dataclass(frozen=True)
class Architecture:
    """An NVIDIA architecture that code can be generated for.

    Args:
        name: the name of the target in `codegen.compile(target=…)`, such as `sm_90a`.
        capability: the lowest compute capability that the code needs, times ten: 90 for 9.0.
        shared_bytes: largest dynamic shared memory of one workgroup, in bytes (CUDA C++ programming
            guide, "Technical specifications per compute capability").
        lowerings: the lowerings that the architecture can use, the fastest first; the last one
            takes tensors of any alignment.
        reduction: the form of the PTX instruction `red` that adds partial sums in global memory:
            `vector` (sm_90 and later; PTX ISA, "red") or `scalar`.
        ptx: the PTX version of the generated code, times ten: 80 for 8.0.
        exact: whether the code runs on this compute capability only, as code for sm_90a does.
        isa: the architecture name that is passed to LLVM and ptxas; '' means that it is `name`.

    Raises:
        CodegenError: a field has a wrong type, or a value that no GPU has.
    """

    name: str
    capability: int
    shared_bytes: int
    lowerings: tuple[Lowering, ...] = field(repr=False)
    reduction: str = "scalar"
    ptx: int = 80
    exact: bool = False
    isa: str = ""

    def __post_init__(self) -> None:
        text(self.name, "name", CodegenError)
        if not self.name.startswith("sm_"):
            raise CodegenError(
                f"'{self.name}' is not a name for an architecture; choose one that begins with "
                "'sm_'"
            )
        for name, least in (("capability", OLDEST), ("ptx", OLDEST_PTX), ("shared_bytes", 1)):
            try:
                whole(getattr(self, name), name, CodegenError, least=least)
            except CodegenError as error:
                raise CodegenError(f"{self.name}: {error}; {_EXAMPLES[name]}") from None
        if not isinstance(self.lowerings, tuple) or not all(
            isinstance(each, Lowering) for each in self.lowerings
        ):
            raise CodegenError(
                f"{self.name}: lowerings = {self.lowerings!r} is no tuple of Lowering objects; "
                "give a tuple, such as (MMA_SYNC,)"
            )
        if self.reduction not in REDUCTIONS:
            raise CodegenError(
                f"{self.name}: reduction = {self.reduction!r} must be {' or '.join(REDUCTIONS)}"
            )
        flag(self.exact, f"{self.name}: exact", CodegenError)
        if self.isa != "" and not re.fullmatch(r"sm_\d+[af]?", str(self.isa)):
            raise CodegenError(
                f"{self.name}: isa = {self.isa!r} is no processor of LLVM and ptxas; give one such "
                "as 'sm_86' or 'sm_90a'"
            )

    @property
    def assembled_as(self) -> str:
        """The architecture name that is passed to LLVM and ptxas, such as `sm_90a`."""
        return self.isa or self.name

    def runs_on(self, capability: int) -> bool:
        """Whether a GPU of this compute capability (times ten: 90 for 9.0) runs the code."""
        return capability == self.capability if self.exact else capability >= self.capability

    def lowering(self, instructions: str = "") -> Lowering:
        """The lowering named `instructions`; '' means the last one, which takes any alignment.

        Raises:
            CodegenError: the architecture has no lowering of that name.
        """
        if not instructions:
            return self.lowerings[-1]
        for lowering in self.lowerings:
            if lowering.instructions == instructions:
                return lowering
        known = ", ".join(lowering.instructions for lowering in self.lowerings)
        raise CodegenError(
            f"{self.name} has no lowering to '{instructions}'; choose one of: {known}"
        )


ARCHITECTURES: dict[str, Architecture] = {}
"""All registered architectures, by name; `native_to` selects the best one for a GPU."""


def register(*architectures: Architecture) -> None:
    """Add architectures to the registry, so that their names are valid compilation targets.

    Raises:
        CodegenError: an argument is not an `Architecture`, a name is already registered, or the
            last lowering of an architecture needs aligned tensors.
    """
    for new in architectures:
        if not isinstance(new, Architecture):
            raise CodegenError(
                f"{new!r} is no Architecture; pass one, as in register(Architecture('sm_86x', 86, "
                "101376, (MMA_SYNC,)))"
            )
        if new.name in ARCHITECTURES:
            raise CodegenError(
                f"the architecture {new.name} is registered already; choose another name, or call "
                "unregister first"
            )
        if not new.lowerings or new.lowerings[-1].alignment > 1:
            raise CodegenError(
                f"{new.name}: the last of its lowerings must take tensors of every alignment; "
                "append such a lowering, for example MMA_SYNC"
            )
        ARCHITECTURES[new.name] = new


def unregister(name: str) -> None:
    """Remove an architecture from the registry.

    Raises:
        CodegenError: no architecture has this name.
    """
    if name not in ARCHITECTURES:
        raise CodegenError(
            f"no architecture is called {name!r}; choose one that is registered: "
            f"{', '.join(names())}"
        )
    del ARCHITECTURES[name]


def names() -> tuple[str, ...]:
    """The names of all registered architectures, the lowest compute capability first."""
    ordered = sorted(ARCHITECTURES.values(), key=lambda found: (found.capability, found.exact))
    return tuple(found.name for found in ordered)


def architecture_of(name: str) -> Architecture:
    """The registered architecture that is called `name`, such as `sm_80`.

    Raises:
        CodegenError: no architecture of this name is registered.
    """
    if name in ARCHITECTURES:
        return ARCHITECTURES[name]
    known = ", ".join(names())
    digits = name.removeprefix("sm_")
    if digits.isdigit() and int(digits) < OLDEST:
        raise CodegenError(f"{name} is too old: {REASON}; choose one of: {known}")
    raise CodegenError(f"no code can be generated for '{name}'; choose one of: {known}")


def native_to(capability: int) -> Architecture:
    """The best registered architecture for a GPU of compute capability `capability` / 10.

    An exact architecture (`sm_90a`) is preferred, then the highest compute capability that the GPU
    runs, then the architecture that was registered first.

    Raises:
        CodegenError: the GPU is older than compute capability 8.0.
    """
    fit = [found for found in ARCHITECTURES.values() if found.runs_on(capability)]
    if not fit:
        raise CodegenError(
            f"compute capability {capability / 10} is too old: {REASON}; use a newer GPU, or "
            "target='cpu'"
        )
    return max(fit, key=lambda found: (found.exact, found.capability))


def architectures_with(instructions: str) -> tuple[str, ...]:
    """The names of the architectures that have the lowering `instructions`, such as `wgmma`."""
    return tuple(
        found.name
        for found in ARCHITECTURES.values()
        if any(lowering.instructions == instructions for lowering in found.lowerings)
    )


def first_with(*options: str) -> tuple[Architecture, Lowering]:
    """The first registered architecture and lowering whose pass has all of these options.

    Raises:
        CodegenError: no registered lowering has all of these options.
    """
    for architecture in ARCHITECTURES.values():
        for lowering in architecture.lowerings:
            if lowering.has(*options):
                return architecture, lowering
    raise CodegenError(
        f"no lowering has all the options {', '.join(options)}; leave some options out"
    )


def option_values(name: str) -> tuple[str, ...]:
    """All values of the string option `name` that any registered lowering allows."""
    found = (
        value
        for architecture in ARCHITECTURES.values()
        for lowering in architecture.lowerings
        for value in lowering.values.get(name, ())
    )
    return tuple(dict.fromkeys(found))
