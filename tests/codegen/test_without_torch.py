"""Importing `codegen.torch` fails with advice if PyTorch is not installed."""

from __future__ import annotations

import subprocess
import sys


def test_without_torch_the_import_says_what_to_install():
    """Without PyTorch, `import codegen.torch` raises an error that names the pip command.

    PyTorch is hidden by a `find_spec` that returns None for `torch`.
    """
    script = (
        "import importlib.util, codegen\n"
        "found = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *a: None if name == 'torch' else found(name, *a)\n"
        "try:\n  import codegen.torch\n"
        "except ModuleNotFoundError as error:\n  print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert "install it, as by pip install 'coordgraph[torch]'" in done.stdout
