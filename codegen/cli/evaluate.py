"""`coordgraph eval`: expresses a coordinate by other coordinates, or evaluates it to a number."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from codegen.cli.named_values import At, Forward
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
from coordgraph import CoordGraphError, NoPath

if TYPE_CHECKING:
    from codegen.cli.evaluation import Answer

__all__ = ["evaluate_command"]


@takes_groups(without=("plan", "target", "batched", "groups"))
def evaluate_command(
    wanted: Annotated[
        list[str], typer.Argument(metavar="COORDINATE...", help="The coordinates to express.")
    ],
    *,
    at: At = None,
    given: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            metavar="NAME=NUMBER,…",
            help="Launch arguments, such as m=1280; --at takes them too.",
        ),
    ] = None,
    forward: Forward = False,
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
    from codegen.cli.evaluation import (
        answer_of,
        check_exists,
        known_scope,
        launch_values,
        split_point,
    )
    from codegen.cli.named_values import read_names, read_pairs
    from codegen.cli.stages import choose, read_graph, stages
    from coordgraph.coordinates.traverse import Direction
    from coordgraph.integers import to_text

    schedule = scheduling.schedule
    if source is None:
        graph = problem.graph(scheduling.tile, fixed=True)
        schedule = DEFAULT_SCHEDULE if schedule is None else schedule
    else:
        graph = read_graph(source)
    pipeline = None if schedule is None else read_pipeline(schedule, scheduling.workgroups)
    with working("applying passes"):
        graph = choose(stages(graph, pipeline), stage).graph
    point, numbers = split_point(graph, read_names(at or []), read_pairs(given or [], "--with"))
    values = launch_values(graph, numbers)
    direction = Direction.FORWARD if forward else Direction.REVERSE
    for name in wanted:
        check_exists(graph, name)
    scope = known_scope(graph, point, direction, values)
    with working("following the edges"):
        try:
            answers = [answer_of(scope, direction, name, values) for name in wanted]
        except NoPath as error:
            other = Direction.REVERSE if forward else Direction.FORWARD
            with suppress(CoordGraphError):
                scope = known_scope(graph, point, other, values)
                [answer_of(scope, other, name, values) for name in wanted]
                how = "leave --forward out" if forward else "give --forward"
                error.add_note(f"there is a {other.value} path: {how}")
            raise
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


def _print(answer: Answer) -> None:
    from coordgraph.integers import to_text

    console, expression = stdout(), to_text(answer.solution.values[0])
    console.print(f"[bold]{answer.name}[/] = {expression}", soft_wrap=True)
    table = Table.grid(padding=(0, 2))
    if (shown := to_text(answer.value)) != expression:
        table.add_row("", "value", f"[bold green]{shown}[/]")
    table.add_row("", "guard", to_text(answer.guard))
    for position, edge in enumerate(answer.solution.path):
        table.add_row("", "path" if position == 0 else "", f"[cyan]{edge}[/]")
    print_block(table)
