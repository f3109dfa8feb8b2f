"""The memory of the simulated Hopper GPU, and the rules that operations must keep.

It models mbarriers, TMA boxes in shared memory, wgmma groups, partial sums and flags. A simulated
sum has no numeric value, but the list of the k tiles that it contains. Every method that changes
something first asserts that the change is allowed: nothing is overwritten before its use, read
before it is written, or done twice.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.codegen.nvptx.hopper_contents import Contents, Filled

__all__ = ["Barrier", "Box", "Device", "Place", "Run", "Stage", "Warpgroup", "Workgroup"]

Place = tuple[int, int]
"""Where a TMA box begins in A or B: its first row and first column, in elements."""
OUTSIDE: Place = (-1, -1)
Stage = tuple[str, int]
"""A stage in shared memory: the operand's buffer and the stage's number."""
Step = tuple[Place, Place]
"""Type: (where the TMA box of A begins, where that of B begins), for one multiplication."""
Sum = tuple[Step, ...]
Where = tuple[int, int, int]
"""A warpgroup's identity: workgroup, rank in the cluster, warpgroup number."""


@dataclass
class Barrier:
    """A simulated mbarrier.

    A phase completes with its last arrival and its last transferred byte (PTX ISA, "mbarrier").
    """

    arrivals: int
    pending: int = 0
    missing: int = 0
    phase: int = 0

    def __post_init__(self) -> None:
        self.pending = self.arrivals

    def change(self, *, arrive: int = 0, bytes: int = 0) -> None:
        self.pending -= arrive
        self.missing += bytes
        assert self.pending >= 0, "more threads arrive than the mbarrier expects"
        if self.pending == 0 and self.missing == 0:
            self.phase += 1
            self.pending = self.arrivals

    def ended(self, parity: int) -> bool:
        """Whether the phase of this parity has completed, as `mbarrier.try_wait.parity` tests
        it.
        """
        return self.phase % 2 != parity


@dataclass
class Box:
    """A TMA box in shared memory.

    Args:
        place: where the box begins in its tensor: first row and first column, in elements.
        step: the step of the stage ring: how many stages the producer had filled before.
        used: numbers of the warpgroups that have multiplied the box.
    """

    place: Place
    step: int
    used: set[int] = field(default_factory=set[int])


class Run(Box):
    """Contiguous partial sums of one workspace slot that a bulk copy brings to shared memory.

    `place` is a pair: the address of the sums, and 1 if the sums are the first of the slot, else 0.
    """


@dataclass
class Warpgroup:
    """The state of one warpgroup: accumulators, stages that pending wgmma read, acquired flags."""

    sum: Sum = ()
    issued: set[Stage] = field(default_factory=set[Stage])
    reading: deque[set[Stage]] = field(default_factory=deque[Any])
    """Stages that pending wgmma groups of the warpgroup may still read."""
    unfenced: bool = False
    """True if plain loads have read shared memory that TMA may overwrite, with no fence since."""
    taken: set[int] = field(default_factory=set[int])
    """Flags that one thread of the warpgroup has acquired. After the warpgroup's next barrier, its
    other threads may rely on them too.
    """
    acquired: set[int] = field(default_factory=set[int])
    """Flags whose acquisition is visible to all threads of the warpgroup."""
    read: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    """The partial sums that the warpgroup has added to its accumulators in a reduce-scatter, as
    pairs (address of the partial sum, number of the part of the tile to which it belongs).
    """
    filled: Filled = field(default_factory=Filled)

    def commit(self) -> None:
        self.reading.append(self.issued)
        self.issued = set()

    def wait(self, pending: int) -> None:
        while len(self.reading) > pending:
            self.reading.popleft()

    def product(self) -> Sum:
        assert not self.reading, "the accumulator is stored while wgmma is pending"
        return self.sum

    def give_back(self) -> None:
        """Check that a stage may be released to the producer, after which TMA may overwrite it."""
        assert not self.unfenced, "a stage is freed without a proxy fence after plain reads"
        assert not self.filled.stored, "a stage is freed before zeros stored in it are fenced"

    def read_share(self, flag: int, first: int, share: int) -> None:
        assert flag in self.acquired, "a partial sum is read before its flag is acquired"
        assert (first, share) not in self.read, "a partial sum of a share is added twice"
        self.read.add((first, share))


