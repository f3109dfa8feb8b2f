"""The memory effects of every operation of lowered graphs: the one place that declares them.

`effects(op)` lists, in order, what one execution of an operation does: accesses, with the proxy
that makes them; fences; arrivals and waits at barriers, mbarriers and flags, with memory order and
scope; asynchronous operations, with the mechanism that signals their end. The check `memory order`
(`coordgraph.verification.memory_order`) interprets the effects. An operation of another package
declares its own with `@effects.register`.
"""

from __future__ import annotations

import re
from functools import singledispatch
from math import prod

from coordgraph.control import asynchronous as hopper
from coordgraph.control import lowered, tickets
from coordgraph.control import row_reductions as rows
from coordgraph.control.effects import (
    CLUSTER,
    COPIES,
    CTA,
    MULTIPLIES,
    STORES,
    WHOLE,
    Access,
    Arrive,
    Asynchronous,
    AwaitEarlier,
    AwaitFlag,
    AwaitGroups,
    AwaitPhase,
    ChangeFlag,
    Commit,
    Converge,
    DrawTicket,
    Effect,
    Fence,
    Initialise,
    Kind,
    Matrix,
    Meet,
    Registers,
    TakeFlag,
)
from coordgraph.control.operations import Operation
from coordgraph.errors import VerifyError

__all__ = ["effects"]

ROWS_OF_MATRIX, ROW_BYTES_OF_MATRIX = 8, 16
"""ROWS_OF_MATRIX: number of rows of a matrix of `ldmatrix` and `stmatrix`; these instructions read
the address of each row from one lane. ROW_BYTES_OF_MATRIX: number of bytes in shared memory that
one such address selects: one row of an 8x8 matrix of 16-bit values."""
GROUP_ROWS, DEPTH_BYTES = 8, 32
"""GROUP_ROWS: number of rows in a core matrix of wgmma. DEPTH_BYTES: extent of one wgmma along k,
in bytes."""
WORDS = 32
"""Number of 32-bit words of a tensor map (CUtensorMap)."""
NONE = (
    lowered.Prefetch,
    lowered.DeriveParameters,
    hopper.Counter,
    hopper.Advance,
    hopper.SetRegisters,
    hopper.AllowNextLaunch,
    hopper.PrefetchMap,
)
"""Classes of lowered operations that declare no effects.

These operations access no memory that other threads use. The exception is `DeriveParameters`, which
reads tables; the check `memory order` records these reads itself.
"""


@singledispatch
def effects(op: Operation) -> tuple[Effect, ...]:
    """The memory effects of one execution of an operation, in order.

    The effects of the operations in its bodies are not included.

    Raises:
        VerifyError: the operation's class declares no effects.
    """
    if op.BODIES or isinstance(op, NONE):
        return ()
    raise VerifyError(
        f"the operation {op.kind} declares no memory effects; declare them with "
        "coordgraph.control.declared_effects.effects.register"
    )


@effects.register
def _(op: lowered.CopyElements) -> tuple[Effect, ...]:
    moved = (
        Access(Kind.READ, op.source, op.width, guard=op.destination),
        Access(Kind.WRITE, op.destination, op.width, guard=op.destination),
    )
    return (Asynchronous(moved, COPIES, proxy=False),) if op.asynchronous else moved


@effects.register
def _(op: lowered.FillElements) -> tuple[Effect, ...]:
    return (Access(Kind.WRITE, op.destination, op.width, guard=op.destination),)


@effects.register
def _(op: lowered.CommitCopies) -> tuple[Effect, ...]:
    return (Commit(COPIES),)


@effects.register
def _(op: lowered.WaitCopies) -> tuple[Effect, ...]:
    return (AwaitGroups(COPIES, op.pending),)


@effects.register
def _(op: lowered.Barrier) -> tuple[Effect, ...]:
    return (Meet(op.identifier, op.workitems),)


@effects.register
def _(op: lowered.Tabulate) -> tuple[Effect, ...]:
    return (Converge(op.first), Access(Kind.WRITE, f"{op.table}.shared", WHOLE))


@effects.register
def _(op: lowered.ZeroFragment) -> tuple[Effect, ...]:
    return (Registers(Kind.WRITE, op.fragment),)


@effects.register
def _(op: lowered.LoadFragment) -> tuple[Effect, ...]:
    if op.form.startswith("ldmatrix"):
        read = Access(Kind.READ, op.source, 1, ROW_BYTES_OF_MATRIX)
    else:
        read = Access(Kind.READ, op.source, op.width if op.form == "vector" else 1)
    return (read, Registers(Kind.WRITE, op.fragment))


