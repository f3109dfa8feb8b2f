"""`Trace`: the events of all workgroups of a launch, and checks that tiles are computed once."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from typing import TypeVar

from coordgraph.errors import VerifyError
from coordgraph.interpreter.faults import Fault
from coordgraph.interpreter.slot_messages import outside_workspace, unmatched
from coordgraph.validation import whole

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
"""The number of an output tile: (m, n), or (product, m, n) in a kernel for several products."""
Span = tuple[int, int]
"""How many unit tiles in m and n an event covers; the event's `tile` is the first of them.

If output tiles have several shapes, a unit tile is the largest tile that divides every shape.
Otherwise a unit tile is an output tile, and every span is (1, 1).
"""


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive k tiles of one output tile, summed by one workgroup.

    Args:
        workgroup: the number of the workgroup.
        tile: the number of the output tile.
        k_first: the number of the segment's first k tile.
        k_count: how many k tiles the segment has.
        depth: how many k tiles the whole output tile has.
        padding: True if these k tiles lie outside the tensors: their elements count as zero.
        span: how many unit tiles along m and n the segment covers; see `Span`.
    """

    workgroup: int
    tile: OutputTile
    k_first: int
    k_count: int
    depth: int
    padding: bool = False
    span: Span = (1, 1)

    @property
    def iterations(self) -> int:
        """How many (m, n, k) tiles the segment sums, where tiles in m and n are unit tiles.

        A unit tile is the largest tile that divides output tiles of every shape.
        """
        return self.k_count * prod(self.span)

    @property
    def role(self) -> str:
        """Which k tiles of its output tile the segment has.

        `whole` if it has all of them, `first` or `final` if it has the first or the last one, else
        `middle`.
        """
        if self.k_count == self.depth:
            return "whole"
        if self.k_first == 0:
            return "first"
        return "final" if self.k_first + self.k_count == self.depth else "middle"


@dataclass(frozen=True, slots=True)
class Send:
    """A workgroup writes its partial sum of `tile` to the workspace slot `slot`.

    Args:
        workgroup: the number of the sending workgroup.
        slot: the number of the workspace slot.
        tile: the output tile that the partial sum belongs to.
        turn: how many partial sums were sent to this slot before. Where partial sums are added to a
            slot atomically, `turn` only distinguishes their senders.
        readers: how many workgroups receive the partial sum.
    """

    workgroup: int
    slot: int
    tile: OutputTile
    turn: int = 0
    readers: int = 1


@dataclass(frozen=True, slots=True)
class Receive:
    """A workgroup waits for the partial sum in `slot` and adds it to its own sum of `tile`.

    A slot to which several workgroups added their sums atomically is received once per sender.

    Args:
        workgroup: the number of the receiving workgroup.
        slot: the number of the workspace slot.
        tile: the output tile that the partial sum belongs to.
        turn: the `turn` of the `Send` that is received.
    """

    workgroup: int
    slot: int
    tile: OutputTile
    turn: int = 0


@dataclass(frozen=True, slots=True)
class Finish:
    """A workgroup runs the epilogue on an output tile, or on one of its equal shares.

    Args:
        workgroup: the number of the workgroup.
        tile: the number of the output tile.
        share: the number of the share, counted from 0.
        shares: into how many equal shares the tile is cut; 1 if it is not cut.
        span: how many unit tiles along m and n the tile covers; see `Span`.
    """

    workgroup: int
    tile: OutputTile
    share: int = 0
    shares: int = 1
    span: Span = (1, 1)


@dataclass(frozen=True, slots=True)
class Store:
    """A workgroup stores an output tile, or one of its equal shares.

    Args:
        workgroup: the number of the workgroup.
        tile: the number of the output tile.
        share: the number of the share, counted from 0.
        shares: into how many equal shares the tile is cut; 1 if it is not cut.
        span: how many unit tiles along m and n the tile covers; see `Span`.
    """

    workgroup: int
    tile: OutputTile
    share: int = 0
    shares: int = 1
    span: Span = (1, 1)


TraceEvent = Segment | Send | Receive | Finish | Store
E_ = TypeVar("E_", Segment, Send, Receive, Finish, Store)


