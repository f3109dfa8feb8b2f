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
from coordgraph import epilogue as ep
from passes import DataParallel, Pass, SplitK, StreamK
from tests.codegen.export.compiled import compile_example

pytestmark = pytest.mark.usefixtures("gpu")

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
    compile_example(found, tmp_path / "example")
    for m, n, k in SIZES:
        more = ["3"] if gemm.batched else []
        done = subprocess.run(
            ["./example", str(m), str(n), str(k + k % 16), *more],
            cwd=tmp_path, capture_output=True, text=True, check=False, timeout=240,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert "256 elements of D are right" in done.stdout
        assert "TFLOP/s" in done.stdout


@ep.epilogue()
def gated(gate: Any, up: Any) -> Any:
    return ep.silu(gate) * up


@ep.epilogue(pre=ep.output(), total=ep.output("m", reduce="sum"))
def without_d(acc: Any) -> Any:
    return None, ep.relu(acc), acc


@pytest.mark.parametrize(("epilogue", "first"), [(gated, "D"), (without_d, "pre")])
def test_examples_of_other_epilogues_run(epilogue: ep.EpilogueFunction, first: str, tmp_path: Path):
    """The example of a kernel with two sums, and of one that stores other outputs only, runs."""
    graph = DataParallel()(Gemm("bf16", epilogue=epilogue).graph(tile=(128, 128, 64)))
    found = export(codegen.compile(graph, "native"), tmp_path)
    compile_example(found, tmp_path / "example")
    done = subprocess.run(
        ["./example", "300", "264", "520"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"not checked: {first}[0] = " in done.stdout
    assert "nan" not in done.stdout
