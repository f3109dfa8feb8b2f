"""`coordgraph explain --m … --n … --k …`: why a problem is multiplied as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from codegen.cli.output import print_block, print_json, stdout

if TYPE_CHECKING:
    from coordgraph import Gemm

__all__ = ["explain_choice"]


def explain_choice(
    problem: Gemm,
    device: str | None,
    *,
    batches: int = 1,
    reads_c: bool = False,
    as_json: bool = False,
) -> None:
    """Print the plans for a problem and the reasons for the first."""
    from codegen.call.explain import ByRule, Tuned, explain_problem

    found = explain_problem(problem, device, batches=batches, reads_c=reads_c)
    if as_json:
        print_json(found.as_data())
        return
    if isinstance(found, Tuned):
        _print(found.rows(), "microseconds", found.reasons())
        stdout().print()
        found = found.prediction
    about = "microseconds; the table's terms are described in docs/choosing.md"
    _print(found.rows(), "" if isinstance(found, ByRule) else about, found.reasons())


def _print(rows: list[list[str]], about: str, reasons: list[str]) -> None:
    """A table, what it has, and sentences."""
    head, *rows = rows
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column(head[0], no_wrap=True)
    for name in head[1:]:
        table.add_column(name, justify="right")
    for place, (plan, *numbers) in enumerate(rows):
        table.add_row(Text(plan, "bold cyan" if place == 0 else "cyan"), *numbers)
    print_block(table)
    console = stdout()
    console.print(f"\n[dim]{about}[/]" if about else "")
    for reason in reasons:
        console.print(Text(reason), soft_wrap=True)
