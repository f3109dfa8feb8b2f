"""Read graphs from files, and list the stages of a graph in a pipeline of passes."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from codegen.cli.options import DEFAULT_SCHEDULE, Problem, Scheduling, read_pipeline
from codegen.cli.targets import resolve
from coordgraph import CoordGraphError, KernelGraph, ParseError, from_json, parse
from passes.lowering.architectures import ALIGNED_BYTES
from passes.pipeline import Dump, Pipeline

if TYPE_CHECKING:
    from passes.choosing import Plan

__all__ = ["Stage", "choose", "lower", "read_graph", "staged", "stages"]

STDIN = "-"


@dataclass(frozen=True)
class Stage:
    """A graph before the first pass of a pipeline (number 0), after a pass, or lowered.

    Args:
        number: the number of passes that were applied, where lowering counts as one.
        name: the text of the last pass; `lowered` after lowering; before the first pass `problem`,
            or `start` if the graph has a schedule already.
        graph: the graph that results from these passes.
    """

    number: int
    name: str
    graph: KernelGraph


def read_graph(path: str) -> KernelGraph:
    """Read a graph from a file or stdin (`-`), in the text form or as JSON.

    Raises:
        ParseError: the text is malformed; a note names the file.
        UnicodeError: the bytes are not UTF-8 text; the message names the file.
    """
    name = "stdin" if path == STDIN else path
    try:
        source = sys.stdin.read() if path == STDIN else Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UnicodeError(
            f"{name} is not UTF-8 text: byte {error.object[error.start]:#04x} at offset "
            f"{error.start}; give a graph in the text form or as JSON"
        ) from error
    try:
        if source.lstrip().startswith("{"):
            return from_json(_json(source))
        return parse(source)
    except CoordGraphError as error:
        error.add_note(f"in {name}")
        raise


def _json(source: str) -> Any:
    try:
        return json.loads(source)
    except json.JSONDecodeError as error:
        lines = source.splitlines()
        line = lines[error.lineno - 1] if error.lineno <= len(lines) else ""
        raise ParseError(
            f"the file is not valid JSON: {error.msg}; correct it, or give the graph's text form",
            error.lineno,
            error.colno,
            line,
        ) from None
    except RecursionError:
        raise ParseError(
            "the JSON is nested too deeply to be read; use fewer levels", 1, 1
        ) from None


def stages(graph: KernelGraph, pipeline: Pipeline | None) -> list[Stage]:
    """The graph before the first pass of a pipeline, and after each pass."""
    dump = Dump()
    if pipeline is not None:
        Pipeline(pipeline.passes, (*pipeline.instruments, dump))(graph)
    start = "problem" if graph.level == "problem" else "start"
    after = [(name, result) for name, result in dump.stages]
    return [Stage(i, name, g) for i, (name, g) in enumerate([(start, graph), *after])]


def staged(
    problem: Problem, scheduling: Scheduling, source: str | None, stage: str | None
) -> list[Stage]:
    """The stages of the graph that options describe, with the lowered graph if `stage` names it.

    Args:
        problem: the problem, if the graph is not read from a file.
        scheduling: the passes; without them a graph from a file is left as it is.
        source: the file of the graph, or None.
        stage: the number or name of a stage, or None.
    """
    schedule, workgroups = scheduling.schedule, scheduling.workgroups
    if source is None:
        graph = problem.graph(scheduling.tile, fixed=True)
        schedule = DEFAULT_SCHEDULE if schedule is None else schedule
    else:
        graph = read_graph(source)
    if schedule is None and workgroups is not None:
        raise typer.BadParameter("--workgroups needs a schedule; give --schedule too")
    found = stages(graph, None if schedule is None else read_pipeline(schedule, workgroups))
    if stage == "lowered" or stage == str(len(found)):
        found.append(lower(found[-1], resolve(scheduling.target, problem.dtype)))
    return found


def lower(stage: Stage, target: str, plan: Plan | None = None) -> Stage:
    """The stage that follows the scheduled stage `stage`: its graph, lowered for a target.

    Args:
        stage: the scheduled stage.
        target: the name of a target, but not `native`.
        plan: the plan whose cluster and consumers the kernel for a GPU must have, if any.
    """
    if target == "interpreter":
        raise typer.BadParameter(
            "--target interpreter has no lowered stage, because the interpreter runs scheduled "
            "graphs; choose another --target"
        )
    if target == "cpu":
        from codegen.targets.cpu.machine import lower as lower_to_host

        graph = lower_to_host(stage.graph)
    else:
        from codegen.call.build import lowering_of
        from codegen.targets.nvptx import CudaKernel

        how = None
        if plan is not None:
            how = lowering_of(plan, stage.graph, target, ALIGNED_BYTES, reads_c=False)
        graph = CudaKernel(stage.graph, target, lowering=how).lowered
    return Stage(stage.number + 1, "lowered", graph)


def choose(found: list[Stage], wanted: str | None) -> Stage:
    """Find a stage by its number, its name, or the name without options; None means the last stage.

    Raises:
        typer.BadParameter: there is no such stage.
    """
    if wanted is None:
        return found[-1]
    for stage in reversed(found):
        if wanted in (str(stage.number), stage.name, stage.name.partition("{")[0]):
            return stage
    names = [stage.name for stage in found]
    close = get_close_matches(wanted, names, n=1)
    hint = (
        f"did you mean '{close[0]}'?"
        if close
        else f"there are 0..{len(found) - 1}, {', '.join(names)}"
    )
    raise typer.BadParameter(f"there is no stage '{wanted}'; {hint}")
