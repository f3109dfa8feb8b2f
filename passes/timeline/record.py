"""`RecordTimeline`: makes a lowered graph write a record when a workgroup begins an activity."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

from sympy import And, Expr, Integer, Lt, true
from sympy.logic.boolalg import Boolean

from coordgraph import KernelGraph
from coordgraph.control.asynchronous import Advance, Counter, WaitBarrier
from coordgraph.control.operations import Body, If, Operation, Scope, SetCoordinate
from coordgraph.control.timeline import END, RECORD_WORDS, Begin, Stamp, Timed
from coordgraph.coordinates.dimensions import Cluster, Linear, User, Warpgroup, Workitem
from coordgraph.coordinates.edges import Tile
from coordgraph.integers import equal, floor_mod, index_symbol, minimum
from coordgraph.kernel import KernelEditor
from coordgraph.tensors import Role, Tensor
from passes.base import Pass
from passes.lowering.sm_90a.turns import ORDER
from passes.timeline.capacity import records_of
from passes.timeline.waits import with_waits

__all__ = ["CAPACITY", "MOST_RECORDS", "TIMELINE", "RecordTimeline"]

TIMELINE = "timeline"
"""Name of the tensor of records; its axes are workgroup, CTA of the cluster, warpgroup, record,
word."""
CAPACITY = "timeline_records"
"""Name of the launch parameter for the number of records that each role of a workgroup can
write."""
MOST_RECORDS = 1024
"""Largest number of records that a role of a workgroup (its producer or a consumer) keeps; further
records are only counted."""
NUMBER, SLOT, WORD = "timeline.number", "timeline.slot", "timeline.word"
"""NUMBER: the coordinate that counts the records of a role (the producer or a consumer of a
workgroup). SLOT: the coordinate of a record's position among the records of its role; the record
that is written at the end of the kernel has position 0. WORD: the coordinate of a word in a
record."""
STALLED = "timeline.stalled"
"""Name of the coordinate that counts the clock cycles in which the producer or a consumer waits for
pipeline stages."""
BOTH_ENDS, DRAINS = 2, 1
"""Numbers of records of a role (the producer or a consumer of a workgroup). BOTH_ENDS: one at the
beginning and one at the end of a kernel. DRAINS: one after the last tile."""
WARPGROUP = 128
"""Number of threads of a warpgroup."""
ROLES = {"consumers": "consumer", "producer": "producer"}
"""The role (`producer` or `consumer`) of the threads that execute a `Scope`, by the scope's
name."""
LOADS = {"multiply": "load", "wait": "wait", "receive": "load", "drain": "drain"}
"""The activity that the producer records at a mark, by the consumers' activity at the same mark:
where consumers multiply, the producer loads."""


@dataclass(frozen=True)
class RecordTimeline(Pass):
    """Write a record to device memory wherever a workgroup begins an activity.

    Before: `Begin` marks. After: a `Stamp` by one thread of each role, and a `Stamp` at the begin
    and at the end of the kernel. The edge timeline --Tile--> workgroup, cluster rank, warpgroup,
    slot, word gives the address. If a role has no free slot, it only counts further records.

    Args:
        most: the largest number of records that one role of a workgroup keeps.
    """

    most: int = MOST_RECORDS

    name = "record-timeline"
    requires = ("lowered",)
    establishes = ("lowered",)

    def why_not(self, graph: KernelGraph) -> str | None:
        if self.most < 1:
            return f"most={self.most} is less than the smallest number of records, 1; set 1 or more"
        if any(t.name == TIMELINE for t in graph.tensors):
            return "the graph records its timeline already; apply this pass once"
        return None

    def apply(self, graph: KernelGraph) -> KernelGraph:
        with graph.edit(str(self)) as e:
            body = with_waits(graph.control.root.body)
            recorder = _Recorder(e, graph, body, self.most)
            e.kernel(recorder.kernel(body), workgroup=graph.control.root.workgroup)
        return e.graph


class _Recorder:
    """Replaces the marks (`Begin`) of a lowered graph by operations that write records.

    Args:
        e: the graph under construction.
        graph: the lowered graph.
        body: the operations of the lowered graph, with marks.
        most: the largest number of records that a role keeps.
    """

    def __init__(self, e: KernelEditor, graph: KernelGraph, body: Body, most: int) -> None:
        self.graph = graph
        coordinates = graph.coordinates
        threads = coordinates.of_kind(Workitem)
        self.warpgroups = coordinates.of_kind(Warpgroup)
        self.ranks = coordinates.of_kind(Cluster)
        self.first: Boolean = true
        """Condition: the thread is the first of its warpgroup or, in kernels without warpgroups, of
        its workgroup."""
        self.leader: Boolean = true
        """Condition: the thread is the first of its workgroup."""
        if threads:
            (workitem,) = threads
            self.leader = self.first = equal(workitem.symbol, 0)
            if self.warpgroups:
                self.first = equal(floor_mod(workitem.symbol, Integer(WARPGROUP)), 0)
        self.turns = ORDER in coordinates
        self.capacity = self._capacity(e, body, most)
        self._add(e)

    def kernel(self, body: Body) -> Operation:
        """The kernel's body with records at its begin, its end and its marks.

        A counter around the body counts the records that a role writes.
        """
        end = replace(self._start, activity=END)
        whole = (
            *(() if self.turns else self._written(self._start, self.first)),
            *self._body(body, "", self.leader),
            If(self.first, (self._at(Integer(0), end),)),
        )
        return Counter(NUMBER, (Counter(STALLED, whole),) if self.warpgroups else whole)

    @property
    def _start(self) -> Stamp:
        """The operation that writes the first record of a role.

        The operation is executed at the begin of the kernel; in ping-pong kernels, where the code
        of the producer and that of the consumers begin. With this record at the begin of the
        kernel, a ping-pong kernel of 73 µs was 4 % slower; with the record at the begin of the
        producer's and the consumers' code, 1 % slower (H200, 2026-11-24).
        """
        return self._stamp(Begin("start", count=index_symbol(NUMBER)), "", whole=True)

    def _body(self, body: Body, role: str, who: Boolean) -> Body:
        """Replace each mark (`Begin`) by a write of a record of `role`; `who` selects a thread."""
        return tuple(self._stamped(body, role, who))

    def _stamped(self, body: Body, role: str, who: Boolean) -> Iterator[Operation]:
        for op in body:
            match op:
                case Begin():
                    yield from self._mark(op, role, who)
                case Scope(name=name) if name in ROLES:
                    own = ROLES[name]
                    alone = self.leader if own == "consumer" and not self.turns else self.first
                    if self.turns:
                        yield from self._written(self._start, self.first)
                    yield op.with_body(*self._body(op.body, own, alone))
                    yield from self._mark(Begin("drain"), own, alone)
                case WaitBarrier() if role and op.barrier != ORDER:
                    yield Timed(STALLED, (op,))
                case _ if op.BODIES:
                    bodies = {n: self._body(getattr(op, n), role, who) for n in op.BODIES}
                    yield replace(op, **bodies)
                case _:
                    yield op

    def _mark(self, op: Begin, role: str, who: Boolean) -> Body:
        """The operations that write the timeline record of the activity that `op` begins.

        The result is () if warps of `role` (producer or consumer) do not record the activity.
        """
        if role == "producer":
            if op.activity not in LOADS:
                return ()
            op = replace(op, activity=LOADS[op.activity])
        return self._written(self._stamp(op, role), who)

    def _stamp(self, op: Begin, role: str, *, whole: bool = False) -> Stamp:
        """The operation by which a thread of `role` writes the record of the activity `op`.

        `whole` is the argument of `Stamp`: whether the record has the global timer and the SM.
        """
        stalled = index_symbol(STALLED) if self.warpgroups else Integer(0)
        mark = op.activity, op.tile, op.span, op.first, op.count
        return Stamp(TIMELINE, *mark, role, stalled, whole)

    def _written(self, stamp: Stamp, who: Boolean) -> Body:
        """Operations that write a record if memory is left for it, and count it in either case."""
        place = index_symbol(NUMBER) + 1
        there = And(who, Lt(place, self.capacity))
        return (If(there, (self._at(place, stamp),)), Advance(NUMBER))

    @staticmethod
    def _at(place: Expr, stamp: Stamp) -> Operation:
        """Execute `stamp`; its record gets the position `place` among the records of its role."""
        return SetCoordinate(SLOT, place, (SetCoordinate(WORD, Integer(0), (stamp,)),))

    def _capacity(self, e: KernelEditor, body: Body, most: int) -> Expr:
        """Number of records for which the producer, and each consumer, of a workgroup has memory.

        The number is an upper bound of the records that one role (the producer or a consumer)
        writes, but at most `most + BOTH_ENDS`.
        """
        marks = records_of(self.graph, body)
        most_of_all = Integer(most + BOTH_ENDS)
        if marks is None:
            return most_of_all
        needed = minimum(marks + DRAINS + BOTH_ENDS, most_of_all)
        return e.parameter(CAPACITY, needed, note="records of a role of a workgroup")

    def _add(self, e: KernelEditor) -> None:
        """Add the tensor of records to the graph, and the coordinates of a record."""
        c, workgroup = e.coordinates, self.graph.workgroup
        assert workgroup.size is not None
        beside = (*self.ranks, *self.warpgroups)
        sizes = (workgroup.size, *(Integer(d.fixed_size) for d in beside), self.capacity)
        c.add(Linear(NUMBER, note="records so far"))
        if self.warpgroups:
            c.add(Linear(STALLED, note="clock cycles of waits for stages so far"))
        c.add(Linear(SLOT, self.capacity, note="record"))
        c.add(Linear(WORD, Integer(RECORD_WORDS)))
        c.add(User(TIMELINE, prod(sizes, start=Integer(RECORD_WORDS)), tensor=TIMELINE))
        c.connect(Tile(TIMELINE, (workgroup.id, *(d.id for d in beside), SLOT, WORD)))
        shape = (*sizes, Integer(RECORD_WORDS))
        e.tensors = (*e.tensors, Tensor(TIMELINE, "i32", shape, Role.TIMELINE))
