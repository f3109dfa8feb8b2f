"""Importing `codegen.torch` or `codegen.jax` fails with advice without PyTorch or JAX."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("guest", ["torch", "jax"])
def test_without_a_guest_the_import_says_what_to_install(guest: str):
    """Without PyTorch, `import codegen.torch` raises an error that names the pip command.

    The test hides the package by a `find_spec` that returns None. JAX is tested in the same way.
    """
    script = (
        "import importlib.util, codegen\n"
        "found = importlib.util.find_spec\n"
        f"hidden = lambda name, *a: None if name == '{guest}' else found(name, *a)\n"
        "importlib.util.find_spec = hidden\n"
        f"try:\n  import codegen.{guest}\n"
        "except ModuleNotFoundError as error:\n  print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert f"install it, as by pip install 'coordgraph[{guest}]'" in done.stdout
