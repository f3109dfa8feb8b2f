"""`coordgraph export`: a folder with a kernel's machine code and C functions that launch it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from codegen.cli.option_groups import takes_groups
from codegen.cli.options import Import, Instructions, Json, Problem, ReadsC, Scheduling
from codegen.cli.output import print_block, print_json, working
from coordgraph import CodegenError

__all__ = ["export_command"]


@takes_groups()
def export_command(
    *,
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="The folder to write to.", file_okay=False)
    ],
    name: Annotated[
        str, typer.Option("--name", help="The prefix of the C functions and of the files.")
    ] = "gemm",
    alignment: Annotated[
        int,
        typer.Option(
            "--alignment",
            metavar="BYTES",
            help="16 for the fastest code, which needs addresses and rows that are multiples of 16 "
            "bytes; 1 for code that takes all matrices.",
        ),
    ] = 16,
    reads_c: ReadsC = False,
    scheduling: Scheduling,
    problem: Problem,
    instructions: Instructions = None,
    modules: Import = None,
    as_json: Json = False,
) -> None:
    """Write a kernel as machine code with C functions that load and launch it. Needs no GPU.

    The folder gets the cubin, a header, a C file (grid, arguments, workspace and tensor maps), a
    C++ program that runs and checks the kernel, a Makefile, and the launch recipe as JSON. Programs
    that use them need the CUDA driver, but neither Python nor coordgraph.

    [bold]Examples[/]

      coordgraph export build/gemm --target sm_90a --transpose-b
      coordgraph export build/gemm -t sm_90a --plan auto --m 2048 --n 2304 --k 8192 --name layer
      coordgraph export build/add -t sm_80 --schedule data-parallel --reads-c
    """
    from codegen.cli.scheduled import scheduled
    from codegen.cli.targets import resolve
    from codegen.export import export

    target = resolve(scheduling.target, problem.dtype)
    if not target.startswith("sm_"):
        raise CodegenError(
            f"there is no machine code for '{target}' to export; choose --target sm_80 or later"
        )
    made = scheduled(problem, replace(scheduling, target=target), fixed=True, reads_c=reads_c)
    with working(f"compiling for {target}"):
        kernel = made.compile(target, reads_c=reads_c, instructions=instructions)
        written = export(
            kernel,
            folder,
            name=name,
            alignment=alignment,
            reads_c=reads_c,
            workgroups=made.grid,
        )
    recipe, report = written.recipe, written.report
    plan = None if made.plan is None else str(made.plan)
    if as_json:
        print_json(
            {
                "files": {base: str(path) for base, path in written.files.items()},
                "plan": plan,
                "instructions": recipe.instructions,
                "registers": max(report.registers.values(), default=None),
                "spill_stores": report.spill_stores,
                "warnings": report.warnings,
                "recipe": recipe.to_json(),
            }
        )
        return
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    head = {
        "formula": recipe.formula,
        "target": recipe.architecture,
        "code": recipe.instructions,
        "plan": plan or "",
        "registers": str(max(report.registers.values(), default=0)),
        "warnings": "\n".join(report.warnings) or "none",
        "files": "\n".join(str(path) for path in written.files.values()),
    }
    for label, text in head.items():
        if text:
            table.add_row(label, Text(text))
    print_block(table)
