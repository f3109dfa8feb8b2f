"""The command line `coordgraph`: `run`, `compile`, `show`, `verify` and the other commands.

Each command has a file of its own. The commands that need LLVM, CUDA or numpy import them when they
run, so that `--help` loads none of them.
"""

from codegen.cli.app import app, main

__all__ = ["app", "main"]
