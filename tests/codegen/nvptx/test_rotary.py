"""GPU kernels with a rotary embedding, an epilogue of two sums and two results, assemble."""

from __future__ import annotations

from typing import Any

import pytest

import codegen
import coordgraph as cg
from passes import DataParallel, StreamK
from tests.support.ptxas import assemble, assert_clean
from tests.support.rotary import LAYOUT, rotary
from tests.support.sampling import quick_cases

LAYOUTS = [(parts, turned) for parts in ("stacked", "interleaved") for turned in (True, False)]


@quick_cases(1)
@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize(("parts", "turned"), LAYOUTS)
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_kernels_assemble_without_spills(target: str, parts: str, turned: bool, batched: bool):
    fields: dict[str, Any] = {"batched": batched, "transpose_b": turned, **LAYOUT}
    gemm = cg.Gemm("bf16", epilogue=rotary, parts=parts, **fields)
    schedule = DataParallel() if batched else StreamK(workgroups=108)
    kernel = codegen.compile(schedule(gemm.graph(tile=(128, 128, 64))), target)
    if target == "sm_90a" and (parts, turned) != ("interleaved", False):
        assert "wgmma" in kernel.ptx
    assert_clean(assemble(kernel.ptx, target))


@quick_cases(1)
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_memory_order(target: str):
    gemm = cg.Gemm("bf16", epilogue=rotary, transpose_b=True, **LAYOUT)
    kernel = codegen.compile(StreamK(workgroups=7)(gemm.graph(tile=(128, 128, 64))), target)
    assert kernel.lowered is not None
    assert not kernel.lowered.check(checks=["memory order"]).refuted
