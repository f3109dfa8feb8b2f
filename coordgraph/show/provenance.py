"""List the records (dimensions, edges, operations, …) of a graph by the pass that made them.

Each record is listed with the records from which the pass derived it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from coordgraph.coordinates.edges import Edge
from coordgraph.kernel import KernelGraph
from coordgraph.provenance.record import PROBLEM, Key, Origin, Part
from coordgraph.text.printer import RecordPrinter

__all__ = ["provenance"]

Line = tuple[str, str]
"""Type: a line of text, and the name of the style (such as `bold`) in which it is printed."""
STYLES = {"+": "green", "~": "yellow", " ": ""}


def provenance(graph: KernelGraph, only: Collection[str] = ()) -> list[Line]:
    """The dimensions, edges, operations and other records of a graph, grouped by pass, as lines.

    A record that the pass added is marked with +, one that the pass changed with ~. If consecutive
    operations replace the same operations, only the first line names the replaced operations.

    Args:
        graph: the graph.
        only: ids of dimensions; if given, only these dimensions and edges with them are listed.
    """
    for name in only:
        graph.coordinates[name]  # raises an error that suggests similar names if `name` is unknown
    return list(_lines(graph, only))


def _lines(graph: KernelGraph, only: Collection[str]) -> Iterator[Line]:
    found = graph.provenance
    records = dict(graph.snapshot.records())
    kept = [key for key in records if not only or _touches(key[1], only)]
    makers = dict.fromkeys((PROBLEM, *graph.log, *found.makers))
    for maker in makers:
        marked = [
            (key, "+" if found[key].made == maker else "~")
            for key in kept
            if maker == found[key].made or maker in found[key].changed
        ]
        if not marked:
            continue
        yield f"{maker or 'not recorded'}:", "bold"
        if maker == PROBLEM and not only:
            yield from _summary([key for key, _ in marked])
            continue
        last: tuple[str, ...] = ()
        for key, mark in marked:
            origin = found[key]
            line = f"  {mark} {_line(key, records[key])}"
            again = key[0] is Part.OPERATION and origin.sources == last
            if mark == "+" and origin.sources and not again:
                line += f"   from {_few(origin)}"
            last = origin.sources
            yield line, STYLES[mark]


def _touches(key: Key, only: Collection[str]) -> bool:
    if isinstance(key, Edge):
        return bool({*key.upstream, *key.downstream} & {*only})
    return key in only


def _summary(keys: list[tuple[Part, Key]]) -> Iterator[Line]:
    """A line such as `12 dimensions` for each kind of record in `keys`."""
    for part in Part:
        count = sum(kind is part for kind, _ in keys)
        if count:
            yield f"    {count} {part.value}{'' if count == 1 else 's'}", "dim"


def _line(key: tuple[Part, Key], record: Any) -> str:
    write = RecordPrinter()
    part, name = key
    match part:
        case Part.PARAMETER:
            return write.parameter(record)
        case Part.TABLE:
            return write.table(record)
        case Part.TENSOR:
            return write.tensor(record)
        case Part.DIMENSION:
            return write.dimension(record)
        case Part.EDGE:
            return write.edge(record)
        case Part.OPERATION:
            return f"#{name} {write.operation(record)}"


def _few(origin: Origin) -> str:
    """The first five records from which a record was derived, and the number of further ones."""
    first, rest = origin.sources[:5], len(origin.sources) - 5
    return ", ".join(first) + (f" and {rest} more" if rest > 0 else "")
