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


def main() -> None:
    """Run the command line, or print which file hides a package that it needs."""
    if reason := hidden():
        print(f"error: {reason}", file=sys.stderr)
        sys.exit(UNAVAILABLE)
    # `codegen` is imported by name, because modules of `coordgraph` must not import `codegen`.
    import_module("codegen.cli").main()


if __name__ == "__main__":
    main()
