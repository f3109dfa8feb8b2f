"""Kernels that tests export: products, schedules, targets and options of the lowering."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import codegen
from codegen.export import Exported, export
from coordgraph import Gemm
from coordgraph import epilogue as ep
from passes import DataParallel, Pass, SplitK, StreamK, TwoTileStreamK
from passes.lowering import LowerToHopper
from tests.support.indices import causal

TILE = (128, 128, 64)
M, N, K = 1000, 752, 1040


@ep.epilogue(bias="n")
def with_bias(acc: Any, bias: Any) -> Any:
    return acc + bias


@ep.epilogue(total=ep.output("m", reduce="sum"), pre=ep.output(dtype="f32"))
def with_totals(acc: Any) -> Any:
    return ep.relu(acc), acc, acc


@ep.epilogue()
def gated(gate: Any, up: Any) -> Any:
    return ep.silu(gate) * up


@ep.epilogue(top=ep.output("m", reduce="max"))
def without_d(acc: Any) -> Any:
    return None, acc


CASES: dict[str, tuple[Gemm, Pass, str, dict[str, Any]]] = {
    "data-parallel": (Gemm("bf16", transpose_b=True), DataParallel(), "sm_90a", {}),
    "stream-k": (Gemm("bf16", transpose_b=True), StreamK(workgroups=None), "sm_90a", {}),
    "clusters": (
        Gemm("f16", out_dtype="f32", transpose_b=True),
        StreamK(workgroups=None, owner="last"),
        "sm_90a",
        {"cluster_m": 2},
    ),
    "two-tile, mma.sync": (Gemm("bf16"), TwoTileStreamK(workgroups=64), "sm_80", {}),
    "split-k, scatter": (
        Gemm("bf16", transpose_b=True),
        SplitK(splits=2, reduction="scatter"),
        "sm_90a",
        {},
    ),
    "three launch attributes": (
        Gemm("bf16", transpose_b=True),
        StreamK(workgroups=None, reduction="scatter"),
        "sm_90a",
        {"cluster_m": 2},
    ),
    "batch": (Gemm("bf16", transpose_b=True, batched=True), DataParallel(), "sm_90a", {}),
    "gaps": (
        Gemm("bf16", transpose_b=True, leading_dimensions=("A", "B", "C", "D")),
        DataParallel(),
        "sm_90a",
        {},
    ),
    "constant sizes": (Gemm("bf16", m=M, n=N, k=K), DataParallel(), "sm_90a", {}),
    "int8": (Gemm("i8", transpose_b=True), DataParallel(), "sm_90a", {}),
    "epilogue": (Gemm("bf16", transpose_b=True, epilogue=with_bias), StreamK(), "sm_90a", {}),
    "reductions": (Gemm("bf16", epilogue=with_totals), DataParallel(), "sm_90a", {}),
    "reductions, constant sizes": (
        Gemm("bf16", m=M, n=N, k=K, epilogue=with_totals),
        DataParallel(),
        "sm_80",
        {},
    ),
    "gated": (Gemm("bf16", epilogue=gated), StreamK(workgroups=None), "sm_90a", {}),
    "gated, batch, gaps": (
        Gemm(
            "bf16",
            transpose_b=True,
            batched=True,
            epilogue=gated,
            leading_dimensions=("A", "B", "D"),
        ),
        DataParallel(),
        "sm_80",
        {},
    ),
    "interleaved": (
        Gemm("bf16", epilogue=gated, parts="interleaved"),
        DataParallel(),
        "sm_90a",
        {},
    ),
    "indices": (Gemm("bf16", epilogue=causal), DataParallel(), "sm_90a", {}),
    "without D": (Gemm("bf16", epilogue=without_d), DataParallel(), "sm_90a", {}),
}


def exported(case: str, folder: Path, **options: Any) -> tuple[Exported, Any]:
    gemm, schedule, target, lowering = CASES[case]
    options = {"reads_c": "C" in gemm.operands, **options}
    kernel = codegen.compile(
        schedule(gemm.graph(tile=TILE)),
        target,
        lowering=LowerToHopper(**lowering) if lowering else None,
    )
    return export(kernel, folder, **options), kernel
