"""Rings of stages: a running step number over all work of a workgroup.

The stage and the parity of its barriers are coordinates of that number:
turn, phase --Flatten--> round; round, stage --Flatten--> step. Nothing is drained between tiles.
"""

from __future__ import annotations

from dataclasses import dataclass

from sympy import Integer

from coordgraph.control.asynchronous import InitBarrier
from coordgraph.control.operations import Body, SetCoordinate
from coordgraph.coordinates.dimensions import Linear, Shared, Stage
from coordgraph.coordinates.edges import Flatten, PassThrough
from coordgraph.coordinates.graph import CoordinateEditor

__all__ = ["EMPTY", "FULL", "PHASE", "STEP", "TILES", "Ring"]

STEP, PHASE = "ring.step", "ring.phase"
FULL, EMPTY = "barrier.full", "barrier.empty"


@dataclass(frozen=True)
class Ring:
    """A ring by the names of its coordinates: `name`.step and so on, and two barriers a stage."""

    name: str
    stage: str
    full: str
    empty: str

    @property
    def step(self) -> str:
        """The running number."""
        return f"{self.name}.step"

    @property
    def phase(self) -> str:
        """The parity of a stage's barriers."""
        return f"{self.name}.phase"

    def add(self, c: CoordinateEditor, stages: int, note: str) -> None:
        """The step's stage, its phase, and the two barriers of each stage."""
        times, turn = f"{self.name}.round", f"{self.name}.turn"
        c.add(Linear(self.step, note=note))
        c.add(Linear(times, note="times round the ring"))
        c.add(Linear(turn))
        c.add(Linear(self.phase, Integer(2), note="parity of a barrier"))
        c.add(Stage(self.stage, Integer(stages)))
        c.connect(Flatten((times, self.stage), self.step))
        c.connect(Flatten((turn, self.phase), times))
        for name in (self.full, self.empty):
            c.add(Shared(name, Integer(stages), note="mbarriers"))
            c.connect(PassThrough(name, self.stage))

    def initial(self, c: CoordinateEditor, full: int, empty: int) -> Body:
        """Barriers of every stage, ready to be waited for, with so many arrivals each."""
        return tuple(
            SetCoordinate(self.stage, Integer(stage), (InitBarrier(name, count),))
            for stage in range(c[self.stage].fixed_size)
            for name, count in ((self.full, full), (self.empty, empty))
        )


TILES = Ring("ring", "stage", FULL, EMPTY)
"""K tiles on their way from TMA to the consumers."""
