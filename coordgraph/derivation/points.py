"""The point at which an index is derived: numbers for coordinates, launch parameters and tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from sympy import Expr, Integer

from coordgraph.coordinates.dimensions import Dimension
from coordgraph.errors import EvaluationError, VerifyError
from coordgraph.integers import evaluate, symbols_of, tables_in, to_text
from coordgraph.kernel import KernelGraph
from coordgraph.tables import Table
from coordgraph.validation import integer, whole

__all__ = [
    "Point",
    "check_inside",
    "described",
    "launch_values",
    "missing_values",
    "read_point",
]

OPTIONAL = {"read_c": 0}
"""Launch parameters that the caller may leave out, with their default values.

`read_c` = 0 means that the kernel does not read the matrix C.
"""


@dataclass(frozen=True)
class Point:
    """What the caller of `KernelGraph.explain` gives: indices, launch parameters and tables.

    Args:
        known: the index along each dimension that the caller gives: an expression or a number.
        symbolic: the names that the caller wants to stay symbols.
        numbers: the launch parameters that the caller gives.
        tables: the entries of the tables that the caller gives.
    """

    known: Mapping[str, Expr] = field(default_factory=dict[str, Expr])
    symbolic: frozenset[str] = frozenset()
    numbers: Mapping[str, int] = field(default_factory=dict[str, int])
    tables: Mapping[str, Sequence[int]] = field(default_factory=dict[str, Sequence[int]])

    @property
    def numeric(self) -> bool:
        """True if the caller gives a number or a table: then formulas are evaluated to numbers."""
        indices = any(isinstance(value, Integer) for value in self.known.values())
        return indices or bool(self.numbers) or bool(self.tables)

    def index(self, name: str) -> int | None:
        """The index along a dimension; None if the caller does not give it as a number."""
        value = self.known.get(name)
        return int(value) if isinstance(value, Integer) else None


def read_point(graph: KernelGraph, at: Mapping[Any, Any]) -> Point:
    """Sort what the caller gives into indices, launch parameters and tables.

    Args:
        graph: the kernel graph.
        at: values by name (or dimension): a number, an index expression, None for a symbol, or for
            a table its entries.

    Raises:
        VerifyError: a name is unknown, a value has a wrong type, or a parameter is out of bounds or
            is computed from other parameters.
    """
    known: dict[str, Expr] = {}
    symbolic: set[str] = set()
    numbers: dict[str, int] = {}
    tables: dict[str, Sequence[int]] = {}
    declared = {table.name: table for table in graph.parameters.tables}
    for key, value in at.items():
        name = key.id if isinstance(key, Dimension) else str(key)
        if name in graph.coordinates:
            known[name] = _index(graph, name, value)
            if value is None:
                symbolic.add(name)
        elif name in graph.parameters:
            if value is None:
                symbolic.add(name)
            else:
                numbers[name] = _parameter(graph, name, value)
        elif name in declared:
            tables[name] = _entries(declared[name], value)
        else:
            raise VerifyError(_unknown(graph, name, declared))
    return Point(known, frozenset(symbolic), numbers, tables)


def _index(graph: KernelGraph, name: str, value: Any) -> Expr:
    if value is None:
        return graph.coordinates.symbol(name)
    return integer(value, f"the index '{name}'")


def _parameter(graph: KernelGraph, name: str, value: Any) -> int:
    parameter, number = graph.parameters[name], whole(value, name)
    if parameter.value is not None:
        raise VerifyError(
            f"{name} is computed from other parameters: {name} = {to_text(parameter.value)}; give "
            "those parameters instead"
        )
    if not parameter.minimum <= number <= parameter.maximum:
        raise VerifyError(
            f"{name} = {number} is out of bounds: it must be in "
            f"{parameter.minimum}..{parameter.maximum}; give a number in this range"
        )
    return number


def _entries(table: Table, value: Any) -> Sequence[int]:
    if table.derived:
        raise VerifyError(
            f"the table {table.name} is computed from other tables; give those tables"
        )
    if not isinstance(value, Iterable) or isinstance(value, str | bytes):
        raise VerifyError(f"{table.name} is a table; give its entries, such as [0, 3, 5]")
    return [whole(entry, f"an entry of {table.name}") for entry in value]  # type: ignore[reportUnknownVariableType]


def _unknown(graph: KernelGraph, name: str, tables: Iterable[str]) -> str:
    names = [*graph.coordinates.dimensions, *(p.name for p in graph.parameters.given), *tables]
    close = get_close_matches(name, names, n=3)
    hint = f"did you mean {', '.join(close)}?" if close else f"there are {', '.join(names)}"
    return f"there is no coordinate, launch parameter or table '{name}'; {hint}"


def described(graph: KernelGraph, name: str, values: Mapping[str, Any]) -> str:
    """A coordinate with the range of its index: `workgroup in 0..31`.

    Args:
        graph: the kernel graph.
        name: the id of the dimension.
        values: the known values by name, from which the end of the range is computed.
    """
    dimension = graph.coordinates[name]
    note = f" ({dimension.note})" if dimension.note else ""
    size = dimension.size
    if size is None:
        return f"{name} from 0{note}"
    if {s.name for s in symbols_of(size)} <= set(values):
        last = int(evaluate(size, values)) - 1
        return f"{name} in 0..{last}{note}" if last >= 0 else f"{name}, which is empty here{note}"
    return f"{name} in 0..{to_text(size - 1)}{note}"


def launch_values(graph: KernelGraph, point: Point, wanted: Iterable[str]) -> dict[str, Any]:
    """The values of the launch parameters and tables that formulas read.

    Args:
        graph: the kernel graph.
        point: the indices, launch parameters and tables that the caller gives.
        wanted: the names of the parameters and tables.

    Returns:
        The values of the wanted names and of all names in their definitions. Parameters that cannot
        be computed from what the caller gives are left out.

    Raises:
        LaunchError: the parameters contradict each other or their tables.
    """
    parameters = graph.parameters
    given = {**{n: v for n, v in OPTIONAL.items() if n in parameters}, **point.numbers}
    found: dict[str, Any] = {}
    complete = all(p.name in given for p in parameters.given)
    entries = all(t.derived or t.name in point.tables for t in parameters.tables)
    if complete and entries:
        found = parameters.launch(given, point.tables)
    elif complete:
        found = {**parameters.evaluate(given), **point.tables}
    else:
        found = {**given, **point.tables}
        for p in parameters.items:
            value = p.value
            if value is None or tables_in(value):
                continue
            if {s.name for s in symbols_of(value)} <= set(found):
                found[p.name] = int(evaluate(value, found))
    return {name: found[name] for name in _closure(graph, wanted) if name in found}


def missing_values(graph: KernelGraph, point: Point, wanted: Iterable[str]) -> list[str]:
    """Descriptions of the launch parameters and tables that the caller must still give.

    Args:
        graph: the kernel graph.
        point: the indices, launch parameters and tables that the caller gives.
        wanted: the names of the parameters and tables that formulas read.
    """
    have = {*point.numbers, *point.tables, *point.symbolic, *OPTIONAL}
    needed = set(_closure(graph, wanted))
    tables = [t for t in graph.parameters.tables if not t.derived]
    if any(t.name in needed for t in graph.parameters.tables):
        # Tables are computed and checked together, from all launch parameters.
        needed |= {p.name for p in graph.parameters.given} | {t.name for t in tables}
    missing = [
        f"{p.name} in {p.minimum}..{p.maximum}" + (f" ({p.note})" if p.note else "")
        for p in graph.parameters.given
        if p.name in needed - have
    ]
    return missing + [
        f"the table {t.name} with {to_text(t.length)} entries" + (f" ({t.note})" if t.note else "")
        for t in tables
        if t.name in needed - have
    ]


def _closure(graph: KernelGraph, wanted: Iterable[str]) -> list[str]:
    """The names in `wanted`, and all parameters and tables in their definitions.

    The names are in the order in which the graph declares them.
    """
    formulas: dict[str, tuple[Expr, ...]] = {
        p.name: () if p.value is None else (p.value,) for p in graph.parameters.items
    }
    for t in graph.parameters.tables:
        step = () if t.step is None else (t.step,)
        formulas[t.name] = (t.length, t.maximum, *step)
    found: set[str] = set()
    stack = [name for name in wanted if name in formulas]
    while stack:
        name = stack.pop()
        if name not in found:
            found.add(name)
            read = {s.name for formula in formulas[name] for s in symbols_of(formula)}
            stack += [other for other in read if other in formulas]
    return [name for name in formulas if name in found]


def check_inside(
    graph: KernelGraph, point: Point, names: Iterable[str], values: Mapping[str, Any]
) -> None:
    """Refuse an index that is outside its dimension.

    Args:
        graph: the kernel graph.
        point: the indices, launch parameters and tables that the caller gives.
        names: the coordinates to check.
        values: the values of launch parameters by name, from which sizes of dimensions are
            computed.

    Raises:
        EvaluationError: an index is negative, or not less than the size of its dimension.
    """
    for name in names:
        index, size = point.index(name), graph.coordinates.size(name)
        if index is None:
            continue
        decided = size is not None and {s.name for s in symbols_of(size)} <= set(values)
        end = int(evaluate(size, values)) if size is not None and decided else None
        if index < 0 or (end is not None and index >= end):
            raise EvaluationError(
                f"{name} = {index} is outside its dimension {described(graph, name, values)}; give "
                "an index inside"
            )
