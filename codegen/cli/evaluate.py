"""`coordgraph eval`: a coordinate as an expression of other coordinates, or as a number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any, cast

import typer
from rich.table import Table
from sympy import Expr, Integer, Symbol

from codegen.cli.option_groups import takes_groups
from codegen.cli.options import (
    DEFAULT_SCHEDULE,
    Import,
    Json,
    Problem,
    Scheduling,
    Source,
    StageName,
    read_pipeline,
)
from codegen.cli.output import print_block, print_json, stdout, working
from codegen.cli.stages import choose, read_graph, stages
from coordgraph import KernelGraph, LaunchError, VerifyError
from coordgraph.control import Scoped
from coordgraph.coordinates.traverse import Direction, Solution, solve
from coordgraph.integers import (
    ExpressionSyntaxError,
    evaluate,
    parse_expression,
    simplify,
    to_text,
)

__all__ = ["evaluate_command"]


@takes_groups(without=("plan", "target", "batched", "groups"))
def evaluate_command(
    wanted: Annotated[
        list[str], typer.Argument(metavar="COORDINATE...", help="The coordinates to express.")
    ],
    *,
    at: Annotated[
        list[str] | None,
        typer.Option(
            "--at",
            metavar="NAME[=VALUE],…",
            help="Known coordinates: NAME=VALUE is a number or an expression, NAME alone stays a "
            "symbol. By default all coordinates at the machine's end of the graph, or with "
            "--forward at the tensors' end, stay symbols.",
        ),
    ] = None,
    given: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="NAME=NUMBER,…", help="Launch arguments, such as m=1280."),
    ] = None,
    forward: Annotated[
        bool, typer.Option("--forward", help="Go from tensors to the machine, not the reverse.")
    ] = False,
    stage: StageName = None,
    source: Source = None,
    scheduling: Scheduling,
    problem: Problem,
    modules: Import = None,
    as_json: Json = False,
) -> None:
    """Express coordinates of a kernel's graph by other coordinates.

    Prints for each coordinate its expression, its value if --with gives all parameters in it, the
    guard (the condition under which the index is inside its tensor), and the edges of the path.

    [bold]Examples[/]

      coordgraph eval A.0 A.1 -s stream-k --at workgroup,for_tile,for_k,A.index.0,A.index.1
      coordgraph eval A.tile.0 -s stream-k -w 32 --tile 128x128x32 \
