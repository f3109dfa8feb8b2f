"""`coordgraph opt`: reads a graph, applies passes to it, and writes the result."""

from __future__ import annotations

import os
import re
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from codegen.cli.completion import pipelines
from codegen.cli.option_groups import takes_groups
from codegen.cli.options import Import, Json, Scheduling, output_option, read_pipeline
from codegen.cli.output import (
    duration,
    is_stdout,
    print_block,
    print_json,
    stderr,
    working,
    write_document,
)
from coordgraph import PassError

if TYPE_CHECKING:
    from coordgraph import KernelGraph
    from passes.base import Pass

__all__ = ["opt"]

REPRODUCER = "reproducer.txt"


@takes_groups(without=("schedule", "tile", "plan", "target"))
def opt(
    source: Annotated[
        str, typer.Argument(metavar="FILE|-", help="The graph in its text form; - is stdin.")
    ] = "-",
    *,
    pipeline: Annotated[
        str,
        typer.Option(
            "--pipeline",
            "-p",
            metavar="PIPELINE",
            autocompletion=pipelines,
            help="The passes to apply.",
        ),
    ],
    scheduling: Scheduling,
    output: Annotated[
        Path | None, output_option("The file to write the graph to; by default stdout.")
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Check the input graph too, before the first pass.")
    ] = False,
    timing: Annotated[bool, typer.Option("--time", help="Report the time of each pass.")] = False,
    dump_dir: Annotated[
        Path | None,
        typer.Option("--dump-dir", metavar="DIR", help="A folder for the graph after every pass."),
    ] = None,
    modules: Import = None,
    as_json: Json = False,
) -> None:
    """Apply passes to a graph in its text form.

    The graph is verified after every pass. If a pass fails, the graph before it and the rest of the
    pipeline are written to a file, from which `opt` reproduces the failure.

    [bold]Examples[/]

      coordgraph show text --stage 0 -o gemm.txt
      coordgraph opt gemm.txt -p 'reorder{group=8},stream-k{workgroups=132}' --time
      coordgraph show text --stage 0 | coordgraph opt -p stream-k | coordgraph show --from -
      coordgraph opt gemm.txt -p stream-k | coordgraph compile --from - -t sm_80 -e ptx
    """
    from codegen.cli.stages import read_graph

    watch = _Watch(dump_dir)
    steps = read_pipeline(pipeline, scheduling.workgroups, [watch])
    start = time.perf_counter()
    graph = read_graph(source)
    reading = time.perf_counter() - start
    if verify:
        graph.verify()
    watch.dump("input", graph)
    try:
        with working("applying passes"):
            result = steps(graph)
    except PassError as error:
        if error.reproducer is not None:
            error.add_note(f"reproducer: {_keep(error.reproducer, dump_dir)}")
        raise
    if timing and not as_json:
        _print_times(reading, watch)
    if not as_json:
        write_document(result.text(), output)
        return
    found: dict[str, Any] = {"pipeline": str(steps), "level": result.level, "log": result.log}
    if timing:
        found["seconds"] = {"read": reading, "passes": watch.seconds}
    if dump_dir is not None:
        found["dumps"] = [str(path) for path in watch.files]
    if is_stdout(output):
        found["graph"] = result.text()
    else:
        write_document(result.text(), output)
        found["output"] = str(output)
    print_json(found)


@dataclass
class _Watch:
    """An instrument of a pipeline: records the time of each pass, and writes graphs to files.

    Args:
        folder: the folder for graphs; None writes none.
        seconds: for each pass, its pipeline text and the seconds that it took.
        files: the files that were written.
    """

    folder: Path | None
    seconds: list[tuple[str, float]] = field(default_factory=list[tuple[str, float]])
    files: list[Path] = field(default_factory=list[Path])

    def after(self, step: Pass, before: KernelGraph, result: KernelGraph, seconds: float) -> None:
        """Called after every pass: record its time, and write its result to `self.folder`."""
        self.seconds.append((str(step), seconds))
        self.dump(step.name, result)

    def dump(self, name: str, graph: KernelGraph) -> None:
        """Write a graph to `self.folder`, unless that is None, as `<number>-<name>.txt`."""
        if self.folder is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        safe = re.sub(r"[^A-Za-z0-9-]+", "-", name)
        path = self.folder / f"{len(self.files)}-{safe}.txt"
        path.write_text(graph.text(), encoding="utf-8")
        self.files.append(path)


def _keep(reproducer: str, folder: Path | None) -> Path:
    """Write the text `reproducer`, a graph and passes that fail, to a file; return its path.

    The file is in `folder` or, if that is None, is a temporary file.
    """
    if folder is not None:
        path = folder / REPRODUCER
        path.write_text(reproducer, encoding="utf-8")
        return path
    handle, name = tempfile.mkstemp(prefix="coordgraph-", suffix=f"-{REPRODUCER}")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(reproducer)
    return Path(name)


def _print_times(reading: float, watch: _Watch) -> None:
    table = Table("pass", "time", box=None, header_style="bold")
    for name, seconds in [("(reading)", reading), *watch.seconds]:
        table.add_row(name, duration(seconds))
    print_block(table, stderr())
