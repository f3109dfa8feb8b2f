"""The interpreter's model of a GPU: global memory, and one workgroup's operations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
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
from coordgraph.coordinates.dimensions import SubDimension, User
from coordgraph.coordinates.edges import Diagonal, Gather, Ragged
from coordgraph.epilogue.operand import ACCUMULATOR
from coordgraph.epilogue.reduction import reduced
from coordgraph.errors import EvaluationError, OutOfBounds
from coordgraph.gemm import read_of, tensor_of
from coordgraph.integers import evaluate
from coordgraph.interpreter.allocation import allocate
from coordgraph.interpreter.arguments import Array, numpy_dtype
from coordgraph.interpreter.events import ANY, Event, Point
from coordgraph.interpreter.faults import Fault
from coordgraph.interpreter.formulas import Elements, Environment
from coordgraph.interpreter.layout import elements as elements_of
from coordgraph.interpreter.layout import strides_of
from coordgraph.interpreter.multiplication import matrix_product
from coordgraph.interpreter.program import Loop, Program, Work
from coordgraph.kernel import KernelGraph
from coordgraph.tensors import Role

__all__ = ["Machine", "Memory"]


class Memory:
    """The global memory of one launch: for each tensor of the graph, a flat array by tensor name.

    Unwritten elements have the values that `allocate` gives them. The constructor raises
    LaunchError if the machine lacks the memory.
    """

    def __init__(
        self, graph: KernelGraph, arrays: dict[str, Array], values: dict[str, Any]
    ) -> None:
        self.graph, self.values = graph, values
        self.shapes = {
            t.name: tuple(int(evaluate(extent, values)) for extent in t.shape)
            for t in graph.tensors
        }
        self.flat, self.written = allocate(graph, arrays, values)
        self.raised_by: dict[tuple[str, int], int] = {}

    def user(self, tensor: str) -> User:
        """The `User` dimension of the tensor named `tensor`: element offsets in that tensor."""
        (user,) = self.graph.coordinates.of_kind(User, tensor=tensor)
        return user

    def read(self, tensor: str, elements: Elements, env: Environment) -> Array:
        """Load a tile of a tensor; elements of the tile that are padding are zero.

        Args:
            tensor: the tensor's name.
            elements: the offsets and mask of the tile's elements.
            env: the values of the workgroup's symbols.

        Returns:
            An array of the tile's shape and the tensor's element type.
        """
        flat = self.flat[tensor]
        offsets, mask = self._place(tensor, elements, env)
        return np.where(mask, flat[np.where(mask, offsets, 0)], np.zeros((), flat.dtype))

    def write(self, tensor: str, elements: Elements, env: Environment, value: Array) -> None:
        """Store `value` as a tile of a tensor, except padding, and count the writes of elements."""
        offsets, mask = self._place(tensor, elements, env)
        places = offsets[mask]
        flat = self.flat[tensor]
        flat[places] = np.broadcast_to(value, elements.extents)[mask].astype(flat.dtype)
        written = self.written[tensor]
        # If no offset occurs twice, `+=` counts correctly; `np.add.at` takes ten times as long.
        if (places[1:] > places[:-1]).all():
            written[places] += 1
        else:
            np.add.at(written, places, 1)

    def add(self, tensor: str, elements: Elements, env: Environment, value: Array) -> None:
        """Add `value` to the elements of a tile in global memory, except to padding."""
        offsets, mask = self._place(tensor, elements, env)
        self.flat[tensor][offsets[mask]] += np.broadcast_to(value, elements.extents)[mask]

    def clear(self, tensor: str, elements: Elements, env: Environment) -> None:
        """Set the elements of a tile in global memory, except padding, to zero."""
        offsets, mask = self._place(tensor, elements, env)
        self.flat[tensor][offsets[mask]] = 0

    def flag(self, tensor: str, offset: int) -> tuple[str, int]:
        """Check that a tensor of flags has a flag at index `offset`; returns (tensor, offset).

        Raises:
            EvaluationError: `offset` is outside the tensor.
        """
        count = len(self.flat[tensor])
        if not 0 <= offset < count:
            raise OutOfBounds(
                f"flag {offset} is outside the {count} flags of {tensor}; give the workspace more "
                "slots"
            )
        return tensor, offset

    def value(self, flag: tuple[str, int]) -> int:
        """The current value of a flag, given as (tensor, offset); 0 means that it is not set."""
        return int(self.flat[flag[0]][flag[1]])

    def finish(self) -> dict[str, tuple[Array, Array]]:
        """Check the memory after a launch; return (output, mask of written elements) by tensor.

        Raises:
            EvaluationError: an output element of a product was not written exactly once, an output
                element outside all products was written, a flag is still set at the end, or the
                workspace of atomic sums is not zero at the end.
        """
        if problems := [fault.message for fault in self.faults()]:
            raise EvaluationError("; ".join(problems))
        outputs = (t.name for t in self.graph.tensors if t.role is Role.OUTPUT)
        return {t: (self._axes(t, self.flat), self._axes(t, self.written) > 0) for t in outputs}

    def _axes(self, tensor: str, memory: Mapping[str, Array]) -> Array:
        """A view of the flat array `memory[tensor]` with the tensor's axes, without gaps."""
        strides = strides_of(self.graph.tensor(tensor), self.values)
        return elements_of(memory[tensor], self.shapes[tensor], strides)

    def faults(self) -> Iterator[Fault]:
        """Errors in the memory after a launch, such as an output element that was never written."""
        for t in self.graph.tensors:
            if t.role is Role.FLAGS:
                for at in map(int, np.flatnonzero(self.flat[t.name])):
                    workgroup = self.raised_by[t.name, at]
                    message = (
                        f"flag {t.name}[{at}] is still set at the end: workgroup {workgroup} set "
                        "it, and no workgroup received its slot"
                    )
                    yield Fault("fix-up", message, (workgroup,))
            elif t.role is Role.SUMS and self.flat[t.name].any():
                first = int(np.flatnonzero(self.flat[t.name])[0])
                message = (
                    f"{t.name}[{first}] is not zero at the end; collect every slot that is added to"
                )
                yield Fault("fix-up", message)
            elif t.role is Role.OUTPUT:
                counts = self.written[t.name]
                # Gaps between rows and matrices belong to no product.
                wanted = np.zeros(len(counts), np.bool_)
                self._axes(t.name, {t.name: wanted})[...] = self._wanted(t.name)
                for wrong, what in (
                    (wanted & (counts == 0), "never"),
                    (counts > 1, "more than once"),
                    (~wanted & (counts == 1), "though they belong to no product"),
                ):
                    if wrong.any():
                        message = (
                            f"{int(wrong.sum())} elements of {t.name} are written {what}, "
                            f"the first at {self._where(t.name, wrong)}"
                        )
                        yield Fault("cover", message)

    def _where(self, tensor: str, wrong: Array) -> str:
        """Text: index of the first element where `wrong` is True, or its offset if in a gap."""
        inside = self._axes(tensor, {tensor: wrong})
        if not inside.any():
            return f"offset {int(wrong.argmax())}"
        first = np.unravel_index(int(inside.argmax()), inside.shape)
        return f"({', '.join(str(int(i)) for i in first)})"

    def _wanted(self, tensor: str) -> Array:
        """Mask of the output elements that a kernel must write: those that belong to a product.

        Rows or columns before the first group or after the last group belong to no product.
        """
        shape, coordinates = self.shapes[tensor], self.graph.coordinates
        for edge in coordinates.edges_below(self.user(tensor)):
            if isinstance(edge, Diagonal):
                return self._blocks(edge, shape)
        wanted = np.ones(shape, np.bool_)
        for dim in coordinates.of_kind(SubDimension, tensor=tensor):
            axis = dim.axis
            if axis is not None and axis < len(shape):
                inside = self._wanted_along(dim.id, shape[axis])
                wanted &= inside.reshape([-1 if i == axis else 1 for i in range(len(shape))])
        return wanted

    def _wanted_along(self, dim: str, size: int) -> Array:
        """Mask of the indices along `dim` that are in a group and in its table of rows, if any."""
        wanted = np.ones(size, np.bool_)
        for edge in self.graph.coordinates.edges_below(dim):
            if isinstance(edge, Ragged):
                borders = self.values[edge.table]
                places = np.arange(size)
                wanted &= (borders[0] <= places) & (places < borders[-1])
            elif isinstance(edge, Gather):
                targets = np.array(self.values[edge.table], np.intp)
                named = np.zeros(size, np.bool_)
                named[targets[self._wanted_along(edge.downstream[0], len(targets))]] = True
                wanted &= named
        return wanted

    def _blocks(self, edge: Diagonal, shape: tuple[int, ...]) -> Array:
        """Mask of the elements that belong to a product, if one buffer holds outputs of many sizes.

        Elements outside all products, such as the padding of a product's rows, are False.
        """
        wanted = np.zeros(shape, np.bool_)
        borders = (self.values[table] for table in (edge.table, edge.rows, edge.columns))
        for start, rows, columns in zip(*map(pairwise, borders), strict=True):
            height, width = rows[1] - rows[0], columns[1] - columns[0]
            block = wanted[start[0] : start[1]].reshape(height, -1 if height else 0)
            block[:, :width] = True
        return wanted

    def _place(self, tensor: str, elements: Elements, env: Environment) -> tuple[Array, Array]:
        offsets, mask = elements(env)
        inside = offsets[mask]
        size = len(self.flat[tensor])
        if inside.size and not (0 <= inside.min() and inside.max() < size):
            raise OutOfBounds(
                f"offsets {inside.min()}..{inside.max()} of {tensor} are outside 0..{size - 1}, "
                "and no guard masks them; add an edge such as Tile whose guard excludes them"
            )
        return offsets, mask


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
        """Return False, so that `walk` executes every iteration: each one adds a product."""
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
        # The axis of the part comes first; a sum without products is a single zero.
        each = [total] if len(sums) == 1 else total if total.ndim else [total] * len(sums)
        values: dict[str, Any] = {**dict(zip(sums, each, strict=True)), **self.scalars}
        values |= {gemm.operands[tensor].name: zero for tensor in op.operands}
        for stage in op.function.stages(gemm.accumulator, out):
            if stage.optional and not self._given(tensor_of(stage.optional)):
                continue
            for operand in stage.function.tensors:
                if self._given(tensor_of(operand.name)):
                    values[operand.name] = self._operand(work, tensor_of(operand.name), env)
            found, more = stage.function.evaluate_all(values, gemm.accumulator, out)
            for tensor, value in more.items():
                elements = work.elements(self.memory.user(tensor))
                if reduce := gemm.outputs[tensor].reduce:
                    of_d = work.elements(self.memory.user(op.output))
                    mask = np.broadcast_to(of_d(env)[1], of_d.extents)
                    value = reduced(reduce, np.broadcast_to(value, of_d.extents), mask)
                self.memory.write(tensor, elements, env, value)
            values[ACCUMULATOR] = found
        return values[ACCUMULATOR]

    def _given(self, tensor: str) -> bool:
        """True if the kernel reads the epilogue operand whose tensor is `tensor`.

        It reads every operand whose launch parameter `read_NAME` is not 0 or does not exist.
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

        It yields an event before each access, because other workgroups can observe the access.
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
                f"workgroup {self.workgroup} reads workspace slot {slot} after all the readers "
                "that its sender declared; raise SendPartial.readers"
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
            flag.
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
