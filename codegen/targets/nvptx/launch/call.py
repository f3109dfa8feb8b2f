"""`CheckedCall`: a checked call of a kernel, which can be launched again on other addresses."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Protocol

from codegen.emit.arguments import KERNEL_NAME
from codegen.lru import LRUCache
from codegen.targets.nvptx.driver import Device, bindings, check
from codegen.targets.nvptx.facts import Facts
from codegen.targets.nvptx.launch.device_workspaces import Workspaces
from codegen.targets.nvptx.launch.loaded_function import Function
from codegen.targets.nvptx.launch.packing import ArgumentTable
from codegen.targets.nvptx.launch.tensormaps import TensorMaps
from coordgraph import LaunchError
from coordgraph.gemm import OFFSETS, OFFSETS_OF, ROWS, TARGETS, row_step
from coordgraph.integers import evaluate
from coordgraph.tensors import Role, Tensor, dtype

__all__ = ["CheckedCall", "Depthless", "Idle", "Launches", "Loaded", "Pointers", "other_operands"]

ARGUMENTS = ("A", "B", "C", "D", OFFSETS)
"""The tensors whose pointers come first, in this order, in a call's list of pointers."""
NUMBER = len(ARGUMENTS)
"""Number of tensors in `ARGUMENTS`."""
Pointers = tuple[int, ...]
"""Device addresses of a call's tensors: A, B, C, D and the group offsets, then the tensors that the
call passes by keyword (`other_operands`)."""
MOST_OWNERS = 64
"""Size of an LRU cache: the largest number of streams and CUDA graph captures for which the
addresses of a kernel's workspace buffers are kept. A repeated call then need not look them up."""


def other_operands(tensors: Iterable[Tensor]) -> tuple[str, ...]:
    """Names of the tensors that a call passes by keyword, in the order of a call's pointers.

    The result names the epilogue's operands other than C, the epilogue's outputs besides D, and the
    tables `rows` and `targets`, which hold numbers of the rows of A to read and of D to write.
    """
    roles = (Role.OPTIONAL_INPUT, Role.OPERAND, Role.OUTPUT)
    return tuple(
        t.name
        for t in tensors
        if t.name in (ROWS, TARGETS) or (t.role in roles and t.name not in ARGUMENTS)
    )


class Loaded:
    """A program that is loaded on a GPU: its function, and the `Facts` that its launches need.

    Args:
        facts: the properties of the program that launches need.
        code: the program's PTX.
        where: the GPU, whose context must be the calling thread's current one.
    """

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
        """The values of all parameters of a launch.

        Args:
            given: the values of parameters that follow from the call's arguments, by name.
            workgroups: how many workgroups to launch; None for as many as can be resident at once.

        Raises:
            LaunchError: a value is out of bounds, or the launch would deadlock, because it has more
                workgroups that wait for each other than can be resident at once.
        """
        parameters, function = self.facts.parameters, self.function
        if any(p.name == "workgroups" for p in parameters.given):
            count = function.resident if workgroups is None else workgroups
            given = {**given, "workgroups": count}
        elif workgroups is not None:
            raise LaunchError(
                f"workgroups = {workgroups}, but the schedule was made for a fixed number; leave "
                "workgroups out, or apply the schedule with workgroups=None"
            )
        values = parameters.evaluate(given)
        grid = self.facts.workgroups(values)
        if function.together and grid > function.resident:
            raise LaunchError(
                f"{grid} workgroups wait for each other, but {function.device.name} holds "
                f"only {function.resident} at a time; use at most that many workgroups, or larger "
                "tiles if every tile has a workgroup of its own, or owner='last' and a reduction "
                "other than scatter"
            )
        return values


