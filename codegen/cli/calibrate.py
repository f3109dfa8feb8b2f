"""`coordgraph calibrate`: measures this machine's GPU, and fits the cost model to it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from codegen.cli.options import Json, Ordinal, output_option
from codegen.cli.output import duration, print_block, print_json

__all__ = ["calibrate_command"]


def calibrate_command(
    *,
    minutes: Annotated[
        float, typer.Option("--minutes", min=1.0, help="The time to take, in minutes.")
    ] = 8.0,
    output: Annotated[
        Path | None,
        output_option(
            "The file of constants to write; by default the file of this GPU, which later "
            "processes read."
        ),
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(
            "--times",
            metavar="FILE",
            dir_okay=False,
            help="The file of the measured times; by default beside the constants.",
        ),
    ] = None,
    device: Ordinal = 0,
    as_json: Json = False,
) -> None:
    """Fit the cost model, which chooses plans, to this machine's GPU.

    Measures plans on random sizes, fits the constants of the cost model to the times, and stores
    them for later processes. The GPU should be idle. The quality of the fit is judged on other
    sizes than those that were fitted.

    [bold]Examples[/]

      coordgraph calibrate
      coordgraph calibrate --minutes 4 --output my-gpu.json
    """
    from importlib.util import find_spec
    from time import perf_counter

    from codegen.cli.errors import Unavailable
    from codegen.targets.nvptx.driver import unavailable

    if reason := unavailable():
        raise Unavailable(
            f"calibrate measures an NVIDIA GPU: {reason.rstrip('.')}; run it on the machine that "
            "will run the program"
        )
    if find_spec("scipy") is None:
        raise Unavailable(
            "calibrate needs scipy for the fit; it comes with the extra bench: pip install "
            "'coordgraph[bench]'"
        )
    from codegen.call.calibrating import calibrate

    start = perf_counter()
    found = calibrate(minutes, device=device, output=output, record=record)
    seconds = perf_counter() - start
    if as_json:
        print_json(
            {
                "device": found.fitted.constants.device,
                "path": str(found.path),
                "record": str(found.record),
                "times": found.times,
                "held_out": asdict(found.fitted.held_out),
                "corrected": asdict(found.fitted.corrected),
                "before": asdict(found.fitted.before),
                "seconds": seconds,
            }
        )
        return
    print_block(Text(f"{found.fitted.constants.device}: {found}\n{duration(seconds)}"))
