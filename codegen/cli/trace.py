"""`coordgraph trace`: runs a kernel that records a timeline of its workgroups and SMs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from codegen.cli.errors import ExitCode
from codegen.cli.option_groups import takes_groups
from codegen.cli.options import (
    Alpha,
    Batches,
    Beta,
    Checked,
    Events,
    Extents,
    Fixed,
    Import,
    Instructions,
    Json,
    Problem,
    Scheduling,
    Seed,
    Threads,
    output_option,
)
from codegen.cli.output import duration, print_block, print_json, speed, stdout, working

if TYPE_CHECKING:
    from codegen.cli.check import Check
    from codegen.cli.products import Products
    from codegen.cli.scheduled import Scheduled
    from codegen.timeline import Timeline

__all__ = ["trace_command"]

DEFAULT_FILE = Path("timeline.json")
"""The file for the Chrome trace if `--output` is not given."""


@takes_groups(without=("batched",))
def trace_command(
    *,
    problem: Problem,
    batches: Batches = None,
    extents: Extents = None,
    alpha: Alpha = 1.0,
    beta: Beta = 0.0,
    seed: Seed = 0,
    fixed: Fixed = False,
    scheduling: Scheduling,
    threads: Threads = None,
    check: Checked = False,
    output: Annotated[
        Path | None, output_option("The file of the timeline; by default timeline.json.")
    ] = None,
    events: Events = None,
    instructions: Instructions = None,
    modules: Import = None,
    as_json: Json = False,
) -> None:
    """Run a kernel that records when each workgroup multiplies, waits and finishes tiles.

    Writes the timeline as a Chrome trace for https://ui.perfetto.dev, in which each SM is a
    process. Prints how long the SMs multiplied, exchanged partial sums (fix-up), finished tiles,
    waited, and were idle: for all SMs together, and for each SM of the chart. --json has every SM.

    [bold]Examples[/]

      coordgraph trace --m 512 --n 768 --k 1024 --dtype f32 -s stream-k -w 7 -t cpu
      coordgraph trace --m 8192 --n 8192 --k 8192 -s stream-k --target sm_90a -o stream-k.json
      coordgraph trace --m 512 --n 768 --k 1024 --dtype f32 --plan auto --check --json
    """
    from codegen.cli.products import Products
    from codegen.cli.scheduled import scheduled
    from codegen.cli.targets import resolve, runnable
    from codegen.timeline.chrome import chrome_trace

    target = resolve(scheduling.target, problem.dtype)
    runnable(target)
    if threads is not None and target != "cpu":
        raise typer.BadParameter(
            f"--threads is only for --target cpu, but the target is {target}; leave --threads out"
        )
    how = replace(scheduling, target=target)
    products = Products.of(problem, batches, extents)
    made = scheduled(products.problem, how, fixed=fixed, reads_c=beta != 0)
    scalars = alpha, beta, seed
    found, checked = _traced(made, products, target, scalars, threads, instructions, check)
    output = output or DEFAULT_FILE
    output.write_text(json.dumps(chrome_trace(found)) + "\n", "utf-8")
    summary = found.summary()
    if events is not None:
        record = {**summary, "events": found.event_columns()}
        events.write_text(json.dumps(record) + "\n", "utf-8")
    if as_json:
        print_json(_as_data(made, products, summary, checked, output))
    else:
        _print(made, products, found, checked, output)
    if checked is not None and not checked.passed:
        raise typer.Exit(ExitCode.CHECK_FAILED)


def _traced(
    made: Scheduled,
    products: Products,
    target: str,
    scalars: tuple[float, float, int],
    threads: int | None,
    instructions: str | None,
    check: bool,
) -> tuple[Timeline, Check | None]:
    """Compile the kernel and launch it twice.

    Returns:
        The timeline of the second launch, and the check of D if `check` is True, else None.
    """
    from codegen.cli.check import Check, make_inputs, poisoned_output
    from codegen.cli.targets import settled_workgroups
    from codegen.cli.timing import traced

    beta = scalars[1]
    with working(f"compiling for {target}"):
        kernel = made.compile(target, reads_c=beta != 0, instructions=instructions, timeline=True)
        grid = settled_workgroups(kernel, made.grid, threads)
    with working("making matrices"):
        inputs = make_inputs(made.problem, *scalars, products)
        out = poisoned_output(products, made.graph.tensor("D").dtype)
    given: dict[str, Any] = {} if threads is None else {"threads": threads}
    with working("running"):
        found, d = traced(kernel, inputs, out, workgroups=grid, **given)
    checked = Check.of(d, inputs, made.problem, products) if check else None
    return found, checked


def _as_data(
    made: Scheduled,
    products: Products,
    summary: dict[str, Any],
    checked: Check | None,
    output: Path,
) -> dict[str, Any]:
    """The results of `coordgraph trace` as plain data, for --json."""
    from dataclasses import asdict

    return {
        "products": products.shapes,
        "pipeline": made.title,
        "plan": None if made.plan is None else str(made.plan),
        **summary,
        "check": None if checked is None else {**asdict(checked), "passed": checked.passed},
        "trace": str(output),
    }


def _print(
    made: Scheduled, products: Products, t: Timeline, checked: Check | None, output: Path
) -> None:
    """Print the summary and the timeline of a measured launch."""
    from codegen.cli.gantt import gantt

    console, what = stdout(), _what(t)
    console.print(Text(str(products), "bold cyan").append(f" on {t.target}", "cyan"))
    console.print()
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True, min_width=11)
    table.add_column(overflow="fold")
    for label, text in _lines(made, products, t):
        table.add_row(label, Text(text))
    if checked is not None:
        verdict = "passed" if checked.passed else "FAILED"
        table.add_row("check", Text(f"{verdict}, error {checked.error:.2e}"))
    table.add_row("timeline", Text(str(output), "dim"))
    print_block(table)
    console.print()
    print_block(gantt(t, t.processors, t.makespan))
    console.print()
    print_block(_per_slot(t, what))


def _what(t: Timeline) -> str:
    """The heading for the processors that run workgroups: `threads` on the CPU, else `SMs`."""
    return "threads" if t.target == "cpu" else "SMs"


def _per_slot(t: Timeline, what: str) -> Table:
    """A table with a row for each SM that the chart shows: percentages of its time by activity.

    The time of `waiting` is also counted in `fix-up`. The time of `tail`, which is the idle time
    after the last workgroup of the SM, is also counted in `idle`.
    """
    from codegen.cli.gantt import shown_rows

    heads = (what, "multiplying", "epilogue", "fix-up", "waiting", "idle", "tail")
    table = Table(*heads, box=None, header_style="bold")
    for column in table.columns:
        column.justify = "right"
    total = t.lanes * t.makespan
    for place in shown_rows(len(t.processors)) if total else ():
        if place is None:
            table.add_row("⋮")
            continue
        row = t.per_processor[place]
        seconds: dict[str, float] = row["slot_seconds"]
        parts = (
            *(seconds["multiply"], seconds["finish"], row["fix_up_seconds"], seconds["wait"]),
            *(seconds["idle"], t.lanes * row["tail_seconds"]),
        )
        # `z` prints an idle time that rounding errors make negative as 0.0%, not as -0.0%.
        table.add_row(str(row["slot"]), *(f"{part / total:z.1%}" for part in parts))
    return table


def _lines(made: Scheduled, products: Products, t: Timeline) -> list[tuple[str, str]]:
    """The summary of a measured launch: a label and a text for each line."""
    summary = t.summary()
    seconds, total = summary["slot_seconds"], t.lanes * t.makespan * len(t.processors)
    if not total:
        return [("schedule", made.title if made.plan is None else str(made.plan))]

    def share(parts: dict[str, float]) -> str:
        return ", ".join(f"{name} {part / total:.1%}" for name, part in parts.items())

    def some(*names: str) -> dict[str, float]:
        return {name: seconds[name] for name in names if seconds[name] / total >= 0.0005}

    what = _what(t)
    processors = f"{len(t.processors)} {what if len(t.processors) > 1 else what[:-1]}"
    fix_up, parts = summary["fix_up_seconds"] / total, some("send", "wait", "receive")
    idle = seconds["idle"] / total
    lines = [
        ("schedule", made.title if made.plan is None else str(made.plan)),
        (
            "workgroups",
            f"{t.workgroups} on {processors}, {t.lanes} at a time on each",
        ),
        ("time", f"{duration(t.makespan)}, {speed(products.flops / t.makespan)}"),
        ("multiplying", f"{summary['utilisation']:.1%} of the {what}' time"),
        ("epilogue", f"{seconds['finish'] / total:.1%}"),
        ("fix-up", f"{fix_up:.1%}" + (f": {share(parts)}" if parts else "")),
        ("idle", f"{idle:z.1%}, of which tail {t.lanes * summary['tail_seconds'] / total:z.1%}"),
    ]
    if others := some("start", "turn", "drain"):
        lines.append(("otherwise", share(others)))
    if summary["stalled_seconds"]:
        lines.append(("stalled", share(summary["stalled_seconds"])))
    if t.dropped:
        lines.append(("dropped", f"{t.dropped} records; compile with a larger timeline="))
    return lines
