"""`coordgraph warm`: compiles the kernels for a range of sizes, or of a program, into the cache."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from codegen.cli.options import (
    DType,
    Json,
    Ordinal,
    OutDType,
    Problem,
    ReadsC,
    TransposeA,
    TransposeB,
)
from codegen.cli.output import duration, print_block, print_json
from coordgraph import CodegenError, CoordGraphError

if TYPE_CHECKING:
    from codegen.call.warming import Warmed

__all__ = ["warm_command"]

PLAIN: dict[str, Any] = {
    "dtype": Problem.dtype,
    "out_dtype": Problem.out_dtype,
    "transpose_a": Problem.transpose_a,
    "transpose_b": Problem.transpose_b,
    "reads_c": False,
    "device": 0,
}
"""The values of the options that describe plain products, if the command line gives none."""

OPTIONS = {"device": "ordinal"}
"""For each argument of `codegen.warm` whose option has another name: that name."""


def _extents(text: str) -> dict[str, tuple[int, int]]:
    """The (smallest, largest) extent of each axis that the text of `--range` names, by axis.

    Raises:
        typer.BadParameter: the text is malformed, or names an axis twice.
    """
    from passes.choosing.drawn_sizes import parse_extents

    found: dict[str, tuple[int, int]] = {}
    for part in filter(None, text.split(",")):
        axis, _, extents = part.strip().partition("=")
        if axis in found:
            raise typer.BadParameter(
                f"--range gives {axis} twice; write one range of an axis, as in {axis}=1:8192"
            )
        try:
            found[axis] = parse_extents(extents)
        except ValueError:
            axis = ""
        if axis not in tuple("mnk"):
            raise typer.BadParameter(
                f"'{part}' in --range is no extent of m, n or k; write m=1:8192,n=4096,k=14336"
            )
    return found


def _run(program: Path) -> None:
    """Run a Python program in this process, as `python PROGRAM` does.

    Raises:
        CodegenError: the program ends with an error or with an exit code.
    """
    import runpy
    import sys

    before, sys.argv = sys.argv, [str(program)]
    sys.path.insert(0, str(program.parent.resolve()))
    try:
        runpy.run_path(str(program), run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise CodegenError(
                f"{program} ends with exit code {end.code}; correct the program, so that "
                f"`python {program}` ends with 0"
            ) from end
    except Exception as error:
        if isinstance(error, CoordGraphError):
            raise
        raise CodegenError(
            f"{program} ends with {type(error).__name__}: {error}; `python {program}` prints the "
            "traceback"
        ) from error
    finally:
        del sys.path[0]
        sys.argv = before


def _warmed(
    program: Path | None,
    extents: dict[str, tuple[int, int]],
    kernels: int | None,
    **options: Any,
) -> tuple[Warmed, ...]:
    """Build kernels for plain products, or for calls like those of a program.

    Args:
        program: the program, or None.
        extents: the (smallest, largest) extent of each axis that has a range.
        kernels: the largest number of kernels for each kind of call; None for the default.
        options: further arguments of `codegen.warm`.

    Raises:
        typer.BadParameter: the command line gives a program and also an option that describes
            plain products.
    """
    import codegen

    limits = {} if kernels is None else {"kernels": kernels}
    if program is None:
        return (codegen.warm(**extents, **limits, **options),)
    given = [name for name, value in options.items() if value != PLAIN[name]]
    if given:
        names = ", ".join("--" + OPTIONS.get(name, name).replace("_", "-") for name in given)
        raise typer.BadParameter(
            f"{names}: options of plain products; the calls of {program} have types and layouts of "
            "their own, so leave them out"
        )
    with codegen.warm_calls(**extents, **limits) as warmed:
        _run(program)
    return warmed.kinds


def warm_command(
    program: Annotated[
        Path | None,
        typer.Argument(
            metavar="[PROGRAM]",
            help="A Python program to run, without arguments; kernels are built for calls like "
            "those that it makes.",
            exists=True,
            dir_okay=False,
            show_default=False,
        ),
    ] = None,
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
        int | None,
        typer.Option(
            "--kernels",
            min=1,
            help="The largest number of kernels for each kind of call; 96, or 32 with a program.",
            show_default=False,
        ),
    ] = None,
    device: Ordinal = 0,
    as_json: Json = False,
) -> None:
    """Compile kernels for a range of sizes into the kernel cache, so that calls compile none.

    With a program, kernels are built for each kind of call that the program makes on the GPU: with
    any epilogue, in batches and groups, also by codegen.torch. An axis that --range leaves out then
    has the extents of these calls.

    The cost model selects a set of kernels whose predicted times over the range are closest to
    those of the best plans. A program that calls codegen.warm with the same arguments loads these
    kernels; matmul then compiles nothing for sizes in the range. codegen.warm_calls with the calls
    of the program loads the kernels of a program.

    [bold]Examples[/]

      coordgraph warm --transpose-b
      coordgraph warm --range m=1:8192,n=4096,k=14336 --transpose-b --kernels 32
    """
    from time import perf_counter

    from codegen.cli.errors import Unavailable
    from codegen.targets.nvptx.driver import unavailable

    extents = _extents(sizes)
    if reason := unavailable():
        raise Unavailable(
            f"warm needs an NVIDIA GPU, whose driver assembles the kernels: {reason.rstrip('.')}; "
            "run it on the machine that will run the program"
        )
    start = perf_counter()
    every = _warmed(
        program,
        extents,
        kernels,
        dtype=dtype,
        out_dtype=out_dtype,
        transpose_a=transpose_a,
        transpose_b=transpose_b,
        reads_c=reads_c,
        device=device,
    )
    seconds = perf_counter() - start
    if as_json:
        print_json(
            {"kinds": [_data(each) for each in every], "seconds": seconds}
            if program
            else {**_data(every[0]), "seconds": seconds}
        )
        return
    for found in every:
        print_block(Text(f"{found}; {duration(seconds)}" if program is None else str(found)))
        print_block(Text("\n".join(plan.kernel for plan in found.kernels)))
        for plan, reason in found.refused.items():
            print_block(Text(f"not built: {plan}: {reason}"))


def _data(found: Warmed) -> dict[str, Any]:
    """What `warm` built, as a dict for JSON: kernels, sizes, predicted loss, refused plans."""
    return {
        **({"kind": found.kind} if found.kind else {}),
        "kernels": [plan.kernel for plan in found.kernels],
        "ranges": [asdict(each) for each in found.ranges],
        "loss": found.loss,
        "refused": found.refused,
    }
