"""`coordgraph warm`: compiles the kernels for a range of sizes into the kernel cache."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.text import Text

from codegen.cli.options import DType, Json, Ordinal, OutDType, ReadsC, TransposeA, TransposeB
from codegen.cli.output import duration, print_block, print_json

__all__ = ["warm_command"]


def _extents(text: str) -> dict[str, tuple[int, int]]:
    """The (smallest, largest) extent of each axis that the text of `--range` names, by axis.

    Raises:
        typer.BadParameter: the text is malformed.
    """
    from passes.choosing.drawn_sizes import parse_extents

    found: dict[str, tuple[int, int]] = {}
    for part in filter(None, text.split(",")):
        axis, _, extents = part.strip().partition("=")
        try:
            found[axis] = parse_extents(extents)
        except ValueError:
            axis = ""
        if axis not in tuple("mnk"):
            raise typer.BadParameter(
                f"'{part}' in --range is no extent of m, n or k; write m=1:8192,n=4096,k=14336"
            )
    return found


def warm_command(
    *,
    sizes: Annotated[
        str,
        typer.Option(
            "--range",
            metavar="EXTENTS",
            help="Extents of m, n and k, or the smallest and the largest: m=1:8192,n=4096. An axis "
            "that is left out has 128:8192.",
        ),
    ] = "",
    dtype: DType = "bf16",
    out_dtype: OutDType = None,
    transpose_a: TransposeA = False,
    transpose_b: TransposeB = False,
    reads_c: ReadsC = False,
    kernels: Annotated[
        int, typer.Option("--kernels", min=1, help="The largest number of kernels.")
    ] = 96,
    device: Ordinal = 0,
    as_json: Json = False,
) -> None:
    """Compile kernels for a range of sizes into the kernel cache, so that calls compile none.

    The cost model selects a set of kernels whose predicted times over the range are closest to
    those of the best plans. A program that calls codegen.warm with the same arguments loads these
    kernels; matmul then compiles nothing for sizes in the range.

    [bold]Examples[/]

      coordgraph warm --transpose-b
      coordgraph warm --range m=1:8192,n=4096,k=14336 --transpose-b --kernels 32
    """
    from time import perf_counter

    import codegen
    from codegen.cli.errors import Unavailable
    from codegen.targets.nvptx.driver import unavailable

    extents = _extents(sizes)
    if reason := unavailable():
        raise Unavailable(
            f"warm needs an NVIDIA GPU, whose driver assembles the kernels: {reason.rstrip('.')}; "
            "run it on the machine that will run the program"
        )
    start = perf_counter()
    found = codegen.warm(
        dtype,
        **extents,
        transpose_a=transpose_a,
        transpose_b=transpose_b,
        out_dtype=out_dtype,
        reads_c=reads_c,
        kernels=kernels,
        device=device,
    )
    seconds = perf_counter() - start
    if as_json:
        print_json(
            {
                "kernels": [plan.kernel for plan in found.kernels],
                "ranges": [asdict(each) for each in found.ranges],
                "loss": found.loss,
                "refused": found.refused,
                "seconds": seconds,
            }
        )
        return
    print_block(Text(f"{found}; {duration(seconds)}"))
    print_block(Text("\n".join(plan.kernel for plan in found.kernels)))
    for plan, reason in found.refused.items():
        print_block(Text(f"not built: {plan}: {reason}"))
