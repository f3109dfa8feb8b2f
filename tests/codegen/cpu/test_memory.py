"""CPU kernels neither read nor write elements outside their tensors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.skipif(os.name != "posix", reason="forbids pages with mprotect")
def test_kernels_stay_inside_their_tensors():
    done = subprocess.run(
        [sys.executable, "-m", "tests.codegen.cpu.fenced"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert (done.returncode, done.stdout) == (0, "inside\n"), done.stderr
