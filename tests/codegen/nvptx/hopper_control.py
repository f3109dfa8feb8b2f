"""Simulated control flow and barriers of one warpgroup of a lowered Hopper kernel.

Only 32 of a warpgroup's 128 threads are simulated; they act for the whole warpgroup. A generator
executes the operations in order and yields the conditions that the warpgroup waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sympy import Symbol

from coordgraph.control import asynchronous as ops
from coordgraph.control import lowered as elements
from coordgraph.control import tickets
from coordgraph.control.operations import Assign, For, If, Inside, Locate, SetCoordinate
from coordgraph.control.resolve import Node
from coordgraph.control.tickets import DynamicFor, following
from coordgraph.integers import index_symbol
from tests.codegen.nvptx.hopper_filling import WARPGROUP, compiled, fill
from tests.codegen.nvptx.hopper_maps import WHOLE_WARPS, Map
from tests.codegen.nvptx.hopper_memory import Barrier, Warpgroup, Workgroup
from tests.codegen.nvptx.hopper_slots import Slots

if TYPE_CHECKING:
    from tests.codegen.nvptx.hopper_machine import Hopper

__all__ = ["BATCH", "ORDER", "PLAYED", "Agent", "ControlFlow", "Ready"]

WARPS = 4
PLAYED = 32
"""Number of threads of a warpgroup that are simulated; they act for the whole warpgroup."""
ORDER = "barrier.order"
EACH = (ops.CopyBox, ops.Advance, ops.StoreBox, tickets.PassTicket)
"""Operations for which every iteration of an unrolled loop is simulated, not only the first."""
BATCH = "partial.batch"
Ready = Callable[[], bool]
Agent = Iterator[Ready]


class ControlFlow:
    """Executes the control graph of a kernel in order, for one warpgroup.

    This class simulates loops, branches and barriers. For an operation of the kind NAME that copies
    or computes, it calls the method `do_NAME`, which a subclass defines.
    """

    def __init__(
        self, machine: Hopper, number: int, rank: int, warpgroup: int, warp: int = 0
    ) -> None:
        self.machine, self.number, self.rank, self.warpgroup = machine, number, rank, warpgroup
        self.first = WARPGROUP * warpgroup + PLAYED * warp
        self.env: dict[Symbol, int] = {
            **machine.parameters,
            index_symbol(machine.graph.workgroup.id): number,
            index_symbol("cluster.rank"): rank,
            index_symbol("workitem"): self.first,
            index_symbol("warp.number"): WARPS * warpgroup + warp,
        }
        self.state = Warpgroup()
        if not warp:
            self.own.warpgroups[warpgroup] = self.state
        self.written: dict[int, Map] = {}
        self.slots = Slots()
        self.tickets: dict[str, int] = {}

    @property
    def own(self) -> Workgroup:
        return self.machine.memory[self.number][self.rank]

    def value(self, expr: Any) -> int:
        function, symbols = compiled(expr)
        return int(function(*map(self.env.get, symbols))[0])

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
            case For():
                yield from self._for(node, node.op)
            case DynamicFor():
                yield from self._dynamic(node, node.op)
            case If() | Inside():
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

    def _for(self, node: Node, op: For) -> Agent:
        loop = node.loop
        assert loop is not None
        index, stop = self.value(loop.start), self.value(loop.stop)
        each = op.dim.startswith(BATCH) or any(isinstance(n.op, EACH) for n in node.walk())
        while index < stop:
            with self.binding(loop.symbol, index):
                yield from self.run(node.body)
                index += self.value(loop.step)
            if op.unroll and not each:
                # the first iteration of an unrolled loop stands for all of its iterations
                return

    def _dynamic(self, node: Node, op: DynamicFor) -> Agent:
        assert node.loop is not None
        symbol = following(op.dim)
        index, stop = self.value(node.loop.start), self.value(node.loop.stop)
        while index < stop:
            with self.binding(node.loop.symbol, index):
                self.env.pop(symbol, None)
                yield from self.run(node.body)
                index = self.env[symbol]

    # The following methods simulate tickets: values of a counter that select a loop's next index.

    def do_FetchTicket(self, node: Node, op: tickets.FetchTicket) -> Agent:
        assert op.ticket not in self.tickets, "the last ticket was not passed on"
        count = self.value(node.scope.resolve(op.count))
        self.tickets[op.ticket] = self.machine.ticket
        self.machine.ticket = tickets.next_value(self.machine.ticket, count)
        yield lambda: True

    def do_PassTicket(self, node: Node, op: tickets.PassTicket) -> None:
        rank = self.rank if op.rank is None else self.value(node.scope.resolve(op.rank))
        ticket, turn = self.tickets[op.ticket], self.env[index_symbol("ticket.step")]
        words = self.machine.memory[self.number][rank].words
        words[self.place(node, op.destination)] = ticket, turn
        if rank == self.machine.ranks - 1:
            del self.tickets[op.ticket]

    def do_ReadTicket(self, node: Node, op: tickets.ReadTicket) -> None:
        ticket, turn = self.own.words[self.place(node, op.source)]
        assert turn == self.place(node, op.turn), "a shared-memory word has another tile's ticket"
        first = self.value(node.scope.resolve(op.first))
        self.env[following(op.dim)] = first + ticket

    def _if(self, node: Node) -> Agent:
        condition, workitem = node.condition, index_symbol("workitem")
        assert condition is not None
        if any(isinstance(inner.op, elements.FillElements) for inner in (*node.body, *node.orelse)):
            fill(self, node)
            return
        if workitem not in condition.free_symbols:
            yield from self.run(node.body if self.value(condition) else node.orelse)
            return
        assert not node.orelse
        for thread in range(PLAYED):
            with self.binding(workitem, self.first + thread):
                if self.value(condition):
                    yield from self.run(node.body)

    # The following methods simulate operations on mbarriers and named barriers.

    def _barrier(self, node: Node, name: str, rank: int | None = None) -> Barrier:
        memory = self.machine.memory[self.number][self.rank if rank is None else rank]
        return memory.barriers[name, self.place(node, name)]

    def do_InitBarrier(self, node: Node, op: ops.InitBarrier) -> None:
        self.own.begin_barrier(op.barrier, self.place(node, op.barrier), op.arrivals)

    def do_WaitBarrier(self, node: Node, op: ops.WaitBarrier) -> Agent:
        barrier, parity = self._barrier(node, op.barrier), self.place(node, op.phase)
        wanted = parity ^ 1 if op.before else parity
        yield lambda: barrier.ended(wanted)

    def do_ExpectBytes(self, node: Node, op: ops.ExpectBytes) -> Agent:
        self.own.count("producer", self.step)
        for symbol in op.bytes.free_symbols:
            if not self.env[symbol]:  # type: ignore[index]
                tensor = str(symbol).removesuffix(".boxes.inside")[-1]
                self.own.outside.add((f"{tensor}.shared", self.step))
        self._barrier(node, op.barrier).change(
            arrive=1, bytes=self.value(node.scope.resolve(op.bytes))
        )
        yield lambda: True

    def do_ArriveBarrier(self, node: Node, op: ops.ArriveBarrier) -> Agent:
        self.state.give_back()
        rank = None if op.rank is None else self.value(node.scope.resolve(op.rank))
        if self.written:
            assert self.machine.matrices
            self.machine.matrices.publish(self.written)
            self.written = {}
        # Only a warpgroup's first warp is simulated. At the barrier ORDER, and at `ticket.empty` in
        # consumers, one lane of each warp arrives.
        consumes = self.warpgroup < self.machine.warpgroups - 1
        of_each_warp = op.barrier == ORDER or (op.barrier == "ticket.empty" and consumes)
        arrive = PLAYED if op.barrier in WHOLE_WARPS else WARPS if of_each_warp else 1
        self._barrier(node, op.barrier, rank).change(arrive=arrive)
        if op.barrier == ORDER:
            self.own.leave(self.warpgroup)
        yield lambda: True

    def do_Barrier(self, node: Node, op: elements.Barrier) -> Agent:
        if op.workitems:
            named, number = self.own.named, self.value(node.scope.resolve(op.identifier))
            # a barrier of the producer, which is less than a warpgroup, needs one arrival
            everybody = max(1, op.workitems // WARPGROUP)
            named[number] += 1
            round = -(-named[number] // everybody)
            met = self.own.met.setdefault(number, set())
            met |= self.state.taken
            self.state.filled.meet(self.own.contents)
            yield lambda: named[number] >= round * everybody
            self.state.acquired |= met

    @property
    def step(self) -> int:
        """The number of the pipeline step that the warpgroup has reached."""
        return self.env[index_symbol("ring.step")]
