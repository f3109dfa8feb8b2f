"""Compute provenance: compare the graphs before and after each pass of a history."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from coordgraph.control.operations import Operation
from coordgraph.coordinates.edges import Edge
from coordgraph.coordinates.graph import CoordinateGraph
from coordgraph.difference.alignment import Tree, align
from coordgraph.integers import symbols_of
from coordgraph.kernel import PROVENANCE, KernelGraph
from coordgraph.parameters import Parameter
from coordgraph.provenance.record import (
    PROBLEM,
    Key,
    Origin,
    Part,
    Provenance,
    Snapshot,
)
from coordgraph.text.printer import RecordPrinter

__all__ = ["trace"]

EDIT = "edit"
"""Value of `Origin.made` for a part of a graph (such as a dimension or an edge) that the user added
by an edit, not by a pass."""


@PROVENANCE.implement
def trace(graph: KernelGraph) -> Provenance:
    """For each part (dimension, edge, …) of a graph: which passes made and changed it."""
    history, now = graph.history, graph.snapshot
    steps = [(step.text, step.before, step.after) for step in history.steps]
    first = steps[0][1] if steps else now
    found = history.origins
    if found is None:
        made = Origin("" if first.log else PROBLEM)
        found = Provenance({key: made for key, _ in first.records()})
    last = first
    for text, before, after in (*steps, (EDIT, now, now)):
        if not last.same(before):
            found = _advanced(found, last, before, EDIT)
        if before is not after:
            found = _advanced(found, before, after, text)
        last = after
    return found


def _advanced(found: Provenance, before: Snapshot, after: Snapshot, step: str) -> Provenance:
    """The origins of a graph's parts after the pass `step`; `found` has the origins before it."""
    old = dict(before.records())
    origins: dict[tuple[Part, Key], Origin] = {}
    for key, record in after.records():
        if key[0] is Part.OPERATION:
            continue
        if key not in old:
            origins[key] = Origin(step, tuple(_sources(key, record, before, after)))
        else:
            origins[key] = found[key] if old[key] == record else found[key].by(step)
    origins.update(_operations(found, before, after, step))
    return Provenance(origins)


def _sources(
    key: tuple[Part, Key], record: Any, before: Snapshot, after: Snapshot
) -> Iterator[str]:
    """Texts of the parts from which a pass made the dimension, edge or parameter `key`."""
    part, name = key
    if part is Part.DIMENSION and isinstance(name, str):
        yield from _older(name, before.coordinates, after.coordinates)
    elif part is Part.EDGE and isinstance(record, Edge):
        kept = set(after.coordinates.edges)
        line = RecordPrinter().edge
        yield from (
            line(edge)
            for edge in before.coordinates.edges
            if edge not in kept and set(edge.upstream) & set(record.upstream)
        )
    elif isinstance(record, Parameter) and record.value is not None:
        yield from sorted(s.name for s in symbols_of(record.value))


def _older(name: str, before: CoordinateGraph, after: CoordinateGraph) -> list[str]:
    """The ids of the nearest dimensions that existed before the pass that added `name`.

    The function first searches upstream, toward the tensors. If no such dimension is upstream, as
    for a new workspace, the function searches downstream, then along edges in both directions.
    """
    return (
        _reached(name, before, after, (True,))
        or _reached(name, before, after, (False,))
        or _reached(name, before, after, (True, False))
    )


def _reached(
    name: str, before: CoordinateGraph, after: CoordinateGraph, upward: tuple[bool, ...]
) -> list[str]:
    """The ids of the dimensions of `before` that are nearest to dimension `name` of `after`.

    Paths follow edges of `after` in the given directions (True: toward the tensors), and end at the
    first dimension that `before` has. With one direction, the result has the ends of all paths;
    with both, only the ends of the paths with the fewest edges.
    """
    found = dict[str, None]()
    seen, layer = {name}, [name]
    while layer and not (found and len(upward) > 1):
        further: list[str] = []
        for here, up in product(layer, upward):
            edges = after.edges_above(here) if up else after.edges_below(here)
            for other in (n for e in edges for n in (e.upstream if up else e.downstream)):
                if other in before:
                    found[other] = None
                elif other not in seen:
                    seen.add(other)
                    further.append(other)
        layer = further
    return [*found]


def _operations(
    found: Provenance, before: Snapshot, after: Snapshot, step: str
) -> Mapping[tuple[Part, Key], Origin]:
    """The origin of each operation of the graph that a pass made."""
    old, new = Tree(before.control), Tree(after.control)
    pairs = align(old, new)
    kept = set(pairs.values())
    origins: dict[tuple[Part, Key], Origin] = {}
    last, pending = -1, list[int]()

    def replaced(end: int) -> tuple[str, ...]:
        """Short texts of the operations that the pass removed between `last` and `end`.

        Both are positions, in preorder, in the graph before the pass. The operation at `last` is
        the one that was most recently matched with an operation of the new graph.
        """
        gone = (_short(old.operations[i]) for i in range(last + 1, end) if i not in kept)
        return tuple(dict.fromkeys(gone))

    for j, op in enumerate(new.operations):
        if j not in pairs:
            pending.append(j)
            continue
        i = pairs[j]
        sources = replaced(i)
        origins.update({(Part.OPERATION, p): Origin(step, sources) for p in pending})
        was, pending, last = found.operation(i), [], i
        changed = old.operations[i].details != op.details
        origins[Part.OPERATION, j] = was.by(step) if changed else was
    sources = replaced(len(old.operations))
    origins.update({(Part.OPERATION, p): Origin(step, sources) for p in pending})
    return dict(sorted(origins.items(), key=_number))


def _short(op: Operation) -> str:
    """A short text of an operation: its class, and the tensor, slot or dimension it uses."""
    about = (getattr(op, name, "") for name in ("tensor", "output", "slot", "dim", "name"))
    return " ".join([op.kind, *[word for word in about if isinstance(word, str) and word][:1]])


def _number(item: tuple[tuple[Part, Key], Origin]) -> int:
    (_, number), _ = item
    assert isinstance(number, int)
    return number
