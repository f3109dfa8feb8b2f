"""A call that was checked once: all that is the same for every launch like it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from codegen.nvptx.driver import Device, check, direct
from codegen.nvptx.emit import KERNEL_NAME
from codegen.nvptx.facts import Facts
from codegen.nvptx.launch import Function
from codegen.nvptx.packing import ArgumentTable
from codegen.nvptx.tensormaps import TensorMaps
from codegen.nvptx.workspace import Workspaces
from codegen.recent import Recent
from coordgraph import LaunchError
from coordgraph.gemm import OFFSETS, OFFSETS_OF, ROW_STEP
from coordgraph.integers import evaluate
from coordgraph.tensors import Role, dtype

__all__ = ["Depthless", "Idle", "Launches", "Loaded", "Plan", "Pointers"]

ARGUMENTS = ("A", "B", "C", "D", OFFSETS)
"""The tensors of a call, in its order."""
Pointers = tuple[int, int, int, int, int]
MOST_OWNERS = 64


def _argument(name: str) -> tuple[int, int]:
    """Where in a call a tensor comes from, and how many of its size lie before it there."""
    if name in ARGUMENTS:
        return ARGUMENTS.index(name), 0
    return ARGUMENTS.index(OFFSETS), [*OFFSETS_OF.values()].index(name)


class Loaded:
    """A program on a device, which must be current: its code and its facts."""

    def __init__(self, facts: Facts, code: bytes, where: Device) -> None:
        self.facts = facts
        self.function = Function(
            where,
            code,
            KERNEL_NAME,
            facts.threads,
            facts.shared_bytes,
            cluster=facts.cluster,
            together=facts.together,
            overlaps=facts.overlaps,
        )

    def parameters(self, given: dict[str, int], workgroups: int | None) -> dict[str, int]:
        """The values of all parameters.

        Raises:
            LaunchError: a value is out of bounds, or the launch could not make progress.
        """
        parameters, function = self.facts.parameters, self.function
        if any(p.name == "workgroups" for p in parameters.given):
            count = function.resident if workgroups is None else workgroups
            given = {**given, "workgroups": count}
        elif workgroups is not None:
            raise LaunchError("this graph fixes its workgroups; schedule it with workgroups=None")
        values = parameters.evaluate(given)
        grid = self.facts.workgroups(values)
        if function.together and grid > function.resident:
            raise LaunchError(
                f"{grid} workgroups wait for each other, but {function.device.name} holds "
                f"only {function.resident} at a time; use at most that many workgroups, "
                "or owner='last' and a reduction other than scatter"
            )
        return values


class Plan:
    """Launches a kernel on tensors of given shapes, types and alignment.

    Threads may launch one plan at the same time: each launch takes an argument table out of those
    that are free, and puts it back.

    Args:
        loaded: the kernel.
        values: of all its parameters.
        workspaces: of the device.
    """

    def __init__(self, loaded: Loaded, values: Mapping[str, int], workspaces: Workspaces) -> None:
        facts = loaded.facts
        self.function = loaded.function
        self.workspaces = workspaces
        self._context = loaded.function.device.context_address
        self._find_context = direct().cuCtxGetCurrent
        self._tables: list[ArgumentTable] = []
        self._integers = facts.integers(values)
        self._grid = facts.workgroups(values)
        self._floats = len(facts.floats)
        self._places: list[tuple[int, int, int]] = []
        """Place among the arguments, place in the call, bytes behind that."""
        self._work: list[tuple[int, str, int, bool]] = []
        """Place among the arguments, name, bytes, zeroed."""
        self._buffers = Recent[Hashable, list[tuple[int, int]]](MOST_OWNERS)
        self._maps: list[tuple[int, int, TensorMaps]] = []
        self.bytes = [0] * len(ARGUMENTS)
        """Of each tensor of a call."""
        self.shape: tuple[int, ...] = ()
        """Of D."""
        for place, tensor in enumerate(facts.tensors):
            size = dtype(tensor.dtype).bytes * int(evaluate(tensor.elements, values))
            if tensor.role.workspace:
                self._work.append((place, tensor.name, size, tensor.role.zeroed))
                continue
            source, shift = _argument(tensor.name)
            self._places.append((place, source, shift * size))
            self.bytes[source] += size
            if tensor.role is Role.OUTPUT:
                self.shape = facts.shape(tensor, values)
        every = ((name, box) for name, boxes in facts.boxes.items() for box in boxes)
        for number, (name, box) in enumerate(every):
            (tensor,) = (t for t in facts.tensors if t.name == name)
            shape, strides = facts.shape(tensor, values), facts.strides(tensor, values)
            if len(shape) < len(box):
                # The kernel says where matrices lie; all else of the map it takes from here.
                shape, strides = (1, ROW_STEP), None
            maps = TensorMaps(shape, tensor.dtype, box, strides)
            self._maps.append((number, ARGUMENTS.index(name), maps))
        self._tensors = len(facts.tensors)

    def overlaps(self, pointers: Pointers) -> bool:
        """True where D and another tensor may share memory, but for C that is D, strides too."""
        a, b, c, d, offsets = pointers
        of_a, of_b, of_c, of_d, of_offsets = self.bytes
        end = d + of_d
        return (
            (offsets < end and d < offsets + of_offsets)
            or (a < end and d < a + of_a)
            or (b < end and d < b + of_b)
            or (c != 0 and (c, of_c) != (d, of_d) and c < end and d < c + of_c)
        )

    def launch(self, pointers: Pointers, alpha: float, beta: float, stream: int) -> None:
        """Launch on tensors at these addresses: A, B, C (or 0), D, and offsets (or 0)."""
        try:
            table = self._tables.pop()
        except IndexError:
            table = self._table()
        if status := self._find_context(table.context_address):
            check("cuCtxGetCurrent", status)
        if table.context.value == self._context:
            self._launch(table, pointers, alpha, beta, stream)
        else:
            with self.function.device.current():
                self._launch(table, pointers, alpha, beta, stream)
        self._tables.append(table)

    def _table(self) -> ArgumentTable:
        return ArgumentTable(
            self._tensors,
            len(self._maps),
            self._floats,
            self._integers,
            self.function.config(self._grid),
        )

    def _launch(
        self,
        table: ArgumentTable,
        pointers: Pointers,
        alpha: float,
        beta: float,
        stream: int,
    ) -> None:
        places = table.pointers
        for place, source, shift in self._places:
            places[place] = pointers[source] + shift
        if self._work:
            owner = self.workspaces.owner(stream, table.capturing, table.capturing_address)
            for place, pointer in self._buffers.get(owner) or self._workspace(owner):
                places[place] = pointer
        for number, source, maps in self._maps:
            table.set_map(number, maps.get(pointers[source]))
        floats = table.floats
        floats[0], floats[1] = alpha, beta
        table.config.stream = stream
        self.function(table.config_address, table.address)

    def _workspace(self, owner: Hashable) -> list[tuple[int, int]]:
        """Place among the arguments and address of each buffer; they stay the owner's for ever."""
        found = [
            (place, self.workspaces.get(owner, name, size, zeroed=zeroed))
            for place, name, size, zeroed in self._work
        ]
        return self._buffers.put(owner, found)


class Idle:
    """No launch: D has no element that would be written. `shape` is D's."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape

    def overlaps(self, pointers: Pointers) -> bool:
        """Nothing is written."""
        return False

    def launch(self, pointers: Pointers, alpha: float, beta: float, stream: int) -> None:
        """Leave D as it is."""


class Depthless:
    """Launches for k = 0: `plan` is for a k from 1 on, and finds A and B of zeros at `zeros`."""

    def __init__(self, plan: Plan, zeros: int) -> None:
        self.plan, self.zeros, self.shape = plan, zeros, plan.shape

    def overlaps(self, pointers: Pointers) -> bool:
        """True where D and another tensor that is not empty may share memory."""
        return self.plan.overlaps((self.zeros, self.zeros, *pointers[2:]))

    def launch(self, pointers: Pointers, alpha: float, beta: float, stream: int) -> None:
        """D = beta·C; alpha would scale a sum of nothing."""
        self.plan.launch((self.zeros, self.zeros, *pointers[2:]), 0.0, beta, stream)


Launches = Plan | Idle | Depthless
"""What a call that was checked once is kept as."""
