"""`coordgraph run`: compiles a kernel, runs it, checks the result and times it."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
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
    Extents,
    Fixed,
    Import,
    Instructions,
    Json,
    Problem,
    Scheduling,
    Seed,
    Source,
    Threads,
)
from codegen.cli.output import duration, print_block, print_json, progress, speed, stdout, working

if TYPE_CHECKING:
    from codegen.cli.check import Check
    from codegen.cli.products import Products
    from codegen.cli.scheduled import Scheduled
    from codegen.cli.timing import Launched
    from coordgraph import KernelGraph
    from coordgraph.interpreter import Trace

__all__ = ["run"]

MOST_TRACED = 100_000
"""The most tiles of D for which `coordgraph run` traces the schedule and prints a timeline."""


@takes_groups(without=("batched",))
def run(
    *,
    problem: Problem,
    batches: Batches = None,
    extents: Extents = None,
    alpha: Alpha = 1.0,
    beta: Beta = 0.0,
    seed: Seed = 0,
    fixed: Fixed = False,
    source: Source = None,
    scheduling: Scheduling,
    threads: Threads = None,
    check: Checked = False,
    repeat: Annotated[
        int | None,
        typer.Option(
            "--repeat", min=1, help="Launches to time; by default up to 20 within two seconds."
        ),
    ] = None,
    mermaid_dir: Annotated[
        Path | None,
        typer.Option(
            "--mermaid-dir",
            metavar="DIR",
            help="The folder for diagrams of the graphs, in mermaid. By default a folder in the "
            "cache directory (COORDGRAPH_CACHE).",
        ),
    ] = None,
    instructions: Instructions = None,
    modules: Import = None,
    as_json: Json = False,
) -> None:
    """Compile a kernel, run it on random matrices, check the result and time it.

    [bold]Examples[/]

      coordgraph run --m 512 --n 768 --k 1024 --check
      coordgraph run --m 512 --n 768 --k 1024 --dtype f32 -s stream-k -w 7 --tile 64x64x32 -t cpu
      coordgraph run --m 512 --n 768 --k 1024 --plan '64x64x32 stream-k{owner=last} on 5' --check
      coordgraph run --m 512 --n 768 --k 1024 --plan auto --check
      coordgraph run --m 8192 --n 8192 --k 8192 -s 'reorder{group=8},stream-k' --target sm_90a
      coordgraph run --m 64 --n 96 --k 128 --batches 8 --dtype f32 -t cpu --check
      coordgraph run --groups m --extents 200,0,56 --n 96 --k 128 --dtype f32 -t cpu --check
      coordgraph run --groups k --extents 200,0,56 --m 64 --n 96 --dtype f32 -t cpu --check
      coordgraph run --groups mnk --extents 64x96x128,32x200x8 --dtype f32 -t cpu --check
      coordgraph show text --dtype f32 | coordgraph run --from - -t cpu --m 64 --n 96 --k 80 --check
    """
    from codegen.cli.products import Products
    from codegen.cli.scheduled import from_file, scheduled
    from codegen.cli.targets import resolve, runnable

    given = None if source is None else from_file(problem, scheduling, source)
    if given is not None:
        problem = given.problem
    target = resolve(scheduling.target, problem.dtype)
    runnable(target)
    if threads is not None and target != "cpu":
        raise typer.BadParameter(
            f"--threads is only for --target cpu, but the target is {target}; leave --threads out"
        )
    how = replace(scheduling, target=target)
    products = Products.of(problem, batches, extents)
    if given is None:
        made = scheduled(products.problem, how, fixed=fixed, reads_c=beta != 0)
    else:
        made = replace(given, problem=products.problem)
    done = _execute(
        made, products, target, (alpha, beta, seed), threads, check, repeat, instructions
    )
    done.diagrams = _diagrams(made, mermaid_dir)
    if as_json:
        print_json(done.as_data())
    else:
        _Report(done).print()
    if done.check is not None and not done.check.passed:
        raise typer.Exit(ExitCode.CHECK_FAILED)


def _diagrams(made: Scheduled, folder: Path | None) -> dict[str, Path]:
    from codegen.cli.diagrams import write_diagrams

    return write_diagrams(made.graph, made.title, folder)


@dataclass
class _Done:
    """What `coordgraph run` reports: kernel, compile time, launches, trace, check and diagrams."""

    made: Scheduled
    products: Products
    target: str
    machine: str
    instructions: str
    lowering_notes: tuple[str, ...]
    compile_seconds: float
    build_steps: str
    launched: Launched
    trace: Trace | None
    check: Check | None
    diagrams: dict[str, Path]

    @property
    def problem(self) -> Problem:
        return self.made.problem

    @property
    def graph(self) -> KernelGraph:
        return self.made.graph

    @property
    def flops(self) -> float:
        return self.products.flops

    @property
    def tile(self) -> tuple[int, ...]:
        names = ("A.index.0", "B.index.1", "A.index.1")
        return tuple(self.graph.coordinates[name].fixed_size for name in names)

    def as_data(self) -> dict[str, Any]:
        from codegen.cli.picture import Summary

        p, seconds = self.problem, self.launched.median
        found: dict[str, Any] = {
            "problem": {
                **{"m": p.m, "n": p.n, "k": p.k, "dtype": p.dtype},
                "out_dtype": self.graph.gemm.out_dtype,
                **{"transpose_a": p.transpose_a, "transpose_b": p.transpose_b},
                **{"batched": p.batched, "groups": p.groups or None},
                "products": self.products.shapes,
            },
            "target": self.target,
            "machine": self.machine,
            "instructions": self.instructions,
            "lowering_notes": self.lowering_notes,
            "pipeline": self.made.title,
            "plan": None if self.made.plan is None else str(self.made.plan),
            "tile": self.tile,
            "schedule": Summary.of(self.trace).as_data() if self.trace else None,
            "compile_seconds": self.compile_seconds,
            "compiled": self.build_steps,
            "seconds": seconds,
            "repeats": len(self.launched.seconds),
            "flops_per_second": self.flops / seconds,
            "check": None,
            "diagrams": {part: str(path) for part, path in self.diagrams.items()},
        }
        if (c := self.check) is not None:
            found["check"] = {
                **{"passed": c.passed, "error": c.error, "tolerance": c.tolerance},
                **{"wrong_elements": c.wrong, "unwritten_elements": c.unwritten},
            }
        return found


def _execute(
    made: Scheduled,
    products: Products,
    target: str,
    scalars: tuple[float, float, int],
    threads: int | None,
    check: bool,
    repeat: int | None,
    instructions: str | None,
) -> _Done:
    """Compile and run the kernel, trace its schedule, and, if `check`, compare D with NumPy's.

    `scalars` are alpha, beta and the seed of the random matrices.
    """
    from codegen.cli.check import Check, make_inputs, poisoned_output
    from codegen.cli.targets import describe_target, settled_workgroups
    from codegen.cli.timing import launch

    problem, graph, (_, beta, _) = made.problem, made.graph, scalars
    start = time.perf_counter()
    with working(f"compiling for {target}"):
        kernel = made.compile(target, reads_c=beta != 0, instructions=instructions)
        grid = settled_workgroups(kernel, made.grid, threads)
    compiled = time.perf_counter() - start
    with working("making matrices"):
        inputs = make_inputs(problem, *scalars, products)
        out = poisoned_output(products, graph.tensor("D").dtype)
    given: dict[str, Any] = {} if threads is None else {"threads": threads}
    with progress("running") as step:
        launched = launch(kernel, inputs, out, repeat, step, workgroups=grid, **given)
    with working("tracing the schedule"):
        trace = _trace(products, graph, grid)
    checked = None
    if check:
        with progress("comparing with numpy in 64 bits") as step:
            checked = Check.of(launched.d, inputs, problem, products, step)
    machine = describe_target(target, threads)
    how = made.instructions(kernel, reads_c=beta != 0)
    times = compiled, kernel.build_steps
    return _Done(made, products, target, machine, *how, *times, launched, trace, checked, {})


def _trace(products: Products, graph: KernelGraph, grid: int | None) -> Trace | None:
    """The segments of every workgroup; None if D is empty or has over MOST_TRACED tiles."""
    from coordgraph.interpreter import trace

    names = {p.name for p in graph.parameters.given}
    sizes = {**products.arguments(), "workgroups": grid}
    given = {name: value for name, value in sizes.items() if name in names and value is not None}
    rows, columns = (
        graph.coordinates[dimension].fixed_size for dimension in ("A.index.0", "B.index.1")
    )
    tiles = sum(-(-shape.m // rows) * -(-shape.n // columns) for shape in products.shapes)
    if products.empty or tiles > MOST_TRACED:
        return None
    return trace(graph, given, products.tables())


class _Report:
    """The printed report of `coordgraph run`."""

    def __init__(self, done: _Done) -> None:
        self.done = done

    def print(self) -> None:
        """Print the problem, the schedule, the timeline of workgroups, and times and checks."""
        console = stdout()
        console.print(self._title())
        console.print()
        print_block(self._schedule())
        if self.done.trace is not None:
            from codegen.cli.picture import timeline

            console.print()
            print_block(timeline(self.done.trace))
        console.print()
        print_block(self._results())

    def _title(self) -> Text:
        p, gemm = self.done.problem, self.done.graph.gemm
        a, b = ("Aᵀ" if p.transpose_a else "A"), ("Bᵀ" if p.transpose_b else "B")
        title = Text(f"D = {a} x {b}", "bold")
        title.append(f"   {self.done.products}", "bold cyan")
        title.append(f", {gemm.dtype} to {gemm.out_dtype}, sums in {gemm.accumulator}", "cyan")
        return title

    def _schedule(self) -> Table:
        from codegen.cli.picture import Summary

        table = _grid()
        for label, text in [
            ("target", f"{self.done.target}: {self.done.machine}"),
            ("code", self.done.instructions),
            *(("declined", note) for note in self.done.lowering_notes),
            *([("plan", str(self.done.made.plan))] if self.done.made.plan else []),
            ("schedule", ", ".join(self.done.graph.log)),
            ("tile", " x ".join(map(str, self.done.tile))),
            *(Summary.of(self.done.trace).lines() if self.done.trace else ()),
        ]:
            table.add_row(label, Text(text))
        return table

    def _results(self) -> Table:
        done, table = self.done, _grid()
        seconds, count = done.launched.median, len(done.launched.seconds)
        compiled = Text(f"in {duration(done.compile_seconds)}").append(
            f": {done.build_steps}", "dim"
        )
        table.add_row("compiled", compiled)
        time_text = Text(duration(seconds), "bold")
        time_text.append(f" {speed(done.flops / seconds)}", "bold green")
        time_text.append(f"  (median of {count} run{'' if count == 1 else 's'})", "dim")
        table.add_row("time", time_text)
        if done.check is not None:
            table.add_row("check", _verdict(done.check))
        for part, path in done.diagrams.items():
            table.add_row(part, Text(str(path), "dim"))
        return table


def _grid() -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True, min_width=11)
    table.add_column(overflow="fold")
    return table


def _verdict(check: Check) -> Text:
    error = f"error {check.error:.2e}, {check.tolerance:.2e} is allowed"
    if check.passed:
        return Text("passed", "bold green").append(f"  {error}; every element is written", "")
    found = [error]
    found += [f"{check.unwritten} elements are not written"] if check.unwritten else []
    found += [f"{check.wrong} elements are wrong"] if check.wrong else []
    return Text("FAILED", "bold red").append("  " + "; ".join(found), "red")