class CheckedCall:
    """Launches a kernel on tensors of given shapes, types and alignment.

    Several threads may launch the same object at the same time: each launch takes a free
    `ArgumentTable` (memory for the kernel's arguments), and returns it afterwards.

    Args:
        loaded: the program, loaded on the GPU.
        values: the value of every parameter of the kernel, by name.
        workspaces: the kernel's buffers on the GPU for partial sums and flags.
    """

    def __init__(self, loaded: Loaded, values: Mapping[str, int], workspaces: Workspaces) -> None:
        facts = loaded.facts
        self.function = loaded.function
        self.workspaces = workspaces
        self._context = loaded.function.device.context
        self._find_context = bindings().cuCtxGetCurrent
        self._tables: list[ArgumentTable] = []
        self._integers = facts.integers(values)
        self._grid = facts.workgroups(values)
        self._kinds = [kind for _, kind in facts.floats]
        others = other_operands(facts.tensors)
        order = [*ARGUMENTS, *others]
        self._places: list[tuple[int, int, int]] = []
        """For each tensor argument: (its index among the kernel's arguments, the index of its
        pointer in the list of the call's pointers, an offset in bytes to be added to the pointer).
        """
        self._work: list[tuple[int, str, int, bool]] = []
        """For each workspace buffer: (its index among the kernel's arguments, its name, its size in
        bytes, whether it must be zeroed)."""
        self._buffers = LRUCache[Hashable, list[tuple[int, int]]](MOST_OWNERS)
        self._maps: list[tuple[int, int, TensorMaps]] = []
        self.bytes = [0] * len(order)
        """The size in bytes of each tensor of a call, in the order of the call's pointers."""
        self.shapes: dict[str, tuple[int, ...]] = {}
        """The shapes of D and of other outputs, in elements, by tensor."""
        self.records: tuple[int, ...] = ()
        """The shape of the timeline records that a launch writes; () for kernels without a
        timeline."""
        for place, tensor in enumerate(facts.tensors):
            size = dtype(tensor.dtype).bytes * int(evaluate(tensor.elements, values))
            if tensor.role is Role.TIMELINE:
                self.records = facts.shape(tensor, values)
            if tensor.role.workspace:
                self._work.append((place, tensor.name, size, tensor.role.zeroed))
                continue
            source, shift = order.index(OFFSETS), 0
            if tensor.name in order:
                source = order.index(tensor.name)
            else:  # for a list of products, `tensor` is one row of the array `offsets`
                shift = [*OFFSETS_OF.values()].index(tensor.name)
            self._places.append((place, source, shift * size))
            self.bytes[source] += size
            if tensor.role is Role.OUTPUT:
                self.shapes[tensor.name] = facts.shape(tensor, values)
        self._written = [order.index(name) for name in self.shapes if name not in ARGUMENTS]
        """The indices of outputs other than D in the list of the call's pointers."""
        every = ((name, box) for name, boxes in facts.boxes.items() for box in boxes)
        for number, (name, box) in enumerate(every):
            (tensor,) = (t for t in facts.tensors if t.name == name)
            shape, strides = facts.shape(tensor, values), facts.strides(tensor, values)
            if len(shape) < len(box):
                # This tensor map is a template: for each matrix of a list of products, the kernel
                # writes a copy with another address and other extents.
                shape, strides = (1, row_step(tensor.dtype)), None
            maps = TensorMaps(shape, tensor.dtype, box, strides)
            self._maps.append((number, order.index(name), maps))
        self._tensors = len(facts.tensors)
        self._others, self._sizes = len(order) > NUMBER, tuple(self.bytes[:NUMBER])
        known = {t.name: t for t in facts.tensors if t.name in ("C", "D")}
        layouts = {facts.strides(tensor, values) for tensor in known.values()}
        self._size_as_d = self._sizes[2] if len(layouts) == 1 else -1
        """The size of C in bytes if C has the strides of D, so may be the same array; else -1."""

    def overlaps(self, pointers: Pointers) -> bool:
        """Whether the address ranges of an output and another tensor overlap.

        The result is False if the only overlap is that C is the same array as D.
        """
        for place in self._written:
            begin, end = pointers[place], pointers[place] + self.bytes[place]
            ranges = zip(pointers, self.bytes, strict=True)
            if any(
                at and at < end and begin < at + size and other != place
                for other, (at, size) in enumerate(ranges)
            ):
                return True
        if self._others:
            end = pointers[3] + self.bytes[3]
            others = zip(pointers[NUMBER:], self.bytes[NUMBER:], strict=True)
            if any(at and at < end and pointers[3] < at + size for at, size in others):
                return True
        a, b, c, d, offsets = pointers[:NUMBER]
        of_a, of_b, of_c, of_d, of_offsets = self._sizes
        end = d + of_d
        return (
            (offsets < end and d < offsets + of_offsets)
            or (a < end and d < a + of_a)
            or (b < end and d < b + of_b)
            or (c != 0 and (c, self._size_as_d) != (d, of_d) and c < end and d < c + of_c)
        )

    def launch(self, pointers: Pointers, scalars: Sequence[float], stream: int) -> None:
        """Launch the kernel on tensors at the addresses `pointers`.

        Args:
            pointers: device addresses of A, B, C, D and the group offsets, then of the tensors that
                the call passes by keyword (`other_operands`); 0 for a tensor that is left out.
            scalars: the scalar operands of the epilogue, in the order of the epilogue's parameters.
            stream: the driver's handle of the stream.
        """
        try:
            table = self._tables.pop()
        except IndexError:
            table = self._table()
        status, context = self._find_context()
        if status:
            check("cuCtxGetCurrent", status)
        if context == self._context:
            self._launch(table, pointers, scalars, stream)
        else:
            with self.function.device.current():
                self._launch(table, pointers, scalars, stream)
        self._tables.append(table)

    def _table(self) -> ArgumentTable:
        """A new argument table, for a launch while other launches use all existing tables."""
        return ArgumentTable(
            self._tensors,
            len(self._maps),
            self._kinds,
            self._integers,
            self.function.config(self._grid),
        )

    def _launch(
        self,
        table: ArgumentTable,
        pointers: Pointers,
        scalars: Sequence[float],
        stream: int,
    ) -> None:
        """Fill an argument table and launch; the kernel's device must be current."""
        places = table.pointers
        # In repeated launches the table usually holds the addresses of `pointers` already.
        if pointers != table.filled:
            for place, source, shift in self._places:
                places[place] = pointers[source] + shift
            for number, source, maps in self._maps:
                table.set_map(number, maps.get(pointers[source]))
            table.filled = pointers
        if self._work:
            owner = self.workspaces.owner(stream)
            for place, pointer in self._buffers.get(owner) or self._workspace(owner):
                places[place] = pointer
        for slot, value in zip(table.scalars, scalars):  # noqa: B905 - strict takes host time
            slot.value = value
        table.set_stream(stream)
        self.function(table.config, table.address)

    def _workspace(self, owner: Hashable) -> list[tuple[int, int]]:
        """(argument index, address) of each workspace buffer of `owner`, a stream or CUDA graph."""
        addresses = self.workspaces.addresses(
            owner, [(name, size, zeroed) for _, name, size, zeroed in self._work], self._buffers
        )
        found = [(place, at) for (place, *_), at in zip(self._work, addresses, strict=True)]
        return self._buffers.put(owner, found)

    def workspace(self, stream: int, name: str) -> int:
        """The device address of the workspace buffer `name` that launches on `stream` use."""
        owner = self.workspaces.owner(stream)
        addresses = dict(self._buffers.get(owner) or self._workspace(owner))
        (place,) = (place for place, own, *_ in self._work if own == name)
        return addresses[place]