@effects.register
def _(op: lowered.StoreFragment) -> tuple[Effect, ...]:
    if op.form.startswith("stmatrix"):
        lanes = ROWS_OF_MATRIX * int(op.form.split(".")[1].removeprefix("x"))
        write = Access(Kind.WRITE, op.destination, 1, ROW_BYTES_OF_MATRIX, lanes=lanes)
    else:
        write = Access(Kind.WRITE, op.destination, op.width, rank=op.rank)
    return (Registers(Kind.READ, op.fragment), write)


@effects.register
def _(op: lowered.ReduceFragment) -> tuple[Effect, ...]:
    return (Registers(Kind.READ, op.fragment), Access(Kind.ADD, op.destination, op.width))


@effects.register
def _(op: lowered.AccumulateFragment) -> tuple[Effect, ...]:
    return (Access(Kind.READ, op.source, op.width), Registers(Kind.WRITE, op.fragment))


@effects.register
def _(op: lowered.ApplyFragment) -> tuple[Effect, ...]:
    widths = op.widths or (1,) * len(op.sources)
    reads = (
        Access(Kind.READ, memory, width)
        for memory, width in zip(op.read_from.values(), widths, strict=True)
    )
    single = (Access(Kind.READ, tensor) for tensor in op.elements)
    writes = (Access(Kind.WRITE, tensor, op.width) for tensor in op.stores)
    reduced = [o.name for o in op.function.outputs if o.reduce and o.name in op.stores]
    before = (Access(Kind.READ, name) for name in reduced)
    merged = (Registers(Kind.WRITE, rows.rows_of(name)) for name in op.reduces)
    return (*reads, *single, Registers(Kind.WRITE, op.fragment), *merged, *before, *writes)


@effects.register
def _(op: rows.StartRows) -> tuple[Effect, ...]:
    return (Registers(Kind.WRITE, op.fragment),)


@effects.register
def _(op: rows.ReduceLanes) -> tuple[Effect, ...]:
    return (Registers(Kind.WRITE, op.fragment), Converge())


@effects.register
def _(op: rows.CombineRows) -> tuple[Effect, ...]:
    return (Access(Kind.READ, op.source, 1), Registers(Kind.WRITE, op.fragment))


@effects.register
def _(op: rows.StoreRows) -> tuple[Effect, ...]:
    return (Registers(Kind.READ, op.fragment), Access(Kind.WRITE, op.destination, 1))


@effects.register
def _(op: lowered.MultiplyFragments) -> tuple[Effect, ...]:
    reads = (Registers(Kind.READ, name) for name in (op.a, op.b))
    return (*reads, Registers(Kind.WRITE, op.accumulator))


@effects.register
def _(op: lowered.SignalFlag) -> tuple[Effect, ...]:
    released = op.order == "release"
    return (ChangeFlag(op.flag, op.turn, op.readers, released, op.scope),)


@effects.register
def _(op: lowered.RaiseFlag) -> tuple[Effect, ...]:
    released = op.order == "release"
    return (ChangeFlag(op.flag, release=released, scope=op.scope),)


@effects.register
def _(op: lowered.WaitFlag) -> tuple[Effect, ...]:
    acquired = op.order == "acquire"
    return (AwaitFlag(op.flag, op.turn, op.senders, acquired, op.scope),)


@effects.register
def _(op: lowered.TakeFlag) -> tuple[Effect, ...]:
    return (TakeFlag(op.flag, op.order == "acquire", op.scope),)


@effects.register
def _(op: lowered.ClearFlag) -> tuple[Effect, ...]:
    return (ChangeFlag(op.flag, value=0, release=False),)


@effects.register
def _(op: tickets.FetchTicket) -> tuple[Effect, ...]:
    return (DrawTicket(op.counter, op.count),)


@effects.register
def _(op: tickets.PassTicket) -> tuple[Effect, ...]:
    return (Access(Kind.WRITE, op.destination, 1, rank=op.rank),)


@effects.register
def _(op: tickets.ReadTicket) -> tuple[Effect, ...]:
    # A shuffle broadcasts the ticket (a value drawn from an atomic counter) in each warp, so it
    # waits for the loads of all lanes.
    return (Access(Kind.READ, op.source, 1), Converge())


@effects.register
def _(op: hopper.InitBarrier) -> tuple[Effect, ...]:
    return (Initialise(op.barrier, op.arrivals),)


@effects.register
def _(op: hopper.PublishBarriers) -> tuple[Effect, ...]:
    return (Fence("mbarrier"),)


@effects.register
def _(op: hopper.ExpectBytes) -> tuple[Effect, ...]:
    return (Converge(), Arrive(op.barrier, op.bytes))


@effects.register
def _(op: hopper.ArriveBarrier) -> tuple[Effect, ...]:
    return (Arrive(op.barrier, None, op.rank, CLUSTER if op.publish else CTA),)


