"""The report's section on passes: what each pass changed, as pictures, a tree and a list."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from coordgraph import KernelGraph
from coordgraph.difference.alignment import Tree
from coordgraph.difference.record import Change, Difference, Row
from coordgraph.difference.renaming import renamed
from coordgraph.provenance.record import Snapshot
from coordgraph.show.changed import ChangedGraph
from coordgraph.text.printer import RecordPrinter

__all__ = ["rewrites"]

RECORDS = ("problem", "parameter", "table", "assumption", "tensor")
"""Kinds of differences between graphs that the report lists as text. Differences of dimensions,
edges and operations are shown as pictures and trees instead."""


def rewrites(graph: KernelGraph) -> list[dict[str, Any]]:
    """Data of the report's section on passes: a dict for each pass that changed the graph.

    The entries of a dict are the pass as text, a picture of the changed coordinates, rows of the
    control trees, and other changes (`records`).
    """
    return [
        _rewrite(graph, step.text, step.before, step.after)
        for step in graph.history.steps
        if not step.before.same(step.after)
    ]


def _rewrite(graph: KernelGraph, text: str, before: Snapshot, after: Snapshot) -> dict[str, Any]:
    old, new = _graph(graph, before), _graph(graph, after)
    difference = old.diff(new)
    here = renamed(old, dict(difference.renamed))
    changed = ChangedGraph.of(here.coordinates, new.coordinates)
    title = f"Coordinates before and after {text}"
    return {
        "pass": text,
        "counts": difference.counts,
        "renamed": dict(difference.renamed),
        "coordinates": {
            "dimensions": len(changed.dimensions),
            "edges": len(changed.edges),
            "collapsed": changed.large,
            "svg": changed.draw().svg(title),
            "scopes": {
                scope: changed.draw_scope(scope).svg(f"{title}: {scope}")
                for scope in (changed.scopes if changed.large else ())
            },
        },
        "control": [_row(row) for row in _tree(difference, new)],
        "records": [_record(c) for part in RECORDS for c in difference.of_part(part)],
    }


def _graph(graph: KernelGraph, parts: Snapshot) -> KernelGraph:
    """`graph` as it was after an earlier pass, with the parts in the snapshot `parts`."""
    return replace(
        graph,
        parameters=parts.parameters,
        tensors=parts.tensors,
        coordinates=parts.coordinates,
        control=parts.control,
        log=parts.log,
    )


def _tree(difference: Difference, after: KernelGraph) -> Iterator[Row]:
    """Yield rows of the control trees before and after a pass, or of one tree if both are equal."""
    if difference.control:
        yield from difference.control
        return
    tree, line = Tree(after.control), RecordPrinter().operation
    for number, (op, depth) in enumerate(zip(tree.operations, tree.depths, strict=True)):
        yield Row(line(op), depth, number)


def _row(row: Row) -> dict[str, Any]:
    found: dict[str, Any] = {"line": row.line, "depth": row.depth, "id": row.id}
    if row.branch:
        found["branch"] = row.branch
    if row.change is not None:
        found["change"] = row.change.kind.name.lower()
        found["fields"] = {name: list(pair) for name, pair in row.change.fields.items()}
    return found


def _record(change: Change) -> dict[str, Any]:
    return {
        "part": change.part,
        "change": change.kind.name.lower(),
        "before": change.before,
        "after": change.after,
        "fields": {name: list(pair) for name, pair in change.fields.items()},
    }