class Idle:
    """A checked call that launches nothing, because D has no elements to write.

    Args:
        shapes: the shapes of D and of other outputs, by tensor.
    """

    def __init__(self, shapes: dict[str, tuple[int, ...]]) -> None:
        self.shapes = shapes

    def overlaps(self, pointers: Pointers) -> bool:
        """False, since the call writes no memory."""
        return False

    def launch(self, pointers: Pointers, scalars: Sequence[float], stream: int) -> None:
        """Launch nothing, which leaves D unchanged."""


class Depthless:
    """A checked call with k = 0, which launches a kernel with k > 0 on an A and a B of zeros.

    Args:
        plan: the checked call with k > 0.
        zeros: the address of the zeros.
        alpha_first: whether the first scalar is alpha. If so, alpha is passed as 0, because an
            infinite alpha times the empty sum would be NaN.
    """

    def __init__(self, plan: CheckedCall, zeros: int, alpha_first: bool) -> None:
        self.plan, self.zeros, self.shapes = plan, zeros, plan.shapes
        self.alpha_first = alpha_first

    def overlaps(self, pointers: Pointers) -> bool:
        """Whether the address ranges of an output and another tensor, except A and B, overlap.

        A and B are empty; the zeros that replace A and B overlap no other tensor.
        """
        return self.plan.overlaps((self.zeros, self.zeros, *pointers[2:]))

    def launch(self, pointers: Pointers, scalars: Sequence[float], stream: int) -> None:
        """Launch the kernel, which computes D as the epilogue of sums that are 0."""
        if self.alpha_first:
            scalars = (0, *scalars[1:])
        self.plan.launch((self.zeros, self.zeros, *pointers[2:]), scalars, stream)


class Launches(Protocol):
    """Protocol: an object that launches checked calls: `CheckedCall`, `Idle` or `Depthless`."""

    shapes: dict[str, tuple[int, ...]]

    def overlaps(self, pointers: Pointers) -> bool:
        """Whether the address ranges of an output and another tensor overlap."""
        ...

    def launch(self, pointers: Pointers, scalars: Sequence[float], stream: int) -> None:
        """Launch the kernel on tensors at the addresses `pointers`."""
        ...
