"""`Trace`: what every workgroup of a scheduled graph does, and what must hold of it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from typing import TypeVar

__all__ = [
    "Finish",
    "OutputTile",
    "Receive",
    "Segment",
    "Send",
    "Span",
    "Store",
    "Trace",
    "TraceEvent",
]

OutputTile = tuple[int, ...]
"""Its number in m and n; of a batch, the product's number comes first."""
Span = tuple[int, int]
"""How many tiles in m and n an event is for. Where a kernel has tiles of several shapes, those that
are counted are the largest that divide all of them, and `tile` is the first of a span."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A workgroup's contiguous share of one output tile: k tiles `k_first … k_first+k_count-1`."""

    workgroup: int
    tile: OutputTile
    k_first: int
    k_count: int
    depth: int
    padding: bool = False
    """These iterations do not exist: they load zeros, and a tile that does not exist is dropped."""
    span: Span = (1, 1)

    @property
    def iterations(self) -> int:
        """What it takes: k tiles, each as often as there are tiles in its span."""
        return self.k_count * prod(self.span)

    @property
    def role(self) -> str:
        """`whole`, or where in a shared tile the segment lies: `first`, `middle` or `final`."""
        if self.k_count == self.depth:
            return "whole"
        if self.k_first == 0:
            return "first"
        return "final" if self.k_first + self.k_count == self.depth else "middle"


@dataclass(frozen=True, slots=True)
class Send:
    """A partial of `tile` goes to `slot`, in its `turn` where a slot is sent several times.

    Where partials are added to a slot as they come, `turn` only tells them apart. So many `readers`
    receive it.
    """

    workgroup: int
    slot: int
    tile: OutputTile
    turn: int = 0
    readers: int = 1


@dataclass(frozen=True, slots=True)
class Receive:
    """The partial in `slot` is waited for and added to `tile`; that of the sender `turn`.

    Of several that were added to a slot, each is one.
    """

    workgroup: int
    slot: int
    tile: OutputTile
    turn: int = 0


@dataclass(frozen=True, slots=True)
class Finish:
    """The epilogue of a tile runs, or of one of the equal `shares` into which it is cut."""

    workgroup: int
    tile: OutputTile
    share: int = 0
    shares: int = 1
    span: Span = (1, 1)


@dataclass(frozen=True, slots=True)
class Store:
    """A tile of the output is written, or one of the `shares` into which it is cut."""

    workgroup: int
    tile: OutputTile
    share: int = 0
    shares: int = 1
    span: Span = (1, 1)


TraceEvent = Segment | Send | Receive | Finish | Store
E_ = TypeVar("E_", Segment, Send, Receive, Finish, Store)


