"""Memory effects: how an operation of a lowered graph accesses memory and synchronises threads.

The terms are those of the PTX ISA, "Memory Consistency Model" and "Async proxy".
`coordgraph.control.declared_effects` says which effects each operation has.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from sympy import Expr

__all__ = [
    "CLUSTER",
    "COPIES",
    "CTA",
    "GPU",
    "MULTIPLIES",
    "STORES",
    "WARP",
    "WHOLE",
    "Access",
    "Arrive",
    "Asynchronous",
    "AwaitEarlier",
    "AwaitFlag",
    "AwaitGroups",
    "AwaitPhase",
    "ChangeFlag",
    "Commit",
    "Converge",
    "DrawTicket",
    "Effect",
    "Fence",
    "Initialise",
    "Kind",
    "Matrix",
    "Meet",
    "Registers",
    "TakeFlag",
]

COPIES, STORES, MULTIPLIES = "cp.async", "bulk", "wgmma"
"""Names of the kinds of asynchronous groups: cp.async groups (COPIES), bulk async-groups of TMA
stores (STORES), and wgmma groups (MULTIPLIES)."""
WHOLE = -1
"""Value of `Access.count` for an access to all elements of an allocation."""
WARP = 32
"""Number of threads of a warp."""
CTA, CLUSTER, GPU = "cta", "cluster", "gpu"
"""The memory scopes of PTX that effects use."""


class Kind(Enum):
    """What an access does to memory or registers; a member's value is a verb for messages."""

    READ = "reads"
    WRITE = "writes"
    ADD = "adds to"
    """An atomic addition. Several atomic additions to one element are no data race."""
    REWRITE = "rewrites"
    """A write whose value is the same in all writes to this address during a launch."""

    @property
    def changes(self) -> bool:
        """Whether an access of this kind changes memory."""
        return self is not Kind.READ


@dataclass(frozen=True)
class Matrix:
    """The rows of a pipeline stage in shared memory that one wgmma reads.

    Args:
        boxes: (number of TMA boxes that are read, distance between boxes in bytes).
        groups: (number of groups of eight rows in a box, distance between groups in bytes).
        row: number of bytes in a row.
    """

    boxes: tuple[int, int]
    groups: tuple[int, int]
    row: int


@dataclass(frozen=True)
class Access:
    """A read, write or atomic addition of consecutive elements in memory.

    Args:
        kind: whether the access reads, writes, rewrites or atomically adds; see `Kind`.
        dim: the dimension (of a tensor or of shared memory) whose index locates the first element.
        count: number of elements; `WHOLE` for all of an allocation; 0 if the check for data races
            does not examine which elements are accessed.
        size: number of bytes that are accessed, if this is not the size of `count` elements of
            the dimension; else 0.
        matrix: the rows that a wgmma reads; None if the elements are consecutive.
        rank: rank in the cluster of the CTA whose shared memory is accessed; None for the executing
            CTA, or for device memory.
        receivers: dimensions of a CTA's position in its cluster. A multicast writes to the shared
            memory of all CTAs whose positions differ from that of the executing CTA only along
            these dimensions. Empty if there is no multicast.
        guard: the dimension by whose guard the operation skips padding: a thread makes the access
            only if the thread's index along this dimension is not padding. Empty if the operation
            does not compute a guard; then only accesses to device memory skip padding.
        lanes: number of lanes of each warp that make the access, counted from lane 0.
    """

    kind: Kind
    dim: str
    count: int = 0
    size: int = 0
    matrix: Matrix | None = None
    rank: Expr | None = None
    receivers: tuple[str, ...] = ()
    guard: str = ""
    lanes: int = WARP


@dataclass(frozen=True)
class Registers:
    """A read or write of the registers in which a thread holds its elements of a fragment."""

    kind: Kind
    fragment: str


@dataclass(frozen=True)
class Asynchronous:
    """An asynchronous operation: accesses that happen after the thread has issued the instruction.

    TMA, cp.async or wgmma makes the accesses.

    Args:
        accesses: the elements and registers that are read and written.
        group: the kind of async-group whose completion ends the operation; '' if an mbarrier counts
            the operation's bytes.
        barrier: the dimension of the mbarrier that counts the written bytes; '' if there is none.
        proxy: True if the accesses use the async proxy; False if they use the generic proxy, as
            the accesses of cp.async do.
    """

    accesses: tuple[Access | Registers, ...]
    group: str = ""
    barrier: str = ""
    proxy: bool = True


