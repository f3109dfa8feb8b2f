"""Operations of machines whose copies and multiplications run beside the program (Hopper).

Barriers are dimensions of shared memory like any other: which barrier, and which phase of it, is a
path through the coordinate graph from the running number of the step (PTX ISA, "mbarrier",
"cp.async.bulk.tensor", "wgmma.mma_async"). What a whole warp executes, one lane of it issues:
`ExpectBytes`, `CopyBox` and `CopyRun`.
"""

from __future__ import annotations

from dataclasses import dataclass

from sympy import Expr, sympify
from sympy.logic.boolalg import Boolean, false

from coordgraph.control.operations import ONE, Body, Operation

__all__ = [
    "Advance",
    "AllowNextLaunch",
    "ArriveBarrier",
    "AwaitEarlierLaunch",
    "ClusterBarrier",
    "CommitMultiplies",
    "CommitStores",
    "CopyBox",
    "CopyRun",
    "Counter",
    "DescribeMatrix",
    "ExpectBytes",
    "FenceMemory",
    "FenceMultiplies",
    "FenceShared",
    "InitBarrier",
    "MultiplyShared",
    "PrefetchMap",
    "PublishBarriers",
    "SetRegisters",
    "StoreBox",
    "WaitBarrier",
    "WaitMultiplies",
    "WaitStores",
]


@dataclass(frozen=True)
class Counter(Operation):
    """Inside the body the index along `dim` is a count that starts at 0 and `Advance` moves."""

    dim: str
    body: Body = ()

    BODIES = ("body",)
    ROLES = ("dim",)


@dataclass(frozen=True)
class Advance(Operation):
    """Move a counter on."""

    dim: str
    by: Expr = ONE

    ROLES = ("dim",)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by", sympify(self.by))


@dataclass(frozen=True)
class SetRegisters(Operation):
    """Registers of each workitem of this warpgroup from here on."""

    count: int
    grow: bool


@dataclass(frozen=True)
class InitBarrier(Operation):
    """A barrier whose phases each end after `arrivals` arrivals (and the bytes expected)."""

    barrier: str
    arrivals: int

    ROLES = ("barrier",)


@dataclass(frozen=True)
class PublishBarriers(Operation):
    """Let the asynchronous units, and the rest of the cluster, see initialised barriers."""


@dataclass(frozen=True)
class ExpectBytes(Operation):
    """Arrive, and let the phase wait for so many bytes of copies."""

    barrier: str
    bytes: Expr

    ROLES = ("barrier",)

    def __post_init__(self) -> None:
        object.__setattr__(self, "bytes", sympify(self.bytes))


@dataclass(frozen=True)
class ArriveBarrier(Operation):
    """Arrive; at the barrier of the cluster's workgroup of that rank, where one is given.

    `publish`: who waits there sees what was written before.
    """

    barrier: str
    rank: Expr | None = None
    publish: bool = False

    ROLES = ("barrier",)

    def __post_init__(self) -> None:
        if self.rank is not None:
            object.__setattr__(self, "rank", sympify(self.rank))


@dataclass(frozen=True)
class ClusterBarrier(Operation):
    """All workitems of the cluster arrive before one goes on."""


@dataclass(frozen=True)
class AwaitEarlierLaunch(Operation):
    """Wait until what earlier launches of the stream wrote may be read (PTX: griddepcontrol)."""


@dataclass(frozen=True)
class AllowNextLaunch(Operation):
    """The stream's next launch may start its workgroups as soon as there is room for them."""


@dataclass(frozen=True)
class PrefetchMap(Operation):
    """Bring what TMA must know of a tensor near to it."""

    tensor: str


@dataclass(frozen=True)
class WaitBarrier(Operation):
    """Wait for the end of the phase whose parity is the index along `phase`.

    `before` waits for the phase before it, which of a fresh barrier counts as ended; `cluster`:
    what other workgroups of the cluster have published by arriving may be read then.
    """

    barrier: str
    phase: str
    before: bool = False
    cluster: bool = False

    ROLES = ("barrier", "phase")


