"""A machine that plays lowered Hopper kernels, warpgroup by warpgroup, in any order.

It knows mbarriers, the copy engine, wgmma's groups, named barriers and flags, and of the data who
has added up which k tiles. Each warp role of each workgroup is an agent; a random one goes on at
every step. A warpgroup is played by its first workitems.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from typing import Any

from sympy import Symbol

from coordgraph import KernelGraph
from coordgraph.control import asynchronous as ops
from coordgraph.control import lowered as elements
from coordgraph.control.operations import Assign, For, If, Locate, Operation, SetCoordinate
from coordgraph.control.resolve import Node, resolve
from coordgraph.coordinates.dimensions import Shared, Workitem
from coordgraph.gemm import OFFSETS
from coordgraph.integers import evaluate, index_symbol
from tests.codegen.nvptx.hopper_slots import Slots

__all__ = ["Deadlock", "Hopper"]

WARPGROUP, WARPS = 128, 4
PLAYED = 32
"""Workitems of a warpgroup that are played: those that do something for all."""
CLUSTER = ("cluster.m", "cluster.n", "cluster.k")
ORDER = "barrier.order"
EACH = (ops.CopyBox, ops.Advance, ops.StoreBox)
"""What loops that are written out do once for every part."""
BATCH, SHARE = "partial.batch", index_symbol("fixup.share")
Ready = Callable[[], bool]
Agent = Iterator[Ready]
Place = tuple[int, int]
"""Where a box begins in A or B: along the first axis and the second."""
Stage = tuple[str, int]
"""The shared memory of an operand, and a stage of it."""
Step = tuple[Place, Place]
"""What a multiplication reads of A and of B."""


class Deadlock(AssertionError):
    """Agents are left, and all of them wait."""


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
class Workgroup:
    """The shared memory of one workgroup of a cluster."""

    barriers: dict[tuple[str, int], Barrier] = field(default_factory=dict[Any, Barrier])
    boxes: dict[Stage, dict[int, Box]] = field(default_factory=dict[Any, Any])
    """By their place in the stage."""
    named: Counter[int] = field(default_factory=Counter[int])
    met: dict[int, set[int]] = field(default_factory=dict[int, set[int]])
    """Flags that those had taken who came to a named barrier."""
    multiplying: set[int] = field(default_factory=set[int])
    """Warpgroups in their main loops."""
    reading: dict[int, deque[set[Stage]]] = field(default_factory=dict[int, Any])
    """What each warpgroup's groups of multiplications may still read."""
    steps: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    """Of each role the steps of the ring that it filled or multiplied."""


