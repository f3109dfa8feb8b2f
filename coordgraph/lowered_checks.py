"""Checks of the structure of lowered graphs: operations of threads, their widths and indices."""

from __future__ import annotations

from collections.abc import Iterator

from sympy import Integer

from coordgraph.control.asynchronous import Advance, Counter, MultiplyShared
from coordgraph.control.lowered import ApplyFragment, MultiplyFragments
from coordgraph.control.operations import Kernel, MultiplyAccumulate, Operation, SetCoordinate
from coordgraph.control.row_reductions import ReduceLanes
from coordgraph.kernel import KernelGraph
from coordgraph.ticket_checks import problems_of_lowered_tickets

__all__ = ["problems_of_lowered"]

EXTENTS = ("width", "widths", "count", "box")
"""Fields of lowered operations that are numbers of elements or of registers, so at least 1."""
DISTANCES = (1, 2, 4, 8, 16)
"""The distances between lanes that `ReduceLanes` may merge."""
MEMORIES = ("source", "destination")
"""Fields of lowered operations that name the dimension of memory that the operation reads or
writes, `width` elements at once."""


def problems_of_lowered(graph: KernelGraph) -> Iterator[str]:
    """Error messages about a graph of level `lowered`; none if the graph is correct.

    Operations must be those of threads, not of whole tiles. Every number of elements must be at
    least 1 and fit into the memory that is accessed. A constant index must be inside its
    dimension. `ApplyFragment` must take each index of its epilogue along the dimension that
    `Gemm.index_of` names. Every `Advance` must be in the body of a `Counter`, whose index it
    increases. `ReduceLanes` must merge lanes of one warp. A dynamic loop must compute its next
    index once.
    """
    if not isinstance(graph.control.root, Kernel) or not graph.control.root.workgroup:
        yield "no schedule has tied this graph to workgroups; apply a schedule before lowering"
    if graph.control.of_kind(MultiplyAccumulate):
        yield "a MultiplyAccumulate on whole tiles is left; lowering must replace it"
    if not graph.control.of_kind(MultiplyFragments) and not graph.control.of_kind(MultiplyShared):
        yield (
            "the kernel has no matrix instruction: neither MultiplyFragments nor MultiplyShared; "
            "lower it for a target"
        )
    for position, op in enumerate(graph.control.operations):
        yield from (f"{op.kind} (operation {position}): {p}" for p in _extents(graph, op))
        if isinstance(op, ApplyFragment):
            yield from (f"{op.kind} (operation {position}): {p}" for p in _indices(graph, op))
    for op in graph.control.of_kind(ReduceLanes):
        if wrong := [d for d in op.distances if d not in DISTANCES]:
            yield (
                f"ReduceLanes: a distance is {wrong[0]}, but shuffles reach the lanes of a warp at "
                f"distances of {', '.join(map(str, DISTANCES))}; give only these"
            )
    yield from _counters(graph.control.root.body, ())
    yield from problems_of_lowered_tickets(graph)


def _extents(graph: KernelGraph, op: Operation) -> Iterator[str]:
    """Messages about an operation with a wrong number of elements, or an index out of bounds."""
    for name in EXTENTS:
        value = getattr(op, name, 1)
        numbers = (
            n for n in (value if isinstance(value, tuple) else (value,)) if isinstance(n, int)
        )
        if any(number < 1 for number in numbers):
            yield f"{name} is {value}; give a number of at least 1"
    width = getattr(op, "width", None) or getattr(op, "count", 0)
    if not isinstance(width, int) or getattr(op, "form", "") == "broadcast":
        # A broadcast loads one element. If the number of elements is an expression, its value is
        # unknown here, so only the first element is checked.
        width = 1
    for memory in (getattr(op, role, None) for role in MEMORIES):
        elements = _size(graph, memory) if isinstance(memory, str) else None
        if elements is not None and width > elements:
            yield (
                f"it accesses {width} elements of '{memory}', which has only {elements}; use a "
                "smaller width"
            )
    if isinstance(op, SetCoordinate) and isinstance(op.value, Integer):
        size = _size(graph, op.dim)
        if op.value < 0 or (size is not None and op.value >= size):
            inside = "0 or more" if size is None else f"in 0..{size - 1}"
            yield f"the index {op.value} lies outside '{op.dim}'; give an index {inside}"


def _indices(graph: KernelGraph, op: ApplyFragment) -> Iterator[str]:
    """A message if an operation does not take its epilogue's indices along the right dimensions."""
    wanted = {o.name: graph.gemm.index_of(o.axes) for o in op.function.indices}
    wanted = {name: dim for name, dim in wanted.items() if dim}
    if (op.indices, op.along) != (tuple(wanted), tuple(wanted.values())):
        yield (
            f"it has indices=({', '.join(op.indices)}) along=({', '.join(op.along)}), but the "
            f"indices of the epilogue {op.function.name} are ({', '.join(wanted)}) along "
            f"({', '.join(wanted.values())}); set indices and along to these"
        )


def _size(graph: KernelGraph, dim: str) -> int | None:
    """The size of a dimension; None if it depends on launch arguments, or `dim` is unknown."""
    size = graph.coordinates.size(dim) if dim in graph.coordinates else None
    return int(size) if isinstance(size, Integer) else None


def _counters(ops: tuple[Operation, ...], counters: tuple[str, ...]) -> Iterator[str]:
    """An error message for each `Advance` that is in no `Counter` of the same dimension.

    Args:
        ops: the operations to check, with the operations in their bodies.
        counters: the dimensions of the `Counter` operations that enclose `ops`.
    """
    for op in ops:
        if isinstance(op, Advance) and op.dim not in counters:
            known = f": {', '.join(dict.fromkeys(counters))}" if counters else " around it"
            yield (
                f"Advance: '{op.dim}' is not the index of a Counter here; name the dimension of an "
                f"enclosing Counter{known}"
            )
        inside = (*counters, op.dim) if isinstance(op, Counter) else counters
        for body in op.BODIES:
            yield from _counters(getattr(op, body), inside)
