"""Named checks of kernel graphs, and the checks that a graph of each level must pass.

A check yields one message for each thing that is wrong, instead of stopping at the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import cast

from sympy import Basic, Expr, Integer, Symbol
from sympy.logic.boolalg import Boolean

from coordgraph.control.asynchronous import Counter
from coordgraph.control.operations import (
    Assign,
    Epilogue,
    For,
    LoadTile,
    Locate,
    MultiplyAccumulate,
    Operation,
    SetCoordinate,
    StoreTile,
    accumulates,
)
from coordgraph.control.tickets import DynamicFor
from coordgraph.coordinates.dimensions import MacroTileNumber
from coordgraph.coordinates.rules import decide
from coordgraph.errors import VerifyError
from coordgraph.foreign_graphs import faults_named
from coordgraph.integers import Load, Ranges, Search, Select, evaluate, nodes_of, tables_in, to_text
from coordgraph.kept_results import kept_results
from coordgraph.kernel import VERIFY, KernelGraph
from coordgraph.lowered_checks import problems_of_lowered
from coordgraph.symbol_checks import problems_of_symbols
from coordgraph.tables import Table, TableNeed
from coordgraph.tensor_checks import problems_of_tensors
from coordgraph.ticket_checks import problems_of_tickets

__all__ = ["CHECKS", "LEVELS", "check", "run_checks", "verify"]

Check = Callable[[KernelGraph], Iterator[str]]
"""A function that yields a message for each thing that is wrong with a kernel graph."""
CHECKS: dict[str, Check] = {}
"""All registered check functions, by the name of the check."""
LEVELS = {
    "problem": ("well-formed", "tensors", "problem"),
    "scheduled": ("well-formed", "tensors", "scheduled"),
    "lowered": ("well-formed", "lowered"),
}
"""For each level, the names of the checks that a kernel graph of this level must pass."""


def check(name: str) -> Callable[[Check], Check]:
    """Decorator that registers a check under a name.

    Passes declare by name which checks their input must pass (`requires`) and which their result
    passes (`establishes`).
    """

    def register(function: Check) -> Check:
        CHECKS[name] = function
        return function

    return register


def run_checks(graph: KernelGraph, names: Iterable[str]) -> list[str]:
    """Run the named checks on a graph, and return every problem that they find.

    Results are cached: a check that has already run on this graph object is not run again.

    Raises:
        VerifyError: no check has one of the names.
    """
    problems, kept = list[str](), kept_results(graph)
    for name in names:
        if name not in CHECKS:
            raise VerifyError(f"there is no check '{name}'; choose one of {', '.join(CHECKS)}")
        function = CHECKS[name]
        if function not in kept:
            kept[function] = (*function(graph),)
        problems += kept[function]
    return problems


@VERIFY.implement
def verify(graph: KernelGraph) -> None:
    """Run the checks of the graph's level; the VerifyError lists every problem.

    Raises:
        VerifyError: a check fails, or the level is unknown.
    """
    if graph.level not in LEVELS:
        raise VerifyError(f"unknown level '{graph.level}'; choose one of {', '.join(LEVELS)}")
    with faults_named("verifying the graph", graph):
        problems = run_checks(graph, LEVELS[graph.level])
    if problems:
        raise VerifyError(*problems)


@check("well-formed")
def _well_formed(graph: KernelGraph) -> Iterator[str]:
    """Check the names, ids, size rules, tables and symbols of a graph of any level.

    Every id that is named must exist, names must be unique, the size rule of each edge (conditions
    on the sizes of its operands) must hold, and every symbol must have a value.
    """
    coordinates, parameters = graph.coordinates, graph.parameters
    for p in parameters.items:
        if p.name in coordinates:
            yield f"'{p.name}' is both a parameter and a dimension; rename one of them"
        if not p.name.isidentifier():
            yield f"'{p.name}' is no parameter name; use letters, digits and _, no digit first"
    yield from _unknown_names(graph)
    ranges, launches = parameters.ranges(definitions=True), parameters.examples
    for edge in coordinates.edges:
        for rule in edge.size_rule(coordinates.sizes(edge)):
            # A size rule that holds in an example launch cannot be false in all launches, so the
            # slow attempt to refute it is skipped.
            if not any(_holds(rule, at) for at in launches) and decide(rule, ranges) is False:
                yield f"{edge}: its size rule {rule} does not hold; change the operands' sizes"
    yield from _tables(graph, ranges)
    yield from problems_of_symbols(graph)
    yield from _unbound(graph)


def _tables(graph: KernelGraph, ranges: Ranges) -> Iterator[str]:
    """Check that each table reads only earlier tables, and that no table is read out of bounds.

    A table is an array of integers that index expressions read.
    The declaration of a table must guarantee the length and the order of entries that edges and
    searches rely on, because generated code reads tables without bounds checks.
    """
    coordinates, parameters = graph.coordinates, graph.parameters
    known = {p.symbol for p in parameters.items if p.name not in parameters.deferred}
    tables: dict[str, Table] = {}
    for table in parameters.tables:
        if table.name in coordinates or table.name in parameters:
            yield (
                f"'{table.name}' is a table and also a dimension or a parameter; rename one of them"
            )
        if table.name in tables:
            yield f"there are two tables '{table.name}'; rename one of them"
        yield from table.problems(ranges)
        for read in sorted(tables_in(table.step or Integer(0)), key=str):
            if read.name not in tables:
                yield (
                    f"table '{table.name}' reads '{read}', which is not a table declared before "
                    f"it; declare '{read}' first"
                )
        free = table.length.free_symbols | table.maximum.free_symbols
        if table.step is not None:
            last = cast(Expr, table.step.xreplace({table.place: table.steps - 1}))
            yield from _reads_out_of_bounds(f"table '{table.name}'", last, tables, ranges)
            free |= table.step.free_symbols - {table.place} - tables_in(table.step)
        for symbol in sorted(free - known, key=str):
            yield (
                f"table '{table.name}' reads '{symbol}', which is not a parameter that the host "
                "knows at launch; use such a parameter"
            )
        tables[table.name] = table
    named = {p.value: f"parameter '{p.name}'" for p in parameters.items if p.value is not None}
    for value in sorted((e for e in graph.expressions if e.has(Load)), key=to_text):
        yield from _reads_out_of_bounds(
            named.get(cast(Expr, value)) or to_text(value), value, tables, ranges
        )
    for edge in coordinates.edges:
        for need in edge.table_needs(coordinates.sizes(edge)):
            yield from (f"{edge}: {problem}" for problem in need.unmet(tables, ranges))
    yield from _check_reads(graph, tables, ranges)


def _reads_out_of_bounds(
    what: str, value: Basic, tables: Mapping[str, Table], ranges: Ranges
) -> Iterator[str]:
    """Messages about table reads that are provably out of bounds.

    Expressions with a `Select` are skipped, because a branch may never be evaluated.

    Args:
        what: a name for the expression, for messages.
        value: the expression whose reads are checked.
        tables: the declared tables, by name.
        ranges: the known ranges of symbols.
    """
    for read in sorted(() if value.has(Select) else nodes_of(value, Load), key=to_text):
        name, place = str(read.args[0]), cast(Expr, read.args[1])
        if name not in tables:
            continue
        length = tables[name].length
        if any(map(ranges.prove_nonnegative, (place - length, -1 - place))):
            yield (
                f"{what} reads {to_text(read)}, but the table '{name}' has only "
                f"{to_text(length)} entries; correct the position or the length"
            )


def _check_reads(graph: KernelGraph, tables: Mapping[str, Table], ranges: Ranges) -> Iterator[str]:
    """Check the table reads and table searches in all expressions of the graph.

    The table must exist. A searched table must be sorted, and a search must not cover more entries
    than the table has.
    """
    found = {node for value in graph.expressions for node in nodes_of(value, Load, Search)}
    for node in sorted(found, key=to_text):
        name, text = str(node.args[0]), to_text(node)
        if isinstance(node, Search):
            unmet = TableNeed(name, None).unmet(tables, ranges)
            yield from (f"{text}: {problem}" for problem in unmet)
            table, count = tables.get(name), cast(Expr, node.args[1])
            if table and not all(map(ranges.prove_nonnegative, (table.length - count, count))):
                yield (
                    f"{text}: the table '{name}' has {to_text(table.length)} entries, and the "
                    f"search covers {to_text(count)}; search between 0 and all of them"
                )
        elif name not in tables:
            yield f"{text}: there is no table '{name}'; declare it"


def _holds(rule: Boolean, values: Mapping[str, int]) -> bool:
    """Whether `rule` is true for the given symbol values; False if `rule` cannot be evaluated."""
    try:
        return bool(evaluate(rule, values))
    except (ArithmeticError, LookupError, TypeError):
        return False  # the condition has no value: it reads a table or divides by 0


def _unknown_names(graph: KernelGraph) -> Iterator[str]:
    """Messages about operations that name a tensor or a dimension which the graph lacks."""
    for position, op in enumerate(graph.control.operations):
        tensor = getattr(op, "tensor", None)
        named = (tensor,) if tensor is not None else ()
        if isinstance(op, Epilogue):
            named = ((op.output,) * op.function.stores_d) + (*op.operands, *op.stores)
            yield from _epilogue(graph, op, position)
        for tensor in named:
            if all(t.name != tensor for t in graph.tensors):
                yield (
                    f"{op.kind} (operation {position}): there is no tensor '{tensor}'; declare the "
                    "tensor, or name another one"
                )
        if isinstance(op, LoadTile | Epilogue | StoreTile) and len(op.tile) < 2:
            yield (
                f"{op.kind} (operation {position}): its field 'tile' names {len(op.tile)} "
                "dimensions; name one for each axis of the matrix"
            )
        if isinstance(op, For) and op.step.is_Integer and int(op.step) < 1:
            yield (
                f"{op.kind} (operation {position}): the step over {op.dim} is {op.step}; a loop "
                "needs a step of at least 1"
            )
        if isinstance(op, Assign) and op.name in graph.coordinates:
            yield (
                f"{op.kind} (operation {position}): '{op.name}' is a dimension; choose another name"
            )
        for role, names in op.bindings.items():
            for name in names:
                if name not in graph.coordinates:
                    yield (
                        f"{op.kind} (operation {position}): its field '{role}' names '{name}', but "
                        f"there is no dimension '{name}'; add the dimension, or name another one"
                    )


def _epilogue(graph: KernelGraph, op: Epilogue, position: int) -> Iterator[str]:
    """Check that an `Epilogue` operation has the function, operands and outputs of the problem.

    If the epilogue does not store D, the graph has no tensor D, but still needs a dimension that
    numbers D's elements.
    """
    if not op.function.stores_d and op.output not in graph.coordinates:
        yield (
            f"{op.kind} (operation {position}): there is no dimension '{op.output}'; add the "
            "dimension, whose index numbers the elements of the output"
        )
    if op.function != graph.gemm.epilogue:
        yield (
            f"{op.kind} (operation {position}): its function is not the epilogue of the problem; "
            "use graph.gemm.epilogue"
        )
    elif op.operands != tuple(graph.gemm.operands):
        names = ", ".join(graph.gemm.operands)
        yield (
            f"{op.kind} (operation {position}): its operands are ({', '.join(op.operands)}), but "
            f"its function has the operands ({names}); name these"
        )
    elif op.stores != tuple(graph.gemm.outputs):
        names = ", ".join(graph.gemm.outputs)
        yield (
            f"{op.kind} (operation {position}): it stores ({', '.join(op.stores)}), but its "
            f"function has the outputs ({names}) besides D; name these in 'stores'"
        )


def _unbound(graph: KernelGraph) -> Iterator[str]:
    """A message for each symbol that an operation reads, but that has no value at the operation.

    Enclosing operations, launch parameters and the hardware give symbols their values.
    """
    machine = {d.symbol for d in graph.coordinates if d.hardware}
    given = {p.symbol for p in graph.parameters.items} | {t.symbol for t in graph.parameters.tables}

    def visit(ops: tuple[Operation, ...], bound: set[Symbol]) -> Iterator[str]:
        bound = set(bound)
        for op in ops:
            inside = bound
            if isinstance(op, For | DynamicFor | SetCoordinate | Counter):
                inside = bound | {graph.coordinates.symbol(op.dim)}
            if isinstance(op, Locate):
                inside = bound | {graph.coordinates.symbol(dim) for dim in op.dims}
                for read in op.reads:
                    for symbol in sorted(read.free_symbols - inside, key=str):
                        yield (
                            f"{op.kind}: '{symbol}' in {to_text(read)} is not bound here; bind it "
                            "in a surrounding operation"
                        )
            for name, value in op.details.items():
                free = getattr(value, "free_symbols", set())
                scope = inside if isinstance(op, For) and name == "step" else bound
                for symbol in sorted(free - scope, key=str):
                    yield (
                        f"{op.kind}: '{symbol}' in {name} = {to_text(value)} is not bound here; "
                        "bind it in a surrounding operation"
                    )
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


check("tensors")(problems_of_tensors)


@check("problem")
def _problem(graph: KernelGraph) -> Iterator[str]:
    """Check a graph of level `problem`, to which no schedule has been applied.

    At least one tile-number dimension must not be connected to workgroups or loops yet. Exactly one
    loop, directly in the kernel's body, must sum products of tiles. A, B, C and D must be cut into
    tiles of equal extents.
    """
    if graph.control.root.workgroup:
        yield (
            "a schedule has tied this graph to workgroups already; start from the graph of "
            "Gemm.graph()"
        )
    elif not graph.dangling:
        yield (
            "every tile number is already tied to workgroups or loops, so a schedule has nothing "
            "to assign; start from the graph of Gemm.graph()"
        )
    loops = [op for op in graph.control.operations if accumulates(op)]
    if len(loops) != 1 or not graph.control.root.body:
        yield f"the kernel must have exactly one accumulation loop, but it has {len(loops)}"
    elif loops[0] not in _tile_body(graph):
        yield "the accumulation loop must stand directly in the kernel's body, not in a deeper one"
    yield from _tilings(graph)


def _tilings(graph: KernelGraph) -> Iterator[str]:
    """Check that A, B, C and D are cut into tiles of equal extents along m, along n and along k."""
    try:
        for tiling in graph.tilings:
            yield from tiling.problems()
            yield from tiling.cuts(graph.coordinates)
    except VerifyError as error:
        yield from error.problems


def _tile_body(graph: KernelGraph) -> tuple[Operation, ...]:
    """The operations that compute one output tile, in a graph of level `problem`."""
    body = graph.control.root.body
    return body[0].body if len(body) == 1 and isinstance(body[0], Locate) else body


@check("scheduled")
def _scheduled(graph: KernelGraph) -> Iterator[str]:
    """Check a graph of level `scheduled`: workgroups or loops determine every tile number.

    The graph must also sum products of tiles.
    """
    if not graph.control.root.workgroup:
        yield (
            "no schedule has tied this graph to workgroups; apply a schedule, as in "
            "DataParallel()(graph) or StreamK(workgroups=132)(graph)"
        )
    for dimension in graph.dangling:
        if isinstance(dimension, MacroTileNumber):
            yield (
                f"the tile number '{dimension.id}' is not tied to workgroups or loops; connect it "
                "by an edge"
            )
    if not graph.control.of_kind(MultiplyAccumulate):
        yield "the kernel has no MultiplyAccumulate, so it computes no product; add one"
    yield from _tilings(graph)
    yield from problems_of_tickets(graph)


check("lowered")(problems_of_lowered)