@dataclass(frozen=True)
class Trace:
    """The events of every workgroup, in the order in which it does them.

    `tiles` counts the tiles in m, n and k, of a batch the products before that; `slots` is the
    size of the workspace. Where products have numbers of tiles of their own along some axis,
    `shapes` are those of each in m, n and k, and `tiles` counts those of all. `disorder` says what
    the first step of a workgroup is that uses an accumulator out of order, for those that have one.
    """

    workgroups: tuple[tuple[TraceEvent, ...], ...]
    tiles: tuple[int, ...]
    slots: int
    shapes: tuple[tuple[int, ...], ...] = ()
    disorder: tuple[str, ...] = ()

    @property
    def depths(self) -> tuple[int, ...]:
        """K tiles of each product, where they have numbers of their own."""
        return tuple(depth for *_, depth in self.shapes)

    def depth(self, tile: OutputTile) -> int:
        """K tiles of an output tile."""
        return self.shapes[tile[0]][-1] if self.shapes else self.tiles[-1]

    @property
    def useful(self) -> int:
        """K tiles of all output tiles."""
        return sum(map(prod, self.shapes)) if self.shapes else prod(self.tiles)

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """All segments, workgroup by workgroup."""
        return self._all(Segment)

    @cached_property
    def sends(self) -> tuple[Send, ...]:
        """All partials sent."""
        return self._all(Send)

    @cached_property
    def receives(self) -> tuple[Receive, ...]:
        """All partials received, those that a workgroup sent to itself too."""
        return self._all(Receive)

    @cached_property
    def fix_ups(self) -> tuple[Receive, ...]:
        """The partials received from others.

        In a reduce-scatter a workgroup takes its own piece back from the workspace, and of every
        piece only what it finishes: with p pieces of a tile there are p·(p - 1) fix-ups, each of
        about one p-th of a tile.
        """
        return tuple(
            receive
            for receive in self.receives
            if self._senders.get((receive.slot, receive.turn)) != {receive.workgroup}
        )

    @cached_property
    def epilogues(self) -> tuple[Finish, ...]:
        """All epilogues of tiles that exist."""
        return self._all(Finish)

    @cached_property
    def stores(self) -> tuple[Store, ...]:
        """All stores of tiles that exist."""
        return self._all(Store)

    @property
    def idle(self) -> tuple[int, ...]:
        """The workgroups that do nothing at all."""
        return tuple(w for w, events in enumerate(self.workgroups) if not events)

    @cached_property
    def iterations(self) -> tuple[int, ...]:
        """How many k tiles each workgroup adds up, padding included: its time."""
        counts = [0] * len(self.workgroups)
        for segment in self.segments:
            counts[segment.workgroup] += segment.iterations
        return tuple(counts)

    @property
    def utilisation(self) -> float:
        """Useful iterations over what all workgroups could do in the time of the busiest."""
        busiest = max(self.iterations, default=0)
        return self.useful / (busiest * len(self.workgroups)) if busiest else 0.0

    @property
    def slots_used(self) -> frozenset[int]:
        """The slots that anything is sent to."""
        return frozenset(send.slot for send in self.sends)

    def of(self, workgroup: int) -> tuple[Segment, ...]:
        """The segments of one workgroup, in its order."""
        return tuple(e for e in self.workgroups[workgroup] if isinstance(e, Segment))

    def wait_edges(self) -> frozenset[tuple[int, int]]:
        """(who waits, who signals) pairs."""
        return frozenset(
            (receive.workgroup, sender)
            for receive in self.receives
            for sender in self._senders.get((receive.slot, receive.turn), ())
        )

    def stuck(self) -> tuple[Receive, ...]:
        """The receives at which workgroups wait for ever, though all run at the same time.

        A workgroup does its events in order. A receive waits until its partial has been sent, and
        a partial serves as many receives as it has readers.
        """
        at = [0] * len(self.workgroups)
        sent: Counter[tuple[int, int]] = Counter()
        moved = True
        while moved:
            moved = False
            for workgroup, events in enumerate(self.workgroups):
                while at[workgroup] < len(events):
                    event = events[at[workgroup]]
                    if isinstance(event, Send):
                        sent[event.slot, event.turn] += event.readers
                    elif isinstance(event, Receive):
                        if not sent[event.slot, event.turn]:
                            break
                        sent[event.slot, event.turn] -= 1
                    at[workgroup], moved = at[workgroup] + 1, True
        left = (events[n] for n, events in zip(at, self.workgroups, strict=True) if n < len(events))
        return tuple(event for event in left if isinstance(event, Receive))

    @cached_property
    def _senders(self) -> Mapping[tuple[int, int], set[int]]:
        """Who sends to a slot in a turn: one workgroup, unless the schedule is wrong."""
        found: dict[tuple[int, int], set[int]] = defaultdict(set)
        for send in self.sends:
            found[send.slot, send.turn].add(send.workgroup)
        return found

    def problems(self) -> tuple[str, ...]:
        """What is wrong with the schedule: coverage, epilogues, signals, workspace, order."""
        return (*self._coverage(), *self._endings(), *self._signals(), *self.disorder)

    def _all(self, kind: type[E_]) -> tuple[E_, ...]:
        return tuple(e for events in self.workgroups for e in events if isinstance(e, kind))

    def covered(self, event: Segment | Finish | Store) -> Iterator[OutputTile]:
        """The output tiles of an event; of a span those that exist."""
        if event.span == (1, 1):
            yield event.tile
            return
        *batch, m, n = event.tile
        rows, columns = (
            range(first, min(first + count, most))
            for first, count, most in zip((m, n), event.span, self.tiles[-3:-1], strict=True)
        )
        yield from ((*batch, *place) for place in product(rows, columns))

    def _output(self) -> Iterator[OutputTile]:
        if not self.shapes:
            return product(*map(range, self.tiles[:-1]))
        every = enumerate(self.shapes)
        return ((g, *tile) for g, (*own, _) in every for tile in product(*map(range, own)))

    def _coverage(self) -> Iterator[str]:
        """Every iteration (m, n, k) exactly once."""
        shares: dict[OutputTile, list[tuple[int, int]]] = defaultdict(list)
        for s in self.segments:
            if not s.padding:
                for tile in self.covered(s):
                    shares[tile].append((s.k_first, s.k_first + s.k_count))
        for tile in self._output():
            reached = 0
            for first, end in sorted(shares.pop(tile, [])):
                if first != reached:
                    what = "are left out" if first > reached else "are done twice"
                    low, high = sorted((first, reached))
                    yield f"k tiles {low}..{high - 1} of output tile {tile} {what}"
                reached = max(reached, end)
            if reached != self.depth(tile):
                yield f"k tiles from {reached} of output tile {tile} are not {self.depth(tile)}"
        for tile in shares:
            yield f"output tile {tile} does not exist"

    def _endings(self) -> Iterator[str]:
        """Every output tile ends exactly once, as a whole or share by share."""
        for what, events in (("epilogues", self.epilogues), ("stores", self.stores)):
            counts: dict[OutputTile, list[tuple[int, int]]] = defaultdict(list)
            for event in events:
                for tile in self.covered(event):
                    counts[tile].append((event.share, event.shares))
            for tile in self._output():
                found = counts.pop(tile, [])
                shares = found[0][1] if found else 1
                if sorted(found) == [(share, shares) for share in range(shares)]:
                    continue
                of = f" of shares {sorted(found)}" if any(n > 1 for _, n in found) else ""
                yield f"output tile {tile} has {len(found)} {what}{of}"
            for tile in counts:
                yield f"{what} of output tile {tile}, which does not exist"

    def _signals(self) -> Iterator[str]:
        """Every wait has its signal, for the same tile, in a slot that exists."""
        sent: dict[tuple[int, int], list[OutputTile]] = defaultdict(list)
        got: dict[tuple[int, int], list[OutputTile]] = defaultdict(list)
        for events, place in ((self.sends, sent), (self.receives, got)):
            for event in events:
                readers = event.readers if isinstance(event, Send) else 1
                place[event.slot, event.turn] += [event.tile] * readers
                if not 0 <= event.slot < self.slots:
                    yield f"slot {event.slot} is outside 0..{self.slots - 1}"
        for at in sorted(sent.keys() | got.keys()):
            if sorted(sent[at]) != sorted(got[at]):
                turn = f" in turn {at[1]}" if at[1] else ""
                yield f"slot {at[0]} is sent {sent[at]} and received {got[at]}{turn}"
