"""Exported C functions launch a kernel exactly as the launcher in Python does."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from codegen.call.views import TensorView
from codegen.export import Exported
from codegen.targets.nvptx.facts import Facts
from codegen.toolchain import find_ptxas
from coordgraph import Gemm
from tests.codegen.export.cases import CASES, TILE, K, M, N, exported
from tests.codegen.export.compiled import Library
from tests.codegen.nvptx.fake_driver import CLUSTERS, PROCESSORS, FakeDriver, install, matrix
from tests.support.sampling import chosen

pytestmark = pytest.mark.skipif(find_ptxas() is None, reason="ptxas is not installed")

ADDRESSES = {"A": 0x10000000, "B": 0x20000000, "C": 0x30000000, "D": 0x40000000}
GAPS = {"A": 8, "B": 16, "C": 24, "D": 32}
"""Number of padding elements after each row of a tensor, for kernels with leading dimensions."""
WORKSPACE, STREAM = 0x50000000, 0x77
CLUSTER_DIMENSION = 4
"""CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, whose value has three numbers. Other attributes have
one."""


def views(gemm: Gemm) -> dict[str, TensorView]:
    """Fake matrices of a call; the keys are the names of the tensors, such as `A`."""
    kind, result = gemm.dtype, gemm.out_dtype or gemm.dtype
    columns = gemm.sums * N
    of_b = (columns, K) if gemm.transpose_b else (K, columns)
    shapes = {"A": (M, K), "B": of_b, "C": (M, N), "D": (M, N)}
    made = {
        name: matrix(
            shape[0],
            shape[1],
            ADDRESSES[name],
            kind if name in "AB" else result,
            strides=(shape[1] + GAPS[name] * bool(gemm.leading_dimensions), 1),
        )
        for name, shape in shapes.items()
        if name in (*"AB", *gemm.operands, *gemm.stored)
    }
    if gemm.batched:
        made = {
            name: TensorView(v.pointer, (3, *v.shape), (v.shape[0] * v.strides[0], *v.strides),
                             v.dtype, 0)
            for name, v in made.items()
        }  # fmt: skip
    return made


def tile_columns(kernel: Any) -> int:
    """The number of columns of D in a macro tile."""
    (tiling,) = kernel.graph.tilings
    return tiling.shape[1]


def sizes_of(found: Exported, gemm: Gemm) -> dict[str, int]:
    """The sizes and strides that the exported C function takes, by parameter name."""
    known = {"m": M, "n": N, "k": K, "batches": 3}
    known |= {"ld_a": K + GAPS["A"], "ld_b": K + GAPS["B"]}
    known |= {"ld_c": N + GAPS["C"], "ld_d": N + GAPS["D"]}
    known |= {"stride_a": M * K, "stride_b": gemm.sums * N * K}
    known |= {"stride_c": M * N, "stride_d": M * N}
    if gemm.batched and gemm.leading_dimensions:
        known |= {"stride_a": M * known["ld_a"], "stride_b": gemm.sums * N * known["ld_b"]}
        known |= {"stride_d": M * known["ld_d"]}
    return {p.name: known[p.name] for p in found.recipe.given if p.name in known}


@pytest.mark.parametrize("name", chosen(("data-parallel", "batch"), CASES))
def test_the_launch_is_that_of_python(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    found, kernel = exported(name, tmp_path)
    gemm = kernel.graph.gemm
    resident = CLUSTERS if found.recipe.facts.cluster > 1 else PROCESSORS
    library = Library(found, resident)
    scalars = dict.fromkeys((n for n, _ in found.recipe.facts.floats), 1)
    arrays = views(gemm)
    addresses = {tensor: view.pointer for tensor, view in arrays.items()}
    more: dict[str, Any] = {}
    if "bias" in gemm.operands:
        more["bias"] = TensorView(0x60000000, (N,), (1,), "bf16", 0)
        addresses["bias"] = 0x60000000
    for number, name in enumerate(gemm.outputs):
        at = 0x70000000 + (number << 28)
        shape = (M, N) if name == "pre" else (M, -(-N // tile_columns(kernel)))
        more[name] = matrix(*shape, at, "f32")
        addresses[name] = at
    given = library.arguments(**sizes_of(found, gemm), **addresses, **scalars)
    assert library.problem(given) is None
    size = library.workspace(given)
    assert library.launch(given, WORKSPACE if size else 0, STREAM) == 0
    mine = library.recorded

    fake = launched_by_python(kernel, arrays, scalars, more, monkeypatch)
    (theirs,) = fake.launches
    assert mine.grid == theirs.grid[0]
    assert mine.block == theirs.block[0]
    assert mine.shared == theirs.shared_bytes
    assert mine.stream == theirs.stream == STREAM
    attributes = {a.id: tuple(a.value) for a in mine.attributes[: mine.count]}
    if name == "three launch attributes":
        assert len(attributes) == 3
    assert attributes.keys() == theirs.attributes.keys()
    for number, value in theirs.attributes.items():
        used = 3 if number == CLUSTER_DIMENSION else 1
        assert attributes[number][:used] == value[:used]
    facts = found.recipe.facts
    workspace = {i for i, t in enumerate(facts.tensors) if t.role.workspace}
    for place, value in enumerate(theirs.values):
        if place not in workspace:
            bits = 8 * mine.sizes[place]
            assert mine.values[place] == value % (1 << bits), place
    buffers = [mine.values[place] for place in sorted(workspace)]
    assert all(at % 256 == 0 and WORKSPACE <= at < WORKSPACE + size for at in buffers)
    ends = [*buffers[1:], WORKSPACE + size][: len(buffers)]
    # A launch from Python also reserves as much memory for a capture, after its own workspace.
    allocated = fake.allocated[: len(buffers)]
    for at, end, needed in zip(buffers, ends, allocated, strict=True):
        assert end - at >= needed
    assert mine.maps == len(fake.encoded)
    for own, other in zip(mine.encoded[: mine.maps], fake.encoded, strict=True):
        assert own.address == other.at
        assert tuple(reversed(own.extents[: own.rank])) == other.shape
        assert own.strides[0] == other.stride
        assert tuple(own.box[: own.rank]) == other.box
        assert (own.type, own.swizzle) == (other.kind, other.swizzle)


def launched_by_python(
    kernel: Any,
    arrays: dict[str, TensorView],
    scalars: Mapping[str, float],
    more: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> FakeDriver:
    """Launch a kernel from Python, and return the fake driver, which has recorded the launch."""
    monkeypatch.setenv("COORDGRAPH_CACHE", "off")
    fake = install(monkeypatch)
    # If the epilogue has a tensor C, the exported variant of the kernel is the one that reads C.
    facts = Facts.of(kernel.program(kernel.variant(reads_c="C" in arrays)))
    boxes = sum(map(len, facts.boxes.values()))
    integers = len(facts.scalars) + 2 * len(facts.divisors)
    fake.arguments = len(facts.tensors) + boxes + len(facts.floats) + integers
    c, out = arrays.get("C"), arrays.get("D")
    kernel(arrays["A"], arrays["B"], c, out, stream=STREAM, **scalars, **more)
    return fake


@pytest.mark.slow
def test_problems_are_named(tmp_path: Path):
    found, _ = exported("stream-k", tmp_path)
    library = Library(found)
    good = {"m": M, "n": N, "k": K, **ADDRESSES, "alpha": 1.0, "beta": 1.0}
    assert library.problem(library.arguments(**good)) is None

    def refused(text: str, **changes: Any) -> None:
        made = library.arguments(**{**good, **changes})
        assert text in (library.problem(made) or "")
        assert library.launch(made, WORKSPACE) != 0

    refused("n (extent of the problem in n) is not in 1 to", n=-5)
    refused("k (extent of the problem in k) is not in 1 to", k=0)
    refused("m (extent of the problem in m) is not in 1 to", m=2**31)
    refused("A is 0", A=0)
    refused("the address of B is no multiple of 16 bytes", B=ADDRESSES["B"] + 8)
    refused("rows of A are no multiple of 16 bytes", k=K + 1)
    refused("rows of D are no multiple of 16 bytes", n=N + 4, C=0, beta=0.0)
    refused("beta is not 0, but there is no C", C=0)
    refused("more workgroups wait for each other", workgroups=PROCESSORS + 1)
    assert library.launch(library.arguments(**good), 0) != 0, "the workspace is missing"
    assert library.launch(library.arguments(**good), WORKSPACE + 128) != 0, "it is not aligned"
    library.kernel.resident = 0
    refused("the kernel does not fit on this GPU")
    assert library.launch(library.arguments(**{**good, "m": 0}), 0) == 0
    assert library.recorded.maps == 0, "nothing is launched for a D without elements"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "runs", "fails", "architecture"),
    [
        ("stream-k", (90,), (80, 91, 100), "sm_90a"),
        ("two-tile, mma.sync", (80, 86), (90,), "sm_80"),
    ],
)
def test_a_gpu_of_another_architecture_is_named(
    case: str, runs: tuple[int, ...], fails: tuple[int, ...], architecture: str, tmp_path: Path
):
    """Machine code runs on GPUs of its major capability; code for `sm_90a` runs on 9.0 alone."""
    found, _ = exported(case, tmp_path, reads_c=False)
    library = Library(found)
    ask = library.function("gpu_problem")
    ask.restype = ctypes.c_char_p
    for capability in runs:
        library.recorded.capability = capability
        assert ask() is None
    for capability in fails:
        library.recorded.capability = capability
        assert ask().decode() == (
            f"gemm.cubin has machine code for {architecture}, and the GPU is sm_{capability}; "
            f'export a kernel that codegen.compile made with target="sm_{capability}"'
        )


@pytest.mark.slow
def test_strides_of_a_batch_are_checked(tmp_path: Path):
    """Exported functions refuse batch strides that TMA refuses, or that make matrices of D overlap.

    The exported function `NAME_problem` returns the error message.
    """
    found, kernel = exported("batch", tmp_path, reads_c=False)
    library = Library(found)
    sizes = sizes_of(found, kernel.graph.gemm)
    assert "stride_c" not in sizes, "there is no C"
    addresses = {tensor: ADDRESSES[tensor] for tensor in "ABD"}
    good = library.arguments(**sizes, **addresses, alpha=1.0)
    assert library.problem(good) is None
    for name, value, text in (
        ("stride_d", M * N - 8, "the stride stride_d is less than the m*n elements of D"),
        ("stride_a", 0, "the stride stride_a is 0, but TMA needs at least 1"),
        ("stride_b", 4, "the stride stride_b of B is no multiple of 16 bytes"),
    ):
        bad = library.arguments(**{**sizes, name: value}, **addresses, alpha=1.0)
        assert text in (library.problem(bad) or "")


@pytest.mark.slow
def test_the_workspace_is_cleared_whole(tmp_path: Path):
    found, _ = exported("stream-k", tmp_path)
    library = Library(found)
    given = library.arguments(m=M, n=N, k=K, **ADDRESSES, alpha=1.0)
    size = library.workspace(given)
    # A workgroup of stream-k sends at most one tile of f32 partial sums, and has one flag.
    assert size >= PROCESSORS * (TILE[0] * TILE[1] * 4 + 4)
    clear = library.function("clear_workspace")
    pointers = (ctypes.byref(library.kernel), ctypes.byref(given))
    assert clear(*pointers, ctypes.c_uint64(WORKSPACE), ctypes.c_void_p(0)) == 0
    assert (library.recorded.cleared, library.recorded.bytes) == (WORKSPACE, size)


@pytest.mark.slow
def test_code_for_any_alignment_has_no_alignment_checks(tmp_path: Path):
    found, _ = exported("data-parallel", tmp_path, alignment=1)
    library = Library(found)
    given = library.arguments(m=M, n=N + 1, k=K + 1, **{t: at + 2 for t, at in ADDRESSES.items()})
    assert library.problem(given) is None
    assert found.recipe.instructions.startswith("mma.sync")


def test_rows_of_partial_reductions_need_no_alignment(tmp_path: Path):
    """Six tiles along n give rows of 24 bytes of partial results, which any kernel can store."""
    found, _ = exported("reductions", tmp_path)
    library = Library(found)
    addresses = {"A": 1 << 28, "B": 2 << 28, "D": 3 << 28, "total": 4 << 28, "pre": 5 << 28}
    assert library.problem(library.arguments(m=M, n=N, k=K, **addresses)) is None
