"""Derived tables on a GPU: each workgroup computes tables in shared memory before its first tile.

A derived table is a prefix sum or a sort of another table, such as the row offsets of groups. Only
tables that the kernel reads are computed. One warp computes one table; tables that do not depend on
each other are computed by different warps at the same time.
"""

from __future__ import annotations

from collections.abc import Iterable

from sympy import Integer, Symbol
from sympy.core.basic import Basic

from coordgraph import KernelGraph
from coordgraph.control.lowered import Barrier, DeriveParameters, Tabulate
from coordgraph.control.operations import Body
from coordgraph.coordinates.dimensions import Shared, Workitem
from coordgraph.coordinates.graph import CoordinateEditor
from coordgraph.integers import symbols_of, tables_in
from coordgraph.tables import SORTS, SUMS, Table

__all__ = ["add_tables", "table_bytes"]

ENTRY = "i32"
"""The element type of the entries of tables that a kernel computes."""
ENTRY_BYTES = 4
"""Number of bytes of one entry of a derived table."""
WARP = 32
"""Number of threads of a warp."""
NOTES = {SUMS: "prefix sums", SORTS: "an order"}
"""For each rule (`sums` or `sorts`) by which a kernel computes a table: the text that diagrams show
beside such tables."""


def _live_tables(graph: KernelGraph) -> tuple[Table, ...]:
    """The derived tables that a coordinate, an operation or another live table reads."""
    if not any(table.derived for table in graph.parameters.tables):
        return ()
    values = list[object]()
    for dimension in graph.coordinates:
        values.append(dimension.size)
    for edge in graph.coordinates.edges:
        values += edge.details.values()
    for op in graph.control.operations:
        values += op.details.values()
        values += getattr(op, "reads", ())
    names, symbols = set[str](), set[Symbol]()
    for value in values:
        for part in value if isinstance(value, tuple) else (value,):
            names |= {part} if isinstance(part, str) else set[str]()
            symbols |= _symbols(part)
    parameters = graph.parameters
    # The loop runs backwards, because the definition of a parameter reads only earlier parameters.
    for p in reversed(parameters.items):
        if p.symbol in symbols:
            symbols |= _symbols(p.value)
    live: tuple[Table, ...] = ()
    for table in reversed(parameters.tables):
        if table.name in names or table.symbol in symbols:
            symbols |= _symbols(table.step)
            live = (table, *live) if table.derived else live
    return live


def _symbols(value: object) -> set[Symbol]:
    """The symbols of parameters, indices and tables in `value`; empty if it is no expression."""
    return set(symbols_of(value)) | tables_in(value) if isinstance(value, Basic) else set[Symbol]()


def _sizes(graph: KernelGraph) -> dict[Table, int]:
    """For each derived table that the kernel reads, an upper bound of its number of entries."""
    ranges = graph.parameters.ranges()
    found: dict[Table, int] = {}
    for table in _live_tables(graph):
        _, most = ranges.interval(table.length)
        assert most is not None
        found[table] = most
    return found


def table_bytes(graph: KernelGraph) -> int:
    """Bytes of shared memory that a kernel's derived tables take in each workgroup."""
    return ENTRY_BYTES * sum(_sizes(graph).values())


def add_tables(c: CoordinateEditor, graph: KernelGraph) -> Body:
    """Allocate the derived tables in shared memory, and return the operations that compute them.

    Each workgroup executes the operations once, before any other operation reads a table.
    """
    for t, size in _sizes(graph).items():
        c.add(Shared(f"{t.name}.shared", Integer(size), element=ENTRY, note=NOTES[t.rule]))
    (workitems,) = c.finish().of_kind(Workitem)
    warps = workitems.fixed_size // WARP
    build: Body = ()
    for level in _levels(_live_tables(graph)):
        build += tuple(Tabulate(t.name, i % warps * WARP) for i, t in enumerate(level))
        build += (Barrier(),)
    return (*build, DeriveParameters()) if build else ()


def _levels(tables: Iterable[Table]) -> list[list[Table]]:
    """Group tables into levels: a table depends only on tables of earlier levels."""
    levels: list[list[Table]] = []
    level_of: dict[Symbol, int] = {}
    for table in tables:
        above = (level_of[read] for read in _symbols(table.step) if read in level_of)
        level = level_of[table.symbol] = 1 + max(above, default=-1)
        if level == len(levels):
            levels.append([])
        levels[level].append(table)
    return levels
