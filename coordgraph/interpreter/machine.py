"""The interpreter's model of a GPU: global memory, and one workgroup's operations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from coordgraph.control.operations import (
    AccumulatePartial,
    AddPartial,
    AwaitPartial,
    CollectPartial,
    Epilogue,
    InitAccumulator,
    LoadTile,
    MultiplyAccumulate,
    ReceivePartial,
    SendPartial,
    StoreTile,
)
from coordgraph.control.tickets import TakeTicket
from coordgraph.coordinates.dimensions import User
from coordgraph.epilogue.operand import ACCUMULATOR
from coordgraph.epilogue.reduction import reduced
from coordgraph.epilogue.stages import stages_of
from coordgraph.errors import EvaluationError
from coordgraph.gemm import read_of, tensor_of
from coordgraph.interpreter.arguments import Array, numpy_dtype
from coordgraph.interpreter.events import ANY, Event, Point
from coordgraph.interpreter.formulas import Environment
from coordgraph.interpreter.memory import Memory
from coordgraph.interpreter.multiplication import matrix_product
from coordgraph.interpreter.program import Program
from coordgraph.interpreter.steps import Loop, Work
from coordgraph.tensors import Role

__all__ = ["Machine"]


@dataclass
class Machine:
    """Executes the operations of one workgroup with numpy.

    Args:
        program: the compiled graph.
        memory: the global memory that all workgroups share.
        workgroup: the number of the workgroup.
        scalars: the values of the epilogue's scalar operands, by operand name.
        tiles: by tensor name, the tile of that tensor that was loaded last.
        accumulators: the values of the accumulators, by accumulator name.
    """

    program: Program
    memory: Memory
    workgroup: int
    scalars: Mapping[str, float]
    tiles: dict[str, Array] = field(default_factory=dict[str, Array])
    accumulators: dict[str, Array] = field(default_factory=dict[str, Array])

    def __post_init__(self) -> None:
        self.type = numpy_dtype(self.program.graph.gemm.accumulator)

    def accumulate(self, loop: Loop, env: Environment, start: int, stop: int) -> bool:
        """Return False, so that every iteration of `loop` is executed: each one adds a product."""
        return False

    def iterate(self) -> None:
        """Do nothing before an iteration of a loop: the number of iterations is not limited."""

    def work(self, work: Work, env: Environment) -> Iterator[Event]:
        """Execute one operation; yields an event wherever another workgroup may run first."""
        match op := work.node.op:
            case InitAccumulator():
                yield Event(Point.SEGMENT)
                self.accumulators[op.accumulator] = np.zeros((), self.type)
            case LoadTile():
                self.tiles[op.tensor] = self._read(work, op.tensor, env)
            case MultiplyAccumulate():
                product = matrix_product(self.tiles[op.a], self.tiles[op.b])
                self.accumulators[op.accumulator] = self._accumulator(op.accumulator) + product
            case AddPartial():
                self._add_partial(work, op.accumulator, env)
            case Epilogue():
                self.accumulators[op.accumulator] = self._finished(work, op, env)
            case StoreTile():
                elements = work.elements(self.memory.user(op.tensor))
                self.memory.write(op.tensor, elements, env, self._accumulator(op.accumulator))
            case _:
                yield from self._exchange(work, env)

    def _finished(self, work: Work, op: Epilogue, env: Environment) -> Array:
        """Store the epilogue's outputs besides D for one accumulator, and return D's values.

        Optional operands that the kernel does not read count as 0.
        """
        gemm = self.program.graph.gemm
        out = gemm.out_dtype or gemm.dtype
        zero = np.zeros((), self.type)
        sums, total = gemm.epilogue.sums, self._accumulator(op.accumulator)
        # `total` has one axis more if the epilogue has several sums: the first, which numbers the
        # sums. An accumulator to which nothing was added is a single zero, for all sums.
        each = [total] if len(sums) == 1 else total if total.ndim else [total] * len(sums)
        values: dict[str, Any] = {**dict(zip(sums, each, strict=True)), **self.scalars}
        values |= {gemm.operands[tensor].name: zero for tensor in op.operands}
        values |= {o.name: self._index(work, op, o.axes, env) for o in op.function.indices}
        for stage in stages_of(op.function, gemm.accumulator, out):
            if stage.optional and not self._given(tensor_of(stage.optional)):
                continue
            for operand in stage.function.tensors:
                if self._given(tensor_of(operand.name)):
                    values[operand.name] = self._operand(work, tensor_of(operand.name), env)
            found, more = stage.function.evaluate_all(values, gemm.accumulator, out)
            for tensor, value in more.items():
                elements = work.elements(self.memory.user(tensor))
                if reduce := gemm.outputs[tensor].reduce:
                    of_d = work.elements(self.program.graph.coordinates[op.output])
                    mask = np.broadcast_to(of_d(env)[1], of_d.extents)
                    value = reduced(reduce, np.broadcast_to(value, of_d.extents), mask)
                self.memory.write(tensor, elements, env, value)
            values[ACCUMULATOR] = found
        return values[ACCUMULATOR]

    def _index(self, work: Work, op: Epilogue, axis: str, env: Environment) -> Array:
        """The index along `axis` (l, m or n) of each element of D's tile; see `Gemm.index_of`."""
        graph = self.program.graph
        if not (dim := graph.gemm.index_of(axis)):
            return np.zeros((), np.int32)
        found, _ = work.indices(dim, graph.coordinates[op.output])(env)
        return found.astype(np.int32)

    def _given(self, tensor: str) -> bool:
        """True if the kernel reads the epilogue operand whose tensor is `tensor`.

        A kernel reads every operand whose launch parameter `read_NAME` is not 0 or does not exist.
        """
        return bool(self.memory.values.get(read_of(tensor), 1))

    def _operand(self, work: Work, tensor: str, env: Environment) -> Array:
        """The values of an epilogue operand for the operation's output tile.

        Their shape broadcasts against the accumulator.
        """
        axes = self.program.graph.gemm.axes[tensor]
        user = self.memory.user(tensor)
        if not axes and not self.program.graph.coordinates.edges_below(user):
            return self.memory.flat[tensor][0]
        tile = self.memory.read(tensor, work.elements(user), env)
        return tile.reshape(-1, 1) if axes == "m" else tile

    def _exchange(self, work: Work, env: Environment) -> Iterator[Event]:
        """Execute a send or receive: an operation on the workspace and its flags.

        Yields an event before each access, because other workgroups can observe the access.
        """
        match op := work.node.op:
            case SendPartial():
                yield from self._send(work, op, env)
            case ReceivePartial():
                yield from self._receive(work, op, env)
            case AwaitPartial():
                yield from self._await(work, env)
            case AccumulatePartial():
                yield from self._accumulate_partial(work, op, env)
            case CollectPartial():
                yield from self._collect(work, op, env)
            case TakeTicket():
                user = work.workspace(Role.COUNTERS)
                (offset,) = work.offset(user)(env)
                counter = self.memory.flag(user.tensor, offset)
                yield Event(Point.TICKET, flag=counter)
                first, count = work.ticket(env)
                env[work.following] = first + self.memory.take_ticket(counter, count)
            case _:
                raise EvaluationError(
                    f"the interpreter cannot execute the operation {op.kind}; interpret the graph "
                    "before it is lowered for a target"
                )

    def _send(self, work: Work, op: SendPartial, env: Environment) -> Iterator[Event]:
        user, slot, flag = self._slot(work, env)
        (raised,) = work.raised(env)
        yield Event(Point.SEND, slot, flag, raised)
        if self.memory.value(flag):
            raise EvaluationError(
                f"workgroup {self.workgroup} overwrites workspace slot {slot} before the partial "
                f"sum that workgroup {self.memory.raised_by[flag]} sent there was received; give "
                "the two workgroups different slots"
            )
        value = self._accumulator(op.accumulator)
        self.memory.write(user.tensor, work.elements(user), env, value)
        yield Event(Point.RAISE, slot, flag, raised)
        if self.memory.value(flag):
            raise EvaluationError(
                f"workgroup {self.workgroup} sets the flag of workspace slot {slot}, which another "
                "workgroup has set already; give the two workgroups different slots"
            )
        self.memory.flat[flag[0]][flag[1]] = raised
        self.memory.raised_by[flag] = self.workgroup

    def _receive(self, work: Work, op: ReceivePartial, env: Environment) -> Iterator[Event]:
        user, slot, flag = self._slot(work, env)
        (raised,) = work.raised(env)
        yield Event(Point.WAIT, slot, flag, raised)
        if self.memory.value(flag) != raised:
            raise EvaluationError(
                f"workgroup {self.workgroup} waited for workspace slot {slot}, but another "
                "workgroup received it first; send once for every receive"
            )
        self._add(work, user, op.accumulator, env)
        yield Event(Point.CLEAR, slot, flag, raised)
        self.memory.flat[flag[0]][flag[1]] = 0
        yield Event(Point.CLEARED, slot, flag, raised)

    def _await(self, work: Work, env: Environment) -> Iterator[Event]:
        _, slot, flag = self._slot(work, env)
        yield Event(Point.WAIT, slot, flag, ANY)
        yield Event(Point.CLEAR, slot, flag, ANY)
        if not self.memory.value(flag):
            raise EvaluationError(
                f"workgroup {self.workgroup} reads workspace slot {slot}, which as many workgroups "
                "have already read as its sender declared; increase SendPartial.readers"
            )
        self.memory.flat[flag[0]][flag[1]] -= 1
        yield Event(Point.CLEARED, slot, flag, ANY)

    def _add_partial(self, work: Work, accumulator: str, env: Environment) -> None:
        self._add(work, work.workspace(Role.PARTIALS), accumulator, env)

    def _accumulate_partial(
        self, work: Work, op: AccumulatePartial, env: Environment
    ) -> Iterator[Event]:
        user, slot, flag = self._slot(work, env, Role.SUMS)
        yield Event(Point.SEND, slot, flag)
        value = self._accumulator(op.accumulator)
        self.memory.add(user.tensor, work.elements(user), env, value)
        yield Event(Point.RAISE, slot, flag)
        self.memory.flat[flag[0]][flag[1]] += 1
        self.memory.raised_by[flag] = self.workgroup

    def _collect(self, work: Work, op: CollectPartial, env: Environment) -> Iterator[Event]:
        user, slot, flag = self._slot(work, env, Role.SUMS)
        _, senders = work.senders(env)
        for point in (Point.WAIT, Point.CLEAR):
            yield Event(point, slot, flag, senders)
            if (added := self.memory.value(flag)) != senders:
                raise EvaluationError(
                    f"workgroup {self.workgroup} waited until {senders} workgroups had added to "
                    f"workspace slot {slot}, but {added} have; correct CollectPartial.senders"
                )
            if point is Point.WAIT:
                self._add(work, user, op.accumulator, env)
        self.memory.clear(user.tensor, work.elements(user), env)
        self.memory.flat[flag[0]][flag[1]] = 0
        yield Event(Point.CLEARED, slot, flag, senders)

    def _add(self, work: Work, user: User, accumulator: str, env: Environment) -> None:
        partial = self.memory.read(user.tensor, work.elements(user), env)
        self.accumulators[accumulator] = self._accumulator(accumulator) + partial

    def _slot(
        self, work: Work, env: Environment, role: Role = Role.PARTIALS
    ) -> tuple[User, int, tuple[str, int]]:
        """The workspace of an operation that sends or receives.

        Returns:
            The tensor with role `role` that holds the slot, the number of the slot, and the slot's
            flag as (name of the tensor of flags, index in that tensor).
        """
        flags = work.workspace(Role.FLAGS)
        (slot,), (offset,) = work.slot(env), work.offset(flags)(env)
        return work.workspace(role), slot, self.memory.flag(flags.tensor, offset)

    def _read(self, work: Work, tensor: str, env: Environment) -> Array:
        elements = work.elements(self.memory.user(tensor))
        return self.memory.read(tensor, elements, env).astype(self.type)

    def _accumulator(self, name: str) -> Array:
        if name not in self.accumulators:
            raise EvaluationError(
                f"the accumulator '{name}' is used before it is zeroed; put an InitAccumulator "
                "operation before its first use"
            )
        return self.accumulators[name]