@dataclass
class Workgroup:
    """The shared memory of one workgroup of a cluster.

    Args:
        team: number of warpgroups that multiply one tile together.
    """

    team: int
    warpgroups: dict[int, Warpgroup] = field(default_factory=dict[int, Warpgroup])
    barriers: dict[tuple[str, int], Barrier] = field(default_factory=dict[Any, Barrier])
    boxes: dict[Stage, dict[int, Box]] = field(default_factory=dict[Any, Any])
    """For each stage, the TMA boxes in it, by the position in the stage at which a box begins."""
    named: Counter[int] = field(default_factory=Counter[int])
    met: dict[int, set[int]] = field(default_factory=dict[int, set[int]])
    """By the number of a named barrier: the flags that warpgroups had acquired before they arrived
    at the barrier."""
    multiplying: set[int] = field(default_factory=set[int])
    """The warpgroups that are in their main loops now."""
    steps: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    """For each warp role, the stages that it has filled or multiplied, numbered like `Box.step`."""
    outside: set[tuple[str, int]] = field(default_factory=set[tuple[str, int]])
    """Pairs (shared-memory buffer of an operand, number of stages that the producer had filled
    before) of stages that get no box, because all boxes lie outside the tensor.
    """
    contents: Contents = field(default_factory=Contents)
    words: dict[int, tuple[int, int]] = field(default_factory=dict[int, Any])
    """For each shared-memory word that passes a ticket (the number of the next tile) to all warps:
    the ticket, and how many tickets the workgroup got before.
    """

    def begin_barrier(self, name: str, number: int, arrivals: int) -> None:
        assert (name, number) not in self.barriers
        self.barriers[name, number] = Barrier(arrivals)

    def count(self, role: str, step: int) -> None:
        self.steps.setdefault(role, []).append(step)

    def enter(self, warpgroup: int, *, alone: bool) -> None:
        """Record that a warpgroup enters its main loop.

        With `alone`, fail if another warpgroup of the workgroup is in its main loop.
        """
        self.multiplying.add(warpgroup)
        assert not alone or len(self.multiplying) == 1, "two ping-pong main loops at a time"

    def leave(self, warpgroup: int) -> None:
        self.multiplying.discard(warpgroup)

    def copy_box(self, stage: Stage, offset: int, box: Box) -> None:
        boxes = self.boxes.setdefault(stage, {})
        # All boxes of a stage are of one step; the last step may load fewer and smaller boxes.
        old = [other for other in boxes.values() if other.step != box.step]
        assert self._used(old), "a stage is overwritten before it was multiplied"
        if old:
            boxes.clear()
        assert offset not in boxes, "a TMA box is loaded twice"
        assert not self._read(stage), "a stage is overwritten while wgmma reads it"
        boxes[offset] = box

    def copy_run(self, stage: Stage, run: Run) -> None:
        old = self.boxes.get(stage, {}).values()
        assert self._used(old), "a stage is overwritten before it was used"
        assert not self._read(stage), "a stage is overwritten while wgmma reads it"
        self.boxes[stage] = {0: run}

    def _used(self, boxes: Iterable[Box]) -> bool:
        return all(len(box.used) == self.team for box in boxes)

    def _read(self, stage: Stage) -> bool:
        return any(stage in group for w in self.warpgroups.values() for group in w.reading)

    def multiply(self, stage: Stage, step: int, warpgroup: int) -> Place:
        """Read a stage in a wgmma group; return where the stage's first TMA box begins in A or B.

        If no box was loaded, because all lie outside the tensor, return `OUTSIDE`: wgmma then reads
        the data of an earlier step.
        """
        self.warpgroups[warpgroup].issued.add(stage)
        if (stage[0], step) in self.outside:
            return OUTSIDE
        assert stage in self.boxes, "a stage is multiplied before it was loaded"
        boxes = self.boxes[stage]
        for box in boxes.values():
            assert box.step == step, "a stage holds a box of another step"
            assert warpgroup not in box.used, "a warpgroup multiplies a stage twice"
            box.used.add(warpgroup)
            assert len(box.used) <= self.team, "too many warpgroups multiply a stage"
        return boxes[0].place

    def add_run(self, stage: Stage, warpgroup: int) -> Place:
        """Read partial sums in shared memory by plain loads, and return their `Run.place`.

        This is a pair: the address of the sums in the workspace, and 1 if they are the first sums
        of a workspace slot, else 0.
        """
        self.warpgroups[warpgroup].unfenced = True
        (run,) = self.boxes[stage].values()
        assert isinstance(run, Run), "partial sums are added before they were loaded"
        assert warpgroup not in run.used, "partial sums are added twice"
        run.used.add(warpgroup)
        return run.place

    def read_operand(self, stage: Stage, step: int, warpgroup: int) -> None:
        """Read a stage that holds an operand of the epilogue, by plain loads."""
        self.warpgroups[warpgroup].unfenced = True
        boxes = self.boxes.get(stage, {}).values()
        assert boxes, "an epilogue operand is read before it was loaded"
        for box in boxes:
            assert box.step == step, "a stage holds a box of another step"
            assert warpgroup not in box.used, "a warpgroup reads an epilogue operand twice"
            box.used.add(warpgroup)


