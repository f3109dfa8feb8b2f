"""Data races: unordered accesses to the same element, at least one of which is a write.

The accesses are compared in the order of the simulation. For every element, the shadow memory has
the last write and the reads after it. A new access is compared only with these accesses, because
earlier accesses are ordered before these.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import gcd

import numpy as np

from coordgraph.control.effects import WHOLE, Kind
from coordgraph.verification.memory_order.clocks import Clock
from coordgraph.verification.memory_order.events import Entry, Violation
from coordgraph.verification.memory_order.machine_facts import Facts
from coordgraph.verification.memory_order.steps import Place
from coordgraph.verification.memory_order.thread_values import Array, affordable

__all__ = ["find_races"]

MANY = -1
"""Stands for the thread number if several threads of a class (threads of a workgroup that execute
the same steps) access the same element in one step."""
Home = tuple[str, int]
"""Type that identifies a memory: the name of the allocation, and the number of the workgroup that
it belongs to (-1 for device memory)."""


@dataclass(slots=True)
class _Use:
    """The bytes of one memory that a class of threads accesses in one step.

    A class of threads is the threads of a workgroup that execute the same steps.
    """

    entry: Entry
    kind: Kind
    home: Home
    first: Array
    threads: Array
    size: int


@dataclass
class _Shadow:
    """For every element of one memory: the last write, and the reads after it.

    Args:
        unit: number of bytes of an element.
        size: number of elements.
    """

    unit: int
    size: int
    writers: Array = field(init=False)
    writing: Array = field(init=False)
    readers: Array = field(init=False)
    sets: list[frozenset[tuple[int, int]]] = field(init=False)
    numbers: dict[frozenset[tuple[int, int]], int] = field(init=False)

    def __post_init__(self) -> None:
        self.writers = np.full(self.size, -1, np.int64)
        self.writing = np.full(self.size, MANY, np.int64)
        self.readers = np.zeros(self.size, np.int64)
        self.sets = [frozenset()]
        self.numbers = {frozenset(): 0}


def find_races(entries: Iterable[Entry], facts: Facts) -> None:
    """Find two accesses to the same element that race, or an access outside its memory.

    Args:
        entries: the accesses of a simulated launch, in order.
        facts: what the graph declares about memory, threads and clusters.

    Raises:
        Violation: two accesses race, or an access leaves its memory.
        TooLarge: too many elements are accessed.
    """
    uses = [
        use for entry in entries for place in entry.places for use in _uses(entry, place, facts)
    ]
    shadows = _shadows(uses)
    for number, use in enumerate(uses):
        _compare(uses, number, use, shadows[use.home])


def _uses(entry: Entry, place: Place, facts: Facts) -> Iterable[_Use]:
    """Yield the bytes that one access of a step (`place`) touches: one `_Use` for each memory."""
    access, agent = place.access, entry.agents[0]
    every = agent.of.threads
    inside = place.inside[:, every]
    first = place.first[:, every][inside]
    if not first.size:
        return
    threads = np.broadcast_to(every, inside.shape)[inside]
    bytes = facts.bytes_of(access.dim)
    count = facts.lengths[access.dim] if access.count == WHOLE else access.count
    begins, size = first * bytes, access.size or count * bytes
    if access.matrix is not None:
        rows = access.matrix
        begins = begins // rows.row * rows.row
        (boxes, apart), (groups, stride), size = rows.boxes, rows.groups, 8 * rows.row
        unique = np.unique(begins)
        affordable(boxes * groups * unique.size, "the rows of operands that one wgmma reads")
        places = np.arange(boxes)[:, None] * apart + np.arange(groups) * stride
        begins = np.unique(unique[:, None] + places.ravel())
        threads = np.full(begins.shape, MANY)
    _inside(entry, place, begins, size, facts)
    for target in facts.targets(agent, place):
        home = facts.homes.get(access.dim, access.dim), -1 if target is None else target
        yield _Use(entry, access.kind, home, begins, threads, size)


def _inside(entry: Entry, place: Place, begins: Array, size: int, facts: Facts) -> None:
    """Check that the accesses at byte offsets `begins`, of `size` bytes each, stay in their memory.

    Raises:
        Violation: an access begins before its memory or ends after it.
    """
    access = place.access
    length = facts.lengths.get(access.dim)
    if length is None:
        return
    bytes = length * facts.bytes_of(access.dim)
    outside = begins[(begins < 0) | (begins + size > bytes)]
    if outside.size:
        event, first = entry.events[0][access.kind.changes], int(outside.min())
        raise Violation(
            f"an access {access.kind.value} bytes {first}..{first + size - 1} of {access.dim}, "
            f"which has only {bytes} bytes; enlarge the memory, or correct the index or the width",
            event.bit_length() - 1,
        )


def _shadows(uses: list[_Use]) -> dict[Home, _Shadow]:
    units: dict[Home, int] = {}
    ends: dict[Home, int] = {}
    for use in uses:
        unit = gcd(units.get(use.home, 0), use.size)
        units[use.home] = gcd(unit, int(np.gcd.reduce(use.first)))
        ends[use.home] = max(ends.get(use.home, 0), int(use.first.max()) + use.size)
    sizes = {home: -(-ends[home] // unit) for home, unit in units.items()}
    affordable(sum(sizes.values()), "the accessed elements of shared memory and workspaces")
    return {home: _Shadow(unit, sizes[home]) for home, unit in units.items()}


def _compare(uses: list[_Use], number: int, use: _Use, shadow: _Shadow) -> None:
    """Check that a memory access races with no earlier access to its elements, then record it.

    The shadow memory has the last write and the later reads of each element of a memory.
    """
    count = use.size // shadow.unit
    affordable(count * use.first.size, f"the elements of {use.home[0]} that one step accesses")
    elements = (use.first // shadow.unit)[:, None] + np.arange(count)
    threads = np.broadcast_to(use.threads[:, None], elements.shape).ravel()
    elements, threads = _merged(uses, number, elements.ravel(), threads)
    # If several threads write the same value to an element, the shadow memory keeps the first
    # write; readers must be ordered after that write.
    if use.kind is Kind.REWRITE:
        writers = shadow.writers[elements]
        first = [w < 0 or uses[w].kind is not Kind.REWRITE for w in writers.tolist()]
        elements, threads = elements[first], threads[first]
    for other, thread in _pairs(shadow.writers[elements], shadow.writing[elements], threads):
        _ordered(uses, other, number, same=thread)
    if use.kind.changes:
        for mine in np.unique(shadow.readers[elements]):
            for other, reader in shadow.sets[int(mine)]:
                at = threads[shadow.readers[elements] == mine]
                same = reader != MANY and bool((at == reader).all())
                _ordered(uses, other, number, same=same)
        shadow.writers[elements], shadow.writing[elements] = number, threads
        shadow.readers[elements] = 0
        return
    before = shadow.readers[elements]
    keys = before * (int(threads.max()) + 2) + threads + 1
    for key in np.unique(keys):
        chosen = keys == key
        old, thread = int(before[chosen][0]), int(threads[chosen][0])
        new = shadow.sets[old] | {(number, thread)}
        if new not in shadow.numbers:
            shadow.numbers[new] = len(shadow.sets)
            shadow.sets.append(new)
        shadow.readers[elements[chosen]] = shadow.numbers[new]


def _merged(uses: list[_Use], number: int, elements: Array, threads: Array) -> tuple[Array, Array]:
    """Return two arrays: the distinct elements, ascending, and the thread that accesses each.

    The thread is `MANY` for an element that several threads access.

    Raises:
        Violation: several threads write one element, and may write different values.
    """
    order = np.argsort(elements, kind="stable")
    elements, threads = elements[order], threads[order]
    unique, starts = np.unique(elements, return_index=True)
    if len(unique) == len(elements):
        return elements, threads
    low = np.minimum.reduceat(threads, starts)
    high = np.maximum.reduceat(threads, starts)
    use = uses[number]
    if use.kind is Kind.WRITE and (low != high).any():
        raise Violation(
            "several threads write the same element in one step; let one thread write each element",
            use.entry.events[0][1].bit_length() - 1,
        )
    return unique, np.where(low == high, low, MANY)


def _pairs(writers: Array, writing: Array, threads: Array) -> Iterable[tuple[int, bool]]:
    """Yield (position of an earlier write, same_thread) for the elements accessed now.

    A position is an index in the list of all memory uses of the simulated launch. `same_thread` is
    True if the earlier write and the present access are made by the same single thread.

    Args:
        writers: for each element, the position of the last write to the element; negative if there
            is none.
        writing: for each element, the thread that made this write.
        threads: for each element, the thread that accesses the element now.
    """
    same = (writing == threads) & (threads != MANY)
    for pair in np.unique(writers * 2 + same):
        other, equal = divmod(int(pair), 2)
        if other >= 0:
            yield other, bool(equal)


def _ordered(uses: list[_Use], earlier: int, later: int, *, same: bool) -> None:
    """Check that one use of memory is ordered before another.

    Args:
        uses: all uses of memory in the simulated launch, in order.
        earlier, later: the positions of the two uses in `uses`.
        same: whether one thread makes both uses.

    Raises:
        Violation: the two uses race.
    """
    first, second = uses[earlier], uses[later]
    if first.kind is second.kind is Kind.ADD:
        return
    a, b = first.entry, second.entry
    same_class = a.agents[0].of is b.agents[0].of
    other = len(b.agents) - 1 if same_class and not same else 0
    if same_class and not same and len(b.agents) == 1:
        same = True
    event = a.events[0][first.kind.changes]
    clock = b.clocks[other]
    if same and same_class and not a.asynchronous and not b.proxy:
        return
    if _before(event, first, second, clock):
        return
    problem = "nothing orders the two; add a barrier or a wait between them"
    if event & clock.time:
        problem = "no proxy fence orders the two; add a FenceShared or a FenceMemory"
        if first.kind.changes and not event & clock.seen:
            problem = (
                "the first is not released and acquired in scopes that include both threads; "
                "correct the scopes"
            )
    raise Violation(
        f"data race: one access {first.kind.value} {second.home[0]}, another one "
        f"{second.kind.value} the same element, and {problem}",
        event.bit_length() - 1,
        b.events[other][second.kind.changes].bit_length() - 1,
    )


def _before(event: int, first: _Use, second: _Use, clock: Clock) -> bool:
    """Whether `event`, made by `first`, is ordered before `second`, whose clock is `clock`."""
    # TMA may overwrite shared memory that an earlier TMA load has written, or an earlier write that
    # a proxy fence follows, although the earlier write was not released to the thread that issues
    # the TMA load: the earlier write has reached memory.
    again = second.entry.proxy and second.kind.changes and second.home[1] >= 0
    known = clock.seen if first.kind.changes and not again else clock.time
    if second.entry.proxy and not first.entry.proxy:
        space = "global" if second.home[1] < 0 else "shared"
        known &= clock.fenced.get(space, 0)
    return bool(event & known)
