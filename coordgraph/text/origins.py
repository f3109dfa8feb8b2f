"""Read `origin` statements, which say which pass made a record, into a graph's provenance."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from coordgraph.coordinates.edges import Edge
from coordgraph.kernel import KernelGraph
from coordgraph.provenance.record import PROBLEM, History, Key, Origin, Part, Provenance
from coordgraph.text.raw import RawOrigin, suggest

__all__ = ["NUMBERED", "with_origins"]

NUMBERED = (Part.EDGE.value, Part.OPERATION.value)
"""Kinds of records that `origin` statements name by position: `origin edge 3` is the fourth edge.
Dimensions and other records are named by their ids."""


def with_origins(graph: KernelGraph, raw: Iterable[RawOrigin]) -> KernelGraph:
    """A copy of `graph` whose provenance consists of the `origin` statements in `raw`.

    Records without a declared origin count as made before the first pass (`problem`).

    Raises:
        ParseError, VerifyError: an origin names a part or a record that the graph lacks.
    """
    found = {key: Origin(PROBLEM) for key, _ in graph.snapshot.records()}
    parts = {part.value: part for part in Part}
    for each in raw:
        if each.part not in parts:
            raise each.at.error(f"unknown kind of part '{each.part}'{suggest(each.part, parts)}")
        part, key = parts[each.part], _key(graph, each)
        if key is None or (part, key) not in found:
            raise each.at.error(
                f"an origin is given for {part.value} {each.key}, which the graph does not have; "
                "remove this origin"
            )
        found[part, key] = each.origin
    return replace(graph, history=History(origins=Provenance(found)))


def _key(graph: KernelGraph, raw: RawOrigin) -> Key | None:
    edges: tuple[Edge, ...] = graph.coordinates.edges
    if raw.part != Part.EDGE.value:
        return raw.key
    inside = isinstance(raw.key, int) and 0 <= raw.key < len(edges)
    return edges[raw.key] if inside and isinstance(raw.key, int) else None