@dataclass(frozen=True)
class Trace:
    """The events of every workgroup of one launch, in program order.

    Args:
        workgroups: for each workgroup, its events in program order.
        tiles: the numbers of unit tiles (see `Span`) in m and n, and of k tiles; in a batch, the
            number of products comes first. If products differ in size, the numbers along the
            differing axes are sums over all products.
        slots: how many slots the workspace has.
        shapes: if products differ in size, for each product its numbers of unit tiles in m and n
            and of k tiles; else empty.
        disorder: for each workgroup that uses an accumulator out of order, a sentence that
            describes the first such operation.
        counters: for each ticket counter (from which workgroups take the indices of dynamic loops)
            that is not 0 at the end of the launch, a sentence that says so.
        stores_d: whether the kernel must store D; if not, no output tile may be stored, and the
            epilogues store all outputs.
    """

    workgroups: tuple[tuple[TraceEvent, ...], ...]
    tiles: tuple[int, ...]
    slots: int
    shapes: tuple[tuple[int, ...], ...] = ()
    disorder: tuple[str, ...] = ()
    counters: tuple[str, ...] = ()
    stores_d: bool = True

    @property
    def depths(self) -> tuple[int, ...]:
        """For each product, its number of k tiles; empty unless products differ in size."""
        return tuple(depth for *_, depth in self.shapes)

    def depth(self, tile: OutputTile) -> int:
        """The number of k tiles of the output tile numbered `tile`."""
        return self.shapes[tile[0]][-1] if self.shapes else self.tiles[-1]

    @property
    def useful(self) -> int:
        """The number of (m, n, k) tiles of all products: the iterations that compute no padding."""
        return sum(map(prod, self.shapes)) if self.shapes else prod(self.tiles)

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """All `Segment` events, in the order of workgroups."""
        return self._all(Segment)

    @cached_property
    def sends(self) -> tuple[Send, ...]:
        """All `Send` events, in the order of workgroups."""
        return self._all(Send)

    @cached_property
    def receives(self) -> tuple[Receive, ...]:
        """All `Receive` events, including receives of a workgroup's own partial sums."""
        return self._all(Receive)

    @cached_property
    def fix_ups(self) -> tuple[Receive, ...]:
        """The `Receive` events whose partial sum another workgroup sent.

        In a reduce-scatter of a tile among p workgroups there are p·(p - 1) such events, each for
        about 1/p of the tile: every workgroup sends its partial sum of the whole tile, and receives
        from each other workgroup the part that belongs to its own share.
        """
        return tuple(
            receive
            for receive in self.receives
            if self._senders.get((receive.slot, receive.turn)) != {receive.workgroup}
        )

    @cached_property
    def epilogues(self) -> tuple[Finish, ...]:
        """All `Finish` events; epilogues on padding are not recorded."""
        return self._all(Finish)

    @cached_property
    def stores(self) -> tuple[Store, ...]:
        """All `Store` events; stores of padding are not recorded."""
        return self._all(Store)

    @property
    def idle(self) -> tuple[int, ...]:
        """The numbers of the workgroups that have no events."""
        return tuple(w for w, events in enumerate(self.workgroups) if not events)

    @cached_property
    def iterations(self) -> tuple[int, ...]:
        """For each workgroup, how many (m, n, k) tiles its segments sum, including padding."""
        counts = [0] * len(self.workgroups)
        for segment in self.segments:
            counts[segment.workgroup] += segment.iterations
        return tuple(counts)

    @property
    def utilisation(self) -> float:
        """The load balance: mean (m, n, k) tiles per workgroup, divided by the maximum.

        The mean leaves out padding. The maximum is over workgroups and includes padding. The
        quotient is 1 if all workgroups sum equally many tiles and none computes padding.
        """
        busiest = max(self.iterations, default=0)
        return self.useful / (busiest * len(self.workgroups)) if busiest else 0.0

    @property
    def slots_used(self) -> frozenset[int]:
        """The numbers of the workspace slots that receive at least one `Send`."""
        return frozenset(send.slot for send in self.sends)

    def of(self, workgroup: int) -> tuple[Segment, ...]:
        """The `Segment` events of one workgroup, in program order.

        Raises:
            VerifyError: the launch has no workgroup with that number.
        """
        count = len(self.workgroups)
        if whole(workgroup, "workgroup", least=0) >= count:
            raise VerifyError(
                f"there is no workgroup {workgroup}, because the grid has {count} workgroups; give "
                f"a number less than {count}"
            )
        return tuple(e for e in self.workgroups[workgroup] if isinstance(e, Segment))

    def wait_edges(self) -> frozenset[tuple[int, int]]:
        """Pairs (receiving workgroup, sending workgroup), over all receives of partial sums."""
        return frozenset(
            (receive.workgroup, sender)
            for receive in self.receives
            for sender in self._senders.get((receive.slot, receive.turn), ())
        )

    def stuck(self) -> tuple[Receive, ...]:
        """The `Receive` events at which workgroups wait for ever, even if all run concurrently.

        A workgroup executes its events in order. A receive waits until its partial sum was sent,
        and a partial sum can be received as often as its `Send` has readers.
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
        """The numbers of the workgroups that send each partial sum, by (slot, turn).

        The turn is how many partial sums were sent to the workspace slot before. In a correct
        schedule each set has one workgroup.
        """
        found: dict[tuple[int, int], set[int]] = defaultdict(set)
        for send in self.sends:
            found[send.slot, send.turn].add(send.workgroup)
        return found

    @cached_property
    def faults(self) -> tuple[Fault, ...]:
        """Errors of the schedule; empty if each output tile is computed once.

        The checks: each (m, n, k) tile is summed once; each output tile has one epilogue and one
        store; each partial sum is received as often as its sender expects; slots are inside the
        workspace; accumulators are used in a valid order; ticket counters of dynamic loops end
        at 0.
        """
        disorder = (Fault("fix-up", message) for message in (*self.disorder, *self.counters))
        return (*self._coverage(), *self._endings(), *self._signals(), *disorder)

    def problems(self) -> tuple[str, ...]:
        """The messages of `faults`, one sentence each."""
        return tuple(fault.message for fault in self.faults)

    def _all(self, kind: type[E_]) -> tuple[E_, ...]:
        return tuple(e for events in self.workgroups for e in events if isinstance(e, kind))

    def covered(self, event: Segment | Finish | Store) -> Iterator[OutputTile]:
        """The output tiles that an event covers, without tiles beyond the edge of the output."""
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

    def _coverage(self) -> Iterator[Fault]:
        """A fault for each range of k tiles of an output tile that is not summed exactly once."""
        shares: dict[OutputTile, list[tuple[int, int, int]]] = defaultdict(list)
        for s in self.segments:
            if not s.padding:
                for tile in self.covered(s):
                    shares[tile].append((s.k_first, s.k_first + s.k_count, s.workgroup))
        for tile in self._output():
            reached, found = 0, sorted(shares.pop(tile, []))
            who = tuple(sorted({workgroup for *_, workgroup in found}))
            for first, end, _ in found:
                if first != reached:
                    what = "are left out" if first > reached else "are done twice"
                    low, high = sorted((first, reached))
                    message = f"k tiles {low}..{high - 1} of output tile {tile} {what}"
                    yield Fault("cover", message, who, tile)
                reached = max(reached, end)
            if reached != (depth := self.depth(tile)):
                what = "are left out" if reached < depth else "do not exist"
                low, high = sorted((reached, depth))
                message = f"k tiles {low}..{high - 1} of output tile {tile} {what}"
                yield Fault("cover", message, who, tile)
        for tile, found in shares.items():
            who = tuple(sorted({workgroup for *_, workgroup in found}))
            message = f"a segment sums output tile {tile}, which does not exist"
            yield Fault("cover", message, who, tile)

    def _endings(self) -> Iterator[Fault]:
        """A fault for each output tile whose parts do not have exactly one epilogue and one store.

        Epilogues and stores of output tiles that do not exist are faults, too. If D is not stored,
        no output tile exists for stores.
        """
        for check, what, events in (
            ("fix-up", "epilogues", self.epilogues),
            ("cover", "stores", self.stores),
        ):
            counts: dict[OutputTile, list[Finish | Store]] = defaultdict(list)
            for event in events:
                for tile in self.covered(event):
                    counts[tile].append(event)
            for tile in self._output() if self.stores_d or what == "epilogues" else ():
                ends = counts.pop(tile, [])
                found = sorted((end.share, end.shares) for end in ends)
                shares = found[0][1] if found else 1
                if len(found) == shares and found == [(share, shares) for share in range(shares)]:
                    continue
                of = f" of shares {found}" if any(n > 1 for _, n in found) else ""
                message = f"output tile {tile} has {len(found)} {what}{of}"
                yield Fault(check, message, tuple(sorted({e.workgroup for e in ends})), tile)
            for tile, ends in counts.items():
                message = f"{what} of output tile {tile}, which does not exist"
                yield Fault(check, message, tuple(sorted({e.workgroup for e in ends})), tile)

    def _signals(self) -> Iterator[Fault]:
        """Faults of workspace slots: sends without matching receives, and slots out of bounds."""
        sent: dict[tuple[int, int], list[Send]] = defaultdict(list)
        got: dict[tuple[int, int], list[Receive]] = defaultdict(list)
        outside: dict[int, list[Send | Receive]] = defaultdict(list)
        for event in (*self.sends, *self.receives):
            if isinstance(event, Send):
                sent[event.slot, event.turn].append(event)
            else:
                got[event.slot, event.turn].append(event)
            if not 0 <= event.slot < self.slots:
                outside[event.slot].append(event)
        for slot, events in sorted(outside.items()):
            message = outside_workspace(slot, self.slots)
            who = tuple(sorted({event.workgroup for event in events}))
            yield Fault("bounds", message, who, events[0].tile)
        for at in sorted(sent.keys() | got.keys()):
            expected: Counter[OutputTile] = Counter()
            for send in sent[at]:
                # Count receivers of a partial sum, do not list them: a graph may have millions.
                expected[send.tile] += send.readers
            if expected != Counter(receive.tile for receive in got[at]):
                events = [*sent[at], *got[at]]
                writes = [(send.workgroup, send.tile, send.readers) for send in sent[at]]
                message = unmatched(at, writes, [(r.workgroup, r.tile) for r in got[at]])
                who = tuple(sorted({event.workgroup for event in events}))
                yield Fault("fix-up", message, who, events[0].tile)
