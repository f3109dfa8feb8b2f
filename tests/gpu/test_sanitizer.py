"""compute-sanitizer finds no invalid access and no race in shared memory."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.sanitizer_cases import COUNT, run

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 280
PLACES = ("compute-sanitizer", "/usr/local/cuda/bin/compute-sanitizer")

pytestmark = pytest.mark.usefixtures("gpu")


def sanitizer() -> str:
    for place in PLACES:
        if found := shutil.which(place):
            return found
    pytest.skip("no compute-sanitizer on PATH nor in /usr/local/cuda/bin")


@pytest.mark.parametrize("number", range(COUNT))
def test_the_cases_are_right_without_it(number: int):
    run(number)


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "synccheck"])
def test_it_finds_nothing(tool: str):
    command = [sanitizer(), "--tool", tool, "--error-exitcode", "42", "--kernel-name", "kns=gemm"]
    command += [sys.executable, "-m", "tests.gpu.sanitizer_cases"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=SECONDS
    )
    said = f"exit status {done.returncode}\n{done.stdout[-6000:]}\n{done.stderr[-2000:]}"
    assert done.returncode == 0, said
    assert done.stdout.count(" exact") == COUNT, said
    # The tool `racecheck` reports hazards; the other tools of compute-sanitizer report errors.
    assert "0 errors" in done.stdout or "0 hazards" in done.stdout, said
