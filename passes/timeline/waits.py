"""Mark in lowered graphs where threads wait for partial sums or for another warpgroup."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from coordgraph.control.asynchronous import WaitBarrier
from coordgraph.control.lowered import Barrier, ClearFlag, TakeFlag, WaitFlag
from coordgraph.control.operations import Body, For, Operation
from coordgraph.control.timeline import Begin
from passes.kit.fixup import SLOT
from passes.lowering.sm_90a.turns import ORDER

__all__ = ["with_waits"]

FLAGS = (WaitFlag, TakeFlag)
"""Classes of operations that wait for a flag."""


def with_waits(body: Body) -> Body:
    """The operations of `body`, with marks before and after each wait for other workgroups.

    Waits are operations in `FLAGS`. On Hopper, waits are also the consumers' `WaitBarrier` for
    loaded partial sums, and the `WaitBarrier` at which a ping-pong warpgroup waits until the other
    one has left its main loop. A wait for partial sums gets `Begin("wait")` before and
    `Begin("receive")` after it. A wait for the other warpgroup gets `Begin("turn")` before it, and
    this mark and the wait are moved before the mark of the main loop.
    """
    return tuple(_with_waits(body))


def _with_waits(body: Body) -> Iterator[Operation]:
    ops = list(body)
    while ops:
        op = ops.pop(0)
        if _only_waits(op):
            yield from (Begin("wait"), op)
            # one thread waits for the flag, and the other threads wait for this thread at the
            # barrier
            if ops and isinstance(ops[0], Barrier):
                yield ops.pop(0)
            yield Begin("receive")
        elif _marks(op) and ops and _awaits_turn(ops[0]):
            yield from (Begin("turn"), ops.pop(0), op)
        elif (wait := _awaits_sums(op)) is not None:
            # The body of the loop contains the operation `wait`, too. There it returns at once,
            # because the mbarrier's phase has completed.
            inside = (Begin("wait"), wait, Begin("receive"), *op.children)
            yield op.with_body(*inside)
        else:
            bodies = {name: with_waits(getattr(op, name)) for name in op.BODIES}
            yield replace(op, **bodies) if bodies else op


def _leaves(op: Operation) -> Iterator[Operation]:
    """The operations in `op` that have no body."""
    return (inner for inner in op.walk() if not inner.BODIES)


def _only_waits(op: Operation) -> bool:
    """Whether `op` only waits for flags and clears them."""
    leaves = list(_leaves(op))
    waits = [inner for inner in leaves if isinstance(inner, FLAGS)]
    return bool(waits) and all(isinstance(inner, (*FLAGS, ClearFlag)) for inner in leaves)


def _marks(op: Operation) -> bool:
    """Whether `op` only marks the begin of an activity: all operations in it are `Begin`."""
    return all(isinstance(inner, Begin) for inner in _leaves(op))


def _awaits_turn(op: Operation) -> bool:
    """Whether `op` waits until the previous warpgroup has left its main loop (ping-pong)."""
    return any(isinstance(x, WaitBarrier) and x.barrier == ORDER for x in _leaves(op))


def _awaits_sums(op: Operation) -> WaitBarrier | None:
    """The consumers' first wait for a partial sum, if `op` is the loop that adds partial sums."""
    if not isinstance(op, For) or op.dim != SLOT:
        return None
    waits = (x for x in op.walk() if isinstance(x, WaitBarrier) and not x.before)
    return next(waits, None)
