"""`coordgraph diff`: the difference of two graphs by structure, or what passes change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from codegen.cli.completion import schedules
from codegen.cli.errors import ExitCode
from codegen.cli.option_groups import takes_groups
from codegen.cli.options import Import, Json, Problem, Scheduling, read_pipeline
from codegen.cli.output import print_json, stdout, working

if TYPE_CHECKING:
    from coordgraph import KernelGraph

__all__ = ["diff"]


@takes_groups(without=("plan", "target", "schedule"))
def diff(
    graphs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[GRAPH [GRAPH]]",
            help="Files of graphs, in the text form or as JSON; one may be -, which is stdin.",
            show_default=False,
        ),
    ] = None,
    *,
    pipeline: Annotated[
        str | None,
        typer.Option(
            "--pass",
            "-p",
            metavar="PIPELINE",
            autocompletion=schedules,
            help="Compare the graph before and after these passes. Without a file, the graph is "
            "that of the problem.",
        ),
    ] = None,
    scheduling: Scheduling,
    problem: Problem,
    modules: Import = None,
    as_json: Json = False,
) -> None:
    """Compare two graphs by structure, or a graph before and after passes.

    Lists what was added (+), removed (-), changed (~) or, for operations, moved into another body
    (>): parameters, tables, tensors, dimensions, edges and operations. Dimensions that differ only
    in their names count as equal, and so do graphs that declare the same dimensions and edges in
    another order. The exit code is 0 if the graphs are equal, and 1 if they differ.

    [bold]Examples[/]

      coordgraph diff --pass stream-k                         # what the schedule changes
      coordgraph diff --pass 'reorder{swap=true}' --tile 128x128x32 --json
      coordgraph show text --stage 0 -o gemm.txt
      coordgraph diff gemm.txt --pass data-parallel
      coordgraph show text -s two-tile-stream-k -o streamed.txt
      coordgraph diff gemm.txt streamed.txt
      coordgraph show text -s stream-k | coordgraph diff streamed.txt -
    """
    with working("comparing"):
        before, after = _graphs(graphs or [], pipeline, scheduling, problem)
        found = before.diff(after)
    if as_json:
        print_json(found.as_data())
    else:
        from coordgraph.difference.report import lines

        console = stdout()
        for text, style in lines(found):
            console.print(Text(text, style), soft_wrap=True)
    if not found.equal:
        raise typer.Exit(ExitCode.CHECK_FAILED)


def _graphs(
    files: list[str], pipeline: str | None, scheduling: Scheduling, problem: Problem
) -> tuple[KernelGraph, KernelGraph]:
    """The two graphs to compare.

    Raises:
        typer.BadParameter: the number of files is not 2 without --pass, or is more than 1 with
            --pass; both files are stdin; or --workgroups is given without --pass.
    """
    from codegen.cli.stages import read_graph

    if pipeline is None:
        if len(files) != 2:
            given = "1 graph is" if len(files) == 1 else f"{len(files)} graphs are"
            raise typer.BadParameter(
                f"{given} given, but two are compared; give two, or at most one with --pass"
            )
        if files == ["-", "-"]:
            raise typer.BadParameter(
                "both graphs are '-', but standard input has only one; give a file for the other"
            )
        if scheduling.workgroups is not None:
            raise typer.BadParameter(
                "--workgroups has no effect on two given graphs; leave it out, or give one graph "
                "and --pass"
            )
        first, second = map(read_graph, files)
        return first, second
    if len(files) > 1:
        raise typer.BadParameter(
            f"{len(files)} graphs are given, and --pass would make another one; give one graph "
            "with --pass, or two without it"
        )
    before = read_graph(files[0]) if files else problem.graph(scheduling.tile, fixed=True)
    return before, read_pipeline(pipeline, scheduling.workgroups)(before)
