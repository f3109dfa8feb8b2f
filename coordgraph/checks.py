"""Named checks: what a kernel graph must satisfy, by level. Each collects all that is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import cast

from sympy import Basic, Expr, Integer, Symbol
from sympy.logic.boolalg import Boolean

from coordgraph.control.asynchronous import Counter, MultiplyShared
from coordgraph.control.lowered import MultiplyFragments
from coordgraph.control.operations import (
    Assign,
    Epilogue,
    For,
    Kernel,
    Locate,
    MultiplyAccumulate,
    Operation,
    SetCoordinate,
    accumulates,
)
from coordgraph.coordinates.dimensions import MacroTileNumber
from coordgraph.coordinates.rules import decide
from coordgraph.errors import VerifyError
from coordgraph.integers import Load, Ranges, Search, Select, evaluate, tables_in, to_text
from coordgraph.kernel import VERIFY, KernelGraph
from coordgraph.tables import Table, TableNeed

__all__ = ["CHECKS", "LEVELS", "check", "run_checks", "verify"]

Check = Callable[[KernelGraph], Iterator[str]]
CHECKS: dict[str, Check] = {}
LEVELS = {
    "problem": ("well-formed", "problem"),
    "scheduled": ("well-formed", "scheduled"),
    "lowered": ("well-formed", "lowered"),
}


def check(name: str) -> Callable[[Check], Check]:
    """Register a check under a name that passes may require or establish."""

    def register(function: Check) -> Check:
        CHECKS[name] = function
        return function

    return register


def run_checks(graph: KernelGraph, names: Iterable[str]) -> list[str]:
    """All problems that the named checks find."""
    problems: list[str] = []
    for name in names:
        if name not in CHECKS:
            raise VerifyError(f"there is no check '{name}'; there are {', '.join(CHECKS)}")
        problems += CHECKS[name](graph)
    return problems


@VERIFY.implement
def verify(graph: KernelGraph) -> None:
    """Run the checks of the graph's level; VerifyError lists every problem."""
    if graph.level not in LEVELS:
        raise VerifyError(f"unknown level '{graph.level}'; there are {', '.join(LEVELS)}")
    if problems := run_checks(graph, LEVELS[graph.level]):
        raise VerifyError(*problems)


@check("well-formed")
def _well_formed(graph: KernelGraph) -> Iterator[str]:
    """Ids exist, names do not clash, size rules are not broken, symbols are bound."""
    coordinates, parameters = graph.coordinates, graph.parameters
    for p in parameters.items:
        if p.name in coordinates:
            yield f"'{p.name}' is both a parameter and a dimension"
    yield from _unknown_names(graph)
    ranges, launches = parameters.ranges(definitions=True), parameters.examples
    for edge in coordinates.edges:
        for rule in edge.size_rule(coordinates.sizes(edge)):
            # What holds for one launch cannot be refuted; to try is what takes long.
            if not any(_holds(rule, at) for at in launches) and decide(rule, ranges) is False:
                yield f"{edge}: its size rule {rule} does not hold"
    yield from _tables(graph, ranges)
    symbols = {p.symbol for p in parameters.items}
    for dimension in coordinates:
        unbound = (dimension.size.free_symbols if dimension.size is not None else set()) - symbols
        for symbol in sorted(unbound, key=str):
            yield f"the size of '{dimension.id}' reads '{symbol}', which is no parameter"
    yield from _unbound(graph)


