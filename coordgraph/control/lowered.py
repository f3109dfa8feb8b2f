"""Operations of lowered graphs for all targets: loads, stores, flags, barriers, matrix products.

The address of an element, in a tensor, in shared memory or in registers, is computed from the
coordinate graph. The fields `form` and `instruction` name a machine instruction, which lowering
chooses and the target emits. A *fragment* is a named set of a thread's registers: one register for
every combination of indices along the dimensions `registers`, whose loops are unrolled.
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
    """Copy `width` consecutive elements between a tensor and shared memory.

    Elements are converted if the types differ. Padding of the source is copied as zeros; padding of
    the destination is not written.

    Args:
        source, destination: the dimensions whose indices locate the first element that is read and
            the first element that is written.
        width: the number of elements.
        asynchronous: whether the copy runs asynchronously (PTX `cp.async`) and is complete only
            after `WaitCopies`.
    """

    source: str
    destination: str
    width: int = 1
    asynchronous: bool = False

    ROLES = ("source", "destination")


@dataclass(frozen=True)
class FillElements(Operation):
    """Write `width` equal elements, zeros or a reduction's identity, to shared memory or a tensor.

    Args:
        destination: the dimension whose index locates the first element.
        width: the number of elements.
        reduce: the name of the reduction whose identity is written, such as `max` for -inf; '' for
            zeros.
    """

    destination: str
    width: int = 1
    reduce: str = ""

    ROLES = ("destination",)


@dataclass(frozen=True)
class CommitCopies(Operation):
    """End a group of this thread's asynchronous `CopyElements` (PTX `cp.async.commit_group`)."""


@dataclass(frozen=True)
class WaitCopies(Operation):
    """Wait until at most `pending` groups of asynchronous copies are unfinished.

    PTX: `cp.async.wait_group`.
    """

    pending: int


@dataclass(frozen=True)
class Barrier(Operation):
    """Synchronise threads of a workgroup (PTX `bar.sync`).

    Args:
        identifier: the number of the hardware barrier; 0 is reserved for all threads of the
            workgroup.
        workitems: the number of threads that take part; 0 for all threads of the workgroup.
    """

    identifier: Expr = Integer(0)  # noqa: RUF009 - frozen
    workitems: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "identifier", sympify(self.identifier))


@dataclass(frozen=True)
class Tabulate(Operation):
    """Compute a derived table in shared memory; one warp executes the operation.

    The tables that the derived table reads must be complete. Other threads must wait at a barrier
    before they read the derived table.

    Args:
        table: the name of the table.
        first: the number of the warp's first thread in the workgroup.
    """

    table: str
    first: int = 0


@dataclass(frozen=True)
class DeriveParameters(Operation):
    """Compute the parameters that depend on tables (deferred parameters), for later operations."""


@dataclass(frozen=True)
class ZeroFragment(Operation):
    """Set `width` registers of a fragment to zero."""

    fragment: str
    registers: tuple[str, ...]
    width: int = 1

    ROLES = ("registers",)


@dataclass(frozen=True)
class LoadFragment(Operation):
    """Load `width` elements from memory into registers of a fragment.

    Args:
        fragment: the name of the fragment.
        source: the dimension whose index locates the first element in memory.
        registers: the dimensions that number the fragment's registers.
        width: the number of elements.
        form: how to load: `vector` for consecutive elements, `broadcast` for one element in all
            registers, or an instruction such as `ldmatrix.x4.trans`.
    """

    fragment: str
    source: str
    registers: tuple[str, ...]
    width: int = 1
    form: str = "vector"

    ROLES = ("source", "registers")


