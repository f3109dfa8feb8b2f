"""`coordgraph explain --m … --n … --k …`: the plans for a problem and why the first is chosen."""

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
    invariant: bool = False,
    as_json: bool = False,
) -> None:
    """Print the problem, the device, the plans and the reasons for the first plan.

    Args:
        problem: the problem with its sizes.
        device: `cpu` or the name of a GPU; None for the GPU of this machine, else NVIDIA H200, or
            `cpu` for types and layouts that no GPU multiplies.
        batches: number of products in a batch.
        reads_c: whether C, times beta, is added to the product.
        invariant: whether the bits of a row of D must not depend on m or on the other rows.
        as_json: whether to print one JSON document.
    """
    from codegen.call.explain import Tuned, explain_problem

    options = {"reads_c": reads_c, "invariant": invariant}
    found = explain_problem(problem, device, batches=batches, **options)
    if as_json:
        print_json(found.as_data())
        return
    for line in found.heading:
        stdout().print(Text(line), soft_wrap=True)
    stdout().print()
    if isinstance(found, Tuned):
        _print(found.rows(), [found.legend, *found.reasons()])
        stdout().print()
        found = found.prediction
    _print(found.rows(), [*filter(None, [found.legend]), *found.reasons()])


def _print(rows: list[list[str]], sentences: list[str]) -> None:
    """Print a table with its head in the first row, and sentences under it."""
    head, *rows = rows
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column(head[0], no_wrap=True)
    for name in head[1:]:
        table.add_column(name, justify="right")
    for place, (plan, *numbers) in enumerate(rows):
        table.add_row(Text(plan, "bold cyan" if place == 0 else "cyan"), *numbers)
    print_block(table)
    console = stdout()
    console.print()
    for sentence in sentences:
        console.print(Text(sentence), soft_wrap=True)
