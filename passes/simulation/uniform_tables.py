"""Tables for `UniformEngine`, which simulates launches whose main loops are of few kinds.

Main loops of one kind have the same number of k tiles and read equally many bytes of A and B. The
tables contain all that does not depend on the time at which a step is executed: bytes, seconds,
partial sums, and which step follows which. Tables are computed with numpy for all workgroups
together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coordgraph.interpreter.lockstep import StepKind, Steps
from passes.simulation.main_loops import MainLoops, Ranges
from passes.simulation.work import TileWork, fixed_seconds

__all__ = ["BEGIN", "NOT_PLAIN", "REPLACE", "Outcomes", "Tails", "UniformTables", "places"]

MOST_KINDS = 28
"""Largest number of kinds of main loops, and of kinds of tails (the steps between main loops), of a
launch that the tables describe; `Engine`, without tables, simulates launches with more. The number
of an outcome, up to `9 * kind + 8`, fits in a byte."""
LEAST_LOOPS = 100
"""Launches of fewer main loops are simulated by `Engine`, which takes less time than the tables."""
MOST_NUMBERS = 10_000_000
"""Largest number of partial sums of a launch whose times are kept in a table; `Engine`, without
tables, simulates launches with more."""
BEGIN, REPLACE = 2, 1
"""What follows on an SM after a tail (the steps after a main loop): the next main loop of the
workgroup begins, or the workgroup has ended and another one replaces it."""
NOT_PLAIN = -1
"""Stands for the number of the partial sum that a tail (the steps after a main loop) waits for, if
the tail is not plain (a plain tail waits only at its begin and sends only at its end)."""
WAITS = (StepKind.RECEIVE, StepKind.AWAIT)

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Outcomes:
    """What a main loop requests and reads, by its kind and by what the L2 cache holds.

    Main loops of one kind have the same number of k tiles and read equally many bytes. An outcome
    is `9 * kind + a + 3 * b`; a and b are 0 if the cache holds the k tiles of A and of B, 1 if it
    does not, and 2 if a workgroup on a neighbouring SM requests them at the same time.

    Attributes:
        base: for each main loop, 9 times the number of its kind.
        counts: for each outcome, the number of k tiles.
        asked, read: for each outcome, bytes that are requested from the L2 cache and read from DRAM
            per k tile.
        read_a, read_b: for each outcome, bytes of A and of B that are read from DRAM.
        keys: for each outcome, the integer that a running main loop with this outcome adds to the
            argument `key` of `Paces.compute`, which identifies a set of running main loops.
    """

    base: bytes
    counts: list[int]
    asked: list[float]
    read: list[float]
    read_a: list[float]
    read_b: list[float]
    keys: list[int]

    @classmethod
    def of(cls, loops: MainLoops, merged: float) -> Outcomes | None:
        """What each kind of main loop reads, for each state of the L2 cache.

        None if there are more than `MOST_KINDS` kinds of main loops.

        Args:
            loops: the main loops. Each reads A for one row of output tiles, and B for one column of
                output tiles.
            merged: share of requests that the L2 cache merges if neighbouring SMs request the same
                data at the same time.
        """
        columns = loops.count, *loops.requests[-5:]
        found = kinds_of(columns)
        if found is None:
            return None
        kinds, examples = found
        made = cls((9 * kinds).astype(np.uint8).tobytes(), [], [], [], [], [], [])
        for row in zip(*(column[examples].tolist() for column in columns), strict=True):
            for outcome in range(9):
                made._append(row, outcome % 3, outcome // 3, merged)
        return made

    def _append(self, row: Sequence[float], a: int, b: int, merged: float) -> None:
        """Append what a kind of main loop reads if A and B are cached as `a` and `b` say.

        Args:
            row: values of the kind: the number of k tiles; per k tile the bytes of A and B that are
                requested, bytes of A and B that are read if they are not cached, and bytes stored.
            a, b: 0 if the L2 cache holds the k tiles, 1 if not, 2 if a neighbour requests them.
            merged: share of requests that the L2 cache merges if a neighbour requests the k tiles.
        """
        count, asked_a, asked_b, bytes_a, bytes_b, stored = row
        asked = asked_a * (1 - merged * (a == 2)) + asked_b * (1 - merged * (b == 2))
        of_a, of_b = count * (a == 1) * bytes_a, count * (b == 1) * bytes_b
        read = (of_a + of_b) / count + stored
        self.counts.append(int(count))
        self.asked.append(asked)
        self.read.append(read)
        self.read_a.append(of_a)
        self.read_b.append(of_b)
        self.keys.append(hash((0, asked, read)))


@dataclass(frozen=True)
class Tails:
    """The tail of each main loop: the steps after it, up to the next main loop of its workgroup.

    A plain tail waits for at most one partial sum, at its begin, then takes a fixed time, and sends
    at most one partial sum, at its end.

    Attributes:
        stops: for each main loop, the index of the step after its tail.
        last: for each main loop, whether it is the last one of its workgroup.
        plain: for each main loop, whether its tail is plain.
        kinds: for each main loop, the kind of its tail.
        table: for each kind of tail: the seconds of its first step, without a wait, and of its
            other steps (0 for tails that are not plain); the seconds after the tail until the
            workgroup has ended, and from then on until the next workgroup begins its main loop (0
            if the workgroup goes on); and what follows: BEGIN if the workgroup's next main loop
            begins, REPLACE if the workgroup ends and another one takes its place on the SM.
        receives: for each main loop, the number of the partial sum that its tail waits for;
            `nothing` if it waits for none, and NOT_PLAIN if the tail is not plain.
        sends: for each main loop, the number of the partial sum that its tail sends, or
            `nothing + 1` if it sends none.
        nothing: one more than the largest number of a partial sum; it stands for no partial sum.
    """

    stops: Ints
    last: NDArray[np.bool_]
    plain: NDArray[np.bool_]
    kinds: bytes
    table: list[tuple[float, float, float, float, int]]
    receives: Ints
    sends: Ints
    nothing: int

    @classmethod
    def of(
        cls,
        steps: Steps,
        loops: Ints,
        seconds: Floats,
        numbers: Ints,
        *,
        drain: float,
        later: float,
    ) -> Tails | None:
        """The steps after each main loop (its tail); None if there are too many kinds of tails.

        Args:
            steps: the steps of all workgroups; the first step of each is a main loop.
            loops: the indices of the steps that are main loops.
            seconds: for each step, the time that it takes, without waits.
            numbers: for each step that sends or receives, the number of its first partial sum.
            drain: seconds from the end of a workgroup's last STORE until the workgroup ends.
            later: seconds from the end of a workgroup until the next one on its slot begins its
                main loop.
        """
        stops = np.append(loops[1:], len(steps))
        last = np.append(steps.workgroup[loops[1:]] != steps.workgroup[loops[:-1]], True)
        sends = steps.kind == StepKind.SEND
        waits = (steps.kind == WAITS[0]) | (steps.kind == WAITS[1])
        at_end = sends[stops - 1]
        begins = np.minimum(loops + 1, len(steps) - 1)
        at_begin = waits[begins] & (steps.count[begins] == 1)
        plain = np.add.reduceat(waits, loops, dtype=np.int64) == at_begin
        plain &= np.add.reduceat(sends, loops, dtype=np.int64) == at_end
        parts = np.zeros((2, len(loops)))
        for number, (tails, place) in enumerate(places(loops, stops, plain)):
            parts[min(number, 1)][tails] += seconds[place]
        drains = np.where(last & (steps.kind[stops - 1] == StepKind.STORE), drain, 0.0)
        columns = *parts, drains, np.where(last, later, 0.0), np.where(last, REPLACE, BEGIN)
        found = kinds_of(columns)
        if found is None:
            return None
        kinds, examples = found
        table = list(zip(*(column[examples].tolist() for column in columns), strict=True))
        nothing = int(numbers.max(initial=-1)) + 1
        received = np.where(at_begin, numbers[begins], nothing)
        sent = np.where(at_end, numbers[stops - 1], nothing + 1)
        received[~plain] = NOT_PLAIN
        return cls(stops, last, plain, kinds.tobytes(), table, received, sent, nothing)


@dataclass(frozen=True)
class UniformTables:
    """All that `UniformEngine` knows of a launch before the simulation, as arrays.

    Attributes:
        steps: the steps of every workgroup, such as main loops, sends and stores.
        loops: the k tiles that each main loop reads, and their bytes.
        ranges: the ranges of k tiles that the main loops read.
        outcomes: bytes that each kind of main loop requests from the L2 cache and reads from DRAM,
            for each state of the cache (k tiles of A and of B cached or not).
        tails: the steps that follow each main loop, up to the next main loop.
        seconds: for each step, the time that it takes, without waits.
        numbers: for each step that sends or receives, the number of its first partial sum.
    """

    steps: Steps
    loops: MainLoops
    ranges: Ranges
    outcomes: Outcomes
    tails: Tails
    seconds: Floats
    numbers: Ints

    @classmethod
    def of(
        cls, steps: Steps, loops: MainLoops, work: TileWork, *, merged: float, later: float
    ) -> UniformTables | None:
        """Make the tables of a launch with one tile shape.

        Args:
            steps: the steps of every workgroup, such as main loops, sends and stores.
            loops: the k tiles that each main loop reads, and their bytes.
            work: the seconds and bytes of work on one tile.
            merged: share of requests that the L2 cache merges if neighbouring SMs request the same
                data at the same time.
            later: seconds from the end of a workgroup until the next one on its slot begins its
                main loop.

        Returns:
            None if there are few main loops, if they are of too many kinds, if their ranges of k
            tiles overlap, if a workgroup does not begin with a main loop, or if its partial sums
            cannot be numbered (`send_numbers`).
        """
        if len(loops) < LEAST_LOOPS or (ranges := loops.ranges) is None:
            return None
        starts, outcomes = np.diff(steps.workgroup, prepend=-1) > 0, Outcomes.of(loops, merged)
        if outcomes is None or np.any(steps.kind[starts] != StepKind.MULTIPLY):
            return None
        numbers = send_numbers(steps)
        if numbers is None:
            return None
        seconds = fixed_seconds(steps, [work])
        tails = Tails.of(steps, loops.steps, seconds, numbers, drain=work.drain, later=later)
        if tails is None:
            return None
        return cls(steps, loops, ranges, outcomes, tails, seconds, numbers)


def places(loops: Ints, stops: Ints, chosen: NDArray[np.bool_]) -> list[tuple[Ints, Ints]]:
    """The first steps after the `chosen` main loops, then their second steps, and so on.

    The tail of a main loop is the steps after it, up to the workgroup's next main loop.

    Args:
        loops: for each main loop, its index among all steps.
        stops: for each main loop, the index of the step after its tail.
        chosen: for each main loop, whether to return the steps of its tail.

    Returns:
        A list whose element i is a pair of arrays of equal length: the numbers of the main loops
        whose tails have more than i steps, and the index of step i of each of these tails.
    """
    found: list[tuple[Ints, Ints]] = []
    tails = np.flatnonzero(chosen)
    place = loops[tails] + 1
    while True:
        inside = place < stops[tails]
        tails, place = tails[inside], place[inside]
        if not len(tails):
            return found
        found.append((tails, place))
        place = place + 1


def send_numbers(steps: Steps) -> Ints | None:
    """For each step that sends or receives, the number of its first partial sum.

    Partial sums that are sent to one workspace slot one after another have consecutive numbers.

    Returns:
        None if a partial sum is sent twice, or received more often than its SEND step says, or if
        the numbers are too large for tables.
    """
    used = np.flatnonzero(steps.slot >= 0)
    kind, first, count = (x[used] for x in (steps.kind, steps.first, steps.count))
    numbers = np.zeros(len(steps), np.int64)
    turns = int((first + count).max(initial=0))
    numbers[used] = own = steps.slot[used] * turns + first
    most = int((own + count).max(initial=0))
    if most > MOST_NUMBERS:
        return None
    sends, waits = kind == StepKind.SEND, (kind == WAITS[0]) | (kind == WAITS[1])
    if np.any(np.bincount(own[sends], minlength=most) > 1):
        return None
    receivers = np.bincount(own[waits], minlength=most + 1)
    receivers -= np.bincount((own + count)[waits], minlength=most + 1)
    readers = np.zeros(most, np.int64)
    readers[own[sends]] = steps.readers[used][sends]
    return None if np.any(np.cumsum(receivers)[:-1] > readers) else numbers


def kinds_of(columns: Sequence[Floats | Ints]) -> tuple[NDArray[np.uint8], Ints] | None:
    """Number the kinds of rows of a table: rows with equal values are of one kind.

    Args:
        columns: the columns of the table, of equal length.

    Returns:
        For each row the number of its kind, and for each kind the index of its first row; None if
        there are more than `MOST_KINDS` kinds.
    """
    kinds, examples = np.zeros(len(columns[0]), np.uint8), list[int]()
    left = np.arange(len(kinds))
    while len(left):
        if len(examples) == MOST_KINDS:
            return None
        example = int(left[0])
        other = np.zeros(len(left), bool)
        for column in columns:
            other |= column[left] != column[example]
        kinds[left[~other]] = len(examples)
        examples.append(example)
        left = left[other]
    return kinds, np.array(examples)
