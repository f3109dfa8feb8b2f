"""`coordgraph report`: writes an HTML page about a kernel and one of its launches."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from codegen.cli.completion import gpu_targets
from codegen.cli.machine_option import MachineName
from codegen.cli.names import GPU_NAMES, HOSTS
from codegen.cli.option_groups import takes_groups
from codegen.cli.options import (
    Batches,
    Beta,
    Extents,
    Import,
    Json,
    Problem,
    Scheduling,
    Source,
    output_option,
    target_option,
)
from codegen.cli.output import duration, is_stdout, print_json, stdout, working, write_document

__all__ = ["report"]


@takes_groups(without=("batched", "target"))
def report(
    *,
    problem: Problem,
    batches: Batches = None,
    extents: Extents = None,
    beta: Beta = 0.0,
    machine: MachineName = "H200",
    scheduling: Scheduling,
    target: Annotated[
        str,
        target_option(
            f"The GPU architecture to compile for: {', '.join(GPU_NAMES[:-1])}, or native, that "
            "of --machine.",
            gpu_targets,
        ),
    ] = "native",
    source: Source = None,
    output: Annotated[
        Path | None,
        output_option(
            "The file to write the page to, or a folder for the page and its pictures; by default "
            "stdout.",
            "FILE|DIR",
        ),
    ] = None,
    measured: Annotated[
        Path | None,
        typer.Option(
            "--measured",
            metavar="FILE",
            help="A measured timeline as JSON columns, as 'coordgraph trace --events' writes it.",
        ),
    ] = None,
    modules: Import = None,
    as_json: Json = False,
) -> None:
    """Write an HTML page about a kernel: is the GPU busy, and if not, why? Needs no GPU.

    The page needs no network, and shows which workgroup computes which tile, when and on which SM;
    what each pass changed; how every address is computed; the code beside its operations; and the
    results of the checks. If --output is a folder, each picture is written there too, as SVG and
    PNG.

    [bold]Examples[/]

      coordgraph report --m 2304 --n 2304 --k 4096 -s data-parallel -o report.html
      coordgraph report --m 2304 --n 2304 --k 4096 --plan '256x128x64@c2x1 stream-k on 66' -o a.html
      coordgraph report --m 2304 --n 2304 --k 4096 -s stream-k -o folder
      coordgraph simulate --m 512 --n 512 --k 512 -s stream-k --events events.json
      coordgraph report --m 512 --n 512 --k 512 -s stream-k --measured events.json -o report.html
    """
    from codegen.cli.simulated_launch import simulated_launch
    from passes.report import Subject, make_report

    if target in HOSTS:
        raise typer.BadParameter(
            f"the report simulates GPUs, and {target} is no GPU; leave out --target {target}, or "
            "choose a GPU with --machine",
            param_hint="--target",
        )
    launch = simulated_launch(problem, batches, extents, scheduling, source, machine, beta)
    made = launch.made
    if target == "native":
        target = launch.machine.architecture
    with working(f"compiling for {target}"):
        kernel = made.compile(target, reads_c=beta != 0)
        subject = Subject(
            graph=made.graph,
            problem=launch.arguments,
            machine=launch.machine,
            tables=launch.products.tables(),
            kernel=launch.kernel,
            title="" if made.plan is None else str(made.plan),
            measured=None if measured is None else _columns(measured),
            lowered=kernel.lowered,
            target=target,
            code=kernel.located_code,
        )
    with working("simulating, checking and writing the page"):
        found = make_report(subject)
    file = None if is_stdout(output) else output
    if file is not None:
        if file.is_dir() or not file.suffix:
            found.save_pictures(file)
            file /= "report.html"
        found.save(file)
    elif not as_json:
        write_document(found.html(), None)
        return
    head = found.data["headline"]
    if as_json:
        print_json({"output": None if file is None else str(file), **found.data})
        return
    console = stdout()
    busy = f"{head['utilisation']:.0%} multiplying, {duration(head['seconds'])}"
    console.print(busy, style="bold", highlight=False)
    texts = head["limit"]["text"], head["why"], head["advice"]
    for text in filter(None, (*texts, _instructions(found.data["machine"]))):
        console.print(text, highlight=False)
    console.print(str(file), style="dim", highlight=False, soft_wrap=True)


def _columns(path: Path) -> Any:
    """Read the columns of a measured timeline from a JSON file.

    Raises:
        typer.BadParameter: the file cannot be read, or does not contain a JSON object.
    """
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"--measured {path}: {error}") from None
    if not isinstance(found, dict):
        raise typer.BadParameter(
            f"--measured {path}: the file has no JSON object; give one that --events has written"
        )
    return found


def _instructions(machine: Mapping[str, Any]) -> str:
    """A sentence about the matrix instructions, from the report's data about the machine."""
    return str(machine["fallback"] or f"Multiplied by {machine['instructions']}.")
