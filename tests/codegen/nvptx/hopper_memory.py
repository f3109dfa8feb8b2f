"""What lies in the memories of a Hopper machine, and what must not happen there.

It knows mbarriers, boxes in shared memory, wgmma's groups, partial sums and flags, and of the data
who has added up which k tiles. Every method that changes something first asserts that it may: that
nothing is overwritten before it was used, read before it is there, or done twice.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.codegen.nvptx.hopper_contents import Contents, Filled

__all__ = ["Barrier", "Box", "Device", "Place", "Run", "Stage", "Warpgroup", "Workgroup"]

Place = tuple[int, int]
"""Where a box begins in A or B: along the first axis and the second."""
OUTSIDE: Place = (-1, -1)
Stage = tuple[str, int]
"""The shared memory of an operand, and a stage of it."""
Step = tuple[Place, Place]
"""What a multiplication reads of A and of B."""
Sum = tuple[Step, ...]
Where = tuple[int, int, int]
"""Workgroup, rank and warpgroup."""


@dataclass
class Barrier:
    """An mbarrier (PTX ISA, "mbarrier"): a phase ends with its last arrival and its last byte."""

    arrivals: int
    pending: int = 0
    missing: int = 0
    phase: int = 0

    def __post_init__(self) -> None:
        self.pending = self.arrivals

    def change(self, *, arrive: int = 0, bytes: int = 0) -> None:
        self.pending -= arrive
        self.missing += bytes
        assert self.pending >= 0, "more arrivals than the barrier counts"
        if self.pending == 0 and self.missing == 0:
            self.phase += 1
            self.pending = self.arrivals

    def ended(self, parity: int) -> bool:
        """The phase of this parity has ended, as try_wait.parity sees it."""
        return self.phase % 2 != parity


@dataclass
class Box:
    """A box in shared memory, its step of the ring, the warpgroups that have multiplied it."""

    place: Place
    step: int
    used: set[int] = field(default_factory=set[int])


class Run(Box):
    """A run of partials: where its first one lies in memory, and 1 for the first of a slot's."""


@dataclass
class Warpgroup:
    """The registers of a warpgroup, what it still reads and what it has seen."""

    sum: Sum = ()
    issued: set[Stage] = field(default_factory=set[Stage])
    reading: deque[set[Stage]] = field(default_factory=deque[Any])
    """What its groups of multiplications may still read."""
    unfenced: bool = False
    """Plain loads have read what TMA may overwrite."""
    taken: set[int] = field(default_factory=set[int])
    """Flags that single workitems have acquired."""
    acquired: set[int] = field(default_factory=set[int])
    """Flags that all workitems have."""
    read: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    """Pieces of shares that it has added."""
    filled: Filled = field(default_factory=Filled)

    def commit(self) -> None:
        self.reading.append(self.issued)
        self.issued = set()

    def wait(self, pending: int) -> None:
        while len(self.reading) > pending:
            self.reading.popleft()

    def product(self) -> Sum:
        assert not self.reading, "a product is stored before it is there"
        return self.sum

    def give_back(self) -> None:
        """A stage, to TMA."""
        assert not self.unfenced, "given back before TMA must see that it was read"
        assert not self.filled.stored, "given back before TMA must see zeros in it"

    def read_share(self, flag: int, first: int, share: int) -> None:
        assert flag in self.acquired, "a piece is read before it may be"
        assert (first, share) not in self.read, "a piece of a share is added twice"
        self.read.add((first, share))


