"""The software pipeline: copies run `stages - 1` accumulation steps ahead of multiplications."""

from __future__ import annotations

from dataclasses import replace

from sympy import Integer, Lt

from coordgraph.control.lowered import Barrier, CommitCopies, Prefetch, WaitCopies
from coordgraph.control.operations import Assign, Body, For, If, SetCoordinate
from coordgraph.coordinates.dimensions import Linear, Stage, Unroll
from coordgraph.coordinates.edges import Flatten, PassThrough
from coordgraph.coordinates.graph import CoordinateEditor
from coordgraph.integers import index_symbol

__all__ = ["add_ring", "pipelined"]

FILL = "pipeline.fill"


def add_ring(c: CoordinateEditor, loops: tuple[str, ...], stages: int) -> dict[str, str]:
    """The stage is the accumulation step modulo the ring: round, stage --Flatten--> step.

    A step is the index of an accumulation loop. Where the index of one loop leads to that of
    another (`k_tile --Tile--> piece, for_k`: whole tiles loop over `k_tile`, pieces over `for_k`),
    the stage would follow from either, and the second would be wrong. So the first loop gets a
    counter of its own, which no other loop leads to: `k_tile --PassThrough--> k_tile.step`.

    Args:
        c: the coordinates being built.
        loops: the dimensions of all accumulation loops.
        stages: how many tiles of each operand are in flight.

    Returns:
        For each of `loops` the dimension that its loop counts with from now on.
    """
    before, counters = c.finish(), dict[str, str]()
    for loop in loops:
        counters[loop] = loop
        if before.below(loop) & ({*loops} - {loop}):
            counter = c.add(replace(before[loop], id=c.fresh(f"{loop}.step")))
            c.connect(PassThrough(loop, counter.id))
            counters[loop] = counter.id
    c.add(Stage("stage", Integer(stages)))
    c.add(Unroll(FILL, Integer(stages - 1), note="steps copied before the first"))
    for number, counter in enumerate(counters.values()):
        rounds = c.add(Linear(f"stage.round.{number}", note="times round the ring"))
        c.connect(Flatten((rounds.id, "stage"), counter))
    return counters


def pipelined(c: CoordinateEditor, loop: For, copies: Body, multiply: Body) -> Body:
    """The accumulation loop with its loads taken ahead.

    At step i the copies of step i have landed (all but the newest `stages - 2` groups are
    complete) and nobody reads the stage of step i - 1 any more (the barrier), so the copies of
    step i + stages - 1 may overwrite it.
    """
    ahead = c["stage"].fixed_size - 1
    first = index_symbol(FILL)
    fill = For(
        FILL,
        Integer(0),
        Integer(ahead),
        body=(
            If(Lt(first, loop.stop), (SetCoordinate(loop.dim, first, copies),)),
            CommitCopies(),
        ),
        unroll=True,
    )
    step = Assign("ahead", loop.symbol + ahead)
    body = (
        WaitCopies(ahead - 1),
        Barrier(),
        step,
        If(Lt(step.symbol, loop.stop), (SetCoordinate(loop.dim, step.symbol, copies),)),
        CommitCopies(),
        *multiply,
    )
    return (Prefetch("fill", (fill,)), loop.with_body(*body), WaitCopies(0), Barrier())
