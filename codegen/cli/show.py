"""`coordgraph show`: a graph at any stage, drawn or written."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import unified_diff
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from codegen.cli.option_groups import takes_groups
from codegen.cli.options import (
    DEFAULT_SCHEDULE,
    Import,
    Json,
    Output,
    Problem,
    Scheduling,
    Source,
    StageName,
    read_pipeline,
)
from codegen.cli.output import print_json, stdout, working, write_document

if TYPE_CHECKING:
    from codegen.cli.stages import Stage

__all__ = ["Form", "Part", "render", "show"]


class Form(StrEnum):
    """How a graph is shown."""

    MERMAID = "mermaid"
    TEXT = "text"
    PSEUDOCODE = "pseudocode"
    JSON = "json"


class Part(StrEnum):
    """Which of the graphs of a kernel a diagram shows."""

    COORDINATES = "coordinates"
    CONTROL = "control"


@takes_groups(without=("plan",), target="cpu")
def show(
    form: Annotated[
        Form, typer.Argument(help="What to print.", metavar="|".join(Form))
    ] = Form.PSEUDOCODE,
    *,
    part: Annotated[
        Part, typer.Option("--part", "-p", help="Which graph a diagram shows.")
    ] = Part.COORDINATES,
    stage: StageName = None,
    diff: Annotated[bool, typer.Option("--diff", help="Show what the stage added.")] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            metavar="NAME,…",
            help="Draw these coordinates and the edges among them; more than once if wanted.",
        ),
    ] = None,
    source: Source = None,
    scheduling: Scheduling,
    problem: Problem,
    output: Output = None,
    modules: Import = None,
    as_json: Json = False,
) -> None:
    """Show a graph at any stage: diagram, text, loop nest or JSON.

    Sizes that are not given stay symbols, as in the kernels that `run` makes.

    [bold]Examples[/]

      coordgraph show                                            # the loop nest of 2-tile Stream-K
      coordgraph show mermaid --schedule stream-k --diff         # what the schedule added
      coordgraph show mermaid -p control --stage 0               # before any schedule
      coordgraph show text --stage lowered --target sm_80
      coordgraph show text -s stream-k | coordgraph show pseudocode --from -
      coordgraph show mermaid --groups k --schedule stream-k
      coordgraph show mermaid --only A.tile.0,B.tile.1,k_tile,global,selector
    """
    from codegen.cli.stages import choose, lower, read_graph, stages
    from codegen.cli.targets import resolve

    schedule, workgroups = scheduling.schedule, scheduling.workgroups
    target = resolve(scheduling.target, problem.dtype)  # native is settled here: tiles depend on it
    if source is None:
        graph = problem.graph(scheduling.tile, target, fixed=True)
        schedule = DEFAULT_SCHEDULE if schedule is None else schedule
    else:
        graph = read_graph(source)
    if schedule is None and workgroups is not None:
        raise typer.BadParameter("--workgroups goes with --schedule")
    pipeline = None if schedule is None else read_pipeline(schedule, workgroups)
    with working("applying passes"):
        found = stages(graph, pipeline)
        if stage == "lowered" or stage == str(len(found)):
            found.append(lower(found[-1], target))
    chosen = choose(found, stage)
    before = found[chosen.number - 1] if diff and chosen.number else None
    if diff and before is None:
        raise typer.BadParameter("--diff needs a stage before the one that is shown")
    names = [name.strip() for text in only or () for name in text.split(",") if name.strip()]
    if names and (form, part) != (Form.MERMAID, Part.COORDINATES):
        raise typer.BadParameter("--only is for diagrams of coordinates: show mermaid --only NAMES")
    if as_json:
        _print_json(chosen, before, form, part, [s.name for s in found], names)
        return
    with working("drawing"):
        text = render(chosen, before, form, part, names)
    if before is not None and form is not Form.MERMAID and output is None:
        _print_diff(text)
    else:
        write_document(text, output)


def render(
    stage: Stage, before: Stage | None, form: Form, part: Part, only: Sequence[str] = ()
) -> str:
    """The text to print; a diff against `before` where there is one.

    Args:
        stage: the graph to show.
        before: what it is compared to.
        form, part: how, and which of its graphs, if in a diagram.
        only: the coordinates to draw; all where there are none.
    """
    if form is Form.MERMAID:
        drawn = getattr(stage.graph, part.value)
        kept = {"only": only} if only else {}
        old = getattr(before.graph, part.value) if before else None
        return drawn.mermaid(compare_to=old, **kept)
    if before is None:
        return _written(stage, form)
    old, new = (_written(s, form).splitlines() for s in (before, stage))
    return "\n".join(unified_diff(old, new, before.name, stage.name, lineterm="")) + "\n"


def _written(stage: Stage, form: Form) -> str:
    match form:
        case Form.TEXT:
            return stage.graph.text()
        case Form.PSEUDOCODE:
            return stage.graph.pseudocode()
        case _:
            import json

            return json.dumps(stage.graph.json(), indent=2) + "\n"


def _print_json(
    stage: Stage,
    before: Stage | None,
    form: Form,
    part: Part,
    names: list[str],
    only: Sequence[str],
) -> None:
    """With the graph itself as data where that is asked for."""
    found = {"stages": names, "stage": stage.number, "name": stage.name, "form": form.value}
    if form is Form.JSON and before is None:
        print_json({**found, "graph": stage.graph.json()})
        return
    if form is Form.MERMAID:
        found["part"] = part.value
    print_json({**found, "text": render(stage, before, form, part, only)})


def _print_diff(text: str) -> None:
    """Added lines in green, others in red."""
    styles = {"+": "green", "-": "red", "@": "cyan"}
    console = stdout()
    for line in text.splitlines():
        console.print(Text(line, styles.get(line[:1], "")), soft_wrap=True)
