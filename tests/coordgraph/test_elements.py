"""Element types: records (`DType`) are consistent; a new type needs nothing but a record."""

from __future__ import annotations

import ast
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import codegen
import coordgraph as cg
from coordgraph import VerifyError
from coordgraph.elements import DTYPES, DType, Number, dtype
from coordgraph.interpreter.arguments import numpy_dtype
from passes import DataParallel, StreamK
from passes.lowering import LowerToHopper, LowerToTensorCores

ROOT = Path(__file__).resolve().parents[2]
EVERY = pytest.mark.parametrize("kind", DTYPES.values(), ids=str)


@EVERY
def test_every_name_of_a_type_means_it(kind: DType):
    assert dtype(kind.name) is kind
    assert dtype(kind.library) is kind
    found = numpy_dtype(kind.name)
    assert (found.name, found.itemsize) == (kind.library, kind.bytes)


@EVERY
def test_chunks_rows_and_instructions_have_the_same_bytes(kind: DType):
    """`DType.chunk` elements are 16 bytes, a row of a TMA box 128, an instruction's k 32 bytes."""
    assert (kind.chunk * kind.bytes, kind.row * kind.bytes) == (16, 128)
    assert {i.depth * kind.bytes for i in kind.instructions} <= {32}
    sums = dtype(kind.accumulator)
    assert sums.accumulator == sums.name
    assert sums.bits >= kind.bits
    assert sums.is_float == kind.is_float
    assert 0 <= kind.sum_roundoff <= kind.roundoff


@EVERY
def test_ranges_and_rounding_are_those_of_numpy(kind: DType):
    found = numpy_dtype(kind.name)
    if kind.is_small_float:
        assert kind.most == ml_dtypes.finfo(found).max
    if not kind.is_float:
        assert (kind.least, kind.largest) == (np.iinfo(found).min, np.iinfo(found).max)
        assert kind.roundoff == 0
        return
    one = found.type(1)
    assert one + found.type(2 * kind.roundoff) > one
    assert found.type(np.float64(1) + kind.roundoff * 0.99) == one


def test_what_gemm_takes():
    assert cg.Gemm("int8").out_dtype == "i32"
    assert cg.Gemm("uint8", out_dtype="float16").out_dtype == "f16"
    assert cg.Gemm("float8_e4m3fn").out_dtype == "f32"
    assert cg.Gemm("e5m2", out_dtype="bf16").out_dtype == "bf16"
    for wrong, why in (
        (
            {"dtype": "i32"},
            "i32 is only for offsets and sums; choose one of bf16, f16, f32, f64, i8, u8",
        ),
        (
            {"dtype": "i8", "out_dtype": "u8"},
            "cannot be stored as u8; choose one of bf16, f16, f32",
        ),
        (
            {"dtype": "e4m3", "out_dtype": "e4m3"},
            "cannot be stored as e4m3; .*, or return ep.quantize.value, to='e4m3'. from an",
        ),
        (
            {"dtype": "bf16", "out_dtype": "i32"},
            "summed in f32, which cannot be stored as i32; choose one of bf16, f16, f32, f64$",
        ),
        ({"dtype": "int16"}, "unknown dtype 'int16'; use bf16"),
        ({"dtype": 8}, "dtype = 8 is not the name of an element type"),
    ):
        with pytest.raises(VerifyError, match=why):
            cg.Gemm(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("accumulator", "i99", "DType i16: accumulator = 'i99' must be one of f32, f64, i32, the"),
        ("library", "int17", "library = 'int17' is no element type of NumPy or ml_dtypes"),
        ("number", "int17", "number = 'int17' must be one of Number.FLOAT, Number.SIGNED"),
        ("bits", 17, "DType i16: bits = 17 must be one of 8, 16, 32, 64"),
        ("instructions", ("mma.sync",), "is no tuple of MatrixInstruction"),
    ],
)
def test_wrong_fields_of_a_type_are_refused(field: str, value: object, why: str):
    right = {"name": "i16", "bits": 16, "number": Number.SIGNED, "library": "int16"}
    with pytest.raises(VerifyError, match=why):
        DType(**{"accumulator": "i32", **right, field: value})


@pytest.fixture
def i16(monkeypatch: pytest.MonkeyPatch) -> DType:
    """A new element type: its record is added to `DTYPES`, and nothing else is changed."""
    made = DType("i16", 16, Number.SIGNED, "int16", "i32")
    monkeypatch.setitem(DTYPES, made.name, made)
    return made


