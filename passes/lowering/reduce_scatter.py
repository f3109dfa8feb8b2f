"""Reduce-scatter on a GPU: workitems wait for pieces side by side, then add up shares of a tile.

A share is what one access of each workitem holds. It is added up in registers, straight from the
workspace, whose pieces are in the L2 cache: what counts is how many loads are under way. So the
loop over peers is written out in batches of powers of two, whose loads wait for nothing.
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
BATCHES = (16, 8, 4, 2, 1)
"""Pieces whose loads are under way at the same time. The largest takes 64 registers."""


@dataclass(frozen=True)
class ScatterLowering:
    """What becomes of a reduce-scatter's operations.

    Args:
        c: the coordinates being built; `SHARE` is tied to registers there.
        share: the registers of one share of a workitem, the first of the accumulator's: nobody
            needs those any more once the piece is sent.
        add: adds one piece of a share.
        member: the workitem's number among those who hold the accumulator, and `workitems`, how
            many these are.
        barrier: among them.
        send: stores the accumulator.
        after: what becomes of the operations of the epilogue, on a share.
    """

    c: CoordinateEditor
    share: Accumulator
    add: Operation
    member: Expr
    workitems: int
    barrier: Barrier
    send: Operation
    after: Callable[[Operation], Operation | Body]

    def __post_init__(self) -> None:
        self.c.add(Linear(FIRST, note="first of the peers that are waited for side by side"))
        self.c.add(Unroll(BATCH, Integer(1), note="addresses are worked out once for a batch"))
        for width in BATCHES:
            self.c.add(Linear(f"{BATCH}.{width}", note=f"first peer of a batch of {width}"))
            self.c.add(Unroll(f"{BATCH}.{width}.peer", Integer(width)))

    def lower(self, body: Body, by: Callable[[Body], Body] = lambda body: body) -> Body:
        """A body, what this knows lowered; `by` puts what chooses who does it around that."""

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
        """Store, then let one workitem publish; a barrier orders all stores before its release."""
        return (self.send, self.barrier, self._leader(SignalFlag("flags", "", op.readers)))

    def _leader(self, op: Operation) -> Operation:
        return If(Lt(self.member, 1), (op,))

    def _wait(self, peers: For) -> Body:
        """Workitems acquire side by side, each for all."""

        def take(op: Operation) -> Operation:
            return TakeFlag("flags") if isinstance(op, AwaitPartial) else op

        first = index_symbol(FIRST)
        body = _within(peers, take)
        mine = If(Lt(self.member, peers.stop - first), (_at_peer(first + self.member, body),))
        waits = For(FIRST, peers.start, peers.stop, Integer(self.workitems), (mine,))
        return (waits, self.barrier)

    def _finish(self, loop: For) -> Operation:
        """Shares one after another; how many there are is what registers say."""

        def lower(op: Operation) -> Operation | Body:
            match op:
                case InitAccumulator():
                    return self.share.zero()
                case For(dim=dim) if dim == PEER:
                    return self._in_batches(op)
                case _:
                    return self.after(op)

        return replace(_of(loop, lower), stop=Integer(self.c[SHARE].fixed_size))

    def _in_batches(self, peers: For) -> Body:
        """The pieces of all peers in their order; the last batches are as large as what is left."""

        def add(op: Operation) -> Operation:
            return self.add if isinstance(op, AddPartial) else op

        count, body = (peers.stop - peers.start).expand(), _within(peers, add)
        batches: list[Operation] = []
        start = peers.start
        for width in BATCHES:
            stop = peers.stop - floor_mod(count, Integer(width)) if width > 1 else peers.stop
            first, peer = f"{BATCH}.{width}", f"{BATCH}.{width}.peer"
            piece = _at_peer(index_symbol(first) + index_symbol(peer), body)
            # Two loops: the walker works addresses out anew in each turn of the outermost.
            each = unrolled(self.c, (BATCH, peer), piece)
            batches.append(For(first, start, stop, Integer(width), (each,)))
            start = stop
        return tuple(batches)


def _holds(op: Operation, kind: type[Operation]) -> bool:
    return any(isinstance(inner, kind) for inner in op.walk())


def _of(loop: For, change: Callable[[Operation], Operation | Body]) -> For:
    return replace(loop, body=_within(loop, change))


def _within(loop: For, change: Callable[[Operation], Operation | Body]) -> Body:
    return tuple(new for op in loop.body for new in rewrite(op, change))


def _at_peer(peer: Expr, body: Body) -> Operation:
    return SetCoordinate(PEER, peer, body)
