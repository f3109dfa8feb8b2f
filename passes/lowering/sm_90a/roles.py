"""Derives, from the operations of a scheduled kernel, those that the producer warp executes.

Producer and consumers execute the same loops over tiles, since both must know which tile is next.
The producer's copy of the control graph keeps only loads; branches and loops without loads are
removed. The consumers' copy is made in `passes.lowering.sm_90a.consumers`.
"""

from __future__ import annotations

from collections.abc import Callable

from coordgraph.control.graph import rewrite
from coordgraph.control.operations import (
    AccumulatePartial,
    AddPartial,
    Assign,
    AwaitPartial,
    Body,
    CollectPartial,
    Epilogue,
    For,
    InitAccumulator,
    LoadTile,
    MultiplyAccumulate,
    Operation,
    ReceivePartial,
    SendPartial,
    StoreTile,
)

__all__ = ["part"]

CONSUMED = (
    InitAccumulator,
    MultiplyAccumulate,
    SendPartial,
    AwaitPartial,
    AddPartial,
    AccumulatePartial,
    StoreTile,
)
"""Classes of operations on tiles that consumer warpgroups execute and the producer does not."""
RECEIVED = (ReceivePartial, CollectPartial)
"""Classes of operations that receive partial sums: the producer loads the sums and the consumers
add them."""


def part(
    body: Body,
    load: Callable[[For], Body],
    receive: Callable[[For], Body] = lambda _: (),
    operands: Callable[[Epilogue], Body] = lambda _: (),
) -> Body:
    """The operations of `body` that the producer warp executes.

    Args:
        body: scheduled operations on tiles.
        load: a function that returns the producer's operations for a loop over k tiles.
        receive: a function that returns the producer's operations for a loop over partial sums.
        operands: a function that returns the producer's operations for an epilogue: loads of
            operands.
    """

    def keep(op: Operation) -> Operation | Body:
        if isinstance(op, For) and any(isinstance(x, LoadTile) for x in op.body):
            return load(op)
        if isinstance(op, For) and any(isinstance(x, RECEIVED) for x in op.body):
            return receive(op)
        if isinstance(op, Epilogue):
            return operands(op)
        if isinstance(op, CONSUMED):
            return ()
        if op.BODIES and not any(_works(child) for child in op.walk() if child is not op):
            return ()
        return op

    kept = tuple(new for op in body for new in rewrite(op, keep))
    return tuple(op for op in kept if not isinstance(op, Assign) or _used(op, kept))


def _works(op: Operation) -> bool:
    """Whether `op` has no body and is not an `Assign`, so that it must be kept for its effect."""
    return not op.BODIES and not isinstance(op, Assign)


def _used(op: Assign, body: Body) -> bool:
    """Whether another operation in `body` reads the symbol to which `op` assigns a value."""
    return any(
        op.symbol in getattr(value, "free_symbols", ())
        for other in body
        for inner in other.walk()
        if inner is not op
        for value in inner.details.values()
    )