@dataclass(frozen=True)
class CopyBox(Operation):
    """Copy a box of a tensor to shared memory, counted by a barrier; zeros outside the tensor.

    `source` are the tensor's axes, the contiguous one first; `box` its elements along each.
    `receivers` are coordinates of the cluster: the workgroups that differ in nothing else all
    receive the box, at the same place, and their own barrier counts it. `map` is the place of what
    `DescribeMatrix` wrote; without, an argument of the launch describes the tensor.
    """

    tensor: str
    source: tuple[str, ...]
    destination: str
    barrier: str
    box: tuple[int, ...]
    receivers: tuple[str, ...] = ()
    map: str = ""

    ROLES = ("source", "destination", "barrier", "receivers", "map")


@dataclass(frozen=True)
class CopyRun(Operation):
    """Copy `count` consecutive elements of a tensor to shared memory, counted by a barrier."""

    source: str
    destination: str
    barrier: str
    count: int

    ROLES = ("source", "destination", "barrier")


@dataclass(frozen=True)
class FenceMemory(Operation):
    """What this workitem may read of tensors TMA may read too."""


@dataclass(frozen=True)
class FenceShared(Operation):
    """What this workitem read and wrote in shared memory comes before TMA's work."""


@dataclass(frozen=True)
class StoreBox(Operation):
    """Copy a box from shared memory to a tensor; what is outside the tensor is dropped.

    `destination` are the tensor's axes, the contiguous one first; `box` its elements along each;
    `map` as for `CopyBox`.
    """

    tensor: str
    source: str
    destination: tuple[str, ...]
    box: tuple[int, ...]
    map: str = ""

    ROLES = ("source", "destination", "map")


@dataclass(frozen=True)
class DescribeMatrix(Operation):
    """Write at the place of `map` what boxes of one matrix in a tensor need; a whole warp does it.

    Whoever knows of it, as by a barrier, may use it. It is put together in shared memory, at the
    place of `via` (PTX ISA, "tensormap.replace", "tensormap.cp_fenceproxy"). The matrix begins
    `first` elements behind the tensor, has `extents` elements along its contiguous axis and across,
    and `pitch` from a row to the next.
    """

    tensor: str
    map: str
    via: str
    first: Expr
    extents: tuple[Expr, Expr]
    pitch: Expr

    ROLES = ("map", "via")


@dataclass(frozen=True)
class CommitStores(Operation):
    """Close the group of boxes that this workitem has stored so far."""


@dataclass(frozen=True)
class WaitStores(Operation):
    """Wait until of at most `pending` groups of this workitem shared memory is still read."""

    pending: int


@dataclass(frozen=True)
class FenceMultiplies(Operation):
    """Order register accesses before the multiplications that follow."""

    accumulator: str = "acc"


@dataclass(frozen=True)
class MultiplyShared(Operation):
    """One matrix instruction of a warpgroup on tiles in shared memory: `acc += a @ b`.

    `a_strides` and `b_strides` are the bytes between 8x8-core-matrix groups along the outer axis
    and along k as the descriptor wants them, `rows` the bytes of a swizzled row of a and of b;
    `fresh` says when `acc = a @ b` instead.
    """

    a: str
    b: str
    accumulator: str
    registers: tuple[str, ...]
    instruction: str
    count: int
    a_strides: tuple[int, int]
    b_strides: tuple[int, int]
    rows: tuple[int, int]
    transpose_a: bool = False
    transpose_b: bool = False
    fresh: Boolean = false

    ROLES = ("a", "b", "registers")


@dataclass(frozen=True)
class CommitMultiplies(Operation):
    """Close the group of multiplications issued so far."""


@dataclass(frozen=True)
class WaitMultiplies(Operation):
    """Wait until at most `pending` groups of multiplications are under way."""

    pending: int
    accumulator: str = "acc"
