"""The command group: registers the commands, prints `--version`, and reports errors."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from codegen.cli.calibrate import calibrate_command
from codegen.cli.compiling import compile_command
from codegen.cli.diff import diff
from codegen.cli.doctor import doctor
from codegen.cli.errors import ExitCode, describe, exit_code, notes
from codegen.cli.evaluate import evaluate_command
from codegen.cli.explain_index import explain_index
from codegen.cli.exporting import export_command
from codegen.cli.help_text import help_text
from codegen.cli.listing import explain, passes
from codegen.cli.opt import opt
from codegen.cli.output import print_error, print_json, utf8
from codegen.cli.report import report
from codegen.cli.run import run
from codegen.cli.show import show
from codegen.cli.simulate import simulate_command
from codegen.cli.trace import trace_command
from codegen.cli.verify import verify
from codegen.cli.warm import warm_command
from coordgraph import __version__

__all__ = ["Commands", "app", "main"]


PYDANTIC = "Value error, "
"""Prefix of pydantic's error messages; typer converts the values of options by pydantic."""


class Commands(TyperGroup):
    """The command group: reports an error as a message or as JSON, and returns an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command as typer does; remove pydantic's prefix from the message of an error."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            _plain(error)
            raise

    def main(
        self,
        args: Sequence[str] | None = None,
        *rest: Any,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command, print its error as a message or as JSON, and exit with its exit code.

        `--debug` may stand anywhere among the arguments; an error is then raised, not printed.
        """
        arguments = list(sys.argv[1:] if args is None else args)
        debug = "--debug" in arguments
        arguments = [argument for argument in arguments if argument != "--debug"]
        as_json = "--json" in arguments
        try:
            # With --json, typer must raise usage errors and not print them, so that they are
            # printed as JSON.
            status = super().main(
                arguments, *rest, standalone_mode=standalone_mode and not as_json, **extra
            )
        except (SystemExit, KeyboardInterrupt):
            raise
        except Exception as error:
            if debug:
                raise
            sys.exit(_report(error, as_json=as_json))
        if standalone_mode:
            sys.exit(status if isinstance(status, int) else 0)
        return status


def _plain(error: Exception) -> None:
    """Remove pydantic's prefix "Value error, " from the message of an error, in place."""
    said = getattr(error, "message", None)
    if isinstance(said, str) and said.startswith(PYDANTIC):
        error.message = said.removeprefix(PYDANTIC)  # type: ignore[attr-defined]


def _report(error: Exception, *, as_json: bool) -> int:
    """Print an error as a message or as JSON, and return the exit code."""
    usage = getattr(error, "format_message", None)
    if usage is not None:  # an error of typer or click about the arguments
        status, found = ExitCode.USAGE, {"kind": "Usage", "message": str(usage()), "exit_code": 2}
    else:
        status, found = exit_code(error), describe(error)
    if as_json:
        print_json({"error": found})
    else:
        print_error(str(found["message"]), notes(error))
    return int(status)


app = typer.Typer(
    name="coordgraph",
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=(
        "[dim]Exit codes: 0 success; 1 the check failed, or graphs differ; 2 wrong arguments; 3 a "
        "graph, a pass or the parser refused the input; 4 the target, a tool or enough memory is "
        "not available; 5 verify could not examine a property; 70 a bug in coordgraph.[/]"
    ),
)


def _version(wanted: bool) -> None:
    if not wanted:
        return
    typer.echo(f"coordgraph {__version__}")
    raise typer.Exit


@app.callback()
def options(
    show_version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Print the traceback of an error.")
    ] = False,
) -> None:
    """Matrix-multiply kernels from a graph of coordinate transforms.

    [bold]A first look[/]

      coordgraph run --m 512 --n 768 --k 1024 --check
      coordgraph explain --m 2048 --n 2304 --k 8192
      coordgraph simulate --m 2304 --n 2304 --k 4096 -s stream-k
      coordgraph show pseudocode --schedule stream-k
      coordgraph eval A.0 --at A.tile.0=3,A.index.0
      coordgraph doctor
    """


for _name, _command, _panel in (
    ("run", run, "Kernels"),
    ("compile", compile_command, "Kernels"),
    ("trace", trace_command, "Kernels"),
    ("simulate", simulate_command, "Kernels"),
    ("report", report, "Kernels"),
    ("export", export_command, "Kernels"),
    ("warm", warm_command, "Kernels"),
    ("calibrate", calibrate_command, "Kernels"),
    ("show", show, "Graphs"),
    ("eval", evaluate_command, "Graphs"),
    ("explain-index", explain_index, "Graphs"),
    ("diff", diff, "Graphs"),
    ("opt", opt, "Graphs"),
    ("verify", verify, "Graphs"),
    ("passes", passes, "Help"),
    ("explain", explain, "Help"),
    ("doctor", doctor, "Help"),
):
    app.command(_name, help=help_text(_command.__doc__), rich_help_panel=_panel)(_command)


def main() -> None:
    """Run the command line."""
    utf8()
    # Most objects of a command are imported classes and graphs, which stay until it ends. Python's
    # default, a collection every 700 new objects, takes a tenth of the time of `coordgraph passes`.
    gc.set_threshold(100_000, 20, 100)
    app(prog_name="coordgraph")
