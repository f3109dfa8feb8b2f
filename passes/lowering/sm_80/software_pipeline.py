"""The software pipeline: copies run `stages - 1` main loop steps ahead of multiplications."""

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
"""Id of the coordinate that numbers the steps whose copies the pipeline's prologue issues."""


def add_ring(c: CoordinateEditor, loops: tuple[str, ...], stages: int) -> dict[str, str]:
    """Add the ring of pipeline stages: step i of the accumulation loop has stage i mod `stages`.

    The edge is `round, stage --Flatten--> step`, for the index `step` of each loop over k tiles.
    A path may lead from the index of one loop to the index of another. For example, in the edge
    `k_tile --Tile--> piece, for_k`, the main loop of whole tiles counts `k_tile`, and the main loop
    of segments (parts of a tile's k range) counts `for_k`. Then two paths would lead from `k_tile`
    to the stage, with different values. So the lowered loop counts a new coordinate instead, from
    which no path leads to another loop's index: `k_tile --PassThrough--> k_tile.step`.

    Args:
        c: the coordinate graph under construction.
        loops: the coordinates that the accumulation loops count.
        stages: the number of stages; each holds a tile of A and a tile of B.

    Returns:
        For each of `loops`, the coordinate that the lowered loop must count.
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
    """The accumulation loop as a software pipeline: copies are issued `stages - 1` steps ahead.

    At the start of step i, `WaitCopies` waits for the copies of step i: all but the newest
    `stages - 2` cp.async groups are then complete. After the barrier no thread reads the stage of
    step i - 1 any more, so the copies of step i + stages - 1 may overwrite that stage.

    Args:
        c: the coordinate graph under construction.
        loop: the loop over k tiles.
        copies: the operations that copy the tiles of one step.
        multiply: the operations that multiply the tiles of one step.
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
