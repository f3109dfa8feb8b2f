"""`coordgraph warm`: compiles the kernels for a range of sizes into the kernel cache."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.text import Text

from codegen.cli.options import DType, Json, OutDType, TransposeA, TransposeB
from codegen.cli.output import duration, print_block, print_json

__all__ = ["warm_command"]

RANGE = "An extent, or the smallest and the largest: 4096, or 1:8192. By default 128:8192."


def _extents(text: str) -> tuple[int, int]:
    low, _, high = text.partition(":")
    try:
        return int(low), int(high or low)
    except ValueError:
        raise typer.BadParameter(f"'{text}' is no extent and no range such as 1:8192") from None


def warm_command(
    *,
    m: Annotated[str, typer.Option("--m", metavar="RANGE", help=RANGE)] = "128:8192",
    n: Annotated[str, typer.Option("--n", metavar="RANGE", help=RANGE)] = "128:8192",
    k: Annotated[str, typer.Option("--k", metavar="RANGE", help=RANGE)] = "128:8192",
    dtype: DType = "bf16",
    out_dtype: OutDType = None,
    transpose_a: TransposeA = False,
    transpose_b: TransposeB = False,
    reads_c: Annotated[
        bool, typer.Option("--reads-c", help="For calls that add C or another matrix.")
    ] = False,
    kernels: Annotated[
        int, typer.Option("--kernels", min=1, help="The largest number of kernels.")
    ] = 96,
    device: Annotated[int, typer.Option("--device", min=0, help="The number of the GPU.")] = 0,
    as_json: Json = False,
) -> None:
    """Compile kernels for a range of sizes into the kernel cache, so that calls need not.

    The cost model selects the kernels that together serve the range with the least loss. A program
    that calls codegen.warm with the same arguments loads them; matmul then compiles nothing for
    sizes in the range.

    [bold]Examples[/]

      coordgraph warm --transpose-b
      coordgraph warm --m 1:8192 --n 4096 --k 14336 --transpose-b --kernels 32
    """
    from time import perf_counter

    import codegen
    from codegen.cli.errors import Unavailable
    from codegen.targets.nvptx.driver import unavailable

    if reason := unavailable():
        raise Unavailable(
            f"warm needs an NVIDIA GPU, whose driver assembles the kernels: {reason.rstrip('.')}; "
            "run it on the machine that will run the program"
        )
    start = perf_counter()
    found = codegen.warm(
        dtype,
        m=_extents(m),
        n=_extents(n),
        k=_extents(k),
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
