"""Exported C functions launch a kernel exactly as the launcher in Python does."""

from __future__ import annotations

import ctypes
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import codegen
from codegen.call.views import TensorView
from codegen.export import Exported, export
from codegen.targets.nvptx.facts import Facts
from codegen.toolchain import find_ptxas
from coordgraph import CodegenError, Gemm
from coordgraph import epilogue as ep
from passes import DataParallel, Pass, SplitK, StreamK, TwoTileStreamK
from passes.lowering import LowerToHopper
from tests.codegen.export.compiled import Library, compile_c
from tests.codegen.nvptx.fake_driver import CLUSTERS, PROCESSORS, FakeDriver, install, matrix
from tests.support.indices import causal
from tests.support.sampling import chosen, quick_cases

pytestmark = pytest.mark.skipif(find_ptxas() is None, reason="ptxas is not installed")

TILE = (128, 128, 64)
M, N, K = 1000, 752, 1040
ADDRESSES = {"A": 0x10000000, "B": 0x20000000, "C": 0x30000000, "D": 0x40000000}
GAPS = {"A": 8, "B": 16, "C": 24, "D": 32}
"""Number of padding elements after each row of a tensor, for kernels with leading dimensions."""
WORKSPACE, STREAM = 0x50000000, 0x77


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


CLUSTER_DIMENSION = 4
"""CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, whose value has three numbers. Other attributes have
one."""
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
    assert len(attributes) == 3 or name != "three launch attributes"
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


@quick_cases(1)
@pytest.mark.parametrize(
    "name",
    chosen(
        ("reductions", "gated, batch, gaps"),
        [
            *("data-parallel", "batch", "gaps", "constant sizes", "int8", "epilogue"),
            *("reductions", "reductions, constant sizes", "gated", "gated, batch, gaps"),
            *("interleaved", "without D"),
        ],
    ),
)
def test_the_example_compiles(name: str, tmp_path: Path):
    found, _ = exported(name, tmp_path)
    compile_c("-std=c++17", "-c", found.files["example.cpp"], "-o", tmp_path / "example.o",
              compiler="c++")  # fmt: skip
    compile_c("-std=c++17", "-x", "c++", "-c", found.files["gemm.c"], "-o", tmp_path / "gemm.o",
              compiler="c++")  # fmt: skip


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        (
            "reductions",
            (
                "D = relu((A @ B)); total = sum(A @ B); pre = A @ B",
                "D and total and pre overlap no other matrix",
                "total has a column for each tile along n",
                "CUdeviceptr total; /* m x (n + 127) / 128, f32",
            ),
        ),
        (
            "gated, batch, gaps",
            (
                "D = silu((A @ B_gate)) * (A @ B_up)",
                "transpose(B) has the n columns of B_gate, then those of B_up.",
            ),
        ),
        ("interleaved", ("The columns of B belong to B_gate, B_up in turn.",)),
        ("without D", ("   top = max(A @ B)\n", "top overlaps no other matrix")),
    ],
)  # fmt: skip
def test_the_header_has_the_formulas_of_all_outputs(
    name: str, lines: tuple[str, ...], tmp_path: Path
):
    found, _ = exported(name, tmp_path)
    text = found.files["gemm.h"].read_text()
    for line in lines:
        assert line in text
    assert ("CUdeviceptr D;" in text) == (name != "without D")


def test_rows_of_partial_reductions_need_no_alignment(tmp_path: Path):
    """Six tiles along n give rows of 24 bytes of partial results, which any kernel can store."""
    found, _ = exported("reductions", tmp_path)
    library = Library(found)
    addresses = {"A": 1 << 28, "B": 2 << 28, "D": 3 << 28, "total": 4 << 28, "pre": 5 << 28}
    assert library.problem(library.arguments(m=M, n=N, k=K, **addresses)) is None


@pytest.mark.slow
def test_the_program_in_the_guide_compiles(tmp_path: Path):
    found, _ = exported("data-parallel", tmp_path)
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "deploy.md").read_text("utf-8")
    (block,) = re.findall(r"```c\n(.*?)```", page, re.DOTALL)
    source = found.files["gemm.h"].with_name("guide.c")
    source.write_text(
        '#include "gemm.h"\n'
        "void guide(CUdeviceptr a, CUdeviceptr b, CUdeviceptr d, CUdeviceptr workspace,\n"
        "           CUstream stream)\n"
        f"{{\nsize_t bytes;\n{block}\n(void)problem;\n}}\n"
    )
    compile_c("-std=c11", "-c", source, "-o", tmp_path / "guide.o")


def test_the_recipe_is_the_launch(tmp_path: Path):
    found, _ = exported("clusters", tmp_path, name="layer", reads_c=True)
    assert set(found.files) == {
        "layer.cubin", "layer.h", "layer.c", "example.cpp", "Makefile", "launch.json",
    }  # fmt: skip
    assert found.files["layer.cubin"].read_bytes().startswith(b"\x7fELF")
    recipe = json.loads(found.files["launch.json"].read_text())
    assert recipe["architecture"] == "sm_90a"
    assert Facts.from_json(recipe["launch"]) == found.recipe.facts
    assert "layer.cubin" in found.files["example.cpp"].read_text()


@quick_cases(1)
@pytest.mark.parametrize(
    ("kernel", "options", "text"),
    [
        (lambda: codegen.compile(DataParallel()(Gemm("f32").graph(tile=(32, 32, 32))), "cpu"), {},
         "cannot be exported; export a kernel that codegen.compile"),
        (lambda: codegen.compile(StreamK()(Gemm("bf16", grouped=True).graph(tile=TILE)),
                                 "sm_80"), {}, "grouped products cannot be exported"),
        (lambda: codegen.compile(DataParallel()(Gemm("bf16").graph(tile=TILE)), "sm_80"),
         {"name": "2x"}, "cannot start C identifiers"),
        (lambda: codegen.compile(DataParallel()(Gemm("bf16").graph(tile=TILE)), "sm_80"),
         {"alignment": 32}, "alignment = 32 is neither 16 nor 1"),
        (lambda: codegen.compile(DataParallel()(Gemm("bf16").graph(tile=TILE)), "sm_80",
                                 timeline=True), {}, "a timeline cannot be exported"),
    ],
)  # fmt: skip
def test_refusals(kernel: Any, options: dict[str, Any], text: str, tmp_path: Path):
    with pytest.raises(CodegenError, match=text):
        export(kernel(), tmp_path / "folder", **options)
    assert not (tmp_path / "folder").exists()
