"""The command line: `coordgraph run`, `show`, `eval`, `opt`, `compile`, `passes`, `doctor`.

One file for each command. LLVM, CUDA and numpy are imported by the commands that need them, so
that help comes at once.
"""

from codegen.cli.app import app, main

__all__ = ["app", "main"]
