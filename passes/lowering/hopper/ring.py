"""The ring of stages: one running step number over all work of a workgroup.

The stage and the parity of its barrier are coordinates of that number:
turn, phase --Flatten--> round; round, stage --Flatten--> step. Nothing is drained between tiles.
"""

from __future__ import annotations

from sympy import Integer

from coordgraph.coordinates.dimensions import Linear, Shared, Stage
from coordgraph.coordinates.edges import Flatten, PassThrough
from coordgraph.coordinates.graph import CoordinateEditor

__all__ = ["EMPTY", "FULL", "PHASE", "STEP", "add_ring"]

STEP, PHASE = "ring.step", "ring.phase"
FULL, EMPTY = "barrier.full", "barrier.empty"


def add_ring(c: CoordinateEditor, stages: int) -> None:
    """The step's stage, its phase, and the two barriers of each stage."""
    c.add(Linear(STEP, note="running number of a k tile"))
    c.add(Linear("ring.round", note="times round the ring"))
    c.add(Linear("ring.turn"))
    c.add(Linear(PHASE, Integer(2), note="parity of a barrier"))
    c.add(Stage("stage", Integer(stages)))
    c.connect(Flatten(("ring.round", "stage"), STEP))
    c.connect(Flatten(("ring.turn", PHASE), "ring.round"))
    for name in (FULL, EMPTY):
        c.add(Shared(name, Integer(stages), note="mbarriers"))
        c.connect(PassThrough(name, "stage"))
