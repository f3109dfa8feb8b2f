"""Operations of lowered graphs for GPUs with asynchronous copies and matrix instructions (Hopper).

The operations correspond to instructions of the PTX ISA, sections "mbarrier",
"cp.async.bulk.tensor" and "wgmma.mma_async". An mbarrier is an element of a dimension of shared
memory. From the number of the pipeline step, the coordinate graph computes which mbarrier, and
which phase of the mbarrier, an operation uses. A whole warp executes `ExpectBytes`, `CopyBox` and
`CopyRun`; one of its threads issues the instruction.
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
    """Execute the body with a counter as the index along the dimension `dim`.

    The counter starts at 0; `Advance` operations in the body increase it.
    """

    dim: str
    body: Body = ()

    BODIES = ("body",)
    ROLES = ("dim",)


@dataclass(frozen=True)
class Advance(Operation):
    """Increase by `by` the counter that an enclosing `Counter` binds to the dimension `dim`."""

    dim: str
    by: Expr = ONE

    ROLES = ("dim",)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by", sympify(self.by))


@dataclass(frozen=True)
class SetRegisters(Operation):
    """Change how many registers each thread of the warpgroup may use (PTX `setmaxnreg`).

    Args:
        count: the new number of registers per thread.
        grow: True if the number increases (`setmaxnreg.inc`), False if it decreases
            (`setmaxnreg.dec`).
    """

    count: int
    grow: bool


@dataclass(frozen=True)
class InitBarrier(Operation):
    """Initialise an mbarrier: a phase completes after `arrivals` arrivals and all expected bytes.

    Args:
        barrier: the dimension of shared memory whose index selects the mbarrier.
        arrivals: the number of arrivals that complete each phase.
    """

    barrier: str
    arrivals: int

    ROLES = ("barrier",)


@dataclass(frozen=True)
class PublishBarriers(Operation):
    """Make initialised mbarriers visible to TMA and to the cluster (PTX `fence.mbarrier_init`)."""


@dataclass(frozen=True)
class ExpectBytes(Operation):
    """Arrive at an mbarrier, whose current phase then also waits for `bytes` bytes of copies.

    PTX: `mbarrier.arrive.expect_tx`.

    Args:
        barrier: the dimension of shared memory whose index selects the mbarrier.
        bytes: the number of bytes that copies deliver in this phase.
    """

    barrier: str
    bytes: Expr

    ROLES = ("barrier",)

    def __post_init__(self) -> None:
        object.__setattr__(self, "bytes", sympify(self.bytes))


@dataclass(frozen=True)
class ArriveBarrier(Operation):
    """Arrive at an mbarrier (PTX `mbarrier.arrive`).

    Args:
        barrier: the dimension of shared memory whose index selects the mbarrier.
        rank: the rank in the cluster of the workgroup that has the mbarrier in its shared memory;
            None for the executing workgroup.
        publish: whether earlier writes of this thread become visible to threads of other workgroups
            that wait at the mbarrier (release at cluster scope).
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
    """Synchronise all threads of the cluster (PTX `barrier.cluster`)."""


@dataclass(frozen=True)
class AwaitEarlierLaunch(Operation):
    """Wait until earlier launches in the stream have ended and their writes are visible.

    PTX: `griddepcontrol.wait`, for programmatic dependent launch.
    """


@dataclass(frozen=True)
class AllowNextLaunch(Operation):
    """Allow the next launch in the stream to start workgroups as soon as SMs have room for them.

    PTX: `griddepcontrol.launch_dependents`, for programmatic dependent launch.
    """


@dataclass(frozen=True)
class PrefetchMap(Operation):
    """Prefetch the TMA descriptors (tensor maps) of a tensor (PTX `prefetch.tensormap`)."""

    tensor: str


@dataclass(frozen=True)
class WaitBarrier(Operation):
    """Wait until a phase of an mbarrier completes (PTX `mbarrier.try_wait.parity`).

    Args:
        barrier: the dimension of shared memory whose index selects the mbarrier.
        phase: the dimension whose index is the parity of the phase.
        before: whether to wait for the preceding phase instead, which has the other parity. In a
            newly initialised mbarrier, the phase before the first counts as complete.
        cluster: whether writes of other workgroups before their `ArriveBarrier` with `publish`
            become visible (acquire at cluster scope).
    """

    barrier: str
    phase: str
    before: bool = False
    cluster: bool = False

    ROLES = ("barrier", "phase")