--at workgroup=5,for_tile=0,for_k=3 --with m=1280,n=1536,k=16384
      coordgraph eval workgroup --forward --at A.0=300,B.1=17,A.1=0,B.0=0 -s data-parallel
      coordgraph eval partials -s stream-k
    """
    schedule = scheduling.schedule
    if source is None:
        graph = problem.graph(scheduling.tile, fixed=True)
        schedule = DEFAULT_SCHEDULE if schedule is None else schedule
    else:
        graph = read_graph(source)
    pipeline = None if schedule is None else read_pipeline(schedule, scheduling.workgroups)
    with working("applying passes"):
        graph = choose(stages(graph, pipeline), stage).graph
    values = _parameters(graph, _pairs(given or [], "--with"))
    direction = Direction.FORWARD if forward else Direction.REVERSE
    for name in wanted:
        _exists(graph, name)
    scope = _scope(graph, _names(at or []), direction, values)
    with working("following the edges"):
        answers = [_answer(scope, direction, name, values) for name in wanted]
    if as_json:
        known = {name: to_text(value) for name, value in scope.known.items()}
        results = [answer.as_data() for answer in answers]
        print_json({"known": known, "parameters": values, "results": results})
        return
    for answer in answers:
        _print(answer)
    if values:
        inside = ", ".join(f"{name} = {value}" for name, value in values.items())
        stdout().print(f"with {inside}", style="dim", markup=False)


@dataclass(frozen=True)
class _Answer:
    name: str
    solution: Solution
    value: Expr
    """The expression after the values of parameters are substituted."""
    guard: Any

    @property
    def number(self) -> int | None:
        return int(self.value) if isinstance(self.value, Integer) else None

    def as_data(self) -> dict[str, Any]:
        return {
            "coordinate": self.name,
            "expression": to_text(self.solution.values[0]),
            "value": self.number,
            "guard": to_text(self.guard),
            "path": [str(edge) for edge in self.solution.path],
        }


def _answer(scope: Scoped, direction: Direction, name: str, values: Mapping[str, int]) -> _Answer:
    found = solve(scope.coordinates, direction, scope.known, [name], scope.ranges)
    expr, guard = found.values[0], found.guard
    symbols = {s: values[s.name] for s in _symbols(expr, guard) if s.name in values}
    if symbols:
        expr = _put_in(expr, symbols, scope)
        guard = guard.xreplace({s: Integer(v) for s, v in symbols.items()})
    return _Answer(name, found, expr, guard)


def _put_in(expr: Expr, symbols: Mapping[Symbol, int], scope: Scoped) -> Expr:
    if expr.free_symbols <= set(symbols):
        return Integer(evaluate(expr, symbols))
    numbers = {s: Integer(v) for s, v in symbols.items()}
    return simplify(cast(Expr, expr.xreplace(numbers)), scope.ranges)


def _symbols(*expressions: Any) -> set[Symbol]:
    return {s for e in expressions for s in e.free_symbols}


def _scope(
    graph: KernelGraph,
    at: Mapping[str, str | None],
    direction: Direction,
    values: Mapping[str, int],
) -> Scoped:
    """The known coordinates: those in `at`, or all at the end of the graph where paths begin."""
    coordinates = graph.coordinates
    scope = Scoped(coordinates, graph.parameters.ranges())
    if not at:
        beyond = (
            coordinates.edges_below if direction is Direction.REVERSE else coordinates.edges_above
        )
        return scope.hardware([d.id for d in coordinates if not beyond(d)])
    for name in at:
        _exists(graph, name)
    scope = scope.hardware([name for name, value in at.items() if value is None])
    for name, text in at.items():
        if text is not None:
            scope = scope.binding(name, _read(graph, name, text, values))
    return scope


def _exists(graph: KernelGraph, name: str) -> None:
    """Refuse a name that is no coordinate; a note of the error lists the coordinates."""
    try:
        graph.coordinates[name]
    except VerifyError as error:
        error.add_note(
            f"the coordinates of the graph are {', '.join(graph.coordinates.dimensions)}"
        )
        raise


def _read(graph: KernelGraph, name: str, text: str, values: Mapping[str, int]) -> Expr:
    """Parse the value of a coordinate; names in it are parameters or other coordinates."""

    def symbol(word: str) -> Expr:
        if word in graph.parameters:
            return graph.parameters[word].symbol
        if word in graph.coordinates:
            return graph.coordinates.symbol(word)
        raise KeyError(word)

    try:
        value = parse_expression(text, symbol)
    except ExpressionSyntaxError as error:
        raise typer.BadParameter(f"--at {name}={text}: {error}") from None
    if getattr(value, "is_Boolean", False):
        raise typer.BadParameter(f"--at {name}={text}: an integer is needed, not a condition")
    if isinstance(value, Integer):
        _check_size(name, int(value), graph.coordinates.size(name), values)
    return value


def _check_size(name: str, value: int, size: Expr | None, values: Mapping[str, int]) -> None:
    """Refuse a number that is outside its dimension, where the size of the dimension is known."""
    known = size is not None and {s.name for s in _symbols(size)} <= set(values)
    end = int(evaluate(size, values)) if size is not None and known else None
    if value < 0 or (end is not None and value >= end):
        bounds = "0 or more" if end is None else f"0..{end - 1}"
        raise VerifyError(f"{name} = {value} is outside its size: it must be in {bounds}")


def _parameters(graph: KernelGraph, given: Mapping[str, str]) -> dict[str, int]:
    """The values of the graph's parameters: those given, and those that follow from them.

    Raises:
        LaunchError: a name is not a launch argument of the graph, or a value is out of bounds.
    """
    known = [p.name for p in graph.parameters.given]
    numbers: dict[str, int] = {}
    for name, text in given.items():
        if name not in known:
            close = get_close_matches(name, known, n=3)
            hint = f"did you mean {', '.join(close)}?" if close else f"there are {', '.join(known)}"
            raise LaunchError(f"'{name}' is not a launch argument of this graph; {hint}")
        try:
            numbers[name] = int(text)
        except ValueError:
            raise typer.BadParameter(f"--with {name}={text}: a whole number is needed") from None
    if {p.name for p in graph.parameters.given} <= {*numbers, "read_c"}:
        return (
            graph.parameters.evaluate({**({"read_c": 0} if "read_c" in known else {}), **numbers})
            if numbers
            else {}
        )
    for p in graph.parameters.items:
        if p.name in numbers and not p.minimum <= numbers[p.name] <= p.maximum:
            raise LaunchError(f"{p.name} = {numbers[p.name]} is outside {p.minimum}..{p.maximum}")
        if p.value is not None and {s.name for s in _symbols(p.value)} <= set(numbers):
            numbers[p.name] = int(evaluate(p.value, numbers))
    return numbers


def _names(entries: Sequence[str]) -> dict[str, str | None]:
    """Parse `a=1,b` to {'a': '1', 'b': None}; commas in parentheses belong to the value."""
    found: dict[str, str | None] = {}
    for entry in (part for text in entries for part in _split(text)):
        name, equals, value = entry.partition("=")
        name = name.strip()
        if not name or (equals and not value.strip()):
            raise typer.BadParameter(f"'{entry}' is not NAME or NAME=VALUE")
        if name in found:
            raise typer.BadParameter(f"'{name}' is given twice")
        found[name] = value.strip() if equals else None
    return found


def _split(text: str) -> list[str]:
    parts, depth = [""], 0
    for sign in text:
        depth += (sign == "(") - (sign == ")")
        if sign == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += sign
    return [part for part in parts if part.strip()]


def _pairs(entries: Sequence[str], option: str) -> dict[str, str]:
    found = _names(entries)
    for name, value in found.items():
        if value is None:
            raise typer.BadParameter(f"{option} {name}: a value is missing, as in {name}=1024")
    return {name: value for name, value in found.items() if value is not None}


def _print(answer: _Answer) -> None:
    console, expression = stdout(), to_text(answer.solution.values[0])
    console.print(f"[bold]{answer.name}[/] = {expression}", soft_wrap=True)
    table = Table.grid(padding=(0, 2))
    if (shown := to_text(answer.value)) != expression:
        table.add_row("", "value", f"[bold green]{shown}[/]")
    table.add_row("", "guard", to_text(answer.guard))
    for position, edge in enumerate(answer.solution.path):
        table.add_row("", "path" if position == 0 else "", f"[cyan]{edge}[/]")
    print_block(table)
