"""`coordgraph` and `python -m coordgraph`: the command line of `codegen.cli`.

The command starts in the package `coordgraph`, not in `codegen`, so that it can print an error if
Python finds another package under the name `codegen` or `passes`.
"""

from __future__ import annotations

import sys
from importlib import import_module

from coordgraph.import_names import hidden

__all__ = ["main"]

UNAVAILABLE = 4
"""The exit code for something that is missing on this machine, as in
`codegen.cli.errors.ExitCode`."""
INTERRUPTED = 130
"""The exit code after Ctrl-C: 128 plus the number of the signal SIGINT."""


def main() -> None:
    """Run the command line.

    If a file hides the package `coordgraph`, `passes` or `codegen`, `main` prints the file's path
    instead, and ends with the exit code `UNAVAILABLE`.
    """
    if reason := hidden():
        print(f"error: {reason}", file=sys.stderr)
        sys.exit(UNAVAILABLE)
    # Import the command line by name at run time: `codegen` is built on `coordgraph`, so modules of
    # `coordgraph` have no import statement for it.
    try:
        command_line = import_module("codegen.cli")
    except KeyboardInterrupt:  # after the import, typer handles Ctrl-C
        sys.exit(INTERRUPTED)
    command_line.main()


if __name__ == "__main__":
    main()