@dataclass(frozen=True)
class CopyBox(Operation):
    """Copy a box of a tensor to shared memory by TMA; elements outside the tensor become zero.

    PTX: `cp.async.bulk.tensor`. An mbarrier counts the bytes as they arrive.

    Args:
        tensor: the name of the tensor.
        source: the dimensions of the tensor's axes, the contiguous axis first.
        destination: the dimension of shared memory to which the box is copied.
        barrier: the dimension of shared memory whose index selects the mbarrier.
        box: the extents of the box in elements, in the order of `source`.
        receivers: dimensions of a workgroup's position in the cluster; empty for no multicast. The
            box is multicast to all workgroups whose positions differ only along these dimensions.
            TMA writes the box to the same address in the shared memory of each of these
            workgroups, and each workgroup's own mbarrier counts the bytes.
        map: the dimension whose index selects a descriptor that `DescribeMatrix` wrote; '' for the
            tensor's descriptor among the kernel's arguments.
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
    """Copy consecutive elements of a tensor to shared memory by TMA (PTX `cp.async.bulk`).

    Args:
        source: the dimension of the tensor; its index is the offset of the first element.
        destination: the dimension of shared memory to which the elements are copied.
        barrier: the dimension of shared memory whose index selects the mbarrier that counts the
            bytes.
        count: the number of elements.
    """

    source: str
    destination: str
    barrier: str
    count: int

    ROLES = ("source", "destination", "barrier")


@dataclass(frozen=True)
class FenceMemory(Operation):
    """Order this thread's earlier accesses to device memory before its later TMA accesses.

    Writes that the thread has observed become visible to TMA (PTX `fence.proxy.async.global`).
    """


@dataclass(frozen=True)
class FenceShared(Operation):
    """Order this thread's earlier accesses to shared memory before its later TMA accesses.

    PTX: `fence.proxy.async.shared::cta`.
    """


@dataclass(frozen=True)
class StoreBox(Operation):
    """Copy a box from shared memory to a tensor by TMA, except elements outside the tensor.

    PTX: `cp.async.bulk.tensor`.

    Args:
        tensor: the name of the tensor.
        source: the dimension of shared memory that holds the box.
        destination: the dimensions of the tensor's axes, the contiguous axis first.
        box: the extents of the box in elements, in the order of `destination`.
        map: the dimension whose index selects a descriptor that `DescribeMatrix` wrote; '' for the
            tensor's descriptor among the kernel's arguments.
    """

    tensor: str
    source: str
    destination: tuple[str, ...]
    box: tuple[int, ...]
    map: str = ""

    ROLES = ("source", "destination", "map")


@dataclass(frozen=True)
class DescribeMatrix(Operation):
    """Write a TMA descriptor (tensor map) of one matrix in a tensor; a whole warp executes it.

    The descriptor is a copy of the tensor's descriptor with another address, extents and stride,
    assembled in shared memory and then copied to device memory (PTX ISA, "tensormap.replace" and
    "tensormap.cp_fenceproxy"). Threads that synchronise with this warp may use the descriptor.

    Args:
        tensor: the name of the tensor.
        map: the dimension whose index selects the descriptor to write, in device memory.
        via: the dimension of shared memory where the descriptor is assembled.
        first: the offset of the matrix's first element in the tensor, in elements.
        extents: the extents of the matrix in elements, along the contiguous axis first.
        pitch: the leading dimension of the matrix, in elements.
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
    """End a group of this thread's `StoreBox` operations (PTX `cp.async.bulk.commit_group`)."""


@dataclass(frozen=True)
class WaitStores(Operation):
    """Wait until TMA has read the shared memory of all store groups but the last `pending` ones.

    A store group is the `StoreBox` operations that a `CommitStores` of this thread ended. PTX:
    `cp.async.bulk.wait_group.read`.
    """

    pending: int


@dataclass(frozen=True)
class FenceMultiplies(Operation):
    """Order accesses to accumulator registers before later `wgmma` (PTX `wgmma.fence`)."""

    accumulator: str = "acc"


@dataclass(frozen=True)
class MultiplyShared(Operation):
    """One `wgmma.mma_async` of a warpgroup on operands in shared memory: `acc += a @ b`.

    Args:
        a, b: the dimensions of shared memory that hold the operands a and b.
        accumulator: the name of the fragment with the accumulator registers.
        registers: the dimensions that number the accumulator's registers.
        instruction: the PTX instruction's name.
        count: the number of accumulator registers of each thread.
        a_strides, b_strides: the leading and the stride byte offset in the matrix descriptor of
            a (b): distances between core matrices (PTX ISA, "Matrix Descriptor Format").
        rows: the numbers of bytes in a swizzled row of a and in a swizzled row of b.
        transpose_a, transpose_b: whether a (b) is contiguous along m (n), called MN-major, and not
            along k.
        fresh: the condition under which the product overwrites the accumulator (`acc = a @ b`);
            otherwise the product is added.
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
    """End a group of `MultiplyShared` operations (PTX `wgmma.commit_group`)."""


@dataclass(frozen=True)
class WaitMultiplies(Operation):
    """Wait until at most `pending` groups of `MultiplyShared` are unfinished.

    PTX: `wgmma.wait_group`.
    """

    pending: int
    accumulator: str = "acc"
