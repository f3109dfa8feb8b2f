"""`coordgraph simulate`: simulates a schedule on a model of a GPU, event by event."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from codegen.cli.machine_option import MachineName
from codegen.cli.option_groups import takes_groups
from codegen.cli.options import (
    Batches,
    Beta,
    Events,
    Extents,
    Import,
    Json,
    Problem,
    Scheduling,
    Source,
)
from codegen.cli.output import duration, print_block, print_json, speed, stdout, working
from coordgraph.elements import WARPGROUP_MMA

if TYPE_CHECKING:
    from codegen.cli.products import Products
    from codegen.cli.scheduled import Scheduled
    from passes.simulation import Simulation

__all__ = ["simulate_command"]


@takes_groups(without=("batched", "target"))
def simulate_command(
    *,
    problem: Problem,
    batches: Batches = None,
    extents: Extents = None,
    beta: Beta = 0.0,
    machine: MachineName = "H200",
    scheduling: Scheduling,
    source: Source = None,
    events: Events = None,
    modules: Import = None,
    as_json: Json = False,
) -> None:
    """Simulate a schedule on a model of a GPU, event by event. No GPU is needed.

    Prints when the last workgroup ends, how much of the time SMs multiply, what workgroups wait
    for, and how many bytes of A and B are read from memory in this order of tiles.

    [bold]Examples[/]

      coordgraph simulate --m 2304 --n 2304 --k 4096 -s data-parallel
      coordgraph simulate --m 2304 --n 2304 --k 4096 -s stream-k --machine A100
      coordgraph simulate --m 2304 --n 2304 --k 4096 --plan '256x128x64@c2x1 stream-k on 66'
      coordgraph simulate --m 2304 --n 2304 --k 4096 -s stream-k --events events.json
    """
    from codegen.cli.simulated_launch import simulated_launch
    from passes.simulation import simulate

    launch = simulated_launch(problem, batches, extents, scheduling, source, machine, beta)
    made, products, gpu = launch.made, launch.products, launch.machine
    with working(f"simulating on {gpu.name}"):
        found = simulate(
            made.graph, launch.arguments, gpu, tables=products.tables(), kernel=launch.kernel
        )
    if events is not None:
        record = {**found.summary(), "events": found.event_columns()}
        events.write_text(json.dumps(record) + "\n", "utf-8")
    if as_json:
        print_json({**_problem(made, products), **found.summary()})
    else:
        _print(made, products, found, events)


def _problem(made: Scheduled, products: Products) -> dict[str, Any]:
    """The simulated problem and its schedule as plain data, for --json."""
    return {
        "products": products.shapes,
        "pipeline": made.title,
        "plan": None if made.plan is None else str(made.plan),
    }


def _print(made: Scheduled, products: Products, s: Simulation, events: Path | None) -> None:
    """Print the summary and the timeline of a simulated launch."""
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
    """The summary of a simulated launch: a label and a text for each line."""
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
        ("code", _code(s)),
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


def _code(s: Simulation) -> str:
    """The matrix instructions as text; with a warning if wgmma is simulated in place of them."""
    if s.machine.constants is None or s.instructions == WARPGROUP_MMA:
        return s.instructions
    return (
        f"{s.instructions}, since {'; '.join(s.refusals)}; the times below are those of "
        f"{WARPGROUP_MMA}, which is faster"
    )


def _bytes(count: float) -> str:
    """A number of bytes as text, in GB, MB or kB."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count:.0f} B"