@dataclass(frozen=True)
class Commit:
    """End a group of asynchronous operations, as `cp.async.commit_group` does.

    `together` is True if all threads of a warpgroup commit one group together, as for wgmma.
    """

    group: str
    together: bool = False


@dataclass(frozen=True)
class AwaitGroups:
    """Wait until at most the last `pending` groups of asynchronous operations are incomplete.

    If `read` is True, wait only until the groups have read their source memory.
    """

    group: str
    pending: int
    read: bool = False


@dataclass(frozen=True)
class Converge:
    """Wait for all threads of a warp; one of them then executes the operation's later effects.

    If only one warp of the workgroup executes the operation, `first` is the number of that warp's
    first thread. If every warp executes the operation, `first` is None.
    """

    first: int | None = None


@dataclass(frozen=True)
class Fence:
    """A fence: orders this thread's earlier accesses before later accesses through another proxy.

    `space` is what the fence covers: `shared` or `global` memory, `mbarrier` objects, or the
    `registers` of wgmma.
    """

    space: str


@dataclass(frozen=True)
class Meet:
    """Wait at a barrier for `workitems` threads (0: all threads of the workgroup).

    What the waiting threads access before the barrier is ordered before what they access after the
    barrier. `identifier` is the number of the barrier in the workgroup; None for the barrier of the
    cluster.
    """

    identifier: Expr | None
    workitems: int = 0


@dataclass(frozen=True)
class Initialise:
    """Initialise an mbarrier with the number of arrivals that complete a phase."""

    barrier: str
    arrivals: int


@dataclass(frozen=True)
class Arrive:
    """Arrive at an mbarrier with release order; its phase then also waits for `expected` bytes.

    `rank` is the rank in the cluster of the CTA that has the mbarrier; None for the executing CTA.
    """

    barrier: str
    expected: Expr | None = None
    rank: Expr | None = None
    scope: str = CTA


@dataclass(frozen=True)
class AwaitPhase:
    """Wait, with acquire order, for the phase of an mbarrier that has the parity `phase`.

    If `before` is True, wait for the preceding phase instead, which has the other parity.
    """

    barrier: str
    phase: str
    before: bool = False
    scope: str = CTA


@dataclass(frozen=True)
class ChangeFlag:
    """Set a flag in device memory to a value, or add 1 to it atomically.

    Args:
        flag: the dimension whose index selects the flag.
        turn: the dimension whose index plus 1 is the flag's new value; '' if `value` is used.
        value: the flag's new value if `turn` is ''; None to add 1.
        release: True for release order: the thread's earlier writes become visible to threads that
            acquire the flag. False for relaxed order.
        scope: the PTX scope of the release.
    """

    flag: str
    turn: str = ""
    value: Expr | int | None = None
    release: bool = True
    scope: str = GPU


@dataclass(frozen=True)
class AwaitFlag:
    """Wait until a flag in device memory has a given value.

    Args:
        flag: the dimension whose index selects the flag.
        turn: the dimension whose index plus 1 is the awaited value; '' if `value` is used.
        value: the awaited value if `turn` is ''.
        acquire: True for acquire order: earlier writes of the thread that released the flag become
            visible. False for relaxed order.
        scope: the PTX scope of the acquire.
    """

    flag: str
    turn: str = ""
    value: Expr | int = 1
    acquire: bool = True
    scope: str = GPU


@dataclass(frozen=True)
class TakeFlag:
    """Wait until a flag in device memory is not 0, then subtract 1 from it atomically.

    The fields `flag`, `acquire` and `scope` have the same meaning as in `AwaitFlag`.
    """

    flag: str
    acquire: bool = True
    scope: str = GPU


@dataclass(frozen=True)
class DrawTicket:
    """Take a ticket: increment a counter in device memory atomically, with relaxed order.

    The ticket is the value of the counter before the increment.

    Args:
        counter: the dimension whose index selects the counter.
        count: the number of tickets of a launch. The increment wraps around: the counter has the
            values 0 to `count - 1`, then 0 again.
    """

    counter: str
    count: Expr


@dataclass(frozen=True)
class AwaitEarlier:
    """Wait until earlier launches in the stream have ended (`griddepcontrol.wait`)."""


Effect = (
    Access
    | Registers
    | Asynchronous
    | Commit
    | AwaitGroups
    | Converge
    | Fence
    | Meet
    | Initialise
    | Arrive
    | AwaitPhase
    | ChangeFlag
    | AwaitFlag
    | TakeFlag
    | DrawTicket
    | AwaitEarlier
)
