"""int8 on GPUs: fragments of m16n8k32, instructions, assembly without spills, and refusals.

Layouts of fragments are taken from "Matrix Fragments for mma.m16n8k32 with integer type" in the PTX
ISA.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

import coordgraph as cg
from codegen import compile as compile_kernel
from codegen.targets.nvptx.cuda_kernel import CudaKernel
from codegen.targets.nvptx.program import Vectors
from coordgraph import epilogue as ep
from coordgraph.control.lowered import LoadFragment, ReduceFragment
from passes import DataParallel, HeterogeneousTiles, Pass, StreamK, TwoTileStreamK
from passes.lowering import LowerToHopper, LowerToTensorCores
from tests.codegen.nvptx.configurations import Configuration, boxed
from tests.codegen.nvptx.lowering import Lowered
from tests.codegen.nvptx.test_fragments import shared_memory
from tests.support.ptxas import assert_clean
from tests.support.sampling import chosen, quick_cases

Place = tuple[int, int]
ATOMIC = StreamK(owner="last", reduction="atomic")
PERSISTENT = DataParallel(persistent=True)


def isa_a(lane: int, i: int) -> Place:
    """Row and column of element a_i (i in 0..15) of mma.m16n8k32, from the PTX ISA."""
    group, thread = lane >> 2, lane % 4
    row = group if i < 4 or 8 <= i < 12 else group + 8
    return row, thread * 4 + (i & 3) + (0 if i < 8 else 16)


def isa_b(lane: int, i: int) -> Place:
    """Row (k) and column (n) of element b_i (i in 0..7) of mma.m16n8k32, from the PTX ISA."""
    group, thread = lane >> 2, lane % 4
    return thread * 4 + (i & 3) + (0 if i < 4 else 16), group


@quick_cases(5)
@pytest.mark.parametrize("tile", [(128, 128, 64), (64, 96, 32), (16, 16, 96)], ids=str)
@pytest.mark.parametrize("tensor", ["A", "B"])
@pytest.mark.parametrize("dtype", ["i8", "u8"])
def test_operands_arrive_where_mma_wants_them(tile: tuple[int, int, int], tensor: str, dtype: str):
    """ldmatrix, which moves pairs of bytes, fills each register with the four elements along k that
    mma reads.
    """
    this = Lowered(tile, "nt", dtype=dtype)
    memory, node = shared_memory(this, tensor), this.load(tensor)
    fragment = {"A": "fragment.m", "B": "fragment.n"}[tensor]
    names = ("workitem", "k_tile", "fragment.k", fragment)
    address = this.function(node, f"{tensor}.shared", names=names)
    assert isinstance(node.op, LoadFragment)
    assert node.op.form == "ldmatrix.x4"
    seen: set[Place] = set()
    for workitem, k, part in this.each("workitem", "fragment.k", fragment):
        lane, warp = workitem % 32, workitem - workitem % 32
        for register in range(4):
            # Lanes 8j to 8j + 7 hold the row addresses of matrix j, which fills
            # register j: lane T receives bytes 4·(T % 4) to 4·(T % 4) + 3 of row T //
            # 4.
            at = address(warp + 8 * register + lane // 4, 0, k, part)[0]
            assert at % 16 == 0, "rows of ldmatrix are aligned to 16 bytes"
            for byte in range(4):
                row, column = memory[at + 4 * (lane % 4) + byte]
                i = 4 * register + byte
                if tensor == "A":
                    wanted = isa_a(lane, i)
                    found = row % 16, column % 32
                # One ldmatrix.x4 loads B for two mma: registers 0 and 1 for the first, 2 and 3 for
                # the second.
                else:
                    deep, across = isa_b(lane, i % 8)
                    wanted, found = (deep, across + 8 * (i // 8)), (row % 32, column % 16)
                assert found == wanted
                deep, across = (column, row) if tensor == "A" else (row, column)
                assert (deep // 32, across // 16 % this.size(fragment)) == (k, part)
                seen.add((row, column))
    height, width = this.extents(tensor)
    assert len(seen) == height * width


def of_warps(
    tile: tuple[int, int, int],
    schedule: Pass,
    types: tuple[str, str] = ("i8", "i32"),
    vectors: Vectors = Vectors(),  # noqa: B008 - frozen
    architecture: str = "sm_80",
) -> Configuration:
    return Configuration(tile, (schedule,), "nt", types, vectors, architecture)


def of_boxes(
    tile: tuple[int, int, int],
    schedule: Pass,
    types: tuple[str, str] = ("i8", "i32"),
    cluster: tuple[int, int, int] = (1, 1, 1),
    consumers: str = "cooperative",
    reads_c: bool = True,
) -> Configuration:
    made = boxed(tile, cluster, "nt", schedule, types, consumers=consumers)
    return replace(made, reads_c=reads_c)


KERNELS = (
    of_warps((128, 128, 64), DataParallel()),
    of_warps((64, 64, 64), TwoTileStreamK(), ("u8", "i32"), Vectors(1, 1, 1)),
    of_warps((128, 256, 32), StreamK(owner="last", reduction="turnstile"), ("i8", "bf16")),
    of_warps((128, 128, 64), StreamK(reduction="scatter"), ("u8", "f16"), Vectors(4, 2, 1)),
    of_warps((96, 96, 96), ATOMIC, vectors=Vectors(8, 16, 2), architecture="sm_89"),
    of_warps((64, 128, 64), ATOMIC, ("u8", "f32"), architecture="sm_90"),
    of_boxes((128, 256, 128), PERSISTENT, reads_c=False),
    of_boxes((128, 256, 128), StreamK(owner="last"), ("u8", "bf16")),
    of_boxes((256, 256, 128), TwoTileStreamK(), ("i8", "f16"), (2, 1, 1)),
    of_boxes((128, 128, 128), StreamK(reduction="tree")),
    of_boxes((128, 128, 128), StreamK(owner="last", reduction="turnstile"), ("u8", "f32")),
    of_boxes((128, 128, 128), StreamK(reduction="scatter")),
    of_boxes((128, 128, 128), ATOMIC, ("u8", "i32")),
    of_boxes((64, 128, 256), DataParallel(), cluster=(1, 1, 2)),
    of_boxes((128, 128, 128), PERSISTENT, consumers="pingpong", reads_c=False),
    of_boxes((16, 256, 128), StreamK(owner="last"), ("u8", "i32")),
    of_boxes((128, 128, 128), HeterogeneousTiles(small_m=64, small_n=64)),
)


@cache
def ptx(configuration: Configuration) -> str:
    return configuration.program.ptx


@quick_cases(1)
@pytest.mark.usefixtures("ptxas")
@pytest.mark.parametrize("configuration", chosen((KERNELS[5], KERNELS[13]), KERNELS), ids=str)
def test_kernels_are_assembled_without_a_spill(configuration: Configuration):
    program = configuration.program
    assert program.why_not() is None
    program, report = program.assembled()
    assert_clean(report)
    kind = {"i8": "s8", "u8": "u8"}[configuration.types[0]]
    if configuration.boxes:
        form = rf"wgmma\.mma_async\.sync\.aligned\.m64n\d+k32\.s32\.{kind}\.{kind} "
        # wgmma on integers has no scales or transposes: its only option is the predicate
        # that keeps the sum.
        assert re.search(form + r"\{[^}]*\}, %rd\d+, %rd\d+, p; \}", program.ptx)
    else:
        form = rf"mma\.sync\.aligned\.m16n8k32\.row\.col\.s32\.{kind}\.{kind}\.s32\s"
        assert re.search(form, program.ptx)
    wrong = re.findall(r"(?:mma|wgmma)[.\w]*f32", program.ptx)
    assert not wrong


@quick_cases(1)
@pytest.mark.parametrize(
    "configuration", [KERNELS[4], KERNELS[5], KERNELS[12]], ids=["sm_89", "sm_90", "sm_90a"]
)
def test_partial_sums_are_added_as_integers(configuration: Configuration):
    """Integer partial sums are added one by one, since `red` has vectors for floats only."""
    program = configuration.program
    assert {op.form for op in program.lowered.control.of_kind(ReduceFragment)} == {"scalar"}
    assert "red.relaxed.gpu.global.add.s32" in ptx(configuration)
    assert "add.f32" not in ptx(configuration)


@ep.epilogue(scale=ep.operand("n", "f32"))
def quantized(acc: Any, scale: Any) -> Any:
    return ep.quantize(ep.cast(acc, to="f32") * scale)


@ep.epilogue(scale=ep.operand("n", "f32"))
def unsigned(acc: Any, scale: Any) -> Any:
    return ep.quantize(ep.cast(acc, to="f32") * scale, to="u8")


@quick_cases(1)
@pytest.mark.usefixtures("ptxas")
@pytest.mark.parametrize("schedule", [PERSISTENT, StreamK(owner="last")], ids=str)
@pytest.mark.parametrize("epilogue", [quantized, unsigned], ids=["i8", "u8"])
@pytest.mark.parametrize(
    ("dtype", "tile"), [("bf16", (128, 256, 64)), ("i8", (128, 256, 128)), ("i8", (32, 128, 128))]
)
def test_products_with_a_d_of_bytes_use_wgmma(
    dtype: str, tile: tuple[int, int, int], epilogue: ep.EpilogueFunction, schedule: Pass
):
    """A D of 8-bit integers, of which 16 bytes hold 16, is stored by wgmma kernels, without spills.

    An unaligned D is stored by them too.
    """
    graph = schedule(cg.Gemm(dtype, transpose_b=True, epilogue=epilogue).graph(tile))
    kernel = compile_kernel(graph, "sm_90a")
    assert isinstance(kernel, CudaKernel)
    assert (kernel.instruction_family, kernel.lowering_notes) == ("wgmma + TMA", ())
    for variant in (kernel.variant(), kernel.variant()._replace(vectors=Vectors(0, 0, 1, 1))):
        program, report = kernel.program(variant).assembled()
        assert "wgmma.mma_async" in program.ptx
        assert_clean(report)


def test_an_access_to_d_moves_at_most_16_bytes():
    """A D of bytes may be accessed 16 elements at a time, and a D of 16-bit numbers 8 at a time."""
    for gemm, most in ((cg.Gemm("bf16", epilogue=quantized), 16), (cg.Gemm("bf16"), 8)):
        graph = PERSISTENT(gemm.graph())
        assert LowerToHopper(vector=most).why_not(graph) is None
        why = LowerToHopper(vector=2 * most).why_not(graph)
        assert why == f"vector={2 * most} must be a power of two, at most {most}, or 0 for 16 bytes"


def test_odd_rows_are_copied_byte_by_byte():
    text = ptx(of_warps((64, 64, 32), DataParallel(), vectors=Vectors(1, 1, 1)))
    assert "ld.global.b8" in text
    assert not re.search(r"cp\.async\.c[ag]", text)


@pytest.mark.parametrize(
    ("lowering", "family"), [(LowerToTensorCores, "mma.sync"), (LowerToHopper, "wgmma")]
)
@pytest.mark.parametrize("layout", ["nn", "tn", "tt"])
def test_operands_across_k_are_refused(lowering: type[Pass], family: str, layout: str):
    a, b = (side == "t" for side in layout)
    graph = DataParallel()(cg.Gemm("u8", transpose_a=a, transpose_b=b).graph((128, 128, 128)))
    why = lowering().why_not(graph)
    assert why is not None
    assert why.startswith(f"{family} multiplies u8 only if A and B are contiguous along k")
    assert ("transpose_b=True" in why, "transpose_a=False" in why) == (not b, a)


REFUSED: dict[str, tuple[dict[str, object], tuple[int, int, int], Pass]] = {
    "must be a multiple of 16x16x32": ({}, (64, 64, 16), LowerToTensorCores()),
    "must be a multiple of 128 in k": ({}, (128, 128, 64), LowerToHopper()),
    "of 152 columns, which must be a multiple of 16": ({}, (128, 304, 128), LowerToHopper()),
    "C and D have the type f64; with A and B of ": (
        {"out_dtype": "f64"},
        (128, 128, 128),
        LowerToHopper(),
    ),
    "vector_a=32 must be a power of two, at most 16": (
        {},
        (128, 128, 64),
        LowerToTensorCores(vector_a=32),
    ),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_refused(reason: str):
    options, tile, lowering = REFUSED[reason]
    gemm = cg.Gemm("i8", transpose_b=True, **options)  # type: ignore[arg-type]
    assert reason in (lowering.why_not(DataParallel()(gemm.graph(tile))) or "")


def test_a_kernel_says_why_it_does_without_wgmma():
    graph = DataParallel()(cg.Gemm("i8", transpose_b=True).graph((128, 128, 64)))
    kernel = compile_kernel(graph, "sm_90a")
    assert isinstance(kernel, CudaKernel)
    assert kernel.instructions == "mma.sync"
    (note,) = kernel.lowering_notes
    assert "must be a multiple of 128 in k" in note
    with pytest.raises(cg.CodegenError, match="contiguous along k"):
        compile_kernel(DataParallel()(cg.Gemm("i8").graph((128, 128, 128))), "sm_90a")
