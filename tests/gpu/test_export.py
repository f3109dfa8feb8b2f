"""Exported kernels, compiled and run as C++ programs on the GPU."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

import codegen
from codegen.export import export
from codegen.targets.nvptx.driver import device
from coordgraph import Gemm
from passes import DataParallel, Pass, SplitK, StreamK
from tests.codegen.export.compiled import TOOLKIT, compile_c

pytestmark = pytest.mark.usefixtures("gpu")

LIBRARIES = (f"-L{TOOLKIT}/lib64/stubs", "-lcuda")
SIZES = ((300, 264, 520), (2048, 2304, 1032))


@pytest.mark.parametrize(
    ("gemm", "schedule", "target", "options"),
    [
        (Gemm("bf16", transpose_b=True), DataParallel(), "sm_90a", {}),
        (Gemm("bf16", transpose_b=True), StreamK(workgroups=None), "sm_90a", {"reads_c": True}),
        (Gemm("f16"), SplitK(splits=2), "sm_90a", {}),
        (Gemm("bf16", out_dtype="f32"), StreamK(owner="last"), "native", {"alignment": 1}),
        (Gemm("i8", transpose_b=True), DataParallel(), "native", {"alignment": 1}),
        (Gemm("bf16", batched=True, transpose_b=True), StreamK(workgroups=None), "sm_90a", {}),
    ],
    ids=["plain", "stream-k with C", "split-k", "mma.sync", "int8", "batch"],
)
def test_the_example_runs(
    gemm: Gemm,
    schedule: Pass,
    target: str,
    options: dict[str, Any],
    tmp_path: Path,
):
    """The compiled example runs, reports that elements of D are right, and prints a speed.

    A cubin runs on one architecture only, so the cases for mma.sync are compiled for this GPU's
    architecture.
    """
    if target == "sm_90a" and device(0).architecture != target:
        pytest.skip("sm_90a code needs a Hopper GPU")
    instructions = "mma.sync" if target == "native" else None
    graph = schedule(gemm.graph(tile=(128, 128, 64)))
    kernel = codegen.compile(graph, target, instructions=instructions)
    found = export(kernel, tmp_path, **options)
    compile_c("-std=c11", "-c", found.files["gemm.c"], "-o", tmp_path / "gemm.o")
    compile_c(
        "-std=c++17", found.files["example.cpp"], tmp_path / "gemm.o", *LIBRARIES,
        "-o", tmp_path / "example", compiler="c++",
    )  # fmt: skip
    for m, n, k in SIZES:
        more = ["3"] if gemm.batched else []
        done = subprocess.run(
            ["./example", str(m), str(n), str(k + k % 16), *more],
            cwd=tmp_path, capture_output=True, text=True, check=False, timeout=240,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert "256 elements of D are right" in done.stdout
        assert "TFLOP/s" in done.stdout