class Hopper:
    """Plays a lowered graph for one problem.

    Args:
        graph: lowered by `LowerToHopper`.
        sizes: m, n, k and, where the graph has them, workgroups.
        resident: clusters that are there at a time; others begin in order, as there is room.
        seed: of the order in which agents go on.
        offsets: where groups of rows begin, and where the last one ends, if there are any.
    """

    def __init__(
        self,
        graph: KernelGraph,
        sizes: Mapping[str, int],
        *,
        resident: int,
        seed: int,
        offsets: Sequence[int] | None = None,
    ) -> None:
        self.graph, self.chance, self.resident = graph, random.Random(seed), resident
        given = {p.name for p in graph.parameters.given}
        known = {**sizes, "read_c": 0}
        tables = {} if offsets is None else {OFFSETS: offsets}
        values = graph.parameters.launch({k: v for k, v in known.items() if k in given}, tables)
        named = (*graph.parameters.items, *graph.parameters.tables)
        self.parameters: dict[Symbol, Any] = {p.symbol: values[p.name] for p in named}
        self.offsets = offsets
        size = graph.coordinates[graph.workgroup.id].size
        assert size is not None
        self.grid = int(evaluate(size, self.parameters))
        self.nodes = _resolved(graph)
        (workitem,) = graph.coordinates.of_kind(Workitem)
        self.warpgroups = workitem.fixed_size // WARPGROUP
        self.cluster = tuple(
            graph.coordinates[d].fixed_size if d in graph.coordinates else 1 for d in CLUSTER
        )
        self.ranks = self.cluster[0] * self.cluster[1] * self.cluster[2]
        self.turns = ORDER in graph.coordinates
        self.team = 1 if self.turns else self.warpgroups - 1
        """Warpgroups that multiply one tile."""
        self.flags: Counter[int] = Counter()
        self.partials: dict[int, list[Step]] = {}
        self.stored: dict[Place, list[Step]] = {}
        self.accumulators: dict[Place, str] = {}
        """Whose sums were stored there."""
        self.finished: Counter[tuple[int, int, int]] = Counter()
        """Shares of a tile that each workgroup, rank and warpgroup has finished."""
        self.boxes: dict[Place, str] = {}
        """Of D, and who stored them: the copy engine, or workitems by rows."""
        self.epilogues: list[tuple[int, int, int]] = []
        """Workgroup, rank and warpgroup of everything stored."""
        self.memory: dict[int, list[Workgroup]] = {}

    def run(self) -> None:
        """Play all workgroups to their ends."""
        waiting = deque(range(self.grid))
        agents: dict[int, list[tuple[Agent, Ready]]] = {}
        while waiting or agents:
            while waiting and len(agents) < self.resident:
                number = waiting.popleft()
                agents[number] = [(agent, lambda: True) for agent in self._begin(number)]
            able = [(n, i) for n, all in agents.items() for i, (_, go) in enumerate(all) if go()]
            if not able:
                raise Deadlock(f"workgroups {sorted(agents)} wait for ever")
            number, i = self.chance.choice(able)
            agent, _ = agents[number][i]
            try:
                agents[number][i] = (agent, next(agent))
            except StopIteration:
                del agents[number][i]
                if not agents[number]:
                    del agents[number]

    def _begin(self, number: int) -> list[Agent]:
        self.memory[number] = [Workgroup() for _ in range(self.ranks)]
        made: list[Agent] = []
        first, *rest = self.nodes
        for rank in range(self.ranks):
            for _ in Role(self, number, rank, 0).run((first,)):
                raise AssertionError("nothing to wait for before the barriers are there")
            made += [Role(self, number, rank, w).run(tuple(rest)) for w in range(self.warpgroups)]
        return made

    def sharing(self, rank: int, along: tuple[str, ...]) -> list[int]:
        """The ranks that differ from one only along these coordinates."""
        _, n, k = self.cluster
        here = (rank // (n * k), rank // k % n, rank % k)
        places = product(*(range(count) for count in self.cluster))
        return [
            (p[0] * n + p[1]) * k + p[2]
            for p in places
            if all(a == b or d in along for a, b, d in zip(p, here, CLUSTER, strict=True))
        ]


@cache
def _resolved(graph: KernelGraph) -> tuple[Node, ...]:
    return resolve(graph.control.root.body, graph.scope())


class Role:
    """One warpgroup's walk of the control graph."""

    def __init__(self, machine: Hopper, number: int, rank: int, warpgroup: int) -> None:
        self.machine, self.number, self.rank, self.warpgroup = machine, number, rank, warpgroup
        self.env: dict[Symbol, int] = {
            **machine.parameters,
            index_symbol(machine.graph.workgroup.id): number,
            index_symbol("cluster.rank"): rank,
            index_symbol("workitem"): WARPGROUP * warpgroup,
            index_symbol("warp.number"): WARPS * warpgroup,
        }
        self.sum: list[Step] = []
        self.issued: set[Stage] = set()
        self.unfenced = False
        """Plain loads have read what the copy engine may overwrite."""
        self.taken: set[int] = set()
        """Flags that single workitems have acquired."""
        self.acquired: set[int] = set()
        """Flags that all workitems have."""
        self.read: set[tuple[int, int]] = set()
        self.slots = Slots()
        self.own.reading[warpgroup] = deque()

    @property
    def own(self) -> Workgroup:
        return self.machine.memory[self.number][self.rank]

    def value(self, expr: Any) -> int:
        return int(evaluate(expr, self.env))

    def place(self, node: Node, dim: str) -> int:
        return self.value(node.place(dim).values[0])

    @contextmanager
    def binding(self, symbol: Symbol, value: int) -> Generator[None, None, None]:
        before = self.env.get(symbol)
        self.env[symbol] = value
        yield
        if before is not None:
            self.env[symbol] = before

    def run(self, nodes: tuple[Node, ...]) -> Agent:
        for node in nodes:
            yield from self._run(node)

    def _run(self, node: Node) -> Agent:
        symbol = self.machine.graph.coordinates.symbol
        match node.op:
            case For(unroll=True, dim=dim) if not (
                dim.startswith(BATCH) or any(isinstance(n.op, EACH) for n in node.walk())
            ):
                assert node.loop is not None  # the first of a product's parts stands for all
                with self.binding(node.loop.symbol, self.value(node.loop.start)):
                    yield from self.run(node.body)
            case For():
                assert node.loop is not None
                index, stop = self.value(node.loop.start), self.value(node.loop.stop)
                while index < stop:
                    with self.binding(node.loop.symbol, index):
                        yield from self.run(node.body)
                        index += self.value(node.loop.step)
            case If():
                yield from self._if(node)
            case Assign() as op:
                self.env[op.symbol] = self.value(node.value)
            case SetCoordinate(dim=dim) if node.value is not None:
                with self.binding(symbol(dim), self.value(node.value)):
                    yield from self.run(node.body)
            case ops.Counter(dim=dim):
                with self.binding(symbol(dim), 0):
                    yield from self.run(node.body)
            case ops.Advance(dim=dim, by=by):
                self.env[symbol(dim)] += self.value(node.scope.resolve(by))
            case _:
                handler = getattr(self, f"do_{node.op.kind}", None)
                if handler is not None:
                    yield from handler(node, node.op) or ()
                elif node.body:
                    yield from self.run(node.body)

    def do_Locate(self, node: Node, op: Locate) -> Agent:
        for dim, value in zip(op.dims, node.values, strict=True):
            self.env[self.machine.graph.coordinates.symbol(dim)] = self.value(value)
        yield from self.run(node.body)

    def _if(self, node: Node) -> Agent:
        condition, workitem = node.condition, index_symbol("workitem")
        assert condition is not None
        if workitem not in condition.free_symbols:
            yield from self.run(node.body if self.value(condition) else node.orelse)
            return
        assert not node.orelse
        for thread in range(PLAYED):
            with self.binding(workitem, WARPGROUP * self.warpgroup + thread):
                if self.value(condition):
                    yield from self.run(node.body)

    # Barriers

    def _barrier(self, node: Node, name: str, rank: int | None = None) -> Barrier:
        memory = self.machine.memory[self.number][self.rank if rank is None else rank]
        return memory.barriers[name, self.place(node, name)]

    def do_InitBarrier(self, node: Node, op: ops.InitBarrier) -> None:
        key = op.barrier, self.place(node, op.barrier)
        assert key not in self.own.barriers
        self.own.barriers[key] = Barrier(op.arrivals)

    def do_WaitBarrier(self, node: Node, op: ops.WaitBarrier) -> Agent:
        barrier, parity = self._barrier(node, op.barrier), self.place(node, op.phase)
        wanted = parity ^ 1 if op.before else parity
        yield lambda: barrier.ended(wanted)

    def do_ExpectBytes(self, node: Node, op: ops.ExpectBytes) -> Agent:
        self._counted("producer")
        self._barrier(node, op.barrier).change(arrive=1, bytes=op.bytes)
        yield lambda: True

    def do_ArriveBarrier(self, node: Node, op: ops.ArriveBarrier) -> Agent:
        assert not self.unfenced, "given back before the copy engine must see that it was read"
        rank = None if op.rank is None else self.value(node.scope.resolve(op.rank))
        self._barrier(node, op.barrier, rank).change(arrive=1)
        if op.barrier == ORDER:
            self.own.multiplying.discard(self.warpgroup)
        yield lambda: True

    def do_Barrier(self, node: Node, op: elements.Barrier) -> Agent:
        if op.workitems:
            named, number = self.own.named, self.value(node.scope.resolve(op.identifier))
            everybody = max(1, op.workitems // WARPGROUP)  # one warp of the producer
            named[number] += 1
            round = -(-named[number] // everybody)
            met = self.own.met.setdefault(number, set())
            met |= self.taken
            yield lambda: named[number] >= round * everybody
            self.acquired |= met

    def _counted(self, role: str) -> None:
        self.own.steps.setdefault(role, []).append(self.env[index_symbol("ring.step")])

    # Copies and multiplications

    def do_CopyBox(self, node: Node, op: ops.CopyBox) -> Agent:
        first, second = (self.place(node, f"{op.tensor}.{axis}") for axis in (0, 1))
        stage, offset = self._stage(node, op.destination)
        for rank in self.machine.sharing(self.rank, op.receivers):
            memory = self.machine.memory[self.number][rank]
            boxes, step = memory.boxes.setdefault(stage, {}), self.env[index_symbol("ring.step")]
            # A stage is filled with boxes of one step; those of the last may be fewer and smaller.
            old = [box for box in boxes.values() if box.step != step]
            team = self.machine.team
            assert all(len(box.used) == team for box in old), "overwritten before it was multiplied"
            if old:
                boxes.clear()
            assert offset not in boxes, "a box is copied twice"
            reading = (group for groups in memory.reading.values() for group in groups)
            assert not any(stage in group for group in reading), "overwritten while it is read"
            boxes[offset] = Box((first, second), step)
            barrier = memory.barriers[op.barrier, self.place(node, op.barrier)]
            barrier.change(bytes=-2 * op.box[0] * op.box[1])
        yield lambda: True

    def do_CopyRun(self, node: Node, op: ops.CopyRun) -> Agent:
        stage = self._home(node, op.destination)
        old = self.own.boxes.get(stage, {})
        team = self.machine.team
        assert all(len(box.used) == team for box in old.values()), "overwritten before it was used"
        reading = (group for groups in self.own.reading.values() for group in groups)
        assert not any(stage in group for group in reading), "overwritten while it is read"
        first = self.value(node.scope.resolve(index_symbol("fixup.step"))) == 0
        self.own.boxes[stage] = {
            0: Run((self.place(node, op.source), int(first)), self.env[index_symbol("ring.step")])
        }
        self._barrier(node, op.barrier).change(bytes=-4 * op.count)
        yield lambda: True

    def _home(self, node: Node, dim: str) -> Stage:
        """The stage that a run of partials lies in."""
        shared = self.machine.graph.coordinates[dim]
        assert isinstance(shared, Shared)
        return shared.within, self.place(node, "stage")

    def _stage(self, node: Node, dim: str) -> tuple[Stage, int]:
        """The stage of a place in shared memory, and the place in the stage."""
        coordinates = self.machine.graph.coordinates
        shared = coordinates[dim]
        assert isinstance(shared, Shared)
        home = shared.within or dim
        whole, stages = (coordinates[d].fixed_size for d in (home, "stage"))
        number, offset = divmod(self.place(node, dim), whole // stages)
        return (home, number), offset

    def do_FenceShared(self, node: Node, op: ops.FenceShared) -> None:
        self.unfenced = False

    def do_MultiplyShared(self, node: Node, op: ops.MultiplyShared) -> None:
        if self.value(node.scope.resolve_condition(op.fresh)):
            self.sum = []
            self.own.multiplying.add(self.warpgroup)
            alone = len(self.own.multiplying) == 1
            assert alone or not self.machine.turns, "main loops side by side"
        self._counted(f"consumer {self.warpgroup}")
        first: dict[str, Place] = {}
        for dim in (op.a, op.b):
            stage, _ = self._stage(node, dim)
            self.issued.add(stage)
            assert stage in self.own.boxes, "multiplied before it is there"
            boxes = self.own.boxes[stage]
            first[stage[0][0]] = boxes[0].place
            for box in boxes.values():
                assert box.step == self.env[index_symbol("ring.step")], "another step's box"
                assert self.warpgroup not in box.used, "a step is multiplied twice"
                box.used.add(self.warpgroup)
                assert len(box.used) <= self.machine.team, "a step is multiplied by two"
        self.sum.append((first["A"], first["B"]))

    def do_CommitMultiplies(self, node: Node, op: Operation) -> None:
        self.own.reading[self.warpgroup].append(self.issued)
        self.issued = set()

    def do_WaitMultiplies(self, node: Node, op: ops.WaitMultiplies) -> None:
        groups = self.own.reading[self.warpgroup]
        while len(groups) > op.pending:
            groups.popleft()

    # Partials and D

    def do_WaitFlag(self, node: Node, op: elements.WaitFlag) -> Agent:
        flags, flag = self.machine.flags, self.place(node, op.flag)
        raised = self._raised(node, op.turn)
        yield lambda: flags[flag] == raised

    def do_ClearFlag(self, node: Node, op: elements.ClearFlag) -> None:
        self.machine.flags[self.place(node, op.flag)] = 0

    def do_SignalFlag(self, node: Node, op: elements.SignalFlag) -> Agent:
        flag = self.place(node, op.flag)
        assert not self.machine.flags[flag], "a flag is raised that is up"
        readers = self.value(node.scope.resolve(op.readers))
        self.machine.flags[flag] = self._raised(node, op.turn) if op.turn else readers
        yield lambda: True

    def do_TakeFlag(self, node: Node, op: elements.TakeFlag) -> Agent:
        flags, flag = self.machine.flags, self.place(node, op.flag)
        yield lambda: flags[flag] > 0
        flags[flag] -= 1
        self.taken.add(flag)
        yield lambda: True

    def _raised(self, node: Node, turn: str) -> int:
        """What a flag is when it is up."""
        return 1 + (self.place(node, turn) if turn else 0)

    def do_AccumulateFragment(self, node: Node, op: elements.AccumulateFragment) -> None:
        if op.source == "partials":
            self._add_share(node)
        if op.source != "fixup.shared":
            return
        self.unfenced = True
        self._counted(f"consumer {self.warpgroup}")
        (run,) = self.own.boxes[self._home(node, op.source)].values()
        assert isinstance(run, Run), "added before it is there"
        assert self.warpgroup not in run.used, "a run is added twice"
        run.used.add(self.warpgroup)
        first, begins = run.place
        if begins:  # stands for the rest
            own = 0 if self.machine.turns else self.warpgroup
            self.sum = [*self.sum, *self.machine.partials.pop(first + 4 * WARPGROUP * own)]

    def _add_share(self, node: Node) -> None:
        """Add what one access brings of a piece; the first access of it stands for all."""
        flag, share = self.place(node, "flags"), self.env[SHARE]
        assert flag in self.acquired, "a piece is read before it may be"
        with self.binding(SHARE, 0):
            first = self.place(node, "partials")
        assert (first, share) not in self.read, "a piece of a share is added twice"
        self.read.add((first, share))
        assert first in self.machine.partials, "a piece is read before it is there"
        self.sum = [*self.sum, *self.machine.partials[first]]

    def do_ZeroFragment(self, node: Node, op: elements.ZeroFragment) -> None:
        self.sum = []

    def do_StoreFragment(self, node: Node, op: elements.StoreFragment) -> None:
        if op.destination == "partials":
            place = self.place(node, "partials")
            assert place not in self.machine.partials, "a slot is written before it was added"
            self.machine.partials[place] = self.sum
        elif op.destination == "D":
            self._store(node, op.fragment)
        elif op.destination.endswith("D.shared"):
            self.slots.fill(self.place(node, op.destination))

    def do_WaitStores(self, node: Node, op: ops.WaitStores) -> None:
        self.slots.wait(op.pending)

    def do_CommitStores(self, node: Node, op: ops.CommitStores) -> None:
        self.slots.commit()

    def do_StoreBox(self, node: Node, op: ops.StoreBox) -> None:
        self.slots.take(self.place(node, op.source), later=True)
        row, end = self.place(node, "D.0"), self._end()
        assert end is None or row + op.box[1] <= end, "the copy engine writes to the next group"
        self._box(node, op.source, "engine")

    def do_CopyElements(self, node: Node, op: elements.CopyElements) -> None:
        self.slots.take(self.place(node, op.source), later=False)
        row, end = self.place(node, "D.0"), self._end()
        rows = self.machine.graph.coordinates["store.copy.row"].fixed_size
        assert end is not None
        assert row + rows > end, "the copy engine could have stored this"
        if row < end:
            self._box(node, op.source, "rows")

    def _end(self) -> int | None:
        """Where the group of the tile at hand ends, if there are groups."""
        offsets = self.machine.offsets
        return None if offsets is None else offsets[self.env[index_symbol("group")] + 1]

    def _box(self, node: Node, source: str, who: str) -> None:
        """A box of D; the first one of a tile stands for all where sums are looked at."""
        place, tile = (self.place(node, "D.0"), self.place(node, "D.1")), source[: -len("D.shared")]
        assert place not in self.machine.boxes, "a box is stored twice"
        self.machine.boxes[place] = who
        if all(self.env[index_symbol(f"{tile}store.{dim}")] == 0 for dim in ("m", "box")):
            self._store(node, tile.removesuffix(".") or "acc")

    def _store(self, node: Node, accumulator: str) -> None:
        place = self.place(node, "D.0"), self.place(node, "D.1")
        assert not self.own.reading[self.warpgroup], "a product is stored before it is there"
        assert place not in self.machine.stored, "a tile is stored twice"
        self.machine.stored[place] = self.sum
        self.machine.accumulators[place] = accumulator
        here = self.number, self.rank, self.warpgroup
        self.machine.epilogues.append(here)
        self.machine.finished[here] += SHARE.name in node.scope.known
