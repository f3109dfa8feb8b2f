"""Roles: one control graph parted into what the producer does and what the consumers do.

Both walk the same loops, since both must know which tile is next; the producer keeps only the
loads, the consumers everything else. Branches and loops that are left empty disappear.
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
    Epilogue,
    StoreTile,
)
RECEIVED = (ReceivePartial, CollectPartial)


def part(body: Body, load: Callable[[For], Body], receive: Callable[[For], Body]) -> Body:
    """The producer's share of a body.

    `load` and `receive` say what it is of a loop over k tiles and of one over partials.
    """

    def keep(op: Operation) -> Operation | Body:
        if isinstance(op, For) and any(isinstance(x, LoadTile) for x in op.body):
            return load(op)
        if isinstance(op, For) and any(isinstance(x, RECEIVED) for x in op.body):
            return receive(op)
        if isinstance(op, CONSUMED):
            return ()
        if op.BODIES and not any(_works(child) for child in op.walk() if child is not op):
            return ()
        return op

    kept = tuple(new for op in body for new in rewrite(op, keep))
    return tuple(op for op in kept if not isinstance(op, Assign) or _used(op, kept))


def _works(op: Operation) -> bool:
    """Does something: is neither structure nor a name."""
    return not op.BODIES and not isinstance(op, Assign)


def _used(op: Assign, body: Body) -> bool:
    return any(
        op.symbol in getattr(value, "free_symbols", ())
        for other in body
        for inner in other.walk()
        if inner is not op
        for value in inner.details.values()
    )
