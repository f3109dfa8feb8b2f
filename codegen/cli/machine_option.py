"""The option `--machine` of commands that simulate a launch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from codegen.cli.options import PROBLEM
from coordgraph import LaunchError

if TYPE_CHECKING:
    from passes.simulation import Machine

__all__ = ["MachineName", "machine_of"]

MachineName = Annotated[
    str,
    typer.Option(
        "--machine",
        metavar="NAME",
        help="The GPU by its name, full or short: H200, H100, A100, L40S, RTX 4090.",
        rich_help_panel=PROBLEM,
    ),
]


def machine_of(name: str) -> Machine:
    """The model of the GPU whose full or short name is `name`; BadParameter if there is none."""
    from passes.simulation.launching import machine_named

    try:
        return machine_named(name)
    except LaunchError as error:
        raise typer.BadParameter(str(error), param_hint="--machine") from None