@pytest.mark.parametrize("target", ["interpreter", "cpu"])
def test_a_type_is_added_by_its_record(i16: DType, target: str):
    random = np.random.default_rng(0)
    a, b = (random.integers(i16.least, i16.largest, s, endpoint=True) for s in ((19, 33), (33, 21)))
    graph = StreamK(workgroups=3)(cg.Gemm("i16").graph((16, 16, 8)))
    found = codegen.compile(graph, target)(a.astype(np.int16), b.astype(np.int16))
    assert found.dtype == np.int32
    assert np.array_equal(found, (a @ b).astype(np.int32))


def test_a_type_without_instructions_is_refused_by_those_who_need_them(i16: DType):
    graph = DataParallel()(cg.Gemm("i16", transpose_b=True).graph((128, 128, 128)))
    for lowering, known in (
        (LowerToTensorCores(), "mma.sync kernels multiply bf16, f16, i8 and u8"),
        (LowerToTensorCores("sm_89"), "mma.sync kernels multiply bf16, f16, i8, u8, e4m3 and e5m2"),
        (LowerToHopper(), "wgmma kernels multiply bf16, f16, i8, u8, e4m3 and e5m2"),
    ):
        why = lowering.why_not(graph) or ""
        assert why.startswith(f"{known}, not i16")


NAMES = {
    *(name for kind in DTYPES.values() for name in (kind.name, kind.library)),
    *(i.kind for kind in DTYPES.values() for i in kind.instructions),
}
KNOWN = {
    # This file defines the records of element types.
    "coordgraph/elements.py",
    # This file has the names of floating-point types in LLVM and PTX.
    "codegen/emit/elements.py",
    # This file converts between floating-point types where LLVM or PTX has no single instruction.
    "codegen/targets/cpu/elements.py",
    "codegen/targets/cpu/machine.py",
    "codegen/targets/nvptx/sm_80/fragment_walker.py",
    "codegen/targets/nvptx/sm_80/instructions.py",
    # These files name the element type for which the cost model's constants are measured.
    "passes/choosing/kernel_shape.py",
    "codegen/call/calibrating.py",
}
INTEGERS = {"i8", "u8", "s8", "int8", "uint8"}


def literals(path: Path) -> set[str]:
    """String literals in a Python file that name an element type, other than argument defaults."""
    tree = ast.parse(path.read_text("utf-8"))
    defaults = {
        id(node)
        for x in ast.walk(tree)
        if isinstance(x, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in (*x.args.defaults, *(d for d in x.args.kw_defaults if d))
    }
    return {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in defaults
        and node.value in NAMES
    }


@pytest.mark.slow
def test_types_are_named_by_their_records():
    """Files of the library name element types only through their records (`DType`).

    i32 is excepted, because flags, tables and offsets have that type; so are files with examples.
    """
    found = {
        str(path.relative_to(ROOT)): names - {"i32", "int32"}
        for package in ("coordgraph", "passes", "codegen")
        for path in (ROOT / package).rglob("*.py")
        if (names := literals(path))
    }
    integers = {path for path, names in found.items() if names & INTEGERS}
    assert integers <= {"coordgraph/elements.py"}
    other = {path: names for path, names in found.items() if names and path not in KNOWN}
    assert set(other) <= {
        "codegen/cli/doctor.py",
        "codegen/cli/options.py",
        "coordgraph/gemm.py",
        "coordgraph/problem_checks.py",
        "passes/choosing/calibrate.py",
        "passes/choosing/counting.py",
        "passes/choosing/enumeration.py",
        "codegen/call/bench.py",
        # These files name the types in which epilogues compute: f32, f64, i32 and bool.
        "codegen/emit/elementwise.py",
        "coordgraph/epilogue/function.py",
        "coordgraph/epilogue/kinds.py",
        "coordgraph/epilogue/operation.py",
        "coordgraph/epilogue/operations/cast.py",
        "coordgraph/epilogue/operations/maximum.py",
        "coordgraph/epilogue/operations/minimum.py",
        "codegen/targets/nvptx/sm_80/row_reductions.py",
        "codegen/torch/scaled.py",
        "codegen/torch/token_losses.py",
        "passes/lowering/control.py",
        "passes/lowering/row_reductions.py",
    }, other
