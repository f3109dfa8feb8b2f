"""`coordgraph` and `python -m coordgraph`: the command line of `codegen.cli`.

The command starts in the package `coordgraph`, not in `codegen`, so that it can print an error if
Python finds another package under the name `codegen` or `passes`.
"""

from __future__ import annotations

import platform
import sys
from importlib import import_module

from coordgraph.import_names import NAMES, hidden, hiding_file, package_folder, prefer_own
from coordgraph.version import __version__

__all__ = ["main"]

UNAVAILABLE = 4
"""The exit code for something that is missing on this machine, as in
`codegen.cli.errors.ExitCode`."""
INTERRUPTED = 130
"""The exit code after Ctrl-C: 128 plus the number of the signal SIGINT."""


def main() -> None:
    """Run the command line.

    If a file hides the package `coordgraph`, `passes` or `codegen`, `main` prints the file's path
    instead, and ends with the exit code `UNAVAILABLE`. The command `doctor` runs all the same, with
    the hidden packages, and its report says which file hides them.
    """
    if reason := hidden():
        doctor = next((word for word in sys.argv[1:] if not word.startswith("-")), "") == "doctor"
        if doctor:
            prefer_own()
        if not doctor or hidden():
            print(f"error: {reason}", file=sys.stderr)
            if doctor:
                _print_what_is_known()
            sys.exit(UNAVAILABLE)
    # Import the command line by name at run time: `codegen` is built on `coordgraph`, so modules of
    # `coordgraph` have no import statement for it.
    try:
        command_line = import_module("codegen.cli")
    except KeyboardInterrupt:  # after the import, typer handles Ctrl-C
        sys.exit(INTERRUPTED)
    command_line.main()


def _print_what_is_known() -> None:
    """Print what `doctor` can say if its own code cannot be imported."""
    print(f"python {platform.python_version()}: {sys.executable}")
    print(f"coordgraph {__version__}: {package_folder('coordgraph')}")
    for name in NAMES:
        print(f"import {name}: {hiding_file(name) or package_folder(name)}")
    print("doctor examines packages, tools and targets once these imports find coordgraph's own")


if __name__ == "__main__":
    main()
