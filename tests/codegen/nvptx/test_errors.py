"""The CUDA target refuses wrong inputs with messages that say why. The tests need no GPU."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import numpy as np
import pytest

import codegen
from codegen.call.checks import check_call
from codegen.call.views import TensorView
from codegen.targets.nvptx import driver
from coordgraph import CodegenError, Gemm, KernelGraph, LaunchError, PassError, VerifyError
from passes import DataParallel, StreamK
from passes.lowering import LowerToTensorCores
from tests.support.sampling import cover, quick_cases


def scheduled(tile: tuple[int, int, int] = (64, 64, 32), **options: object) -> KernelGraph:
    return DataParallel()(Gemm(**options).graph(tile))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("sm_70", "sm_70 is too old"),
        ("sm_75", "need sm_80 or later"),
        ("sm_", "no code can be generated for 'sm_'; choose one of: sm_80"),
        ("sm_ninety", "no code can be generated for"),
        # This target is refused before LLVM sees it, because LLVM would abort the process.
        ("sm_80a", "no code can be generated for"),
        ("gfx942", "unknown target 'gfx942'; choose one of: interpreter, cpu"),
        ("", "unknown target ''"),
        ("SM_80", "unknown target 'SM_80'"),
    ],
)
def test_targets(target: str, words: str):
    with pytest.raises(CodegenError, match=words):
        codegen.compile(scheduled(), target)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_types(dtype: str):
    with pytest.raises(CodegenError, match=f"not {dtype}; use target='cpu'"):
        codegen.compile(scheduled(dtype=dtype), "sm_80")


@pytest.mark.parametrize(
    ("tile", "words"),
    [
        ((64, 64, 24), "the tile 64x64x24 must be a multiple of 16x16x16"),
        ((60, 64, 32), "must be a multiple of 16x16x16, as in"),
        ((64, 40, 32), "must be a multiple of 16x16x16"),
        ((512, 512, 32), "512x512 needs 1024 accumulator registers in each thread of 8 warps"),
        ((96, 80, 48), "96x80 cannot be divided among up to 8 warps"),
        ((256, 256, 16), "256x256 needs 256 accumulator .* 128 fit; .*; the tile 128x256x16 works"),
        ((128, 128, 512), "two stages of the tile 128x128x512 do not fit in sm_80's shared memory"),
    ],
)
def test_tiles(tile: tuple[int, int, int], words: str):
    with pytest.raises(CodegenError, match=words):
        codegen.compile(scheduled(tile), "sm_80")


REFUSED_TILES = (
    (256, 256, 64),
    (512, 512, 32),
    (96, 80, 48),
    (208, 208, 16),
    (128, 128, 512),
    (512, 48, 512),
)


@quick_cases(1)
@pytest.mark.parametrize(
    ("architecture", "tile"), cover(0, product(["sm_80", "sm_86"], REFUSED_TILES))
)
def test_a_refused_tile_names_one_that_works(architecture: str, tile: tuple[int, int, int]):
    with pytest.raises(CodegenError) as caught:
        codegen.compile(scheduled(tile), architecture)
    named = re.search(r"the tile (\d+)x(\d+)x(\d+) works$", str(caught.value))
    assert named
    m, n, k = map(int, named.groups())
    assert m * n * k < tile[0] * tile[1] * tile[2]
    assert codegen.compile(scheduled((m, n, k)), architecture).ptx


def test_shared_memory_is_that_of_the_architecture():
    tile = (128, 256, 64)
    assert codegen.compile(scheduled(tile), "sm_80")
    assert codegen.compile(scheduled(tile), "sm_86")
    with pytest.raises(CodegenError, match="do not fit in sm_86's shared memory"):
        codegen.compile(scheduled((128, 256, 80)), "sm_86")


def test_a_graph_without_a_schedule():
    with pytest.raises(VerifyError, match="this graph has no schedule"):
        codegen.compile(Gemm().graph(), "sm_80")


def test_a_lowered_graph():
    lowered = LowerToTensorCores()(scheduled())
    with pytest.raises(
        CodegenError, match=r"pass the scheduled graph, because codegen\.compile lowers it itself"
    ):
        codegen.compile(lowered, "sm_80")


@pytest.mark.parametrize("vectors", [{"vector_a": 16}, {"vector_b": 3}, {"vector_d": 4}])
def test_vector_widths(vectors: dict[str, Any]):
    ((name, width),) = vectors.items()
    with pytest.raises(PassError, match=f"{name}={width} must be a power of two, at most"):
        LowerToTensorCores(**vectors)(scheduled())


def test_host_memory():
    kernel = codegen.compile(scheduled(dtype="f16"), "sm_80")
    a = np.zeros((64, 64), np.float16)
    with pytest.raises((LaunchError, CodegenError), match=r"no GPU|numpy array in host memory"):
        kernel(a, a)


def test_without_a_gpu_a_call_says_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(driver, "unavailable", lambda: "the CUDA driver sees no GPU")
    kernel = codegen.compile(scheduled(dtype="f16"), "sm_80")
    a = np.zeros((64, 64), np.float16)
    with pytest.raises(
        CodegenError, match=r"no GPU can be used: .* sees no GPU; compile for target='cpu'"
    ):
        kernel(a, a)
    with pytest.raises(CodegenError, match="no GPU"):
        driver.device.__wrapped__(0)
    assert driver.device_count() == 0
    assert codegen.compile(scheduled(), "native").target == "cpu"


A, B, OUT = (TensorView(p, (64, 64), (64, 1), "bf16", 0) for p in (1 << 20, 2 << 20, 3 << 20))


def changed(view: TensorView, **changes: object) -> TensorView:
    values = {name: getattr(view, name) for name in TensorView.__dataclass_fields__}
    return TensorView(**{**values, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("views", "beta", "words"),
    [
        ({"B": changed(B, shape=(65, 64))}, 0, "k would be 64 and 65"),
        ({"A": changed(A, shape=(64,), strides=(1,))}, 0, "a has shape 64; a matrix is needed"),
        ({"A": changed(A, shape=(0, 64))}, 0, "out is 64x64, but 0x64 is needed"),
        ({"D": changed(OUT, shape=(64, 65))}, 0, "out is 64x65, but 64x64 is needed"),
        ({"A": changed(A, dtype="f16")}, 0, r"a holds f16, .*Gemm\(dtype='f16'\)"),
        ({"D": changed(OUT, dtype="f32")}, 0, r"out holds f32, .*Gemm\(out_dtype='f32'\)"),
        ({"A": changed(A, strides=(128, 1))}, 0, "a is not contiguous row-major"),
        (
            {"B": changed(B, strides=(1, 64))},
            0,
            r"its transpose to a kernel of Gemm\(transpose_b=…\)",
        ),
        ({"A": changed(A, pointer=(1 << 20) + 1)}, 0, "no multiple of 2 bytes"),
        ({"D": changed(OUT, pointer=A.pointer + 512)}, 0, "'out' overlaps a"),
        ({"D": changed(OUT, device=1)}, 0, "different devices: a on 0, b on 0, out on 1"),
        ({}, 0.5, "beta = 0.5 needs c; pass c, or beta=0"),
        ({"C": changed(OUT, pointer=OUT.pointer + 64)}, 0, "'out' overlaps c"),
    ],
)
def test_calls(views: dict[str, TensorView], beta: float, words: str):
    given = {"A": A, "B": B, "D": OUT, **views}
    with pytest.raises(LaunchError, match=words):
        check_call(scheduled(), given, beta=beta)


def test_what_is_allowed():
    check_call(scheduled(), {"A": A, "B": B, "D": OUT}, beta=0)
    check_call(scheduled(), {"A": A, "B": B, "C": OUT, "D": OUT}, beta=2)
    one_row = changed(A, shape=(1, 64), strides=(7, 1))
    check_call(scheduled(), {"A": one_row, "B": B, "D": changed(OUT, shape=(1, 64))}, beta=0)


def test_a_kernel_for_one_size():
    graph = StreamK(workgroups=4)(Gemm(m=64, n=64, k=128).graph((64, 64, 32)))
    with pytest.raises(
        LaunchError, match=r"this kernel is for k = 128, but the tensors have k = 64"
    ):
        check_call(graph, {"A": A, "B": B, "D": OUT}, beta=0)