@dataclass
class Workgroup:
    """The shared memory of one workgroup of a cluster.

    Args:
        team: warpgroups that multiply one tile.
    """

    team: int
    warpgroups: dict[int, Warpgroup] = field(default_factory=dict[int, Warpgroup])
    barriers: dict[tuple[str, int], Barrier] = field(default_factory=dict[Any, Barrier])
    boxes: dict[Stage, dict[int, Box]] = field(default_factory=dict[Any, Any])
    """By their place in the stage."""
    named: Counter[int] = field(default_factory=Counter[int])
    met: dict[int, set[int]] = field(default_factory=dict[int, set[int]])
    """Flags that those had taken who came to a named barrier."""
    multiplying: set[int] = field(default_factory=set[int])
    """Warpgroups in their main loops."""
    steps: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    """Of each role the steps of the ring that it filled or multiplied."""
    outside: set[tuple[str, int]] = field(default_factory=set[tuple[str, int]])
    """Operands, by their shared memory, of which no box comes in a step."""
    contents: Contents = field(default_factory=Contents)

    def begin_barrier(self, name: str, number: int, arrivals: int) -> None:
        assert (name, number) not in self.barriers
        self.barriers[name, number] = Barrier(arrivals)

    def count(self, role: str, step: int) -> None:
        self.steps.setdefault(role, []).append(step)

    def enter(self, warpgroup: int, *, alone: bool) -> None:
        """A main loop, in which a warpgroup must be alone where they take turns."""
        self.multiplying.add(warpgroup)
        assert not alone or len(self.multiplying) == 1, "main loops side by side"

    def leave(self, warpgroup: int) -> None:
        self.multiplying.discard(warpgroup)

    def copy_box(self, stage: Stage, offset: int, box: Box) -> None:
        boxes = self.boxes.setdefault(stage, {})
        # A stage is filled with boxes of one step; those of the last may be fewer and smaller.
        old = [other for other in boxes.values() if other.step != box.step]
        assert self._used(old), "overwritten before it was multiplied"
        if old:
            boxes.clear()
        assert offset not in boxes, "a box is copied twice"
        assert not self._read(stage), "overwritten while it is read"
        boxes[offset] = box

    def copy_run(self, stage: Stage, run: Run) -> None:
        old = self.boxes.get(stage, {}).values()
        assert self._used(old), "overwritten before it was used"
        assert not self._read(stage), "overwritten while it is read"
        self.boxes[stage] = {0: run}

    def _used(self, boxes: Iterable[Box]) -> bool:
        return all(len(box.used) == self.team for box in boxes)

    def _read(self, stage: Stage) -> bool:
        return any(stage in group for w in self.warpgroups.values() for group in w.reading)

    def multiply(self, stage: Stage, step: int, warpgroup: int) -> Place:
        """Read a stage in a group of multiplications; returns where its first box is from.

        That is `OUTSIDE` where no box is awaited; what a box before left is read then.
        """
        self.warpgroups[warpgroup].issued.add(stage)
        if (stage[0], step) in self.outside:
            return OUTSIDE
        assert stage in self.boxes, "multiplied before it is there"
        boxes = self.boxes[stage]
        for box in boxes.values():
            assert box.step == step, "another step's box"
            assert warpgroup not in box.used, "a step is multiplied twice"
            box.used.add(warpgroup)
            assert len(box.used) <= self.team, "a step is multiplied by two"
        return boxes[0].place

    def add_run(self, stage: Stage, warpgroup: int) -> Place:
        """Read a run of partials by plain loads; returns its place."""
        self.warpgroups[warpgroup].unfenced = True
        (run,) = self.boxes[stage].values()
        assert isinstance(run, Run), "added before it is there"
        assert warpgroup not in run.used, "a run is added twice"
        run.used.add(warpgroup)
        return run.place


class Device:
    """Global memory: flags, partial sums, D, and who stored it."""

    def __init__(self) -> None:
        self.flags: Counter[int] = Counter()
        self.partials: dict[int, Sum] = {}
        self.added: dict[int, Sum] = {}
        """What several have added to, and what of it was read is empty until it is cleared."""
        self.stored: dict[Place, Sum] = {}
        self.accumulators: dict[Place, str] = {}
        """Whose sums were stored there."""
        self.finished: Counter[Where] = Counter()
        """Shares of a tile that each warpgroup has finished."""
        self.epilogues: list[Where] = []
        """Who stored something, once for every time."""

    def raise_flag(self, flag: int, up: int) -> None:
        assert not self.flags[flag], "a flag is raised that is up"
        self.flags[flag] = up

    def write_partials(self, place: int, sum: Sum) -> None:
        assert place not in self.partials, "a slot is written before it was added"
        self.partials[place] = sum

    def read_partials(self, place: int) -> Sum:
        assert place in self.partials, "a piece is read before it is there"
        return self.partials[place]

    def take_partials(self, place: int) -> Sum:
        """Read a slot for the last time: it may be written again, or must be cleared."""
        if place in self.added:
            sum, self.added[place] = self.added[place], ()
            assert sum, "a sum is read twice"
            return sum
        return self.partials.pop(place)

    def add_partials(self, place: int, sum: Sum) -> None:
        """Add to what others add to."""
        assert self.added.get(place) != (), "a slot is added to behind its last reader"
        self.added[place] = self.added.get(place, ()) + sum

    def clear_partials(self, place: int) -> None:
        """Zeros where a sum was."""
        assert self.added.pop(place) == (), "a sum is cleared before it was read"

    def store(self, place: Place, sum: Sum, accumulator: str, here: Where, *, share: bool) -> None:
        assert place not in self.stored, "a tile is stored twice"
        self.stored[place], self.accumulators[place] = sum, accumulator
        self.epilogues.append(here)
        self.finished[here] += share
