"""Rings of shared-memory stages that the producer fills and the consumers empty.

One counter of steps runs over all tiles of a workgroup, so the ring is not drained between tiles.
The stage, and the phase parity (0 or 1) of the stage's mbarriers, are coordinates that follow from
the counter, by two `Flatten` edges: step = round · stages + stage, and round = 2 · turn + phase. In
a round, every stage is used once; a turn is two rounds.
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
"""STEP: the coordinate that counts the steps of the ring of k tiles. PHASE: the coordinate of the
phase parity (0 or 1) of a stage's mbarriers."""
FULL, EMPTY = "barrier.full", "barrier.empty"
"""FULL: the mbarrier that completes when TMA has filled a stage of k tiles. EMPTY: the mbarrier
that completes when all consumers have read the stage."""


@dataclass(frozen=True)
class Ring:
    """The names of the coordinates of a ring of stages.

    Args:
        name: the prefix of the coordinates `step`, `round`, `turn` and `phase`.
        stage: the coordinate of the stage.
        full: the mbarrier of a stage that completes when the stage is filled.
        empty: the mbarrier of a stage that completes when all readers are done with the stage.
    """

    name: str
    stage: str
    full: str
    empty: str

    @property
    def step(self) -> str:
        """The coordinate that counts the stages that a warp has filled, or has read and released.

        The count is not reset between output tiles; modulo the number of stages, it is the index of
        the next stage.
        """
        return f"{self.name}.step"

    @property
    def phase(self) -> str:
        """The coordinate that is the phase parity (0 or 1) of a stage's mbarriers."""
        return f"{self.name}.phase"

    def add(self, c: CoordinateEditor, stages: int, note: str) -> None:
        """Add the coordinates of the ring, and two mbarriers for each stage.

        Args:
            c: the coordinate graph under construction.
            stages: number of stages of the ring.
            note: text that diagrams show beside the step counter: what the steps of the ring are.
        """
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
        """Initialise the mbarriers of every stage.

        Args:
            c: the coordinate graph under construction.
            full: number of arrivals that complete a phase of the mbarrier `full`.
            empty: number of arrivals that complete a phase of the mbarrier `empty`.
        """
        return tuple(
            SetCoordinate(self.stage, Integer(stage), (InitBarrier(name, count),))
            for stage in range(c[self.stage].fixed_size)
            for name, count in ((self.full, full), (self.empty, empty))
        )


TILES = Ring("ring", "stage", FULL, EMPTY)
"""The ring of k tiles, which TMA fills and the consumer warpgroups multiply."""
