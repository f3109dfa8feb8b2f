"""`Memory`: the global memory of an interpreted launch, which is checked when the launch ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from coordgraph.control.tickets import next_value, not_reset
from coordgraph.coordinates.dimensions import SubDimension, User
from coordgraph.coordinates.edges import Diagonal, Gather, Ragged
from coordgraph.errors import EvaluationError, OutOfBounds
from coordgraph.integers import evaluate
from coordgraph.interpreter.allocation import allocate
from coordgraph.interpreter.arguments import Array
from coordgraph.interpreter.faults import Fault
from coordgraph.interpreter.formulas import Elements, Environment
from coordgraph.interpreter.layout import elements as elements_of
from coordgraph.interpreter.layout import strides_of
from coordgraph.kernel import KernelGraph
from coordgraph.tensors import Role

__all__ = ["Memory"]


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

    def take_ticket(self, counter: tuple[str, int], count: int) -> int:
        """Increment a counter, or set it to 0 after the last ticket; return its old value.

        Args:
            counter: the counter, as (tensor, offset).
            count: the number of tickets after which the counter starts again at 0.
        """
        ticket = self.value(counter)
        self.flat[counter[0]][counter[1]] = next_value(ticket, count)
        return ticket

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
            elif t.role is Role.COUNTERS:
                for at in map(int, np.flatnonzero(self.flat[t.name])):
                    message = not_reset(t.name, at, self.value((t.name, at)))
                    yield Fault("fix-up", message)
            elif t.role is Role.SUMS and self.flat[t.name].any():
                first = int(np.flatnonzero(self.flat[t.name])[0])
                message = (
                    f"{t.name}[{first}] is not zero at the end; receive every slot to which "
                    "partial sums are added, by a CollectPartial"
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
        """The first index of the tensor at which `wrong` is True, as text such as `(0, 3)`.

        If `wrong` is True only in gaps between rows or matrices, the text is the first offset.
        """
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
        """Mask of the indices along `dim` that belong to a product.

        If groups divide the dimension, an index belongs to a product if it is inside a group. If a
        table scatters rows along the dimension, an index belongs to a product if the table maps a
        row of a product to it.
        """
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
