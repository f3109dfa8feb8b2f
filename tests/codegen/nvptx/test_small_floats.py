"""8-bit floats on GPUs: instructions, assembly without spills, and refusals."""

from __future__ import annotations

import re
from typing import Any

import pytest

import codegen
import coordgraph as cg
from codegen.targets.nvptx.cuda_kernel import CudaKernel
from codegen.targets.nvptx.launch.tensormaps import data_type
from coordgraph import CodegenError
from coordgraph import epilogue as ep
from passes import DataParallel, HeterogeneousTiles, Pass, StreamK, TwoTileStreamK
from passes.lowering import LowerToHopper, LowerToTensorCores
from tests.support.ptxas import assert_clean
from tests.support.sampling import quick_cases

PERSISTENT = DataParallel(persistent=True)
LAST = StreamK(owner="last")


@ep.epilogue(row=ep.operand("m", "f32"), column=ep.operand("n", "f32"))
def to_e4m3(acc: Any, row: Any, column: Any) -> Any:
    return ep.quantize(acc * row * column, to="e4m3")


@ep.epilogue(scale="", amax=ep.output("m", reduce="max"))
def to_e5m2(acc: Any, scale: Any) -> Any:
    return ep.quantize(acc * scale, to="e5m2"), ep.abs(acc)


def compiled(
    target: str, schedule: Pass, tile: tuple[int, int, int], kind: str, **options: Any
) -> CudaKernel:
    gemm = cg.Gemm(kind, transpose_b=kind != "bf16", **options)
    kernel = codegen.compile(schedule(gemm.graph(tile)), target)
    assert isinstance(kernel, CudaKernel)
    return kernel


@quick_cases(3)
@pytest.mark.usefixtures("ptxas")
@pytest.mark.parametrize(
    ("target", "schedule", "tile", "kind", "options"),
    [
        ("sm_90a", PERSISTENT, (128, 256, 128), "e4m3", {"out_dtype": "bf16"}),
        ("sm_90a", LAST, (128, 128, 128), "e5m2", {"epilogue": to_e4m3}),
        ("sm_90", LAST, (128, 128, 64), "e4m3", {"epilogue": to_e5m2}),
        ("sm_90a", TwoTileStreamK(), (256, 128, 128), "e4m3", {}),
        ("sm_90a", LAST, (16, 256, 128), "e4m3", {"out_dtype": "f16"}),
        ("sm_90a", StreamK(reduction="scatter"), (128, 128, 128), "e5m2", {}),
        ("sm_90a", HeterogeneousTiles(small_m=64, small_n=64), (128, 128, 128), "e4m3", {}),
        ("sm_90a", PERSISTENT, (128, 256, 128), "e4m3", {"epilogue": to_e5m2}),
        ("sm_90a", PERSISTENT, (128, 128, 64), "bf16", {"epilogue": to_e4m3}),
        ("sm_90a", PERSISTENT, (128, 256, 128), "e4m3", {"grouped": True, "out_dtype": "bf16"}),
        ("sm_90a", PERSISTENT, (128, 88, 128), "e4m3", {"batched": True}),
        ("sm_89", PERSISTENT, (128, 128, 64), "e5m2", {"out_dtype": "bf16"}),
        ("sm_89", PERSISTENT, (128, 128, 32), "bf16", {"epilogue": to_e4m3}),
        ("sm_100", LAST, (128, 128, 64), "e4m3", {}),
        ("sm_120", LAST, (128, 128, 64), "e4m3", {}),
    ],
    ids=str,
)
def test_kernels_are_assembled_without_a_spill(
    target: str, schedule: Pass, tile: tuple[int, int, int], kind: str, options: dict[str, Any]
):
    kernel = compiled(target, schedule, tile, kind, **options)
    program, report = kernel.program().assembled()
    assert_clean(report)
    assert kernel.instructions == ("wgmma" if target == "sm_90a" else "mma.sync")
    if kind == "bf16":
        assert re.search(r"\.bf16\b", program.ptx)
    elif target == "sm_90a":
        # Two scales of A and B follow the predicate; 8-bit floats have no transposes.
        form = rf"wgmma\.mma_async\.sync\.aligned\.m64n\d+k32\.f32\.{kind}\.{kind} "
        assert re.search(form + r"\{[^}]*\}, %rd\d+, %rd\d+, p, 1, 1; \}", program.ptx)
    else:
        form = rf"mma.sync.aligned.m16n8k32.row.col.f32.{kind}.{kind}.f32 "
        assert form in program.ptx
    wanted: str | None = {to_e4m3: "e4m3", to_e5m2: "e5m2"}.get(options.get("epilogue", ""))
    converted = set(re.findall(r"cvt\.rn\.satfinite\.(\w+)x2\.f32", program.ptx))
    assert converted == ({wanted} if wanted else set())


@pytest.mark.usefixtures("ptxas")
def test_odd_rows_are_multiplied_by_mma_sync():
    kernel = compiled("sm_90a", PERSISTENT, (128, 128, 128), "e4m3")
    program = kernel.program(kernel.variant(1))
    assert program.instructions == "mma.sync"
    assert_clean(program.assembled()[1])


@pytest.mark.usefixtures("ptxas")
def test_8_bit_floats_are_converted_back():
    @ep.epilogue(scale="")
    def rounded(acc: Any, scale: Any) -> Any:
        return ep.cast(ep.quantize(acc * scale, to="e4m3"), to="f32") / scale

    kernel = compiled("sm_89", PERSISTENT, (64, 64, 32), "bf16", epilogue=rounded)
    program, report = kernel.program().assembled()
    assert_clean(report)
    assert "cvt.rn.f16x2.e4m3x2" in program.ptx


def test_tensor_maps_take_8_bit_floats_as_bytes():
    assert {data_type(kind) for kind in ("e4m3", "e5m2", "i8", "u8")} == {"UINT8"}
    assert (data_type("bf16"), data_type("i32")) == ("BFLOAT16", "INT32")


@pytest.mark.parametrize(
    ("kind", "options"),
    [("e4m3", {}), ("e5m2", {"out_dtype": "bf16"}), ("bf16", {"epilogue": to_e4m3})],
)
@pytest.mark.parametrize("target", ["sm_80", "sm_86"])
def test_older_gpus_are_refused(target: str, kind: str, options: dict[str, Any]):
    with pytest.raises(CodegenError, match=rf"8\.9 on, which {target} lacks; .*sm_89, .*sm_90a"):
        compiled(target, PERSISTENT, (128, 128, 64), kind, **options)


@pytest.mark.parametrize(
    ("lowering", "family"), [(LowerToTensorCores("sm_89"), "mma.sync"), (LowerToHopper(), "wgmma")]
)
@pytest.mark.parametrize("layout", ["nn", "tn", "tt"])
def test_operands_across_k_are_refused(lowering: Pass, family: str, layout: str):
    a, b = (side == "t" for side in layout)
    graph = DataParallel()(cg.Gemm("e4m3", transpose_a=a, transpose_b=b).graph((128, 128, 128)))
    why = lowering.why_not(graph) or ""
    assert why.startswith(f"{family} multiplies e4m3 only if A and B are contiguous along k")
    assert ("transpose_b=True" in why, "transpose_a=False" in why) == (not b, a)
