"""Compare two kernel graphs record by record: each tensor, dimension, edge and so on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any, TypeVar

from sympy.core.basic import Basic

from coordgraph.coordinates.edges import Edge
from coordgraph.difference.alignment import Tree, align
from coordgraph.difference.record import Change, Difference, Kind, Place, Row
from coordgraph.difference.renaming import find_renamed, renamed
from coordgraph.epilogue import EpilogueFunction, function_text
from coordgraph.kernel import DIFF, KernelGraph
from coordgraph.text.printer import Expressions, RecordPrinter

__all__ = ["compare"]

R = TypeVar("R")
OP = "operation"


@DIFF.implement
def compare(before: KernelGraph, after: KernelGraph) -> Difference:
    """The added, removed, changed and moved records of `after`, compared with `before`."""
    logs = None if before.log == after.log else (before.log, after.log)
    names = find_renamed(before, after)
    here = renamed(before, names)
    comparison = _Comparison(here, after)
    control = tuple(comparison.control())
    changes = (*comparison.changes(), *(row.change for row in control if row.change is not None))
    old, new = here.coordinates, after.coordinates
    moved = (tuple(old), old.edges) != (tuple(new), new.edges)
    kept = moved and not any(c.part in ("dimension", "edge") for c in changes)
    return Difference(
        changes, control if any(row.change for row in control) else (), names, kept, logs
    )


class _Comparison:
    """Compares two graphs in which corresponding dimensions have the same names."""

    def __init__(self, before: KernelGraph, after: KernelGraph) -> None:
        self.before, self.after = before, after
        self.printer, self.expression = RecordPrinter(), Expressions()

    def changes(self) -> Iterator[Change]:
        """The changes of all records except operations: of parameters, tensors, edges and so on."""
        before, after, write = self.before, self.after, self.printer
        yield from self._problem()
        old, new = before.parameters, after.parameters
        named = self._named
        yield from named("parameter", old.items, new.items, _name, write.parameter)
        yield from named("table", old.tables, new.tables, _name, write.table)
        yield from named("assumption", old.assumptions, new.assumptions, _expr, write.assumption)
        yield from named("tensor", before.tensors, after.tensors, _name, write.tensor)
        yield from named("dimension", before.coordinates, after.coordinates, _id, write.dimension)
        yield from self._edges()

    def _problem(self) -> Iterator[Change]:
        old, new = self.before, self.after
        differing = dict(self._fields(old.gemm, new.gemm))
        if old.level != new.level:
            differing["level"] = (old.level, new.level)
        first, second = ([d.id for d in graph.dangling] for graph in (old, new))
        if first != second and sorted(first) == sorted(second):
            # Schedules number output tiles in the order of the dangling dimensions (tile numbers
            # that no loop or workgroup determines yet), so another order gives another kernel.
            order = ", ".join(first), ", ".join(second)
            differing["order of dangling tile numbers"] = order
        if differing:
            yield Change("problem", Kind.CHANGED, "gemm", "gemm", differing)

    def _named(
        self,
        part: str,
        first: Iterable[R],
        second: Iterable[R],
        key: Callable[[R], Any],
        line: Callable[[R], str],
    ) -> Iterator[Change]:
        """The added, removed and changed records of one kind, such as tensors.

        Records with equal `key` correspond; `line` prints a record.
        """
        old, new = {key(r): r for r in first}, {key(r): r for r in second}
        for name, record in old.items():
            if name not in new:
                yield Change(part, Kind.REMOVED, line(record))
        for name, record in new.items():
            if name not in old:
                yield Change(part, Kind.ADDED, after=line(record))
            elif old[name] != record:
                yield self._changed(part, old[name], record, line)

    def _changed(self, part: str, old: R, new: R, line: Callable[[R], str]) -> Change:
        return Change(part, Kind.CHANGED, line(old), line(new), dict(self._fields(old, new)))

    def _edges(self) -> Iterator[Change]:
        """The added, removed and changed edges; `_same_edge` decides which edge was changed."""
        old, new = Counter(self.before.coordinates.edges), Counter(self.after.coordinates.edges)
        gone = list((old - new).elements())
        come = list((new - old).elements())
        line = self.printer.edge
        for edge in gone:
            match = next((other for other in come if _same_edge(edge, other)), None)
            if match is None:
                yield Change("edge", Kind.REMOVED, line(edge))
            else:
                come.remove(match)
                yield self._changed("edge", edge, match, line)
        for edge in come:
            yield Change("edge", Kind.ADDED, after=line(edge))

    def control(self) -> Iterator[Row]:
        """The operations of both graphs as one tree; empty if both have the same operations."""
        if self.before.control == self.after.control:
            return
        old, new = Tree(self.before.control), Tree(self.after.control)
        found = align(old, new)
        removed = [i for i in range(len(old.operations)) if i not in set(found.values())]
        for j in range(len(new.operations)):
            while j in found and removed and removed[0] < found[j]:
                yield self._removed(old, removed.pop(0))
            yield self._row(old, new, found, j)
        for i in removed:
            yield self._removed(old, i)

    def _removed(self, old: Tree, i: int) -> Row:
        line = self.printer.operation(old.operations[i])
        place = Place(i, None, self._around(old, i))
        change = Change(OP, Kind.REMOVED, line, operation=place)
        return Row(line, old.depths[i], i, change, _branch(old, i))

    def _row(self, old: Tree, new: Tree, found: Mapping[int, int], j: int) -> Row:
        """The line of the merged tree for the operation at position `j` of the second graph.

        `found` maps an operation's position in the second graph to its position in the first.
        """
        op, depth, within = new.operations[j], new.depths[j], self._around(new, j)
        line = self.printer.operation(op)
        branch = _branch(new, j)
        if j not in found:
            place = Place(None, j, "", within)
            return Row(line, depth, j, Change(OP, Kind.ADDED, "", line, operation=place), branch)
        i = found[j]
        was, place = old.operations[i], Place(i, j, self._around(old, i), within)
        differing = dict(self._fields(was, op))
        (up, body), (parent, slot) = old.parents[i], new.parents[j]
        moved = body != slot or (parent >= 0 and found.get(parent) != up)
        if not differing and not moved:
            return Row(line, depth, j, branch=branch)
        kind = Kind.CHANGED if differing else Kind.MOVED
        before = self.printer.operation(was)
        return Row(line, depth, j, Change(OP, kind, before, line, differing, place), branch)

    def _around(self, tree: Tree, number: int) -> str:
        """The text of the operation that encloses operation `number`; '' at the top level.

        The name of the body is appended if it is not the first body of the enclosing operation.
        """
        parent, _ = tree.parents[number]
        if parent < 0:
            return ""
        around, branch = self.printer.operation(tree.operations[parent]), _branch(tree, number)
        return f"{around}, {branch}" if branch else around

    def _fields(self, old: Any, new: Any) -> Iterator[tuple[str, tuple[str, str]]]:
        """(name, (old text, new text)) of each field in which two records differ, except bodies.

        Records of different classes yield only their classes, under the name `kind`.
        """
        if type(old) is not type(new):
            yield "kind", (type(old).__name__, type(new).__name__)
            return
        bodies = getattr(old, "BODIES", ())
        for spec in fields(old):
            first, second = getattr(old, spec.name), getattr(new, spec.name)
            if first != second and spec.name not in bodies:
                yield spec.name, (self._text(first), self._text(second))

    def _text(self, value: Any) -> str:
        if isinstance(value, Basic):
            return self.expression(value)
        if isinstance(value, tuple):
            return f"({', '.join(map(self._text, value))})"
        if isinstance(value, EpilogueFunction):
            return function_text(value)
        return "none" if value is None or value == "" else str(value)


def _branch(tree: Tree, number: int) -> str:
    """The name of the body that contains an operation; '' for the first body of its parent."""
    parent, body = tree.parents[number]
    if parent < 0 or body == tree.operations[parent].BODIES[0]:
        return ""
    return "else" if body == "orelse" else body


def _name(record: Any) -> str:
    return record.name


def _id(record: Any) -> str:
    return record.id


def _expr(record: Any) -> Any:
    return record.expr


def _same_edge(old: Edge, new: Edge) -> bool:
    """Whether `new` counts as a change of `old`, not as another edge.

    Both must have the same class, and the same upstream or the same downstream dimensions.
    """
    if old.kind != new.kind:
        return False
    return old.upstream == new.upstream or old.downstream == new.downstream
