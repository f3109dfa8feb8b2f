"""Memory effects: what an operation of a lowered graph does to memory and to synchronisation.

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
"""The kinds of groups that a thread commits and waits for: cp.async groups, bulk async-groups of
TMA stores, and wgmma groups."""
WHOLE = -1
"""The number of elements of an access to a whole allocation."""
CTA, CLUSTER, GPU = "cta", "cluster", "gpu"
"""The scopes of PTX."""


class Kind(Enum):
    """How an access changes memory."""

    READ = "reads"
    WRITE = "writes"
    ADD = "adds to"
    """An atomic addition: it is ordered with other additions whatever the interleaving."""
    REWRITE = "rewrites"
    """A write of a value that all writes to this place in one launch share."""

    @property
    def changes(self) -> bool:
        """Whether the access changes memory."""
        return self is not Kind.READ


@dataclass(frozen=True)
class Matrix:
    """The part of a stage that one wgmma reads: `groups` of eight rows, at every one of `boxes`.

    Args:
        boxes: the number of boxes, and the bytes from one to the next.
        groups: the number of groups of eight rows in a box, and the bytes from one to the next.
        row: the bytes of a row.
    """

    boxes: tuple[int, int]
    groups: tuple[int, int]
    row: int


@dataclass(frozen=True)
class Access:
    """An access to consecutive elements of memory.

    Args:
        kind: how the access changes memory.
        dim: the dimension whose index is the first element; of a tensor, or of shared memory.
        count: the number of elements; `WHOLE` for all of an allocation, 0 for an access whose place
            is not examined.
        size: the number of bytes if it does not follow from `count`; else 0.
        matrix: the rows that are accessed; None if the elements are consecutive.
        rank: the rank in the cluster of the workgroup whose shared memory is accessed; None for
            the executing workgroup, or for device memory.
        receivers: dimensions of a workgroup's position in the cluster: the shared memory of all
            workgroups whose positions differ only along these is accessed.
    """

    kind: Kind
    dim: str
    count: int = 0
    size: int = 0
    matrix: Matrix | None = None
    rank: Expr | None = None
    receivers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Registers:
    """An access to a thread's registers of a fragment."""

    kind: Kind
    fragment: str


@dataclass(frozen=True)
class Asynchronous:
    """Accesses that another agent than the thread makes, some time after the thread asked for them.

    Args:
        accesses: what is read and written.
        group: the kind of group that ends the operation; '' if an mbarrier counts its bytes.
        barrier: the dimension of the mbarrier that counts the bytes that are written; else ''.
        proxy: whether the accesses use the async proxy; else they use the generic proxy, as those
            of cp.async do.
    """

    accesses: tuple[Access | Registers, ...]
    group: str = ""
    barrier: str = ""
    proxy: bool = True


@dataclass(frozen=True)
class Commit:
    """End a group of asynchronous operations; `together` if a whole warpgroup shares the group."""

    group: str
    together: bool = False


@dataclass(frozen=True)
class AwaitGroups:
    """Wait for the ends of all groups but the last `pending`; `read` waits for their reads only."""

    group: str
    pending: int
    read: bool = False


@dataclass(frozen=True)
class Converge:
    """Execute once for a warp, by one thread, after all threads of the warp have come here.

    `first` is the number of the only warp's first thread; None if every warp executes it.
    """

    first: int | None = None


@dataclass(frozen=True)
class Fence:
    """Order this thread's earlier accesses before later ones that a proxy makes.

    `space` is what the fence covers: `shared` or `global` memory, `mbarrier` objects, or the
    `registers` of wgmma.
    """

    space: str


@dataclass(frozen=True)
class Meet:
    """Wait for `workitems` threads (0: all of the workgroup) at a barrier, which orders memory.

    `identifier` is the number of the barrier in the workgroup; None for that of the cluster.
    """

    identifier: Expr | None
    workitems: int = 0


@dataclass(frozen=True)
class Initialise:
    """Initialise an mbarrier for a number of arrivals."""

    barrier: str
    arrivals: int


@dataclass(frozen=True)
class Arrive:
    """Arrive once at an mbarrier, with release order; its phase then also awaits `expected` bytes.

    `rank` is the workgroup of the cluster that has the mbarrier; None for the executing one.
    """

    barrier: str
    expected: Expr | None = None
    rank: Expr | None = None
    scope: str = CTA


@dataclass(frozen=True)
class AwaitPhase:
    """Wait, with acquire order, for the phase of an mbarrier that has the parity `phase`.

    `before` inverts the parity.
    """

    barrier: str
    phase: str
    before: bool = False
    scope: str = CTA


@dataclass(frozen=True)
class ChangeFlag:
    """Set a flag to a value, or add 1 to it atomically.

    Args:
        flag: the dimension of the flag.
        turn: the dimension whose index plus 1 is the value; '' if `value` is.
        value: the value if `turn` is ''; None to add 1.
        release: whether earlier writes become visible to threads that acquire the flag.
        scope: the scope in which they do.
    """

    flag: str
    turn: str = ""
    value: Expr | int | None = None
    release: bool = True
    scope: str = GPU


@dataclass(frozen=True)
class AwaitFlag:
    """Wait until a flag has a value; `turn` and `value` as in `ChangeFlag`."""

    flag: str
    turn: str = ""
    value: Expr | int = 1
    acquire: bool = True
    scope: str = GPU


@dataclass(frozen=True)
class TakeFlag:
    """Wait until a flag is not 0, with acquire order, and subtract 1 from it atomically."""

    flag: str
    acquire: bool = True
    scope: str = GPU


@dataclass(frozen=True)
class AwaitEarlier:
    """Wait for earlier launches of the stream to end."""


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
    | AwaitEarlier
)