@dataclass(frozen=True)
class StoreFragment(Operation):
    """Write registers of a fragment to `width` elements of memory; padding is not written.

    Args:
        fragment: the name of the fragment.
        destination: the dimension whose index locates the first element in memory.
        registers: the dimensions that number the fragment's registers.
        width: the number of elements.
        form: how to store: `vector` for consecutive elements, or an instruction such as
            `stmatrix.x4`.
        rank: the rank in the cluster of the workgroup whose shared memory is written; None for the
            executing workgroup, or for device memory.
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
    """Add registers of a fragment to `width` elements of device memory, each element atomically.

    The memory order is relaxed, at device scope.

    Args:
        fragment: the name of the fragment.
        destination: the dimension whose index locates the first element in memory.
        registers: the dimensions that number the fragment's registers.
        width: the number of elements.
        form: `vector` for one instruction for all elements, `scalar` for one instruction per
            element.
    """

    fragment: str
    destination: str
    registers: tuple[str, ...]
    width: int = 1
    form: str = "scalar"

    ROLES = ("destination", "registers")


@dataclass(frozen=True)
class AccumulateFragment(Operation):
    """Add `width` consecutive elements of memory to registers of a fragment.

    The index along the dimension `source` is the position of the first element.
    """

    fragment: str
    source: str
    registers: tuple[str, ...]
    width: int = 1

    ROLES = ("source", "registers")


@dataclass(frozen=True)
class ApplyFragment(Operation):
    """Apply an epilogue function to `width` registers of a fragment, in place.

    The function's outputs besides D are written to their tensors. Scalar operands are arguments of
    the kernel. Any other operand that is not in `sources`, `elements` or `indices` is taken as 0.

    Args:
        fragment: the name of the fragment; its registers are the function's `acc`.
        function: the epilogue function.
        registers: the dimensions that number the fragment's registers.
        sources: tensors of operands with many elements. The coordinate graph gives the address of
            the element for each register; several registers may share an element.
        widths: for each tensor in `sources`, the number of elements that are read: `width`, or 1 if
            the `width` registers share one element.
        elements: tensors of operands with a single element.
        optional: tensors in `sources` and `elements` that are taken as 0, and not read, if their
            launch parameter `read_NAME` is 0.
        width: the number of consecutive registers.
        memories: for each tensor in `sources`, the dimension of the memory that its elements are
            read from, such as shared memory; () for the tensors themselves.
        stores: tensors of the function's outputs besides D, in the order of the function's outputs.
            `width` consecutive elements of each are written; padding is not written. If an output
            reduces rows, its reduction combines each value with the element in memory.
        reduces: outputs of the function that reduce rows, and that are not in `stores`. Each value
            is merged into a register of the fragment `rows_of(output)`, unless it is padding.
        rows: the dimensions that number the registers of the fragments `rows_of(output)`: the rows
            of D of which a thread holds elements.
        indices: the operands of the function whose values are indices of the element of D.
        along: for each operand in `indices`, the dimension whose index is the operand's value.
        vector: the dimension along the `width` consecutive registers.
        column: the dimension whose index is the column of D; a value whose column is padding is
            padding, too.
        part: if the function computes an element from several sums, the dimension in `registers`
            that numbers these sums. The operation is executed at index 0 of this dimension, and
            writes the result to the registers with index 0. '' if there is one sum.
    """

    fragment: str
    function: EpilogueFunction
    registers: tuple[str, ...]
    sources: tuple[str, ...] = ()
    widths: tuple[int, ...] = ()
    elements: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    width: int = 1
    memories: tuple[str, ...] = ()
    stores: tuple[str, ...] = ()
    part: str = ""
    reduces: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    vector: str = ""
    column: str = ""
    indices: tuple[str, ...] = ()
    along: tuple[str, ...] = ()

    ROLES = (
        "sources",
        "memories",
        "registers",
        "stores",
        "part",
        "rows",
        "vector",
        "column",
        "along",
    )

    @property
    def read_from(self) -> dict[str, str]:
        """For each tensor in `sources`, what is read: its entry in `memories`, or the tensor."""
        return dict(zip(self.sources, self.memories or self.sources, strict=True))


@dataclass(frozen=True)
class MultiplyFragments(Operation):
    """Execute one matrix instruction on fragments: `accumulator += a @ b`.

    Args:
        a, b, accumulator: the names of the fragments.
        a_registers, b_registers, registers: the dimensions that number the registers of a, of b and
            of the accumulator.
        instruction: the name of the instruction, such as the full name of a PTX `mma.sync`.
    """

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
    """Set a flag in device memory, by default with release order.

    A thread that acquires the flag sees the workgroup's earlier writes. The flag's new value is 1 +
    the index along `turn`, or the number of readers if `turn` is ''.

    Args:
        flag: the dimension whose index selects the flag in the tensor of flags.
        turn: if several workgroups set the flag one after another, the dimension that numbers them;
            else ''.
        readers: the number of workgroups that wait for the flag, each with a `TakeFlag`.
        order, scope: the memory order (`release` or `relaxed`) and scope (`gpu` or `cta`) of PTX.
    """

    flag: str
    turn: str = ""
    readers: Expr = Integer(1)  # noqa: RUF009 - frozen
    order: str = "release"
    scope: str = "gpu"

    ROLES = ("flag", "turn")

    def __post_init__(self) -> None:
        object.__setattr__(self, "readers", sympify(self.readers))


@dataclass(frozen=True)
class RaiseFlag(Operation):
    """Add 1 to a flag in device memory atomically, by default with release order.

    A thread that acquires the flag sees the workgroup's earlier writes. The fields `order` and
    `scope` have the same meaning as in `SignalFlag`.
    """

    flag: str
    order: str = "release"
    scope: str = "gpu"

    ROLES = ("flag",)


@dataclass(frozen=True)
class WaitFlag(Operation):
    """Wait until a flag in device memory has a given value, by default with acquire order.

    Args:
        flag: the dimension whose index selects the flag in the tensor of flags.
        turn: if it is not '', wait until the flag is 1 + the index along this dimension. A
            `SignalFlag` with the same `turn` sets this value.
        senders: if `turn` is '', wait until the flag equals the number of workgroups that increment
            it.
        order, scope: the memory order (`acquire` or `relaxed`) and scope (`gpu` or `cta`) of PTX.
    """

    flag: str
    turn: str = ""
    senders: Expr = Integer(1)  # noqa: RUF009 - frozen
    order: str = "acquire"
    scope: str = "gpu"

    ROLES = ("flag", "turn")

    def __post_init__(self) -> None:
        object.__setattr__(self, "senders", sympify(self.senders))


@dataclass(frozen=True)
class TakeFlag(Operation):
    """Wait until a flag in device memory is not 0, then subtract 1 from it atomically.

    `SignalFlag` sets the flag to the number of readers. Each reader executes `TakeFlag` once, so
    the last reader resets the flag to 0. The fields `order` (by default `acquire`) and `scope` have
    the same meaning as in `WaitFlag`.
    """

    flag: str
    order: str = "acquire"
    scope: str = "gpu"

    ROLES = ("flag",)


@dataclass(frozen=True)
class ClearFlag(Operation):
    """Set a flag to 0 for the next launch.

    The operation does not wait: all threads of the workgroup must have read the flag before.
    """

    flag: str

    ROLES = ("flag",)


@dataclass(frozen=True)
class Prefetch(Operation):
    """The prologue of a software pipeline: its first loads, which run ahead of their use.

    `name` labels the prologue in the text form and in diagrams.
    """

    name: str
    body: Body = ()

    BODIES = ("body",)
