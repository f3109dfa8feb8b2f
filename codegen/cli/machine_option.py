"""The option `--machine` of commands that simulate a launch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from codegen.cli.options import PROBLEM

if TYPE_CHECKING:
    from passes.simulation import Machine

__all__ = ["MachineName", "machine_of"]

MachineName = Annotated[
    str,
    typer.Option(
        "--machine",
        metavar="NAME",
        help="The GPU by its name, full or short: H200, H100, A100, RTX 4090.",
        rich_help_panel=PROBLEM,
    ),
]


def machine_of(name: str) -> Machine:
    """The machine with a full or short name."""
    from codegen.call.known_gpus import matching
    from passes.simulation import MACHINES

    found = matching(name, MACHINES)
    if found is None:
        raise typer.BadParameter(
            f"no machine is called '{name}'; there are {', '.join(MACHINES)}",
            param_hint="--machine",
        )
    return MACHINES[found]
