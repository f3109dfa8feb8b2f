"""Operations of a lowered graph: what one workitem does with memory and registers.

They are the same for every machine. Where an element lies, in a tensor, in shared memory or in a
register, is a path through the coordinate graph; `form` and `instruction` name what the target is
to use, and lowering chooses them. A *fragment* is a named set of registers, one for every index of
its `registers` dimensions (all unrolled).
"""

from __future__ import annotations

from dataclasses import dataclass

from sympy import Expr, Integer, sympify

from coordgraph.control.operations import Body, Operation
from coordgraph.epilogue import EpilogueFunction

__all__ = [
    "AccumulateFragment",
    "ApplyFragment",
    "Barrier",
    "ClearFlag",
    "CommitCopies",
    "CopyElements",
    "DeriveParameters",
    "FillElements",
    "LoadFragment",
    "MultiplyFragments",
    "Prefetch",
    "RaiseFlag",
    "ReduceFragment",
    "SignalFlag",
    "StoreFragment",
    "Tabulate",
    "TakeFlag",
    "WaitCopies",
    "WaitFlag",
    "ZeroFragment",
]


@dataclass(frozen=True)
class CopyElements(Operation):
    """Copy `width` elements between a tensor and shared memory, converted where types differ.

    Zeros stand for a source that is padding; a destination that is padding is not written.
    An asynchronous copy ends at the `WaitCopies` of its group.
    """

    source: str
    destination: str
    width: int = 1
    asynchronous: bool = False

    ROLES = ("source", "destination")


@dataclass(frozen=True)
class FillElements(Operation):
    """Store `width` zeros in shared memory or in a tensor."""

    destination: str
    width: int = 1

    ROLES = ("destination",)


@dataclass(frozen=True)
class CommitCopies(Operation):
    """Close the group of asynchronous copies issued so far."""


@dataclass(frozen=True)
class WaitCopies(Operation):
    """Wait until at most `pending` groups of copies are under way."""

    pending: int


@dataclass(frozen=True)
class Barrier(Operation):
    """All workitems arrive before one goes on; `workitems` of them, or 0 for the workgroup.

    Barriers of parts of a workgroup have an `identifier` other than 0.
    """

    identifier: Expr = Integer(0)  # noqa: RUF009 - frozen
    workitems: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "identifier", sympify(self.identifier))


@dataclass(frozen=True)
class Tabulate(Operation):
    """Work out a derived table in shared memory, once all tables that it reads are there.

    The warp whose first workitem is `first` does it. Whoever reads it waits at a barrier.
    """

    table: str
    first: int = 0


@dataclass(frozen=True)
class DeriveParameters(Operation):
    """From here on the parameters that are read from tables have values."""


@dataclass(frozen=True)
class ZeroFragment(Operation):
    """`width` registers of a fragment become zero."""

    fragment: str
    registers: tuple[str, ...]
    width: int = 1

    ROLES = ("registers",)


@dataclass(frozen=True)
class LoadFragment(Operation):
    """Fill registers from memory: `width` elements at the place of `source`, by `form`.

    `registers` are the dimensions that tell this fragment's registers apart.
    """

    fragment: str
    source: str
    registers: tuple[str, ...]
    width: int = 1
    form: str = "vector"

    ROLES = ("source", "registers")


@dataclass(frozen=True)
class StoreFragment(Operation):
    """Write registers to memory: `width` elements at the place of `destination`, by `form`.

    Elements that are padding are not written. With a `rank` it is the shared memory of that
    workgroup of the cluster.
    """

    fragment: str
    destination: str
    registers: tuple[str, ...]
    width: int = 1
    form: str = "vector"
    rank: Expr | None = None

    ROLES = ("destination", "registers")

    def __post_init__(self) -> None:
        if self.rank is not None:
            object.__setattr__(self, "rank", sympify(self.rank))


@dataclass(frozen=True)
class ReduceFragment(Operation):
    """Add registers to `width` elements of memory, each atomically (relaxed, device scope).

    `form` is `vector` where one instruction is to take all of them, else `scalar`.
    """

    fragment: str
    destination: str
    registers: tuple[str, ...]
    width: int = 1
    form: str = "scalar"

    ROLES = ("destination", "registers")


@dataclass(frozen=True)
class AccumulateFragment(Operation):
    """Add memory to registers."""

    fragment: str
    source: str
    registers: tuple[str, ...]
    width: int = 1

    ROLES = ("source", "registers")


@dataclass(frozen=True)
class ApplyFragment(Operation):
    """`width` registers of a fragment become what a function of an epilogue makes of each.

    Args:
        fragment: the registers, which are the function's `acc`.
        function: what is done.
        registers: the dimensions that tell this fragment's registers apart.
        sources: tensors of operands whose elements lie at the place of the registers' elements.
        widths: for each of them how many elements these registers take: `width`, or 1 where all
            have the same one.
        elements: tensors of operands of a single element. Operands that are neither in `sources`
            nor here are not given, and count as 0.
        optional: those of `sources` and `elements` that count as 0 where their parameter `read_…`
            is 0.
        width: registers next to each other.
    """

    fragment: str
    function: EpilogueFunction
    registers: tuple[str, ...]
    sources: tuple[str, ...] = ()
    widths: tuple[int, ...] = ()
    elements: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    width: int = 1

    ROLES = ("sources", "registers")


@dataclass(frozen=True)
class MultiplyFragments(Operation):
    """One matrix instruction: `accumulator += a @ b`."""

    a: str
    b: str
    accumulator: str
    a_registers: tuple[str, ...]
    b_registers: tuple[str, ...]
    registers: tuple[str, ...]
    instruction: str

    ROLES = ("a_registers", "b_registers", "registers")


@dataclass(frozen=True)
class SignalFlag(Operation):
    """Publish what the workgroup wrote, then raise the flag (release, device scope).

    It becomes 1, or 1 more than the index along `turn`, where there is one, or the number of its
    `readers`, each of whom takes it.
    """

    flag: str
    turn: str = ""
    readers: Expr = Integer(1)  # noqa: RUF009 - frozen

    ROLES = ("flag", "turn")

    def __post_init__(self) -> None:
        object.__setattr__(self, "readers", sympify(self.readers))


@dataclass(frozen=True)
class RaiseFlag(Operation):
    """Publish what the workgroup wrote, then raise the flag by one (release, device scope)."""

    flag: str

    ROLES = ("flag",)


@dataclass(frozen=True)
class WaitFlag(Operation):
    """Wait until the flag is up; then what was written before it may be read (acquire).

    With a `turn`: until it is what the `SignalFlag` of that turn makes it. Else it is up when as
    many `senders` have raised it.
    """

    flag: str
    turn: str = ""
    senders: Expr = Integer(1)  # noqa: RUF009 - frozen

    ROLES = ("flag", "turn")

    def __post_init__(self) -> None:
        object.__setattr__(self, "senders", sympify(self.senders))


@dataclass(frozen=True)
class TakeFlag(Operation):
    """Wait until the flag is up, lower it by one; then what was written before it may be read.

    It is one of the readers for whom the flag was raised; the last one leaves it lowered.
    """

    flag: str

    ROLES = ("flag",)


@dataclass(frozen=True)
class ClearFlag(Operation):
    """Lower the flag for the next launch, once all of the workgroup has read."""

    flag: str

    ROLES = ("flag",)


@dataclass(frozen=True)
class Prefetch(Operation):
    """A named group of operations that runs ahead of its consumers (a software pipeline's fill)."""

    name: str
    body: Body = ()

    BODIES = ("body",)