class Device:
    """The simulated global memory.

    The memory holds flags, partial sums and D. The class also records the warpgroup that stored
    each element of D.
    """

    def __init__(self) -> None:
        self.flags: Counter[int] = Counter()
        self.operand_steps = 0
        """The number of boxes of epilogue operands that TMA has loaded."""
        self.partials: dict[int, Sum] = {}
        self.added: dict[int, Sum] = {}
        """The sum in each workspace slot to which several workgroups add. An empty sum means that
        the slot was read, and must be cleared before a workgroup adds to it again.
        """
        self.stored: dict[Place, Sum] = {}
        self.accumulators: dict[Place, str] = {}
        """For each stored part of D, by its first row and column: the name of its accumulator."""
        self.finished: Counter[Where] = Counter()
        """For each warpgroup, the number of shares (parts of a tile in a reduce-scatter) that it
        has stored. Whole tiles are not counted.
        """
        self.epilogues: list[Where] = []
        """For each store of a tile, the warpgroup that made it; a second store adds a second entry.
        """

    def raise_flag(self, flag: int, up: int) -> None:
        assert not self.flags[flag], "a flag is set that is set already"
        self.flags[flag] = up

    def write_partials(self, place: int, sum: Sum) -> None:
        assert place not in self.partials, "a slot is overwritten before its partial sum was added"
        self.partials[place] = sum

    def read_partials(self, place: int) -> Sum:
        assert place in self.partials, "a partial sum is read before it was stored"
        return self.partials[place]

    def take_partials(self, place: int) -> Sum:
        """Read for the last time, and return, the partial sum in the workspace slot at `place`.

        A slot is the memory for one partial sum of a tile. After this read the slot may be
        overwritten; a slot to which several workgroups add must be cleared first.
        """
        if place in self.added:
            sum, self.added[place] = self.added[place], ()
            assert sum, "an atomic sum is read twice"
            return sum
        return self.partials.pop(place)

    def add_partials(self, place: int, sum: Sum) -> None:
        """Add a warpgroup's accumulators to a workspace slot to which several workgroups add."""
        assert self.added.get(place) != (), "a slot is added to after it was read, but not cleared"
        self.added[place] = self.added.get(place, ()) + sum

    def clear_partials(self, place: int) -> None:
        """Store zeros over the sum in a workspace slot, which must have been read before."""
        assert self.added.pop(place) == (), "an atomic sum is cleared before it was read"

    def store(self, place: Place, sum: Sum, accumulator: str, here: Where, *, share: bool) -> None:
        assert place not in self.stored, "a tile is stored twice"
        self.stored[place], self.accumulators[place] = sum, accumulator
        self.epilogues.append(here)
        self.finished[here] += share
