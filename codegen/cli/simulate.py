"""`coordgraph simulate`: runs a schedule on a described GPU, event by event."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from codegen.cli.option_groups import takes_groups
from codegen.cli.options import (
    PROBLEM,
    Batches,
    Beta,
    EventColumns,
    Extents,
    Import,
    Json,
    Problem,
    Scheduling,
    Source,
)
from codegen.cli.output import duration, print_block, print_json, speed, stdout, working

if TYPE_CHECKING:
    from codegen.cli.products import Products
    from codegen.cli.scheduled import Scheduled
    from passes.simulation import Machine, Simulation

__all__ = ["simulate_command"]


@takes_groups(without=("batched", "target"))
def simulate_command(
    *,
    problem: Problem,
    batches: Batches = None,
    extents: Extents = None,
    beta: Beta = 0.0,
    machine: Annotated[
        str,
        typer.Option(
            "--machine",
            metavar="NAME",
            help="The GPU by its name, full or short: H200, H100, A100, RTX 4090.",
            rich_help_panel=PROBLEM,
        ),
    ] = "H200",
    scheduling: Scheduling,
    source: Source = None,
    events: EventColumns = None,
    modules: Import = None,
    as_json: Json = False,
) -> None:
    """Run a schedule on a described GPU, event by event. No GPU is needed.

    Prints when the last workgroup ends, how much of the time SMs multiply, what workgroups wait
    for, and the bytes that memory delivers in this order of tiles.

    [bold]Examples[/]

      coordgraph simulate --m 2304 --n 2304 --k 4096 -s data-parallel
      coordgraph simulate --m 2304 --n 2304 --k 4096 -s stream-k --machine A100
      coordgraph simulate --m 2304 --n 2304 --k 4096 --plan '256x128x64@c2x1 stream-k on 66'
      coordgraph simulate --m 2304 --n 2304 --k 4096 -s stream-k --events events.json
    """
    from codegen.cli.products import Products
    from codegen.cli.scheduled import from_graph, scheduled
    from codegen.cli.stages import read_graph
    from passes.simulation import Kernel, simulate

    gpu = _machine(machine)
    products = Products.of(problem, batches, extents)
    if products.empty:
        raise typer.BadParameter("nothing is multiplied: give sizes of at least 1")
    if source is None:
        how = replace(scheduling, target=gpu.architecture)
        made = scheduled(products.problem, how, fixed=False, reads_c=beta != 0)
    else:
        made = from_graph(products.problem, read_graph(source))
    plan, names = made.plan, {p.name for p in made.graph.parameters.given}
    given = {name: value for name, value in products.arguments().items() if name in names}
    if made.grid is not None:
        given["workgroups"] = made.grid
    kernel = Kernel(reads_c=beta != 0)
    if plan is not None:
        kernel = Kernel(plan.cluster, plan.consumers, beta != 0)
    with working(f"simulating on {gpu.name}"):
        found = simulate(made.graph, given, gpu, tables=products.tables(), kernel=kernel)
    if events is not None:
        record = {**found.summary(), "events": found.event_columns()}
        events.write_text(json.dumps(record) + "\n", "utf-8")
    if as_json:
        print_json({**_problem(made, products), **found.summary()})
    else:
        _print(made, products, found, events)


def _machine(name: str) -> Machine:
    """The machine with a full or short name."""
    from codegen.call.known_gpus import matching
    from passes.simulation import MACHINES

    found = matching(name, MACHINES)
    if found is None:
        raise typer.BadParameter(
            f"no machine is called '{name}'; there are {', '.join(MACHINES)}",
            param_hint="--machine",
        )
    return MACHINES[found]


def _problem(made: Scheduled, products: Products) -> dict[str, Any]:
    """The problem and the schedule as plain data."""
    return {
        "products": products.shapes,
        "pipeline": made.title,
        "plan": None if made.plan is None else str(made.plan),
    }


def _print(made: Scheduled, products: Products, s: Simulation, events: Path | None) -> None:
    """Print the summary and the timeline."""
    from codegen.cli.gantt import gantt

    console = stdout()
    console.print(Text(str(products), "bold cyan").append(f" on {s.machine.name}", "cyan"))
    console.print()
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True, min_width=11)
    table.add_column(overflow="fold")
    for label, text in _lines(made, s):
        table.add_row(label, Text(text))
    if events is not None:
        table.add_row("events", Text(str(events), "dim"))
    print_block(table)
    console.print()
    print_block(gantt(s.events, range(s.slots), s.makespan))


def _lines(made: Scheduled, s: Simulation) -> list[tuple[str, str]]:
    """The lines of the summary, each with a label and a text."""
    total = s.slots * s.makespan
    parts = [
        f"{name} {seconds / total:.1%}"
        for name, seconds in s.summary()["slot_seconds"].items()
        if seconds / total >= 0.0005 and name != "multiply"
    ]
    waiting, longest = int((s.waiting_of > 0).sum()), duration(s.waiting_of.max(initial=0))
    lines = [
        ("schedule", made.title if made.plan is None else str(made.plan)),
        ("machine", f"{s.slots} workgroups at a time; {s.machine.source}"),
        ("workgroups", f"{s.steps.workgroups}"),
        ("time", f"{duration(s.makespan)}, {speed(s.flops_per_second)}"),
        ("multiplying", f"{s.utilisation:.1%} of the SMs' time"),
        ("otherwise", ", ".join(parts)),
        ("fix-ups", f"{s.fix_ups}; workspace {_bytes(s.workspace_bytes)}"),
        ("waiting", f"{waiting} workgroups, {longest} at most" if waiting else "no workgroup"),
        (
            "from memory",
            f"{_bytes(s.read_bytes)} of A and B, {s.read_bytes / s.compulsory_bytes:.2f} times "
            f"their size; {_bytes(s.asked_bytes)} are requested from the L2 cache",
        ),
    ]
    return lines if s.fix_ups else [line for line in lines if line[0] != "waiting"]


def _bytes(count: float) -> str:
    """A number of bytes as text, in GB, MB or kB."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count:.0f} B"
