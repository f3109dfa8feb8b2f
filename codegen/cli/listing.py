"""`coordgraph passes` lists passes; `coordgraph explain` explains a pass or a choice of plan."""

from __future__ import annotations

import inspect
from dataclasses import MISSING, fields, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from codegen.cli.completion import names_of_passes
from codegen.cli.names import registered_passes
from codegen.cli.option_groups import takes_groups
from codegen.cli.options import (
    PROBLEM,
    Batches,
    Beta,
    Import,
    Json,
    Problem,
)
from codegen.cli.output import print_block, print_json, stdout
from codegen.cli.plans import explain_choice

if TYPE_CHECKING:
    from passes import Pass

__all__ = ["explain", "passes"]


def passes(*, modules: Import = None, as_json: Json = False) -> None:
    """List all passes with their options and defaults.

    [bold]Example[/]

      coordgraph passes
    """
    found = registered_passes()
    if as_json:
        print_json({"passes": [_data(kind) for kind in found.values()]})
        return
    table = Table("pass", "options", "what it does", box=None, header_style="bold", pad_edge=False)
    for name, kind in found.items():
        options = "\n".join(f"{o['name']}={o['default']}" for o in _options(kind)) or "-"
        table.add_row(Text(name, "cyan"), Text(options, "dim"), Text(_summary(kind)))
    print_block(table)
    stdout().print("\n[dim]coordgraph explain PASS describes a pass.[/]")


@takes_groups(without=("batched", "groups"))
def explain(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="PASS",
            autocompletion=names_of_passes,
            help="The name of a pass.",
            show_default=False,
        ),
    ] = None,
    *,
    problem: Problem,
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            "--gpu",
            metavar="NAME",
            help="cpu, or a GPU by its name, full or short: H200, H100, A100, L4, RTX 4090. By "
            "default the GPU of this machine, else NVIDIA H200; cpu for types and layouts that no "
            "GPU can multiply.",
            rich_help_panel=PROBLEM,
        ),
    ] = None,
    beta: Beta = 0.0,
    batches: Batches = None,
    invariant: Annotated[
        bool,
        typer.Option(
            "--invariant",
            help="Explain the choice of codegen.matmul with invariant=True.",
            rich_help_panel=PROBLEM,
        ),
    ] = False,
    modules: Import = None,
    as_json: Json = False,
) -> None:
    """Explain what a pass does to a graph, or which plan codegen.matmul chooses for a problem.

    With the name of a pass: the graph before and after it, and its options. With --m, --n and --k:
    the best plans for that problem on a device, their predicted times term by term, and what bounds
    the best one. Times on a GPU that was not measured are estimates, and the output says so. For
    the CPU, for GPUs without wgmma other than A100 (SXM), L40S and RTX 4090, and for matrices whose
    rows are no multiples of 16 bytes, a fixed rule chooses the plan, printed without times.

    [bold]Examples[/]

      coordgraph explain two-tile-stream-k
      coordgraph explain --m 2048 --n 2304 --k 8192 --transpose-b
      coordgraph explain --m 512 --n 512 --k 512 --transpose-b --batches 64
      coordgraph explain --m 16 --n 1024 --k 4096 --transpose-b --invariant
      coordgraph explain --m 2048 --n 2304 --k 8192 --transpose-b --device H100
      coordgraph explain --m 2048 --n 2304 --k 8192 --dtype f32 --device cpu
    """
    if name is None:
        sizes = {"--m": problem.m, "--n": problem.n, "--k": problem.k}
        missing = [option for option, value in sizes.items() if value is None]
        if len(missing) == len(sizes):
            raise typer.BadParameter(
                "neither a pass nor a problem is given; name a pass, or give --m, --n and --k"
            )
        if missing:
            raise typer.BadParameter(
                f"sizes of the problem are missing; give {', '.join(missing)} too"
            )
        gemm = replace(problem, batched=batches is not None).gemm(fixed=True)
        options = {"reads_c": beta != 0, "invariant": invariant, "as_json": as_json}
        explain_choice(gemm, device, batches=batches or 1, **options)
        return
    if (problem.m, problem.n, problem.k, device, batches) != (None,) * 5:
        raise typer.BadParameter(
            "a pass and a problem are given, but the explanation of a pass does not depend on a "
            "problem; give one of them"
        )
    found = registered_passes()
    kind = found.get(name)
    if kind is None:
        close = get_close_matches(name, found, n=1)
        hint = f"did you mean '{close[0]}'?" if close else f"there are {', '.join(found)}"
        from passes.registry import with_advice

        raise typer.BadParameter(f"there is no pass '{name}'; {with_advice(hint)}")
    if as_json:
        print_json(_data(kind))
        return
    from passes.options import without_options

    console = stdout()
    console.print(Text(name, "bold cyan"))
    console.print(Text(f"\n{without_options(_documentation(kind))}"), soft_wrap=True)
    rows = [("requires", ", ".join(kind.requires)), ("establishes", ", ".join(kind.establishes))]
    rows += [("Python", f"{kind.__module__}.{kind.__qualname__}")]
    console.print()
    _print_rows(rows)
    if options := _options(kind):
        console.print(Text("\nOptions: type and allowed values = default", "bold"))
    for o in options:
        console.print()
        console.print(Text(f"{o['name']}: {o['type']} = {o['default']}", "cyan"), soft_wrap=True)
        if o["meaning"]:
            print_block(Padding(Text(o["meaning"]), (0, 0, 0, 4)))


def _print_rows(rows: list[tuple[str, str]]) -> None:
    """Print a table of two columns: a label and a text in each row."""
    table = Table.grid(padding=(0, 2))
    for label, text in rows:
        table.add_row(Text(label, "bold"), Text(text))
    print_block(table)


def _documentation(kind: type[Pass]) -> str:
    return inspect.cleandoc(kind.__doc__ or "")


def _summary(kind: type[Pass]) -> str:
    return _documentation(kind).partition("\n")[0]


def _options(kind: type[Pass]) -> list[dict[str, str]]:
    """Name, type, default and meaning of each option of a pass, as text."""
    from passes.options import option_meaning, option_text

    found: list[dict[str, str]] = []
    for f in fields(kind):
        default = "" if f.default is MISSING else str(f.default)
        if isinstance(f.default, bool) or f.default is None:
            default = default.lower()
        about = {"type": option_text(kind, f.name), "meaning": option_meaning(kind, f.name)}
        found.append({"name": f.name, "default": default, **about})
    return found


def _data(kind: type[Pass]) -> dict[str, Any]:
    return {
        "name": kind.name,
        "summary": _summary(kind),
        "documentation": _documentation(kind),
        "requires": kind.requires,
        "establishes": kind.establishes,
        "options": _options(kind),
        "class": f"{kind.__module__}.{kind.__qualname__}",
    }
