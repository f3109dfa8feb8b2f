"""`coordgraph` and `python -m coordgraph`: the command line of `codegen.cli`.

The command starts here, not in `codegen`, so that it can say what is wrong where another package
is found under the name `codegen` or `passes`.
"""

from __future__ import annotations

import sys
from importlib import import_module

from coordgraph.import_names import hidden

__all__ = ["main"]

UNAVAILABLE = 4
"""The exit code of `codegen.cli.errors.ExitCode` for what is not there on this machine."""


def main() -> None:
    """Run the command line, or print which file hides a package that it needs."""
    if reason := hidden():
        print(f"error: {reason}", file=sys.stderr)
        sys.exit(UNAVAILABLE)
    # By name: `coordgraph` imports nothing of `codegen`, and this module is imported by nothing.
    import_module("codegen.cli").main()


if __name__ == "__main__":
    main()
