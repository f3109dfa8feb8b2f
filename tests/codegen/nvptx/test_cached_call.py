"""A call whose kernel is in the disk cache does not import modules that compile kernels."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("cuda.bindings.driver")

ROOT = Path(__file__).resolve().parents[3]
UNNEEDED = (
    *("llvmlite", "codegen.emit.llvm", "codegen.emit.walker", "codegen.targets.nvptx.sm_80.emit"),
    *("codegen.timeline.timeline", "codegen.targets.nvptx.recording", "codegen.toolchain"),
    *("codegen.call.tuning", "codegen.call.explain", "codegen.cli"),
    *("coordgraph.interpreter.machine", "coordgraph.interpreter.recording"),
    *("coordgraph.interpreter.run", "coordgraph.show", "coordgraph.text.reader"),
    *("coordgraph.verification", "coordgraph.derivation.derive", "coordgraph.difference.compare"),
    *("passes.choosing.enumeration", "passes.choosing.search", "passes.report"),
    *("passes.simulation.engine", "passes.simulation.events", "passes.timeline.record"),
    *("rich", "typer", "filelock"),
)
"""Modules that a call with a cached kernel must not import, such as those that compile."""
CALL = """
import sys
import pytest
from tests.codegen.nvptx.fake_driver import install, matrix
patch = pytest.MonkeyPatch()
fake = install(patch)
import codegen
from codegen.call import build
from codegen.targets.nvptx import driver
h200 = driver.Device(0, "NVIDIA H200", "sm_90a", 132, 1)
patch.setattr(driver, "device", lambda ordinal=0: h200)
a, b = matrix(512, 1024, 1 << 30), matrix(1024, 768, 2 << 30)
codegen.matmul(a, b, out=matrix(512, 768, 3 << 30))
assert len(fake.launches) == 1
print(all(kernel.from_cache for kernel in build._kernels.values()))
print(*sorted(sys.modules))
"""


def call(cache: Path) -> tuple[bool, set[str]]:
    """Multiply in a new process; return whether the kernel was cached, and all loaded modules."""
    done = subprocess.run(
        [sys.executable, "-c", CALL],
        cwd=ROOT,
        env=os.environ | {"COORDGRAPH_CACHE": str(cache), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    cached, modules = done.stdout.splitlines()
    return cached == "True", set(modules.split())


@pytest.mark.slow
def test_a_cached_call_imports_no_compiler_no_checks_and_no_simulation(tmp_path: Path):
    cached, modules = call(tmp_path)
    assert not cached
    # The first call compiles, so it loads these modules; a misspelt name would fail here.
    assert {"llvmlite", "codegen.emit.walker", "codegen.targets.nvptx.sm_80.emit"} <= modules
    cached, modules = call(tmp_path)
    assert cached
    assert modules & set(UNNEEDED) == set()
    assert all(
        (ROOT / name.replace(".", "/")).with_suffix(".py").exists()
        or (ROOT / name.replace(".", "/")).is_dir()
        or "." not in name
        for name in UNNEEDED
    )
