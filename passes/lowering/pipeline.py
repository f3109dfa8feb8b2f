"""The software pipeline: copies run `stages - 1` accumulation steps ahead of multiplications."""

from __future__ import annotations

from sympy import Integer, Lt

from coordgraph.control.lowered import Barrier, CommitCopies, Prefetch, WaitCopies
from coordgraph.control.operations import Assign, Body, For, If, SetCoordinate
from coordgraph.coordinates.dimensions import Linear, Stage, Unroll
from coordgraph.coordinates.edges import Flatten
from coordgraph.coordinates.graph import CoordinateEditor
from coordgraph.integers import index_symbol

__all__ = ["add_ring", "pipelined"]

FILL = "pipeline.fill"


def add_ring(c: CoordinateEditor, loops: tuple[str, ...], stages: int) -> None:
    """The stage is the accumulation step modulo the ring: round, stage --Flatten--> step."""
    c.add(Stage("stage", Integer(stages)))
    c.add(Unroll(FILL, Integer(stages - 1), note="steps copied before the first"))
    for number, loop in enumerate(loops):
        turn = c.add(Linear(f"stage.round.{number}", note="times round the ring"))
        c.connect(Flatten((turn.id, "stage"), loop))


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
