"""The report's section on addresses: how each index follows from other indices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sympy import Integer

from coordgraph import CoordGraphError, KernelGraph
from coordgraph.control.operations import LoadTile, StoreTile
from coordgraph.control.resolve import Node, resolve
from coordgraph.coordinates.dimensions import Dimension, Selector, Workgroup, Workitem
from coordgraph.derivation.record import Derivation
from coordgraph.integers import to_text

__all__ = ["addresses"]

EXAMPLE = 5
"""The index along a dimension that examples in reports use: 5 for the workgroup, at most 5 for all
other dimensions."""

Values = Mapping[str, Any]


def addresses(graph: KernelGraph, launch: Values) -> list[dict[str, Any]]:
    """Data of the report's section on addresses: how each index in use is derived.

    Args:
        graph: a scheduled or lowered graph.
        launch: the launch arguments and the entries of tables, by name, from which examples are
            computed.

    Returns:
        A dict for each index, in the order in which operations use them: the dimension (`name`),
        the `operation`, the `derivation` as plain data, and, if the derivation or its example
        failed, the error message as `note`.
    """
    if graph.level == "scheduled":
        wanted = [*_tensors(graph)]
    else:
        wanted = list(_indices(graph))
    found = list[dict[str, Any]]()
    for operation, name, at in wanted:
        if name not in graph.coordinates:
            continue
        entry: dict[str, Any] = {"name": name, "operation": operation}
        symbols = {p.name: None for p in graph.parameters.given} if at else {}
        try:
            derived = graph.explain(name, {**symbols, **at})
        except CoordGraphError as error:
            found.append({**entry, "note": str(error)})
            continue
        free = [key for key, value in derived.given.items() if not isinstance(value, Integer)]
        try:
            derived = _example(graph, name, free, at, launch)
        except CoordGraphError as error:
            entry["note"] = f"no example for this launch: {error}"
        entry["derivation"] = derived.as_data()
        found.append(entry)
    return found


def _tensors(graph: KernelGraph) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield (operation number, tensor, known indices) for each tensor of a scheduled graph.

    If the graph has tiles of several shapes, a path leads from a tensor to the tiles of each shape.
    So the tensor occurs once for each shape: with the operation that loads or stores such a tile,
    and with the indices that are known there, which select the path. Else no indices are known, and
    the operation is ''.
    """
    seen = set[tuple[str, str]]()
    if len(graph.tilings) > 1:
        for number, node in _numbered(graph):
            if not isinstance(node.op, LoadTile | StoreTile):
                continue
            tensor, tiling = node.op.tensor, graph.tilings.of_operation(node.op)
            if (tensor, tiling.accumulator) not in seen:
                seen.add((tensor, tiling.accumulator))
                inside = (tiling.index(tensor, axis) for axis in (0, 1))
                yield f"{node.op.kind} #{number}", tensor, {**_known(node), **dict.fromkeys(inside)}
    done = {tensor for tensor, _ in seen}
    yield from (("", tensor.name, {}) for tensor in graph.tensors if tensor.name not in done)


def _numbered(graph: KernelGraph) -> Iterator[tuple[int, Node]]:
    """Yield the number of each operation and the operation, in preorder.

    Operation 0, which is not yielded, is the kernel itself.
    """
    nodes = resolve(graph.control.root.body, graph.scope())
    return enumerate((n for root in nodes for n in root.walk()), start=1)


def _indices(graph: KernelGraph) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield (operation number, dimension, known indices) for each distinct index in use."""
    seen = set[tuple[str, str, str]]()
    for number, node in _numbered(graph):
        for name, index, _ in node.index_expressions():
            key = (node.op.kind, name, to_text(index))
            if key not in seen:
                seen.add(key)
                yield f"{node.op.kind} #{number}", name, _known(node)


def _known(node: Node) -> dict[str, Any]:
    """Each index that is known at an operation, as a number; None if it is not constant there."""
    known = node.scope.known.items()
    return {name: int(v) if isinstance(v, Integer) else None for name, v in known}


def _example(
    graph: KernelGraph, name: str, free: Iterable[str], at: Values, launch: Values
) -> Derivation:
    """Derive an index as a number, from small values of the indices that it depends on.

    Args:
        graph: the graph.
        name: the dimension of the index to derive.
        free: the dimensions whose index the example may choose.
        at: the indices that are known where the index is used, by dimension.
        launch: the launch arguments and the entries of tables, by name.

    Raises:
        CoordGraphError: no choice of small indices is inside all dimensions.
    """
    launched = {key: value for key, value in launch.items() if _is_given(graph, key)}
    fixed = {key: value for key, value in at.items() if value is not None}
    chosen = {key: _small(graph.coordinates[key]) for key in free}
    try:
        return graph.explain(name, {**launched, **chosen, **fixed})
    except CoordGraphError:
        return graph.explain(name, {**launched, **dict.fromkeys(chosen, 0), **fixed})


def _small(dimension: Dimension) -> int:
    """Choose a small index along a dimension, for an example.

    The index is `EXAMPLE`, or the dimension's largest index if that is less. But the index is 0 for
    warps and other hardware coordinates except workgroups and threads, for a coordinate that
    selects one part of a dimension (`Selector`), and for a dimension whose size depends on the
    launch; it is 1 for a dimension without a size.
    """
    if isinstance(dimension, Workgroup):
        return EXAMPLE
    if isinstance(dimension, Selector) or (
        dimension.hardware and not isinstance(dimension, Workitem)
    ):
        return 0  # the thread number in an example is small, so the thread's warp has the number 0
    if dimension.size is None:
        return 1
    return min(EXAMPLE, int(dimension.size) - 1) if dimension.size.is_Integer else 0


def _is_given(graph: KernelGraph, name: str) -> bool:
    tables = {table.name for table in graph.parameters.tables if not table.derived}
    return name in {p.name for p in graph.parameters.given} | tables
