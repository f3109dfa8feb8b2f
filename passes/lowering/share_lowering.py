"""Reduce-scatter on a GPU: each workgroup with partial sums of a tile finishes shares of the tile.

The *peers* of a tile are all workgroups with partial sums of the tile. Each thread polls the flag
of a different peer, so a workgroup waits for all flags at the same time, its own flag included. A
share consists of the elements that all threads of the workgroup load in one access each, at most 16
bytes per thread. Threads add up shares in registers, reading the workspace directly: the partial
sums are in the L2 cache, so the time depends on how many loads are in flight. The loop over peers
is therefore unrolled in batches of 32 and 16 peers (see `BATCHES`), and the loads of a batch do not
wait for each other. The last batch may have fewer peers: then some of its loads are not executed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from sympy import Expr, Integer, Lt

from coordgraph.control.graph import rewrite
from coordgraph.control.lowered import Barrier, SignalFlag, TakeFlag
from coordgraph.control.operations import (
    AddPartial,
    AwaitPartial,
    Body,
    For,
    If,
    InitAccumulator,
    Operation,
    SendPartial,
    SetCoordinate,
)
from coordgraph.coordinates.dimensions import Linear, Unroll
from coordgraph.coordinates.graph import CoordinateEditor
from coordgraph.integers import floor_mod, index_symbol
from passes.kit.reduce_scatter import PEER, SHARE
from passes.lowering.control import Accumulator, unrolled

__all__ = ["ScatterLowering"]

FIRST, BATCH = "partial.first", "partial.batch"
"""FIRST: the coordinate of the loop that polls flags. In an iteration, each thread polls the flag
of one peer (workgroup with partial sums of the tile); the loop's index is the number of the first
of these peers. BATCH: the coordinate of a loop of one iteration around the unrolled loop over the
peers of a batch, and the prefix of the ids of other coordinates of batches."""
BATCHES = (32, 16)
"""Sizes of batches, from large to small. The size of a batch is the largest number of peers
(workgroups with partial sums of the tile) whose partial sums a thread loads together. The partial
sums of 32 peers take 128 registers of a thread, which are free: the thread has sent its own partial
sums.