@effects.register
def _(op: hopper.WaitBarrier) -> tuple[Effect, ...]:
    return (AwaitPhase(op.barrier, op.phase, op.before, CLUSTER if op.cluster else CTA),)


@effects.register
def _(op: hopper.ClusterBarrier) -> tuple[Effect, ...]:
    return (Meet(None),)


@effects.register
def _(op: hopper.AwaitEarlierLaunch) -> tuple[Effect, ...]:
    return (AwaitEarlier(),)


@effects.register
def _(op: hopper.CopyBox) -> tuple[Effect, ...]:
    box = Access(Kind.WRITE, op.destination, prod(op.box), receivers=op.receivers)
    moved = (*_map(op.map), Access(Kind.READ, op.tensor), box)
    return (Converge(), Asynchronous(moved, barrier=op.barrier))


@effects.register
def _(op: hopper.CopyRun) -> tuple[Effect, ...]:
    moved = (
        Access(Kind.READ, op.source, op.count),
        Access(Kind.WRITE, op.destination, op.count),
    )
    return (Converge(), Asynchronous(moved, barrier=op.barrier))


@effects.register
def _(op: hopper.FenceMemory) -> tuple[Effect, ...]:
    return (Fence("global"),)


@effects.register
def _(op: hopper.FenceShared) -> tuple[Effect, ...]:
    return (Fence("shared"),)


@effects.register
def _(op: hopper.StoreBox) -> tuple[Effect, ...]:
    box = Access(Kind.READ, op.source, prod(op.box))
    return (Asynchronous((*_map(op.map), box, Access(Kind.WRITE, op.tensor)), STORES),)


@effects.register
def _(op: hopper.CommitStores) -> tuple[Effect, ...]:
    return (Commit(STORES),)


@effects.register
def _(op: hopper.WaitStores) -> tuple[Effect, ...]:
    return (AwaitGroups(STORES, op.pending, read=True),)


@effects.register
def _(op: hopper.DescribeMatrix) -> tuple[Effect, ...]:
    # All tensor maps that one launch writes to this address are equal. `tensormap.cp_fenceproxy`
    # and `fence.proxy.tensormap` order the write before TMA reads the tensor map.
    whole = Access(Kind.WRITE, op.via, WHOLE)
    return (Converge(), whole, Access(Kind.REWRITE, op.map, WORDS), Fence("global"))


@effects.register
def _(op: hopper.FenceMultiplies) -> tuple[Effect, ...]:
    # `wgmma.fence` has `.sync`: a thread waits until all threads of its warp execute the fence.
    return (Fence("registers"), Converge())


@effects.register
def _(op: hopper.MultiplyShared) -> tuple[Effect, ...]:
    shape = re.match(r"wgmma\.m(\d+)n(\d+)k(\d+)\.", op.instruction)
    assert shape is not None
    m, n, k = map(int, shape.groups())
    sides = (
        (op.a, m, op.a_strides, op.rows[0], op.transpose_a),
        (op.b, n, op.b_strides, op.rows[1], op.transpose_b),
    )
    reads = (
        Access(Kind.READ, dim, 1, matrix=_matrix(extent, k, strides, row, transposed=across))
        for dim, extent, strides, row, across in sides
    )
    changed = Registers(Kind.WRITE, op.accumulator)
    return (Asynchronous((*reads, changed), MULTIPLIES),)


@effects.register
def _(op: hopper.CommitMultiplies) -> tuple[Effect, ...]:
    return (Commit(MULTIPLIES, together=True),)


@effects.register
def _(op: hopper.WaitMultiplies) -> tuple[Effect, ...]:
    return (AwaitGroups(MULTIPLIES, op.pending),)


def _map(dim: str) -> tuple[Access, ...]:
    """The effect of reading a tensor map that the kernel wrote to device memory.

    Args:
        dim: the dimension whose index selects the tensor map; '' if the tensor map is an argument
            of the kernel. Arguments are constant, so the result is then empty.
    """
    return (Access(Kind.READ, dim, WORDS),) if dim else ()


def _matrix(
    extent: int, depth: int, strides: tuple[int, int], row: int, *, transposed: bool
) -> Matrix:
    """Which rows of shared memory one operand of a wgmma occupies (PTX ISA, "Strides").

    Args:
        extent: extent of the operand along m or n, in elements.
        depth: extent of the operand along k, in elements; this extent is 32 bytes.
        strides: leading byte offset and stride byte offset of the operand's matrix descriptor.
        row: number of bytes of a swizzled row.
        transposed: whether rows in shared memory run along m or n instead of along k.
    """
    if not transposed:
        return Matrix((1, 0), (extent // GROUP_ROWS, strides[1]), row)
    boxes = -(-extent * DEPTH_BYTES // depth // row)
    return Matrix((boxes, strides[0]), (depth // GROUP_ROWS, strides[1]), row)
