"""Tables on a GPU: derived ones are worked out in shared memory before the work begins.

Only those that something reads are there, and each is a warp's work: tables that do not read each
other are worked out at the same time.
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
ENTRY_BYTES = 4
WARP = 32
NOTES = {SUMS: "prefix sums", SORTS: "an order"}


def _read(graph: KernelGraph) -> tuple[Table, ...]:
    """The derived tables that coordinates and operations read, or that other such tables do."""
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
    for p in reversed(parameters.items):  # each reads only earlier ones
        if p.symbol in symbols:
            symbols |= _symbols(p.value)
    live: tuple[Table, ...] = ()
    for table in reversed(parameters.tables):
        if table.name in names or table.symbol in symbols:
            symbols |= _symbols(table.step)
            live = (table, *live) if table.derived else live
    return live


def _symbols(value: object) -> set[Symbol]:
    return set(symbols_of(value)) | tables_in(value) if isinstance(value, Basic) else set[Symbol]()


def _sizes(graph: KernelGraph) -> dict[Table, int]:
    """Entries of each of them, at most."""
    ranges = graph.parameters.ranges()
    found: dict[Table, int] = {}
    for table in _read(graph):
        _, most = ranges.interval(table.length)
        assert most is not None
        found[table] = most
    return found


def table_bytes(graph: KernelGraph) -> int:
    """Shared memory."""
    return ENTRY_BYTES * sum(_sizes(graph).values())


def add_tables(c: CoordinateEditor, graph: KernelGraph) -> Body:
    """Room for the derived tables; returns what a workgroup does before anything reads them."""
    for t, size in _sizes(graph).items():
        c.add(Shared(f"{t.name}.shared", Integer(size), element=ENTRY, note=NOTES[t.rule]))
    (workitems,) = c.finish().of_kind(Workitem)
    warps = workitems.fixed_size // WARP
    build: Body = ()
    for level in _levels(_read(graph)):
        build += tuple(Tabulate(t.name, i % warps * WARP) for i, t in enumerate(level))
        build += (Barrier(),)
    return (*build, DeriveParameters()) if build else ()


def _levels(tables: Iterable[Table]) -> list[list[Table]]:
    """Tables in rows, each of which reads only what is in rows before."""
    rows: list[list[Table]] = []
    place: dict[Symbol, int] = {}
    for table in tables:
        above = (place[read] for read in _symbols(table.step) if read in place)
        row = place[table.symbol] = 1 + max(above, default=-1)
        if row == len(rows):
            rows.append([])
        rows[row].append(table)
    return rows