def _tables(graph: KernelGraph, ranges: Ranges) -> Iterator[str]:
    """Each reads earlier ones only, and is what edges and searches need of it.

    That must follow from what is declared: generated code reads tables without looking.
    """
    coordinates, parameters = graph.coordinates, graph.parameters
    known = {p.symbol for p in parameters.items if p.name not in parameters.deferred}
    tables: dict[str, Table] = {}
    for table in parameters.tables:
        if table.name in coordinates or table.name in parameters:
            yield f"'{table.name}' is both a table and a dimension or a parameter"
        if table.name in tables:
            yield f"there are two tables '{table.name}'"
        yield from table.problems(ranges)
        for read in sorted(tables_in(table.step or Integer(0)), key=str):
            if read.name not in tables:
                yield f"table '{table.name}' reads '{read}', which is no table declared before it"
        free = table.length.free_symbols | table.maximum.free_symbols
        if table.step is not None:
            last = cast(Expr, table.step.xreplace({table.place: table.steps - 1}))
            yield from _beyond(f"table '{table.name}'", last, tables, ranges)
            free |= table.step.free_symbols - {table.place} - tables_in(table.step)
        for symbol in sorted(free - known, key=str):
            yield f"table '{table.name}' reads '{symbol}', with which no launch begins"
        tables[table.name] = table
    named = {p.value: f"parameter '{p.name}'" for p in parameters.items if p.value is not None}
    for value in sorted((e for e in graph.expressions if e.has(Load)), key=to_text):
        yield from _beyond(named.get(cast(Expr, value)) or to_text(value), value, tables, ranges)
    for edge in coordinates.edges:
        for need in edge.table_needs(coordinates.sizes(edge)):
            yield from (f"{edge}: {problem}" for problem in need.unmet(tables, ranges))
    yield from _readings(graph, tables, ranges)


def _beyond(what: str, value: Basic, tables: Mapping[str, Table], ranges: Ranges) -> Iterator[str]:
    """Entries that a table surely has not; what a select reads, it may read in no case."""
    for read in sorted(() if value.has(Select) else value.atoms(Load), key=to_text):
        name, place = str(read.args[0]), cast(Expr, read.args[1])
        if name not in tables:
            continue
        length = tables[name].length
        if any(map(ranges.prove_nonnegative, (place - length, -1 - place))):
            yield (
                f"{what} reads {to_text(read)}, and the length of the table '{name}' is "
                f"{to_text(length)}; correct one of them"
            )


def _readings(graph: KernelGraph, tables: Mapping[str, Table], ranges: Ranges) -> Iterator[str]:
    """What expressions read as a table is one; what they search rises, as far as they look."""
    found = {node for value in graph.expressions for node in value.atoms(Load, Search)}
    for node in sorted(found, key=to_text):
        name, text = str(node.args[0]), to_text(node)
        if isinstance(node, Search):
            unmet = TableNeed(name, None).unmet(tables, ranges)
            yield from (f"{text}: {problem}" for problem in unmet)
            table, count = tables.get(name), cast(Expr, node.args[1])
            if table and not all(map(ranges.prove_nonnegative, (table.length - count, count))):
                yield (
                    f"{text}: the length of the table '{name}' is {to_text(table.length)}; search "
                    "no more of it, and no less than nothing"
                )
        elif name not in tables:
            yield f"{text}: there is no table '{name}'"


def _holds(rule: Boolean, values: Mapping[str, int]) -> bool:
    try:
        return bool(evaluate(rule, values))
    except (ArithmeticError, LookupError, TypeError):  # a table's entry, or no index expression
        return False


def _unknown_names(graph: KernelGraph) -> Iterator[str]:
    """Tensors and dimensions that operations name and the graph does not have."""
    for position, op in enumerate(graph.control.operations):
        tensor = getattr(op, "tensor", None)
        named = (tensor,) if tensor is not None else ()
        if isinstance(op, Epilogue):
            named = (op.output, *op.operands)
            yield from _epilogue(graph, op, position)
        for tensor in named:
            if all(t.name != tensor for t in graph.tensors):
                yield f"{op.kind} (operation {position}): no tensor '{tensor}'"
        if isinstance(op, Assign) and op.name in graph.coordinates:
            yield f"{op.kind} (operation {position}): '{op.name}' is a dimension"
        for role, names in op.bindings.items():
            for name in names:
                if name not in graph.coordinates:
                    yield f"{op.kind} (operation {position}): no dimension '{name}' for {role}"


def _epilogue(graph: KernelGraph, op: Epilogue, position: int) -> Iterator[str]:
    """Check that an `Epilogue` has the problem's function and the operands of that function."""
    if op.function != graph.gemm.epilogue:
        yield f"{op.kind} (operation {position}): its function is not that of the problem"
    elif op.operands != tuple(graph.gemm.operands):
        names = ", ".join(graph.gemm.operands)
        yield f"{op.kind} (operation {position}): the operands of its function are ({names})"


