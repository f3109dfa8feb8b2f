"""Tables on a GPU: prefix sums in shared memory before the work begins."""

from __future__ import annotations

from sympy import Integer

from coordgraph import KernelGraph
from coordgraph.control.lowered import Barrier, DeriveParameters, Tabulate
from coordgraph.control.operations import Body
from coordgraph.coordinates.dimensions import Shared
from coordgraph.coordinates.graph import CoordinateEditor

__all__ = ["add_tables", "table_bytes"]

ENTRY = "i32"
ENTRY_BYTES = 4


def _sizes(graph: KernelGraph) -> dict[str, int]:
    """Entries of each derived table, at most."""
    ranges = graph.parameters.ranges()
    found: dict[str, int] = {}
    for table in graph.parameters.tables:
        if table.derived:
            _, most = ranges.interval(table.length)
            assert most is not None
            found[table.name] = most
    return found


def table_bytes(graph: KernelGraph) -> int:
    """Shared memory."""
    return ENTRY_BYTES * sum(_sizes(graph).values())


def add_tables(c: CoordinateEditor, graph: KernelGraph) -> Body:
    """Room for the derived tables; returns what a workgroup does before anything reads them."""
    build: Body = ()
    for name, size in _sizes(graph).items():
        c.add(Shared(f"{name}.shared", Integer(size), element=ENTRY, note="prefix sums"))
        build += (Tabulate(name), Barrier())
    return (*build, DeriveParameters()) if build else ()
