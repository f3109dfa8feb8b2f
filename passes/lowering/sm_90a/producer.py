"""The producer warp's loop over k tiles: it fills the ring of stages by TMA."""

from __future__ import annotations

from sympy import Integer

from coordgraph.control.asynchronous import Advance, Counter, ExpectBytes, WaitBarrier
from coordgraph.control.operations import Body, For, Locate, Operation, SetCoordinate
from passes.lowering.sm_90a.ring import EMPTY, FULL, PHASE, STEP
from passes.lowering.sm_90a.tiles import DividedTile

__all__ = ["load_tiles"]


def load_tiles(loop: For, tile: DividedTile, once: tuple[str, ...], first: Body) -> Operation:
    """The producer's loop over k tiles: wait until a stage is free, then fill it by TMA.

    The boxes that begin inside the tensor are counted for the first k tile only, because their
    number is the same for all k tiles of a macro tile. The coordinates `once` (indices along k) are
    computed once for each k tile, not for each box. The operations `first` begin every iteration.
    """
    copies = tuple(load.copies for load in tile.loads)
    steps = loop.with_body(
        *first,
        WaitBarrier(EMPTY, PHASE, before=True),
        ExpectBytes(FULL, sum((load.bytes for load in tile.loads), Integer(0))),
        *((Locate(once, body=copies),) if once else copies),
        Advance(STEP),
    )
    counters = [load.counter for load in tile.loads if load.counter is not None]
    count = SetCoordinate(loop.dim, loop.start, tuple(counted for _, counted in counters))
    body: Body = (count, steps) if counters else (steps,)
    for dim, _ in counters:
        body = (Counter(dim, body),)
    return body[0]