def _unbound(graph: KernelGraph) -> Iterator[str]:
    """Symbols in operations that nothing around them binds."""
    machine = {d.symbol for d in graph.coordinates if d.hardware}
    given = {p.symbol for p in graph.parameters.items} | {t.symbol for t in graph.parameters.tables}

    def visit(ops: tuple[Operation, ...], bound: set[Symbol]) -> Iterator[str]:
        bound = set(bound)
        for op in ops:
            inside = bound
            if isinstance(op, For | SetCoordinate | Counter):
                inside = bound | {graph.coordinates.symbol(op.dim)}
            if isinstance(op, Locate):
                inside = bound | {graph.coordinates.symbol(dim) for dim in op.dims}
                for read in op.reads:
                    for symbol in sorted(read.free_symbols - inside, key=str):
                        yield f"{op.kind}: '{symbol}' in {to_text(read)} is not bound here"
            for name, value in op.details.items():
                free = getattr(value, "free_symbols", set())
                scope = inside if isinstance(op, For) and name == "step" else bound
                for symbol in sorted(free - scope, key=str):
                    yield f"{op.kind}: '{symbol}' in {name} = {to_text(value)} is not bound here"
            if isinstance(op, Assign):
                bound.add(op.symbol)
            for body in op.BODIES:
                yield from visit(getattr(op, body), inside)

    if not any(
        name not in graph.coordinates
        for op in graph.control.operations
        for names in op.bindings.values()
        for name in names
    ):
        yield from visit(graph.control.root.body, machine | given)


@check("problem")
def _problem(graph: KernelGraph) -> Iterator[str]:
    """No schedule yet: tile numbers dangle, and one loop accumulates."""
    if graph.control.root.workgroup:
        yield "a schedule has tied this graph to workgroups already; start from Gemm.graph()"
    elif not graph.dangling:
        yield "no tile number dangles, so there is nothing to schedule"
    loops = [op for op in graph.control.operations if accumulates(op)]
    if len(loops) != 1 or not graph.control.root.body:
        yield f"needs one accumulation loop, the graph has {len(loops)}"
    elif loops[0] not in _tile_body(graph):
        yield "the accumulation loop is not directly under the kernel"
    yield from _tilings(graph)


def _tilings(graph: KernelGraph) -> Iterator[str]:
    """Tiles that are multiplied or added have the sizes for it."""
    try:
        for tiling in graph.tilings:
            yield from tiling.problems()
    except VerifyError as error:
        yield from error.problems


def _tile_body(graph: KernelGraph) -> tuple[Operation, ...]:
    """The operations on one output tile, before a schedule."""
    body = graph.control.root.body
    return body[0].body if len(body) == 1 and isinstance(body[0], Locate) else body


@check("scheduled")
def _scheduled(graph: KernelGraph) -> Iterator[str]:
    """Every tile number is tied to workgroups and loops; the work is there."""
    if not graph.control.root.workgroup:
        yield (
            "no schedule has tied this graph to workgroups: apply one, as in "
            "DataParallel()(graph) or StreamK(workgroups=132)(graph)"
        )
    for dimension in graph.dangling:
        if isinstance(dimension, MacroTileNumber):
            yield f"the tile number '{dimension.id}' still dangles"
    if not graph.control.of_kind(MultiplyAccumulate):
        yield "nothing accumulates"
    yield from _tilings(graph)


@check("lowered")
def _lowered(graph: KernelGraph) -> Iterator[str]:
    """A scheduled graph whose tile operations have become work of single workitems."""
    if not isinstance(graph.control.root, Kernel) or not graph.control.root.workgroup:
        yield "no schedule has tied this graph to workgroups"
    if graph.control.of_kind(MultiplyAccumulate):
        yield "a MultiplyAccumulate on whole tiles is left"
    if not graph.control.of_kind(MultiplyFragments) and not graph.control.of_kind(MultiplyShared):
        yield "there is no matrix instruction"
