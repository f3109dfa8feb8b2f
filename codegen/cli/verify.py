"""`coordgraph verify`: checks that a scheduled graph computes its product."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.table import Table
from rich.text import Text

from codegen.cli.errors import ExitCode
from codegen.cli.option_groups import takes_groups
from codegen.cli.options import Batches, Extents, Import, Json, Problem, Scheduling, Source
from codegen.cli.output import duration, print_block, print_json, stdout, working

if TYPE_CHECKING:
    from coordgraph import KernelGraph
    from coordgraph.verification import Report
    from passes.choosing import Plan

__all__ = ["verify"]

STYLES = {
    "proved for all sizes": "green",
    "holds for these sizes": "green",
    "not examined": "yellow",
    "refuted": "bold red",
}
"""The style (of the package rich) in which the table shows each verdict."""


MAKING = (
    *("dtype", "out_dtype", "transpose_a", "transpose_b", "batched", "groups"),
    *("schedule", "plan", "tile"),
)
"""Options that say how to make a graph, so they are refused if the graph is read from a file."""


class Level(StrEnum):
    """How thoroughly a graph is examined: `all` examines more launches than `default`."""

    DEFAULT = "default"
    ALL = "all"


@takes_groups(target="cpu")
def verify(
    context: typer.Context,
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="[FILE|-]",
            help="A scheduled or lowered graph in text or JSON, as of --from; - is stdin. Without "
            "it, the options describe the product and its schedule.",
            show_default=False,
        ),
    ] = None,
    *,
    check: Annotated[
        list[str] | None,
        typer.Option(
            "--checks",
            metavar="NAME",
            help="Run only this check; may be repeated. batch-invariance runs only if it is named.",
            show_default=False,
        ),
    ] = None,
    level: Annotated[
        Level,
        typer.Option("--level", help="default takes a few tenths of a second, all a few seconds."),
    ] = Level.DEFAULT,
    given: Source = None,
    scheduling: Scheduling,
    problem: Problem,
    batches: Batches = None,
    extents: Extents = None,
    modules: Import = None,
    as_json: Json = False,
) -> None:
    """Check that a schedule computes its product.

    Each property is proved for all sizes if possible, else checked in chosen small launches, or
    refuted by a counterexample. --json lists the launches of each check.

    Nothing is launched. The checks are: sizes (edges and tensors fit together), cover (every
    iteration is done once, and every output element is stored once), fix-up (every wait has its
    signal, and partial sums are not lost), progress (no workgroup waits for ever) and bounds (no
    index leaves its tensor). With --target sm_90a or another GPU, the graph is also lowered, and
    memory order is checked: no data race and no deadlock between the threads of the kernel.
    --checks batch-invariance checks that the bits of a row of D depend neither on m nor on other
    rows. A size that an option gives is examined alone. For other sizes, small values are chosen,
    such as those just below and above a multiple of the tile. With --extents, all sizes must be
    given. With a graph from a file, only the sizes --m, --n, --k, -w, --batches and --extents may
    be given.

    Exit codes: 0 every property is proved or holds in the examined launches; 1 a check is refuted;
    5 no check is refuted, but a property is neither proved nor examined, because every launch is
    too large. 'coordgraph --help' lists the other codes.

    [bold]Examples[/]

      coordgraph verify -s stream-k
      coordgraph verify -s 'split-k{splits=3}' --level all
      coordgraph verify --m 300 --n 200 --k 64 -s stream-k -w 7
      coordgraph verify --groups m --extents 200,0,56 --n 96 --k 128 -s stream-k -w 7
      coordgraph verify -s stream-k -t sm_90a           # the lowered graph, too
      coordgraph verify -s data-parallel --checks batch-invariance
      coordgraph show text -s stream-k -o graph.txt     # edit this file, then check it
      coordgraph verify graph.txt
      coordgraph show text -s stream-k | coordgraph verify - --json
    """
    from codegen.cli.scheduled import from_graph, scheduled
    from codegen.cli.stages import read_graph
    from codegen.cli.targets import resolve

    if source is not None and given is not None:
        raise typer.BadParameter("the graph is given twice, as FILE and by --from; leave out one")
    source = source if given is None else given
    target = resolve(scheduling.target, problem.dtype)
    free: dict[str, int | None] = {"batches": batches}
    plan: Plan | None = None
    if source is None:
        if batches is not None and problem.groups:
            raise typer.BadParameter("both --batches and --groups are given; give one of them")
        problem = replace(problem, batched=problem.batched or batches is not None)
        made = scheduled(problem, scheduling, fixed=True)
        graph, plan = made.graph, made.plan
    else:
        _refuse_made_options(context)
        free |= {"m": problem.m, "n": problem.n, "k": problem.k}
        free["workgroups"] = scheduling.workgroups
        graph = read_graph(source)
        if graph.level != "lowered":
            made = from_graph(problem, graph)
            problem, graph, plan = made.problem, made.graph, made.plan
    sizes = None if extents is None else _sizes(graph, problem, extents, scheduling.workgroups)
    graph = graph if sizes else _narrowed(graph, free)
    with working("checking the graph"):
        report = _report(graph, target, level.value, check, sizes, plan)
    if as_json:
        print_json({"schedule": list(graph.log), **report.json()})
    else:
        _print(report)
    if report.refuted:
        raise typer.Exit(ExitCode.CHECK_FAILED)
    if report.unexamined:
        raise typer.Exit(ExitCode.NOT_EXAMINED)


def _refuse_made_options(context: typer.Context) -> None:
    """Refuse the options in `MAKING` on the command line, since the graph is read from a file.

    Raises:
        typer.BadParameter: one of these options is given.
    """
    given = [
        f"--{name.replace('_', '-')}"
        for name in MAKING
        if (source := context.get_parameter_source(name)) and source.name != "DEFAULT"
    ]
    if given:
        raise typer.BadParameter(
            "a file has its problem, tile and schedule already: leave out " + ", ".join(given)
        )


def _sizes(
    graph: KernelGraph, problem: Problem, extents: str, workgroups: int | None
) -> dict[str, int | Sequence[int]]:
    """The launch that --extents describes, as the argument `sizes` of `KernelGraph.check`.

    The result holds the value of each launch argument and the entries of each table, by name.

    Args:
        graph: a scheduled or lowered graph of groups.
        problem: the options of the problem.
        extents: the value of --extents.
        workgroups: the value of --workgroups, or None.

    Raises:
        typer.BadParameter: a size is missing, or contradicts another one.
    """
    from codegen.cli.products import Products

    products = Products.of(problem, None, extents)
    names = [p.name for p in graph.parameters.given]
    if "workgroups" in names and workgroups is None:
        raise typer.BadParameter(
            "--extents examines one launch, whose number of workgroups is free; give --workgroups"
        )
    known = {**products.arguments(), "workgroups": workgroups or 0}
    return {**{name: known[name] for name in names if name in known}, **products.tables()}


def _narrowed(graph: KernelGraph, sizes: Mapping[str, int | None]) -> KernelGraph:
    """A copy of the graph in which each given launch argument can only have its given value.

    Args:
        graph: a scheduled or lowered graph.
        sizes: the value of each launch argument, by name; None keeps the argument's range.

    Raises:
        typer.BadParameter: the graph has no launch argument of that name, or the argument's range
            excludes the value.
    """
    from sympy import Integer

    from coordgraph.gemm import AXES

    free = {p.name: p for p in graph.parameters.given}
    fixed = {axis: getattr(graph.gemm, axis) for axis in AXES}
    if isinstance(grid := graph.workgroup.size, Integer):
        fixed["workgroups"] = int(grid)
    for name, size in sizes.items():
        if size is None or fixed.get(name) == size:
            continue
        if fixed.get(name) is not None:
            raise typer.BadParameter(
                f"the graph in the file has {name} = {fixed[name]}, not {size}; leave out --{name}"
            )
        if name not in free:
            known = ", ".join(free) or "none"
            raise typer.BadParameter(
                f"the graph in the file has no launch argument {name}; it takes {known}"
            )
        low, high = free[name].minimum, free[name].maximum
        if not low <= size <= high:
            raise typer.BadParameter(
                f"{name} = {size} is outside {low}..{high}, the range in the file; give a value in "
                "this range"
            )
        # The sympy symbol of a parameter whose minimum is at least 1 is assumed positive. Raising a
        # minimum to 1 would make another symbol than the one that the graph's edges contain.
        if low < 1 <= size:
            raise typer.BadParameter(
                f"the file declares {name} in {low}..{high}, so it cannot be fixed at {size}; "
                f"change the range in the file to {size}..{size}"
            )
        free[name] = replace(free[name], minimum=size, maximum=size)
    items = tuple(free.get(p.name, p) for p in graph.parameters.items)
    return replace(graph, parameters=replace(graph.parameters, items=items))


def _report(
    graph: KernelGraph,
    target: str,
    level: Literal["default", "all"],
    checks: Sequence[str] | None = None,
    sizes: Mapping[str, int | Sequence[int]] | None = None,
    plan: Plan | None = None,
) -> Report:
    """Check a graph and, if the target is a GPU, also the graph that it is lowered to.

    Args:
        graph: a scheduled or lowered graph.
        target: the target; a scheduled graph is lowered for a GPU only if no checks are named.
        level: how thoroughly to check.
        checks: the names of the checks to run; None runs all checks for the graph's level.
        sizes: the launch of `graph` to examine: the value of each launch argument and the entries
            of each table, by name; if None, the checks choose small launches. For the lowered graph
            they always do.
        plan: the plan whose cluster and consumers the lowered graph has, or None.
    """
    from codegen.cli.stages import Stage, lower
    from coordgraph.verification import Report

    report = graph.check(sizes, level=level, checks=checks)
    if graph.level == "lowered" or not target.startswith("sm_") or checks is not None:
        return report
    lowered = lower(Stage(0, "start", graph), target, plan).graph.check(level=level)
    launches = (*report.launches, *lowered.launches)
    return Report((*report, *lowered), launches, lowered.not_covered)


def _print(report: Report) -> None:
    table = Table("check", "verdict", "method", "detail", "time", box=None, header_style="bold")
    for verdict in report:
        style = STYLES[verdict.outcome.value]
        table.add_row(
            verdict.name,
            Text(verdict.summary, style),
            verdict.method,
            verdict.detail,
            duration(verdict.seconds),
        )
    print_block(table)
    console = stdout()
    for verdict in report.refuted:
        for found in verdict.counterexamples:
            console.print(
                Text(f"\n{verdict.name}: ", "bold red").append(str(found), ""), soft_wrap=True
            )
    if report.not_covered:
        console.print(Text(f"\n{report.not_covered}"), soft_wrap=True)