A kernel with a second main loop has only batches of 16. With 32, kernels whose threads have 72 or
more accumulators spilled registers (ptxas 13). Such kernels rarely need larger batches: they divide
only the tiles of the last one or two waves, most of them among two or three workgroups.
"""


@dataclass(frozen=True)
class ScatterLowering:
    """Lowers the operations of a reduce-scatter to the operations of one thread.

    Args:
        c: the coordinate graph under construction, with the edges from shares to registers.
        share: the registers of a thread that hold its elements of a share: the first registers of
            the accumulator, which is free once its partial sums are sent.
        add: the operation that adds one peer's partial sums of a share.
        member: the number of the executing thread among the threads that hold the accumulator.
        workitems: number of threads that hold the accumulator.
        barrier: the barrier among the threads that hold the accumulator.
        send: the operation that stores the accumulator in the workspace.
        after: a function that lowers an epilogue or a store to D, for one share.
        main_loops: the number of main loops of the kernel.
    """

    c: CoordinateEditor
    share: Accumulator
    add: Operation
    member: Expr
    workitems: int
    barrier: Barrier
    send: Operation
    after: Callable[[Operation], Operation | Body]
    main_loops: int

    @property
    def batches(self) -> tuple[int, ...]:
        """How many peers' partial sums a thread of this kernel loads together, in descending order.

        If fewer peers are left than the first number, a batch of the next number is enough.
        """
        return BATCHES if self.main_loops == 1 else BATCHES[1:]

    def __post_init__(self) -> None:
        self.c.add(Linear(FIRST, note="first of the peers that are waited for side by side"))
        self.c.add(Unroll(BATCH, Integer(1), note="addresses are worked out once for a batch"))
        for width in self.batches:
            self.c.add(Linear(f"{BATCH}.{width}", note=f"first peer of a batch of {width}"))
            self.c.add(Unroll(f"{BATCH}.{width}.peer", Integer(width)))

    def lower(self, body: Body, by: Callable[[Body], Body] = lambda body: body) -> Body:
        """Lower the operations of a reduce-scatter in `body`: sends, waits, loops over shares.

        A share is a part of a tile that one workgroup finishes. All other operations are kept.

        Args:
            body: operations of the scheduled graph.
            by: a function that puts lowered operations under a condition, which selects the
                workgroups that execute them.
        """

        def lower(op: Operation) -> Operation | Body:
            match op:
                case SendPartial():
                    return by(self._send(op))
                case For(dim=dim) if dim == PEER and _holds(op, AwaitPartial):
                    return by(self._wait(op))
                case For(dim=dim) if dim == SHARE:
                    return by((self._finish(op),))
                case _:
                    return op

        return tuple(new for op in body for new in rewrite(op, lower))

    def _send(self, op: SendPartial) -> Body:
        """Store the partial sums; then one thread sets the flag to the number of receivers.

        The barrier orders the stores of all threads before the release by that thread.
        """
        return (self.send, self.barrier, self._leader(SignalFlag("flags", "", op.readers)))

    def _leader(self, op: Operation) -> Operation:
        """An operation by which only the first thread that holds the accumulator executes `op`."""
        return If(Lt(self.member, 1), (op,))

    def _wait(self, peers: For) -> Body:
        """Wait for all peers: each thread polls one peer's flag, then a barrier follows.

        The peers are all workgroups with partial sums of the tile.
        """

        def take(op: Operation) -> Operation:
            return TakeFlag("flags") if isinstance(op, AwaitPartial) else op

        first = index_symbol(FIRST)
        body = _rewritten_body(peers, take)
        mine = If(Lt(self.member, peers.stop - first), (_at_peer(first + self.member, body),))
        waits = For(FIRST, peers.start, peers.stop, Integer(self.workitems), (mine,))
        return (waits, self.barrier)

    def _finish(self, loop: For) -> Operation:
        """Add up and finish a workgroup's shares of a tile in a reduce-scatter, one after another.

        A share is the elements in one vector of accumulator registers of every thread, so a tile
        has as many shares as a thread has vectors.
        """

        def lower(op: Operation) -> Operation | Body:
            match op:
                case InitAccumulator():
                    return self.share.zero()
                case For(dim=dim) if dim == PEER:
                    return self._in_batches(op)
                case _:
                    return self.after(op)

        return replace(_rewritten(loop, lower), stop=Integer(self.c[SHARE].fixed_size))

    def _in_batches(self, peers: For) -> Body:
        """Add the partial sums of all peers in order, in unrolled batches of 32 and 16 peers.

        The peers are all workgroups with partial sums of the tile, in the order of k. Batches of 32
        are executed while more than 16 peers are left, if the kernel has such batches.
        """

        def add(op: Operation) -> Operation:
            return self.add if isinstance(op, AddPartial) else op

        body = _rewritten_body(peers, add)
        batches: list[Operation] = []
        start = peers.start
        for width, smaller in zip(self.batches, (*self.batches[1:], 0), strict=True):
            count = (peers.stop - start + width - smaller - 1).expand()
            stop = (start + count - floor_mod(count, Integer(width))).expand()
            first, peer = f"{BATCH}.{width}", f"{BATCH}.{width}.peer"
            number = index_symbol(first) + index_symbol(peer)
            piece = If(Lt(number, peers.stop), (_at_peer(number, body),))
            # Code generation computes addresses once per iteration of the outer unrolled loop. That
            # loop has one iteration, so addresses are computed once for all peers of a batch.
            each = unrolled(self.c, (BATCH, peer), piece)
            batches.append(For(first, start, stop, Integer(width), (each,)))
            start = stop
        return tuple(batches)


def _holds(op: Operation, kind: type[Operation]) -> bool:
    """Whether `op` is, or contains, an operation of the type `kind`."""
    return any(isinstance(inner, kind) for inner in op.walk())


def _rewritten(loop: For, change: Callable[[Operation], Operation | Body]) -> For:
    """`loop` with `change` applied to the operations of its body."""
    return replace(loop, body=_rewritten_body(loop, change))


def _rewritten_body(loop: For, change: Callable[[Operation], Operation | Body]) -> Body:
    """The body of `loop`, with `change` applied to its operations."""
    return tuple(new for op in loop.body for new in rewrite(op, change))


def _at_peer(peer: Expr, body: Body) -> Operation:
    """`body`, executed with the coordinate `PEER` set to the number `peer`."""
    return SetCoordinate(PEER, peer, body)
